// The distinct elements of a tensor.
#include <algorithm>
#include <numeric>
#include <vector>

#include "rows.h"

namespace precast {

namespace {

// NaN comes last, and differs from every other NaN.
template <class T>
bool comes_before(T one, T other) {
    return one < other || (other != other && one == one);
}

template <class T>
void find_unique(const strided& input, const strided* outputs, bool is_ordered) {
    const int64_t length = input.sizes[0], step = input.strides[0];
    const auto* const elements = static_cast<const T*>(input.data);
    auto* const values = static_cast<T*>(outputs[0].data);
    auto *const numbers = static_cast<int64_t*>(outputs[1].data), *const counts = static_cast<int64_t*>(outputs[2].data);
    std::vector<int64_t> order(static_cast<size_t>(length));
    std::iota(order.begin(), order.end(), int64_t(0));
    const auto value = [&](int64_t place) { return static_cast<wide<T>>(elements[place * step]); };
    if (is_ordered)
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return comes_before(value(a), value(b)); });
    int64_t found = 0;
    for (int64_t i = 0; i < length; ++i) {
        const int64_t place = order[static_cast<size_t>(i)];
        if (i == 0 || value(place) != value(order[static_cast<size_t>(i - 1)])) {
            values[found] = elements[place * step];
            counts[found++] = 0;
        }
        ++counts[found - 1];
        numbers[place] = found - 1;
    }
    *static_cast<int64_t*>(outputs[3].data) = found;
}

}  // namespace

// Input: one row. Outputs: its distinct elements, the index of each element among them, their counts, all with room for as many
// as the input has, and the number of distinct elements. Numbers: whether they are sorted; otherwise only neighbours are
// compared.
int32_t unique(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_type(inputs[0].dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        find_unique<T>(inputs[0], outputs, numbers[0] != 0);
        return PRECAST_OK;
    });
}

}  // namespace precast
