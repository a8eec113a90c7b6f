// Fourier transforms along any dimensions, of any length, by pocketfft.
#include <exception>
#include <vector>

#define POCKETFFT_NO_MULTITHREADING
#define POCKETFFT_CACHE_SIZE 16
#include "pocketfft_hdronly.h"
#include "rows.h"

namespace precast {

namespace {

enum transform { complex_to_complex, real_to_complex, complex_to_real };
enum normalization { none, by_root, by_count };

// A tensor in the form that pocketfft takes: complex pairs must be contiguous, and are copied if they are not.
template <class T>
struct operand {
    pocketfft::shape_t shape;
    pocketfft::stride_t strides;
    T* data;
    std::vector<T> own;

    operand(const strided& tensor, bool is_pairs, bool is_read) : data(static_cast<T*>(tensor.data)) {
        const int rank = tensor.rank - is_pairs;
        const bool is_together = !is_pairs || tensor.strides[rank] == 1;
        shape.assign(tensor.sizes, tensor.sizes + rank);
        strides.resize(shape.size());
        int64_t step = (is_pairs ? 2 : 1) * static_cast<int64_t>(sizeof(T));
        for (int dim = rank - 1; dim >= 0; --dim) {
            strides[dim] = is_together ? tensor.strides[dim] * static_cast<int64_t>(sizeof(T)) : step;
            step *= tensor.sizes[dim];
        }
        if (is_together) return;
        own.resize(static_cast<size_t>(step) / sizeof(T));
        data = own.data();
        if (is_read) each_pair(tensor, [&](T* theirs, T* ours) { *ours = *theirs; });
    }

    void write_back(const strided& tensor) {
        if (!own.empty()) each_pair(tensor, [&](T* theirs, T* ours) { *theirs = *ours; });
    }

private:
    template <class Move>
    void each_pair(const strided& tensor, Move move) {
        const rows lines{tensor, tensor.rank - 1};
        for (int64_t row = 0; row < lines.count(); ++row)
            for (int64_t part = 0; part < 2; ++part)
                move(lines.line<T>(row) + part * lines.step(), own.data() + 2 * row + part);
    }
};

template <class T>
void run(const strided& input, const strided& output, const int64_t* numbers, size_t dims) {
    const auto kind = static_cast<transform>(numbers[0]);
    const bool is_forward = numbers[1];
    operand<T> source(input, kind != real_to_complex, true), result(output, kind != complex_to_real, false);
    const auto& signal = kind == complex_to_real ? result.shape : source.shape;
    pocketfft::shape_t axes(dims);
    T count = 1;
    for (size_t each = 0; each < dims; ++each) {
        axes[each] = static_cast<size_t>(numbers[3 + each]);
        count *= static_cast<T>(signal[axes[each]]);
    }
    const T factor = numbers[2] == none ? T(1) : numbers[2] == by_root ? T(1) / std::sqrt(count) : T(1) / count;
    auto* pairs_in = reinterpret_cast<std::complex<T>*>(source.data);
    auto* pairs_out = reinterpret_cast<std::complex<T>*>(result.data);
    switch (kind) {
        case complex_to_complex:
            pocketfft::c2c(signal, source.strides, result.strides, axes, is_forward, pairs_in, pairs_out, factor);
            break;
        case real_to_complex:
            pocketfft::r2c(signal, source.strides, result.strides, axes, true, source.data, pairs_out, factor);
            break;
        case complex_to_real:
            pocketfft::c2r(signal, source.strides, result.strides, axes, false, pairs_in, result.data, factor);
            break;
    }
    result.write_back(output);
}

}  // namespace

// Input and output: of one type; complex numbers are pairs along a last dimension. Numbers: the kind of transform, whether it is
// forward, its normalization, then the dimensions, ended by a negative number.
int32_t fft(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    size_t dims = 0;
    while (numbers[3 + dims] >= 0) ++dims;
    try {
        if (inputs[0].is_single()) run<float>(inputs[0], outputs[0], numbers, dims);
        else run<double>(inputs[0], outputs[0], numbers, dims);
    } catch (const std::bad_alloc&) {
        return fail(PRECAST_OUT_OF_MEMORY, "no memory for a Fourier transform");
    } catch (const std::exception& problem) {
        return fail(PRECAST_FAILED, "a Fourier transform failed: %s", problem.what());
    }
    return PRECAST_OK;
}

}  // namespace precast
