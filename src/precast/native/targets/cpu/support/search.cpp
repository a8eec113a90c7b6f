// Positions of values in sorted lines. NaN counts as the largest.
#include <algorithm>

#include "context.h"
#include "rows.h"

namespace precast {

namespace {

// The number of elements of a line before `value`: all equal ones count as before it, or none.
template <class T, class Element>
int64_t rank_of(wide<T> value, int64_t length, bool is_after_equals, Element element) {
    int64_t low = 0, high = length;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const auto found = static_cast<wide<T>>(element(middle));
        if (is_after_equals ? !(found > value) : !(found >= value)) low = middle + 1;
        else high = middle;
    }
    return low;
}

template <class T>
void search_lines(const strided* inputs, const strided& output, bool is_after_equals, bool has_order) {
    const strided &sorted = inputs[0], &values = inputs[1];
    const rows lines{sorted, sorted.rank - 1}, orders{inputs[has_order ? 2 : 0], sorted.rank - 1};
    const rows asked{values, values.rank - 1}, told{output, output.rank - 1};
    const int64_t count = asked.count(), length = asked.length();
    const bool is_shared = sorted.rank == 1;
#pragma omp parallel for if (count * length > 4096)
    for (int64_t row = 0; row < count; ++row) {
        const T *line = lines.line<T>(is_shared ? 0 : row), *value = asked.line<T>(row);
        const int64_t* order = orders.line<int64_t>(is_shared ? 0 : row);
        // An invalid order is refused before; clamped, it cannot go out of bounds in any order of execution.
        const auto place_of = [&](int64_t i) { return has_order ? std::clamp(order[i * orders.step()], int64_t{0}, lines.length() - 1) : i; };
        const auto element = [&](int64_t i) { return line[place_of(i) * lines.step()]; };
        int64_t* place = told.line<int64_t>(row);
        for (int64_t i = 0; i < length; ++i)
            place[i * told.step()] = rank_of<T>(static_cast<wide<T>>(value[i * asked.step()]), lines.length(), is_after_equals, element);
    }
}

}  // namespace

// Inputs: sorted lines (one for all values, or one for each line of them), values, and optionally the order that
// sorts the lines. Output: positions. Numbers: whether a value comes after its equals; whether there is an order.
int32_t search(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_type(inputs[0].dtype, [&](auto tag) {
        search_lines<typename decltype(tag)::type>(inputs, outputs[0], numbers[0] != 0, numbers[1] != 0);
        return PRECAST_OK;
    });
}

}  // namespace precast
