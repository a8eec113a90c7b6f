// Channels-last images as rows of pixels.
#pragma once

#include <algorithm>
#include <vector>

#include "precast_host.h"

namespace precast {

inline bool is_channels_last(const strided& image) {
    int64_t expected = 1;
    for (int dim = image.rank; dim-- > 0;) {
        const int mine = dim == image.rank - 1 ? 1 : dim == 0 ? 0 : dim + 1;  // channels, then space, then batch
        if (image.sizes[mine] != 1 && image.strides[mine] != expected) return false;
        expected *= image.sizes[mine];
    }
    return true;
}

inline int64_t pixels_of(const strided& image) {
    int64_t count = image.sizes[0];
    for (int dim = 2; dim < image.rank; ++dim) count *= image.sizes[dim];
    return count;
}

// Operands of the epilogue of `image`, with all pixels in one dimension; false if their layout does not allow it.
inline bool as_pixel_rows(const strided& image, const strided* inputs, const epilogue& epilogue, std::vector<strided>& rows) {
    for (int32_t each = 0; each < epilogue.size; ++each) {
        const int32_t place = epilogue.steps[each].operand;
        if (place < 0) continue;
        strided row = inputs[place];
        bool is_of_channel = true;
        for (int dim = 0; dim < row.rank; ++dim) is_of_channel &= dim == 1 || row.sizes[dim] == 1 || row.strides[dim] == 0;
        if (!is_of_channel && !is_channels_last(row)) return false;
        const int64_t channels = image.sizes[1];
        const int64_t sizes[] = {1, channels, 1, pixels_of(image)}, strides[] = {0, row.strides[1], 0, is_of_channel ? 0 : channels};
        row.rank = 4;
        std::copy(sizes, sizes + 4, row.sizes);
        std::copy(strides, strides + 4, row.strides);
        rows.resize(std::max(rows.size(), static_cast<size_t>(place) + 1), row);
        rows[static_cast<size_t>(place)] = row;
    }
    return true;
}

}  // namespace precast
