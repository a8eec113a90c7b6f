// Positions of nonzero elements.
#include "rows.h"

namespace precast {

// Input: any. Outputs: the row-major positions of nonzero elements, with room for all elements; and their number.
int32_t nonzero(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    const strided& input = inputs[0];
    const rows lines{input, input.rank - 1};
    auto* places = static_cast<int64_t*>(outputs[0].data);
    return by_type(input.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const int64_t length = lines.length(), count = length ? lines.count() : 0, step = lines.step();
        int64_t found = 0;
        for (int64_t row = 0; row < count; ++row) {
            const T* line = lines.template line<T>(row);
            for (int64_t i = 0; i < length; ++i)
                if (static_cast<wide<T>>(line[i * step]) != wide<T>(0)) places[found++] = row * length + i;
        }
        *static_cast<int64_t*>(outputs[1].data) = found;
        return PRECAST_OK;
    });
}

}  // namespace precast
