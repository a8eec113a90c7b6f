// Cumulative sums, products, maxima and minima along a dimension.
#include <algorithm>
#include <cmath>

#include "context.h"
#include "rows.h"

namespace precast {

namespace {

enum kind { sum, product, highest, lowest, log_sum_exp };

// Sums and products of floats are carried in double, as in eager.
template <class T>
using carried = std::conditional_t<is_float<wide<T>>, double, wide<T>>;

template <kind kind, class Carried>
Carried combined(Carried total, Carried value) {
    if constexpr (kind == sum) return total + value;
    else if constexpr (kind == product) return total * value;
    else if constexpr (is_float<Carried>) {
        // log(e^a + e^b), scaled by the larger of both.
        const auto top = maximum(total, value), bottom = minimum(total, value);
        return std::isinf(top) || top != top ? top : top + std::log1p(std::exp(bottom - top));
    } else return total;
}

template <kind kind, class Carried>
constexpr Carried beginning() {
    if constexpr (kind == log_sum_exp && is_float<Carried>) return -infinity<Carried>;
    return Carried(kind == product ? 1 : 0);
}

// Scans `count` lines at a time, since each alone waits for its own last total; contiguous lines are vectorized.
template <kind kind, int64_t count, bool are_side_by_side, class T>
void scan_together(const rows& from, const rows& to, int64_t first) {
    const T* sources[count];
    T* targets[count];
    carried<T> totals[count];
    for (int64_t k = 0; k < count; ++k) {
        sources[k] = from.line<T>(first + k);
        targets[k] = to.line<T>(first + k);
        totals[k] = beginning<kind, carried<T>>();
    }
    const int64_t length = from.length(), read = from.step(), written = to.step();
    for (int64_t i = 0; i < length; ++i) {
        const T* source = sources[0] + i * read;
        T* target = targets[0] + i * written;
#pragma omp simd
        for (int64_t k = 0; k < count; ++k) {
            const T value = are_side_by_side ? source[k] : sources[k][i * read];
            totals[k] = combined<kind>(totals[k], static_cast<carried<T>>(value));
            (are_side_by_side ? target[k] : targets[k][i * written]) = cast<T>(totals[k]);
        }
    }
}

bool lie_side_by_side(const rows& lines, int64_t first, int64_t count) {
    for (int64_t k = 1; k < count; ++k)
        if (lines.start(first + k) != lines.start(first) + k) return false;
    return true;
}

template <kind kind, class T>
void scan_lines(const strided& input, const strided& output, int dim) {
    constexpr int64_t few = 4, many = 32;
    const rows from{input, dim}, to{output, dim};
    const int64_t count = from.count(), groups = (count + many - 1) / many;
#pragma omp parallel for if (count * from.length() > 32768)
    for (int64_t group = 0; group < groups; ++group) {
        int64_t row = group * many;
        const int64_t stop = std::min(count, row + many);
        if (stop - row == many && lie_side_by_side(from, row, many) && lie_side_by_side(to, row, many)) {
            scan_together<kind, many, true, T>(from, to, row);
            continue;
        }
        for (; row + few <= stop; row += few) scan_together<kind, few, false, T>(from, to, row);
        for (; row < stop; ++row) scan_together<kind, 1, false, T>(from, to, row);
    }
}

// NaN persists; of equal values, the last counts.
template <class T>
void scan_extremes(const strided& input, const strided* outputs, int dim, kind kind) {
    const rows from{input, dim}, values{outputs[0], dim}, places{outputs[1], dim};
    const int64_t length = from.length(), count = from.count();
#pragma omp parallel for if (count * length > 32768)
    for (int64_t row = 0; row < count; ++row) {
        const T* source = from.line<T>(row);
        T* value = values.line<T>(row);
        int64_t* place = places.line<int64_t>(row);
        wide<T> best{};
        int64_t where = 0;
        for (int64_t i = 0; i < length; ++i) {
            const auto next = static_cast<wide<T>>(source[i * from.step()]);
            const bool is_better = kind == highest ? next >= best : next <= best;
            if (i == 0 || next != next || (best == best && is_better)) best = next, where = i;
            value[i * values.step()] = T(best);
            place[i * places.step()] = where;
        }
    }
}

}  // namespace

// Input: any. Outputs: the cumulative values, and, for maxima and minima, their indices. Numbers: dimension, kind.
int32_t scan(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const int dim = static_cast<int>(numbers[0]);
    const auto kind = static_cast<precast::kind>(numbers[1]);
    return by_type(inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        switch (kind) {
            case sum: scan_lines<sum, T>(inputs[0], outputs[0], dim); break;
            case product: scan_lines<product, T>(inputs[0], outputs[0], dim); break;
            case log_sum_exp: scan_lines<log_sum_exp, T>(inputs[0], outputs[0], dim); break;
            default: scan_extremes<T>(inputs[0], outputs, dim, kind);
        }
        return PRECAST_OK;
    });
}

}  // namespace precast
