// Convolutions with 3×3 filters and their gradients, by Winograd's algorithm: from each 4×4 patch of an image, which overlaps its
// neighbours by 2, the 2×2 results, sums of 9 products each, are computed with 16 products instead of 36.
//
//     result = Aᵀ [(G filter Gᵀ) ⊙ (Bᵀ patch B)] A,   for all channels at once: ⊙ is 16 matrix products
//
// The transforms use only halves and sums, so rounding errors are about those of the direct sum. A non-finite value
// spreads over a patch, where a direct sum would not spread it: `is_finite` reports that, and the caller starts again.
#pragma once

#include <omp.h>

#include <algorithm>

#include "blocks.h"

namespace precast {

constexpr int64_t patch = 4, patch_area = patch * patch, filter_area = 9;

// A batch of images, channels innermost; strides in elements.
struct image_batch {
    float* data;
    int64_t batch, height, width, channels;
    int64_t batch_stride, row_stride, column_stride;
    float* at(int64_t n, int64_t row, int64_t column) const {
        return data + n * batch_stride + row * row_stride + column * column_stride;
    }
};

// Filters as matrices from summed channels (`depth`) to others (`width`), for every tap; strides in elements.
struct filter_bank {
    float* data;
    int64_t depth, width, depth_stride, width_stride;
    int64_t taps[filter_area];
};

namespace winograd {

constexpr int rows = 8;
constexpr int64_t columns = 2 * vector_lanes;

// Bᵀ p B
inline void transform_patch(const float_vector (&p)[patch_area], float_vector (&v)[patch_area]) {
    float_vector t[patch_area];
    for (int64_t x = 0; x < patch; ++x) {
        t[x] = p[x] - p[8 + x];
        t[4 + x] = p[4 + x] + p[8 + x];
        t[8 + x] = p[8 + x] - p[4 + x];
        t[12 + x] = p[4 + x] - p[12 + x];
    }
    for (int64_t y = 0; y < patch_area; y += patch) {
        v[y] = t[y] - t[y + 2];
        v[y + 1] = t[y + 1] + t[y + 2];
        v[y + 2] = t[y + 2] - t[y + 1];
        v[y + 3] = t[y + 1] - t[y + 3];
    }
}

// Aᵀ m A
inline void transform_products(const float_vector (&m)[patch_area], float_vector (&y)[4]) {
    float_vector t[8];
    for (int64_t x = 0; x < patch; ++x) {
        t[x] = m[x] + m[4 + x] + m[8 + x];
        t[4 + x] = m[4 + x] - m[8 + x] - m[12 + x];
    }
    for (int64_t row = 0; row < 2; ++row) {
        y[2 * row] = t[4 * row] + t[4 * row + 1] + t[4 * row + 2];
        y[2 * row + 1] = t[4 * row + 1] - t[4 * row + 2] - t[4 * row + 3];
    }
}

// A y Aᵀ
inline void transform_gradient(const float_vector (&y)[4], float_vector (&m)[patch_area]) {
    float_vector t[8];
    for (int64_t x = 0; x < 2; ++x) {
        t[x] = y[x];
        t[2 + x] = y[x] + y[2 + x];
        t[4 + x] = y[x] - y[2 + x];
        t[6 + x] = -y[2 + x];
    }
    for (int64_t row = 0; row < patch; ++row) {
        m[4 * row] = t[2 * row];
        m[4 * row + 1] = t[2 * row] + t[2 * row + 1];
        m[4 * row + 2] = t[2 * row] - t[2 * row + 1];
        m[4 * row + 3] = -t[2 * row + 1];
    }
}

// G w Gᵀ
inline void transform_filter(const float_vector (&w)[filter_area], float_vector (&u)[patch_area]) {
    float_vector t[12];
    for (int64_t x = 0; x < 3; ++x) {
        const float_vector ends = w[x] + w[6 + x];
        t[x] = w[x];
        t[3 + x] = 0.5f * (ends + w[3 + x]);
        t[6 + x] = 0.5f * (ends - w[3 + x]);
        t[9 + x] = w[6 + x];
    }
    for (int64_t row = 0; row < patch; ++row) {
        const float_vector ends = t[3 * row] + t[3 * row + 2];
        u[4 * row] = t[3 * row];
        u[4 * row + 1] = 0.5f * (ends + t[3 * row + 1]);
        u[4 * row + 2] = 0.5f * (ends - t[3 * row + 1]);
        u[4 * row + 3] = t[3 * row + 2];
    }
}

// Gᵀ u G
inline void transform_filter_gradient(const float_vector (&u)[patch_area], float_vector (&w)[filter_area]) {
    float_vector t[12];
    for (int64_t x = 0; x < patch; ++x) {
        t[x] = u[x] + 0.5f * (u[4 + x] + u[8 + x]);
        t[4 + x] = 0.5f * (u[4 + x] - u[8 + x]);
        t[8 + x] = 0.5f * (u[4 + x] + u[8 + x]) + u[12 + x];
    }
    for (int64_t row = 0; row < 3; ++row) {
        w[3 * row] = t[4 * row] + 0.5f * (t[4 * row + 1] + t[4 * row + 2]);
        w[3 * row + 1] = 0.5f * (t[4 * row + 1] - t[4 * row + 2]);
        w[3 * row + 2] = 0.5f * (t[4 * row + 1] + t[4 * row + 2]) + t[4 * row + 3];
    }
}

// 16 consecutive matrices in one block of memory. A line between them avoids collisions in the cache.
struct planes {
    float* data = nullptr;
    int64_t step = 0;
    static int64_t step_of(int64_t elements) { return rounded_up(elements, 16) + 16; }
    static int64_t bytes_of(int64_t elements) { return patch_area * step_of(elements) * static_cast<int64_t>(sizeof(float)); }
    planes(char* place, int64_t elements) : data(reinterpret_cast<float*>(place)), step(step_of(elements)) {}
    float* at(int64_t position, int64_t offset) const { return data + position * step + offset; }
    void store(int64_t offset, const float_vector (&values)[patch_area]) const {
        for (int64_t each = 0; each < patch_area; ++each) store_vector(at(each, offset), values[each]);
    }
    void load(int64_t offset, float_vector (&values)[patch_area]) const {
        for (int64_t each = 0; each < patch_area; ++each) values[each] = load_vector(at(each, offset));
    }
};

// The patches of all images in row-major order, two results apart.
struct patches {
    int64_t batch, down, across;
    explicit patches(const image_batch& results)
        : batch(results.batch), down((results.height + 1) / 2), across((results.width + 1) / 2) {}
    int64_t count() const { return batch * down * across; }
    struct place {
        int64_t n, row, column;  // of the first result
    };
    place at(int64_t number) const {
        const int64_t line = number / across;
        return {line / down, 2 * (line % down), 2 * (number % across)};
    }
};

// Pixels from (row, column) on, `side` in each direction; those outside are read at `outside`.
template <int64_t side>
void pixels_at(const image_batch& images, int64_t n, int64_t row, int64_t column, float* outside, float* (&found)[side * side]) {
    for (int64_t y = 0; y < side; ++y)
        for (int64_t x = 0; x < side; ++x) {
            const bool is_inside = row + y >= 0 && row + y < images.height && column + x >= 0 && column + x < images.width;
            found[y * side + x] = is_inside ? images.at(n, row + y, column + x) : outside;
        }
}

// Filters of one depth and `vector_lanes` widths, a vector for each tap.
inline void gather_filters(const filter_bank& filters, int64_t depth, int64_t width, float_vector (&found)[filter_area]) {
    const float* start = filters.data + depth * filters.depth_stride + width * filters.width_stride;
    float values[filter_area][vector_lanes];
    for (int64_t lane = 0; lane < vector_lanes; ++lane)
        for (int64_t tap = 0; tap < filter_area; ++tap) values[tap][lane] = start[lane * filters.width_stride + filters.taps[tap]];
    std::memcpy(found, values, sizeof values);
}
inline void scatter_filters(const filter_bank& filters, int64_t depth, int64_t width, const float_vector (&given)[filter_area]) {
    float* start = filters.data + depth * filters.depth_stride + width * filters.width_stride;
    float values[filter_area][vector_lanes];
    std::memcpy(values, given, sizeof values);
    for (int64_t lane = 0; lane < vector_lanes; ++lane)
        for (int64_t tap = 0; tap < filter_area; ++tap) start[lane * filters.width_stride + filters.taps[tap]] = values[tap][lane];
}

// The workspace of one convolution: the number of patches at a time, and memory for them.
struct work {
    int64_t depth, width, padded_width, count, block;
    work(int64_t depth, int64_t width, int64_t patches) : depth(depth), width(width), padded_width(rounded_up(width, columns)) {
        count = patches;
        // Both operands stay in a second-level cache, but filters are read for no less than a few rows.
        block = std::max<int64_t>(most_cached / (depth + padded_width), fewest);
        block = rounded_up((count + blocks() - 1) / blocks(), rows);
    }
    int64_t blocks() const { return (count + block - 1) / block; }
    int64_t first_of(int64_t number) const { return number * block; }
    int64_t end_of(int64_t number) const { return std::min(count, (number + 1) * block); }
    int64_t filter_elements() const { return depth * padded_width; }
    int64_t filter_bytes() const { return planes::bytes_of(filter_elements()); }
    int64_t source_bytes() const { return planes::bytes_of(block * depth); }
    int64_t result_bytes() const { return planes::bytes_of(block * padded_width); }
    // Stand-ins for pixels outside of images: zeros to read, and memory for unused writes.
    int64_t outside_bytes() const { return static_cast<int64_t>(sizeof(float)) * rounded_up(std::max(depth, padded_width), 16); }
    int64_t thread_bytes() const { return source_bytes() + result_bytes() + 2 * outside_bytes(); }
    int64_t gradient_bytes() const { return source_bytes() + result_bytes() + filter_bytes() + outside_bytes(); }

private:
    static constexpr int64_t most_cached = 12288, fewest = 96;
};

inline void transform_filters(const filter_bank& filters, const work& work, const planes& transformed) {
#pragma omp parallel for collapse(2) if (work.filter_elements() > 16384)
    for (int64_t width = 0; width < work.padded_width; width += vector_lanes)
        for (int64_t depth = 0; depth < work.depth; ++depth) {
            float_vector taps[filter_area] = {}, values[patch_area];
            if (width < work.width) gather_filters(filters, depth, width, taps);
            transform_filter(taps, values);
            transformed.store((width / columns * work.depth + depth) * columns + width % columns, values);
        }
}

inline void transform_sources(const image_batch& sources, const patches& all, int64_t number, int64_t above, int64_t before, float* zeros,
                              const planes& target, int64_t row) {
    const auto place = all.at(number);
    float* pixels[patch_area];
    pixels_at<patch>(sources, place.n, place.row - above, place.column - before, zeros, pixels);
    for (int64_t channel = 0; channel < sources.channels; channel += vector_lanes) {
        float_vector values[patch_area], transformed[patch_area];
        for (int64_t each = 0; each < patch_area; ++each) values[each] = load_vector(pixels[each] + channel);
        transform_patch(values, transformed);
        target.store(row * sources.channels + channel, transformed);
    }
}

// The threads that work on a block of patches: one alone, or all of them, each on a share.
struct team {
    int64_t member, size;
    // A barrier, after which all may read what one wrote.
    void meet() const {
        if (size > 1) {
#pragma omp barrier
        }
    }
};

// A convolution with transformed filters; `above` and `before` are the padding.
struct convolution {
    const image_batch &sources, &results;
    const planes& filters;
    int64_t above, before;
    const winograd::work& work;
    char* scratch;

    // One block, in the memory of `owner`. `finish(value, n, row, column, channel)` returns the value to store for results;
    // non-finite values are recorded in `not_finite`.
    template <class Finish>
    void run_block(int64_t number, const team& team, int64_t owner, const Finish& finish, float_vector& not_finite) const {
        char* own = scratch + owner * work.thread_bytes();
        const planes patches(own, work.block * work.depth), products(own + work.source_bytes(), work.block * work.padded_width);
        const winograd::patches all(results);
        const int64_t first = work.first_of(number), count = work.end_of(number) - first;
        float* zeros = outside_of_images();
        for (int64_t row = team.member; row < count; row += team.size)
            transform_sources(sources, all, first + row, above, before, zeros, patches, row);
        team.meet();
        const int64_t panels = work.padded_width / columns;
        for (int64_t part = team.member; part < patch_area * panels; part += team.size) {
            const int64_t position = part / panels, column = part % panels * columns;
            for (int64_t row = 0; row < count; row += rows)
                multiply_tile<rows, 2>({patches.at(position, row * work.depth), work.depth, 1}, filters.at(position, column * work.depth),
                                       columns, products.at(position, row * work.padded_width + column), work.padded_width, work.depth,
                                       false);
        }
        team.meet();
        for (int64_t row = team.member; row < count; row += team.size)
            finish_patch(all.at(first + row), products, row * work.padded_width, finish, not_finite);
        team.meet();
    }

    void prepare_thread() const { std::fill_n(outside_of_images(), work.outside_bytes() / static_cast<int64_t>(sizeof(float)), 0.0f); }

private:
    // This thread's zeros to read, followed by memory for unused writes.
    float* outside_of_images() const {
        return reinterpret_cast<float*>(scratch + (omp_get_thread_num() + 1) * work.thread_bytes() - 2 * work.outside_bytes());
    }

    template <class Finish>
    void finish_patch(const patches::place& place, const planes& products, int64_t offset, const Finish& finish,
                      float_vector& not_finite) const {
        float *unread = outside_of_images() + work.outside_bytes() / static_cast<int64_t>(sizeof(float)), *pixels[4];
        pixels_at<2>(results, place.n, place.row, place.column, unread, pixels);
        for (int64_t channel = 0; channel < results.channels; channel += vector_lanes) {
            float_vector values[patch_area], sums[4];
            products.load(offset + channel, values);
            transform_products(values, sums);
            for (int64_t each = 0; each < 4; ++each) {
                not_finite = multiply_add(sums[each], float_vector{}, not_finite);
                store_vector(pixels[each] + channel,
                             pixels[each] == unread ? sums[each]
                                                    : finish(sums[each], place.n, place.row + each / 2, place.column + each % 2, channel));
            }
        }
    }
};

// Each thread takes equally many blocks; the remaining ones are shared by all. Returns whether all results were finite.
template <class Finish>
bool convolve_patches(const convolution& convolution, const Finish& finish) {
    const auto& work = convolution.work;
    bool is_finite = true;
#pragma omp parallel reduction(&& : is_finite)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const int64_t alone = work.blocks() - work.blocks() % threads;
        convolution.prepare_thread();
        float_vector not_finite = {};
        for (int64_t number = thread; number < alone; number += threads) convolution.run_block(number, {0, 1}, thread, finish, not_finite);
        const team everybody{thread, threads};
        everybody.meet();
        for (int64_t number = alone; number < work.blocks(); ++number) convolution.run_block(number, everybody, 0, finish, not_finite);
        for (int64_t lane = 0; lane < vector_lanes; ++lane) is_finite = is_finite && not_finite[lane] == 0;
    }
    return is_finite;
}

inline void transform_gradients(const image_batch& gradients, const patches& all, int64_t number, float* zeros, const planes& target,
                                int64_t offset) {
    const auto place = all.at(number);
    float* pixels[4];
    pixels_at<2>(gradients, place.n, place.row, place.column, zeros, pixels);
    for (int64_t channel = 0; channel < gradients.channels; channel += vector_lanes) {
        float_vector values[4], transformed[patch_area];
        for (int64_t each = 0; each < 4; ++each) values[each] = load_vector(pixels[each] + channel);
        transform_gradient(values, transformed);
        target.store(offset + channel, transformed);
    }
}

// `rows` × `columns` of a product of a transposed matrix with another. Sums over many patches are accumulated hierarchically:
// a few products, then a block, then the blocks. So they round as little as direct sums, whose numbers are smaller.
inline void multiply_transposed(const float* a, int64_t a_step, const float* b, int64_t b_step, float* c, int64_t c_row, int64_t depth,
                                bool adds) {
    constexpr int64_t few = 16;
    float tile[rows * columns];
    multiply_tile<rows, 2>({a, 1, a_step}, b, b_step, tile, columns, std::min(few, depth), false);
    for (int64_t first = few; first < depth; first += few)
        multiply_tile<rows, 2>({a + first * a_step, 1, a_step}, b + first * b_step, b_step, tile, columns, std::min(few, depth - first), true);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; column += vector_lanes) {
            const float_vector sum = load_vector(tile + row * columns + column);
            float* place = c + row * c_row + column;
            store_vector(place, adds ? load_vector(place) + sum : sum);
        }
}

// The gradient of filters, whose depth is the sources' channels and whose width is that of the results' gradients.
// Returns whether all of it was finite.
inline bool filter_gradients(const image_batch& sources, const image_batch& gradients, const filter_bank& filters, int64_t above,
                             int64_t before, const work& work, char* scratch) {
    const patches all(gradients);
    const planes patches(scratch, work.block * work.depth), slopes(scratch + work.source_bytes(), work.block * work.padded_width);
    char* rest = scratch + work.source_bytes() + work.result_bytes();
    const planes products(rest, work.filter_elements());
    float* zeros = reinterpret_cast<float*>(rest + work.filter_bytes());
    std::fill(zeros, zeros + work.outside_bytes() / static_cast<int64_t>(sizeof(float)), 0.0f);
    bool is_finite = true;
#pragma omp parallel reduction(&& : is_finite)
    {
        for (int64_t number = 0; number < work.blocks(); ++number) {
            const int64_t first = work.first_of(number), count = work.end_of(number) - first;
#pragma omp for
            for (int64_t row = 0; row < count; ++row) {
                transform_sources(sources, all, first + row, above, before, zeros, patches, row);
                transform_gradients(gradients, all, first + row, zeros, slopes, row * work.padded_width);
            }
#pragma omp for
            for (int64_t position = 0; position < patch_area; ++position)
                for (int64_t column = 0; column < work.padded_width; column += columns)
                    for (int64_t row = 0; row < work.depth; row += rows)
                        multiply_transposed(patches.at(position, row), work.depth, slopes.at(position, column), work.padded_width,
                                            products.at(position, row * work.padded_width + column), work.padded_width, count,
                                            number > 0);
        }
        float_vector not_finite = {};
#pragma omp for collapse(2)
        for (int64_t width = 0; width < work.width; width += vector_lanes)
            for (int64_t depth = 0; depth < work.depth; ++depth) {
                float_vector values[patch_area], taps[filter_area];
                products.load(depth * work.padded_width + width, values);
                transform_filter_gradient(values, taps);
                for (const auto& tap : taps) not_finite = multiply_add(tap, float_vector{}, not_finite);
                scatter_filters(filters, depth, width, taps);
            }
        for (int64_t lane = 0; lane < vector_lanes; ++lane) is_finite = is_finite && not_finite[lane] == 0;
    }
    return is_finite;
}

}  // namespace winograd
}  // namespace precast
