// Convolutions and their gradients with plain loops, for types that oneDNN does not support.
#pragma once

#include <array>

#include "precast_host.h"
#include "precast_kernels.h"

namespace precast {

enum convolution_operand { source, weights, result, operand_count };

// One convolution: which of its operands is computed from the other two, and its geometry.
struct convolution_problem {
    convolution_operand wanted;
    const strided* operands[operand_count];
    const int64_t* numbers;
    int spatial() const { return operands[source]->rank - 2; }
    int64_t groups() const { return numbers[0]; }
    int64_t stride(int dim) const { return numbers[1 + dim]; }
    int64_t padding(int dim) const { return numbers[1 + spatial() + dim]; }
    int64_t dilation(int dim) const { return numbers[1 + 2 * spatial() + dim]; }
    bool is_empty() const {
        for (const auto* each : operands)
            for (int dim = 0; dim < each->rank; ++dim)
                if (each->sizes[dim] == 0) return true;
        return false;
    }
};

// Missing spatial dimensions have size one.
struct plain_loops {
    int64_t batch, groups, inputs, outputs;  // channels are those of one group
    std::array<int64_t, 3> in, kernel, out, stride, padding, dilation;
    std::array<std::array<int64_t, 5>, operand_count> strides;

    explicit plain_loops(const convolution_problem& problem) {
        const auto &x = *problem.operands[source], &w = *problem.operands[weights], &y = *problem.operands[result];
        groups = problem.groups();
        batch = x.sizes[0], inputs = w.sizes[1], outputs = w.sizes[0] / groups;
        const int missing = 3 - problem.spatial();
        for (int dim = 0; dim < 3; ++dim) {
            const bool is_there = dim >= missing;
            const int mine = dim - missing;
            in[dim] = is_there ? x.sizes[mine + 2] : 1;
            kernel[dim] = is_there ? w.sizes[mine + 2] : 1;
            out[dim] = is_there ? y.sizes[mine + 2] : 1;
            stride[dim] = is_there ? problem.stride(mine) : 1;
            padding[dim] = is_there ? problem.padding(mine) : 0;
            dilation[dim] = is_there ? problem.dilation(mine) : 1;
            for (auto which : {source, weights, result})
                strides[which][2 + dim] = is_there ? problem.operands[which]->strides[mine + 2] : 0;
        }
        for (auto which : {source, weights, result})
            for (int dim = 0; dim < 2; ++dim) strides[which][dim] = problem.operands[which]->strides[dim];
    }

    int64_t place(convolution_operand which, int64_t a, int64_t b, const std::array<int64_t, 3>& at) const {
        const auto& s = strides[which];
        return a * s[0] + b * s[1] + at[0] * s[2] + at[1] * s[3] + at[2] * s[4];
    }

    // The input position of tap `tap` for output position `at`; false if it is outside.
    bool input_position(const std::array<int64_t, 3>& at, const std::array<int64_t, 3>& tap, std::array<int64_t, 3>& found) const {
        for (int dim = 0; dim < 3; ++dim) {
            found[dim] = at[dim] * stride[dim] - padding[dim] + tap[dim] * dilation[dim];
            if (found[dim] < 0 || found[dim] >= in[dim]) return false;
        }
        return true;
    }

    // The output position whose tap `tap` is at input position `at`; false if there is none.
    bool output_position(const std::array<int64_t, 3>& at, const std::array<int64_t, 3>& tap, std::array<int64_t, 3>& found) const {
        for (int dim = 0; dim < 3; ++dim) {
            const int64_t start = at[dim] + padding[dim] - tap[dim] * dilation[dim];
            if (start < 0 || start % stride[dim] != 0) return false;
            found[dim] = start / stride[dim];
            if (found[dim] >= out[dim]) return false;
        }
        return true;
    }
};

template <class Body>
void each_position(const std::array<int64_t, 3>& sizes, Body body) {
    std::array<int64_t, 3> at;
    for (at[0] = 0; at[0] < sizes[0]; ++at[0])
        for (at[1] = 0; at[1] < sizes[1]; ++at[1])
            for (at[2] = 0; at[2] < sizes[2]; ++at[2]) body(at);
}

template <class T, class Sum>
void convolve(const convolution_problem& problem) {
    const plain_loops loops(problem);
    const auto pointer = [&](convolution_operand which) { return static_cast<T*>(problem.operands[which]->data); };
    T *x = pointer(source), *w = pointer(weights), *y = pointer(result);
    const int64_t groups = loops.groups, inputs = loops.inputs, outputs = loops.outputs;
    if (problem.wanted == result) {
#pragma omp parallel for collapse(2)
        for (int64_t n = 0; n < loops.batch; ++n)
            for (int64_t o = 0; o < groups * outputs; ++o) each_position(loops.out, [&](const auto& at) {
                Sum sum(0);
                std::array<int64_t, 3> from;
                for (int64_t i = 0; i < inputs; ++i) each_position(loops.kernel, [&](const auto& tap) {
                    if (!loops.input_position(at, tap, from)) return;
                    sum += cast<Sum>(x[loops.place(source, n, o / outputs * inputs + i, from)]) *
                           cast<Sum>(w[loops.place(weights, o, i, tap)]);
                });
                y[loops.place(result, n, o, at)] = cast<T>(sum);
            });
    } else if (problem.wanted == source) {
#pragma omp parallel for collapse(2)
        for (int64_t n = 0; n < loops.batch; ++n)
            for (int64_t i = 0; i < groups * inputs; ++i) each_position(loops.in, [&](const auto& at) {
                Sum sum(0);
                std::array<int64_t, 3> to;
                for (int64_t o = i / inputs * outputs; o < (i / inputs + 1) * outputs; ++o)
                    each_position(loops.kernel, [&](const auto& tap) {
                        if (!loops.output_position(at, tap, to)) return;
                        sum += cast<Sum>(y[loops.place(result, n, o, to)]) * cast<Sum>(w[loops.place(weights, o, i % inputs, tap)]);
                    });
                x[loops.place(source, n, i, at)] = cast<T>(sum);
            });
    } else {
#pragma omp parallel for collapse(2)
        for (int64_t o = 0; o < groups * outputs; ++o)
            for (int64_t i = 0; i < inputs; ++i) each_position(loops.kernel, [&](const auto& tap) {
                Sum sum(0);
                std::array<int64_t, 3> from;
                for (int64_t n = 0; n < loops.batch; ++n) each_position(loops.out, [&](const auto& at) {
                    if (!loops.input_position(at, tap, from)) return;
                    sum += cast<Sum>(x[loops.place(source, n, o / outputs * inputs + i, from)]) *
                           cast<Sum>(y[loops.place(result, n, o, at)]);
                });
                w[loops.place(weights, o, i, tap)] = cast<T>(sum);
            });
    }
}

inline int32_t convolve_any(const convolution_problem& problem) {
    const auto dtype = problem.operands[source]->dtype;
    switch (dtype.code * 256 + dtype.bits) {
        case 2 * 256 + 64: return convolve<double, double>(problem), PRECAST_OK;
        case 2 * 256 + 32: return convolve<float, float>(problem), PRECAST_OK;
        case 2 * 256 + 16: return convolve<float16, float>(problem), PRECAST_OK;
        case 4 * 256 + 16: return convolve<bfloat16, float>(problem), PRECAST_OK;
        case 64: return convolve<int64_t, int64_t>(problem), PRECAST_OK;
        case 32: return convolve<int32_t, int32_t>(problem), PRECAST_OK;
        case 16: return convolve<int16_t, int16_t>(problem), PRECAST_OK;
        case 8: return convolve<int8_t, int8_t>(problem), PRECAST_OK;
        case 256 + 8: return convolve<uint8_t, uint8_t>(problem), PRECAST_OK;
    }
    return fail(PRECAST_FAILED, "no convolution for dtype code %d with %d bits", dtype.code, dtype.bits);
}

}  // namespace precast
