// Sorting along a dimension, and the largest or smallest few. NaN counts as the largest; equals keep their order.
#include <algorithm>

#include "context.h"
#include "rows.h"

namespace precast {

namespace {

template <class T>
struct ranked {
    wide<T> value;
    int64_t place;
};

template <class T>
bool is_before(const ranked<T>& a, const ranked<T>& b, bool is_descending) {
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool is_less = a.value < b.value || (!a_is_nan && b_is_nan);
    const bool is_more = a.value > b.value || (a_is_nan && !b_is_nan);
    if (is_less != is_more) return is_descending ? is_more : is_less;
    return a.place < b.place;
}

// Sorts the first `kept` of each line; what comes out is one line of values and one of their places.
template <class T>
void sort_lines(const strided& input, const strided* outputs, int dim, bool is_descending) {
    const rows from{input, dim}, values{outputs[0], dim}, places{outputs[1], dim};
    const int64_t length = from.length(), kept = values.length(), count = from.count();
#pragma omp parallel if (count * length > 16384)
    {
        std::vector<ranked<T>> line(static_cast<size_t>(length));
#pragma omp for
        for (int64_t row = 0; row < count; ++row) {
            const T* source = from.line<T>(row);
            for (int64_t i = 0; i < length; ++i) line[static_cast<size_t>(i)] = {static_cast<wide<T>>(source[i * from.step()]), i};
            const auto order = [is_descending](const auto& a, const auto& b) { return is_before<T>(a, b, is_descending); };
            if (kept == length) std::sort(line.begin(), line.end(), order);
            else std::partial_sort(line.begin(), line.begin() + kept, line.end(), order);
            T* value = values.line<T>(row);
            int64_t* place = places.line<int64_t>(row);
            for (int64_t i = 0; i < kept; ++i) {
                value[i * values.step()] = T(line[static_cast<size_t>(i)].value);
                place[i * places.step()] = line[static_cast<size_t>(i)].place;
            }
        }
    }
}

}  // namespace

// Input: any. Outputs: values, places; shorter than the input along the dimension for the first few. Numbers: dimension,
// whether the largest come first.
int32_t sort(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_type(inputs[0].dtype, [&](auto tag) {
        sort_lines<typename decltype(tag)::type>(inputs[0], outputs, static_cast<int>(numbers[0]), numbers[1] != 0);
        return PRECAST_OK;
    });
}

}  // namespace precast
