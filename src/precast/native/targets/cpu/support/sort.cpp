// Sorting along a dimension, and the largest or smallest few. NaN counts as the largest; the sort is stable.
#include <algorithm>
#include <array>
#include <utility>

#include "context.h"
#include "rows.h"

namespace precast {

namespace {

// An element's rank among all values of its type, then its index: one integer if both fit.
using short_entry = uint64_t;
struct long_entry {
    uint64_t rank;
    int64_t place;
    bool operator<(const long_entry& other) const { return rank < other.rank || (rank == other.rank && place < other.place); }
};

inline int64_t place_of(short_entry entry) { return static_cast<int64_t>(entry & 0xffffffffu); }
inline int64_t place_of(long_entry entry) { return entry.place; }

// Increases with the value: NaN highest, both zeros equal.
template <class T>
auto rank_of(T element) {
    if constexpr (is_float<wide<T>>) {
        using bits = typename format<wide<T>>::bits;
        constexpr bits sign = bits(1) << (sizeof(bits) * 8 - 1);
        const auto value = static_cast<wide<T>>(element);
        const bits raw = to_bits(value);
        const bits rank = raw & sign ? ~raw : raw | sign;
        return value != value ? ~bits(0) : value == 0 ? sign : rank;
    } else if constexpr (sizeof(T) == 8) return static_cast<uint64_t>(element) ^ (uint64_t(1) << 63);
    else return static_cast<uint32_t>(static_cast<int32_t>(element)) ^ (1u << 31);
}

// The entries of a line, in the order of its elements; in descending order, ranks are counted from above.
template <class Entry, class T>
inline void write_entries(const T* source, int64_t step, int64_t length, bool is_descending, Entry* entries) {
    using rank = decltype(rank_of(T()));
    const rank turn = is_descending ? ~rank(0) : rank(0);
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) {
        const rank ordered = rank_of(source[i * step]) ^ turn;
        if constexpr (std::is_same_v<Entry, short_entry>) entries[i] = uint64_t(ordered) << 32 | static_cast<uint64_t>(i);
        else entries[i] = {ordered, i};
    }
}

// The number of entries from which counting is faster than comparing.
constexpr size_t many = 256;
constexpr int digit_bits = 8, digits = 4, values_of_digit = 1 << digit_bits;

// A radix sort by the digits of the rank, the lowest first, which is stable.
void sort_by_digits(std::vector<short_entry>& line, std::vector<short_entry>& other) {
    std::array<std::array<uint32_t, values_of_digit>, digits> counts{};
    const auto digit_of = [](short_entry entry, int number) { return entry >> (32 + number * digit_bits) & (values_of_digit - 1); };
    for (const short_entry entry : line)
        for (int number = 0; number < digits; ++number) ++counts[number][digit_of(entry, number)];
    other.resize(line.size());
    for (int number = 0; number < digits; ++number) {
        if (counts[number][digit_of(line[0], number)] == line.size()) continue;
        uint32_t before = 0;
        for (uint32_t& count : counts[number]) before += std::exchange(count, before);
        for (const short_entry entry : line) other[counts[number][digit_of(entry, number)]++] = entry;
        line.swap(other);
    }
}

template <class Entry>
void sort_first(std::vector<Entry>& line, std::vector<Entry>& other, int64_t kept) {
    const auto end = line.begin() + kept;
    // A heap of few entries rejects most others at once; with more, it is searched too often.
    if (kept <= static_cast<int64_t>(line.size() / 64)) return std::partial_sort(line.begin(), end, line.end());
    if (end != line.end()) std::nth_element(line.begin(), end, line.end());
    if constexpr (std::is_same_v<Entry, short_entry>)
        if (end == line.end() && line.size() >= many) return sort_by_digits(line, other);
    std::sort(line.begin(), end);
}

// Sorts the first `kept` of each line; writes one line of values and one of their indices.
template <class T, class Entry>
void sort_lines(const strided& input, const strided* outputs, int dim, bool is_descending) {
    const rows from{input, dim}, values{outputs[0], dim}, places{outputs[1], dim};
    const int64_t length = from.length(), kept = values.length(), count = from.count();
#pragma omp parallel if (count * length > 16384)
    {
        std::vector<Entry> line(static_cast<size_t>(length)), other;
#pragma omp for
        for (int64_t row = 0; row < count; ++row) {
            const T* source = from.line<T>(row);
            // A separate case, so that the usual one is vectorized.
            if (from.step() == 1) write_entries(source, 1, length, is_descending, line.data());
            else write_entries(source, from.step(), length, is_descending, line.data());
            sort_first(line, other, kept);
            T* value = values.line<T>(row);
            int64_t* place = places.line<int64_t>(row);
            for (int64_t i = 0; i < kept; ++i) {
                const int64_t found = place_of(line[static_cast<size_t>(i)]);
                value[i * values.step()] = source[found * from.step()];
                place[i * places.step()] = found;
            }
        }
    }
}

}  // namespace

// Input: any. Outputs: values, indices; shorter than the input along the dimension for the first few. Numbers: dimension,
// whether the order is descending.
int32_t sort(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const int dim = static_cast<int>(numbers[0]);
    const bool is_short = rows{inputs[0], dim}.length() <= int64_t(1) << 32;
    return by_type(inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (sizeof(T) <= 4) {
            if (is_short) return sort_lines<T, short_entry>(inputs[0], outputs, dim, numbers[1] != 0), PRECAST_OK;
        }
        return sort_lines<T, long_entry>(inputs[0], outputs, dim, numbers[1] != 0), PRECAST_OK;
    });
}

}  // namespace precast
