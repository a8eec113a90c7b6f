// Running sums, products, maxima and minima along a dimension.
#include "context.h"
#include "rows.h"

namespace precast {

namespace {

enum kind { sum, product, highest, lowest, log_sum_exp };

// Sums and products of floats are carried in double, as eager does.
template <class T>
using carried = std::conditional_t<is_float<wide<T>>, double, wide<T>>;

template <class T>
carried<T> combined(kind kind, carried<T> total, carried<T> value) {
    switch (kind) {
        case sum: return total + value;
        case product: return total * value;
        default: break;
    }
    if constexpr (is_float<carried<T>>) {
        // log(e^a + e^b), by the larger of both.
        const auto top = maximum(total, value), bottom = minimum(total, value);
        return std::isinf(top) || top != top ? top : top + std::log1p(std::exp(bottom - top));
    } else return total;
}

template <class T>
void scan_lines(const strided& input, const strided& output, int dim, kind kind) {
    const rows from{input, dim}, to{output, dim};
    const int64_t length = from.length(), count = from.count();
#pragma omp parallel for if (count * length > 32768)
    for (int64_t row = 0; row < count; ++row) {
        const T* source = from.line<T>(row);
        T* target = to.line<T>(row);
        carried<T> total = kind == product ? carried<T>(1) : kind == sum ? carried<T>(0) : carried<T>(-infinity<double>);
        for (int64_t i = 0; i < length; ++i) {
            total = combined<T>(kind, total, static_cast<carried<T>>(source[i * from.step()]));
            target[i * to.step()] = cast<T>(total);
        }
    }
}

// NaN stays once it is met; of equals, the last counts.
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

// Input: any. Outputs: the running values, and, for maxima and minima, where they were met. Numbers: dimension, kind.
int32_t scan(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const int dim = static_cast<int>(numbers[0]);
    const auto kind = static_cast<precast::kind>(numbers[1]);
    return by_type(inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (kind == highest || kind == lowest) scan_extremes<T>(inputs[0], outputs, dim, kind);
        else scan_lines<T>(inputs[0], outputs[0], dim, kind);
        return PRECAST_OK;
    });
}

}  // namespace precast
