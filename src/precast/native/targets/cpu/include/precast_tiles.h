// Transposes squares of elements in registers.
#pragma once

#include <cstdint>
#include <cstring>

namespace precast {

template <int size>
struct integer;
template <>
struct integer<1> { typedef int8_t type; };
template <>
struct integer<2> { typedef int16_t type; };
template <>
struct integer<4> { typedef int32_t type; };
template <>
struct integer<8> { typedef int64_t type; };

#if defined(__AVX512F__)
constexpr int64_t register_bytes = 64, most_lanes = 16;
#else
constexpr int64_t register_bytes = 32, most_lanes = 8;
#endif

// The side of a square: as many elements as a register holds, limited by the number of registers.
template <class T>
constexpr int64_t square_lanes = register_bytes / int64_t(sizeof(T)) < most_lanes ? register_bytes / int64_t(sizeof(T)) : most_lanes;

// Rounds of interleaving two lines.
template <int64_t lanes, class line>
inline void transpose(line (&lines)[lanes]) {
    typedef typename integer<sizeof(line) / lanes>::type number;
    typedef number choice __attribute__((vector_size(sizeof(line))));
    choice low, high;
    for (int64_t each = 0; each < lanes; ++each) {
        low[each] = static_cast<number>(each / 2 + each % 2 * lanes);
        high[each] = static_cast<number>(low[each] + lanes / 2);
    }
    for (int64_t round = 1; round < lanes; round *= 2) {
        line next[lanes];
        for (int64_t each = 0; each < lanes / 2; ++each) {
#if defined(__clang__)
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const auto &even = lines[each], &odd = lines[each + lanes / 2];
                next[2 * each][lane] = lane % 2 ? odd[lane / 2] : even[lane / 2];
                next[2 * each + 1][lane] = lane % 2 ? odd[(lane + lanes) / 2] : even[(lane + lanes) / 2];
            }
#else
            next[2 * each] = __builtin_shuffle(lines[each], lines[each + lanes / 2], low);
            next[2 * each + 1] = __builtin_shuffle(lines[each], lines[each + lanes / 2], high);
#endif
        }
        for (int64_t each = 0; each < lanes; ++each) lines[each] = next[each];
    }
}

// to[row * to_step + column] = from[column * step + row]: columns of `from` and rows of `to` are contiguous.
template <class T>
inline void turn(const T* from, int64_t step, int64_t rows, int64_t columns, T* to, int64_t to_step) {
    constexpr int64_t lanes = square_lanes<T>;
    typedef typename integer<sizeof(T)>::type line __attribute__((vector_size(lanes * sizeof(T))));
    const int64_t square_rows = rows / lanes * lanes, square_columns = columns / lanes * lanes;
    for (int64_t column = 0; column < square_columns; column += lanes)
        for (int64_t row = 0; row < square_rows; row += lanes) {
            line lines[lanes];
            for (int64_t each = 0; each < lanes; ++each) std::memcpy(&lines[each], from + (column + each) * step + row, sizeof(line));
            transpose<lanes>(lines);
            for (int64_t each = 0; each < lanes; ++each) std::memcpy(to + (row + each) * to_step + column, &lines[each], sizeof(line));
        }
    for (int64_t column = 0; column < columns; ++column)
        for (int64_t row = column < square_columns ? square_rows : 0; row < rows; ++row) to[row * to_step + column] = from[column * step + row];
}

}  // namespace precast
