// LAPACK and BLAS, from a library that is located when the first routine runs, and matrices in column-major order.
#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "precast_host.h"

namespace precast {

using lapack_int = int32_t;

// The address of a function by its name without underscores, e.g. "dpotrf"; null, with the reason recorded, if there is none.
void* find_lapack(const char* name);

// A Fortran function: all arguments are passed by address, and the lengths of texts come last.
template <class T>
class lapack {
public:
    explicit lapack(const char* name) {
        const std::string whole = (std::is_same_v<T, float> ? "s" : "d") + std::string(name);
        address = find_lapack(whole.c_str());
    }
    bool is_missing() const { return address == nullptr; }

    template <class... Arguments>
    void operator()(Arguments... arguments) const {
        using function = void(decltype(passed(arguments))..., size_t, size_t, size_t, size_t);
        reinterpret_cast<function*>(address)(passed(arguments)..., 1, 1, 1, 1);
    }

private:
    void* address;

    static const lapack_int* passed(const lapack_int& number) { return &number; }
    static const char* passed(const char& letter) { return &letter; }
    static const T* passed(const T& number) { return &number; }
    static T* passed(T*& elements) { return elements; }
    static lapack_int* passed(lapack_int*& numbers) { return numbers; }
};

// The elements of a batch: a tensor's dimensions before its last `own` ones. Other operands are broadcast to it.
struct places {
    const strided& like;
    int own;

    int64_t count() const {
        int64_t total = 1;
        for (int dim = 0; dim < like.rank - own; ++dim) total *= like.sizes[dim];
        return total;
    }
    template <class T>
    T* at(int64_t number, const strided& tensor, int dims) const {
        int64_t offset = 0;
        for (int dim = like.rank - own - 1, other = tensor.rank - dims - 1; dim >= 0 && other >= 0; --dim, --other) {
            if (tensor.sizes[other] != 1) offset += number % like.sizes[dim] * tensor.strides[other];
            number /= like.sizes[dim];
        }
        return static_cast<T*>(tensor.data) + offset;
    }
};

// The last two sizes of a tensor, and their strides.
struct layout {
    int64_t rows, columns, row_step, column_step;

    explicit layout(const strided& tensor)
        : rows(tensor.sizes[tensor.rank - 2]), columns(tensor.sizes[tensor.rank - 1]),
          row_step(tensor.strides[tensor.rank - 2]), column_step(tensor.strides[tensor.rank - 1]) {}
    layout transposed() const {
        layout other = *this;
        std::swap(other.rows, other.columns);
        std::swap(other.row_step, other.column_step);
        return other;
    }
};

// One column-major matrix.
template <class T>
struct matrix {
    int64_t rows, columns;
    std::vector<T> elements;

    matrix(int64_t rows, int64_t columns)
        : rows(rows), columns(columns), elements(static_cast<size_t>(std::max<int64_t>(rows * columns, 1))) {}
    matrix(const T* source, const layout& from) : matrix(from.rows, from.columns) { read(source, from); }

    T* data() { return elements.data(); }
    T& operator()(int64_t row, int64_t column) { return elements[static_cast<size_t>(column * rows + row)]; }
    // LAPACK's leading dimension.
    lapack_int step() const { return static_cast<lapack_int>(std::max<int64_t>(rows, 1)); }

    // Copies the part that both have.
    void read(const T* source, const layout& from) {
        for (int64_t column = 0; column < std::min(columns, from.columns); ++column)
            for (int64_t row = 0; row < std::min(rows, from.rows); ++row)
                (*this)(row, column) = source[row * from.row_step + column * from.column_step];
    }
    void write(T* target, const layout& to) {
        for (int64_t column = 0; column < std::min(columns, to.columns); ++column)
            for (int64_t row = 0; row < std::min(rows, to.rows); ++row)
                target[row * to.row_step + column * to.column_step] = (*this)(row, column);
    }
};

template <class T>
inline std::vector<T> read_line(const T* source, const strided& tensor) {
    std::vector<T> line(static_cast<size_t>(tensor.sizes[tensor.rank - 1]));
    for (size_t i = 0; i < line.size(); ++i) line[i] = source[static_cast<int64_t>(i) * tensor.strides[tensor.rank - 1]];
    line.reserve(1);
    return line;
}

template <class T, class Line>
inline void write_line(const Line& line, T* target, const strided& tensor) {
    for (int64_t i = 0; i < tensor.sizes[tensor.rank - 1]; ++i)
        target[i * tensor.strides[tensor.rank - 1]] = static_cast<T>(line[static_cast<size_t>(i)]);
}

// Calls a LAPACK function with the workspace size that it requests in a first call.
template <class T, class Call>
inline void with_workspace(Call call) {
    T wanted = 0;
    call(&wanted, lapack_int(-1));
    // In single precision, large sizes are rounded, possibly down.
    const auto size = static_cast<int64_t>(static_cast<double>(wanted) * (1 + 1e-6)) + 1;
    std::vector<T> work(static_cast<size_t>(std::min<int64_t>(size, INT_MAX)));
    call(work.data(), static_cast<lapack_int>(work.size()));
}

inline bool is_too_large(const strided* tensors, size_t count) {
    for (size_t each = 0; each < count; ++each)
        for (int dim = std::max(tensors[each].rank - 2, 0); dim < tensors[each].rank; ++dim)
            if (tensors[each].sizes[dim] > INT_MAX) return true;
    return false;
}

// Calls `body` for each element of a batch: large matrices one by one, since the library has threads of its own for them.
template <class Body>
int32_t for_each_place(const places& all, Body body) {
    const int64_t count = all.count(), size = all.own ? all.like.sizes[all.like.rank - 1] : 1;
    std::atomic<bool> lacks_memory{false};
#pragma omp parallel for schedule(dynamic) if (count > 1 && size <= 128)
    for (int64_t number = 0; number < count; ++number) {
        try {
            body(number);
        } catch (const std::bad_alloc&) {
            lacks_memory = true;
        }
    }
    return lacks_memory ? fail(PRECAST_OUT_OF_MEMORY, "no memory for linear algebra") : PRECAST_OK;
}

// Calls `body` with the element type.
template <class Body>
int32_t by_precision(const strided* inputs, size_t input_count, Body body) {
    if (is_too_large(inputs, input_count)) return fail(PRECAST_FAILED, "LAPACK counts rows and columns with 32 bits");
    return inputs[0].is_single() ? body(float()) : body(double());
}

}  // namespace precast
