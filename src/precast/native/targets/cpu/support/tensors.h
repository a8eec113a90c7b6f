// Shared by calls and state: tensors of the C interface, checked against the program's declarations, and copied.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "precast_host.h"

namespace precast {

constexpr int64_t memory_alignment = 64, huge_page = 2 << 20;
// More than any machine has, and small enough that a few of them can be added.
constexpr int64_t most_bytes = int64_t{1} << 56;

struct free_memory {
    void operator()(char* memory) const { std::free(memory); }
};
using memory = std::unique_ptr<char, free_memory>;

// At least one byte, aligned for vectors; null if there is no memory, or too much is requested. What spans several huge pages uses
// them: large operands are read in strides that would miss the TLB with small pages.
inline memory allocate(int64_t size) {
    if (size < 0 || size > most_bytes) return {};
    const bool is_huge = size >= 2 * huge_page;
    const int64_t alignment = is_huge ? huge_page : memory_alignment, rounded = (size + alignment) / alignment * alignment;
    memory made(static_cast<char*>(std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded))));
    if (made && is_huge) madvise(made.get(), static_cast<size_t>(rounded), MADV_HUGEPAGE);
    return made;
}

inline bool is_same(precast_dtype a, precast_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

inline void* start_of(const precast_tensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

inline bool is_empty(int32_t rank, const int64_t* shape) {
    for (int32_t dim = 0; dim < rank; ++dim)
        if (shape[dim] == 0) return true;
    return false;
}

// The number of elements from the first to the last, for a layout that `is_possible`.
inline int64_t extent_of(int32_t rank, const int64_t* shape, const int64_t* strides) {
    if (is_empty(rank, shape)) return 0;
    int64_t length = 1;
    for (int32_t dim = 0; dim < rank; ++dim) length += (shape[dim] - 1) * strides[dim];
    return length;
}

// Whether a tensor of these sizes and strides fits memory, and its elements can be counted.
inline bool is_possible(int32_t rank, const int64_t* shape, const int64_t* strides, int64_t item_size) {
    int64_t count = item_size, bytes = item_size, step = 0;
    for (int32_t dim = 0; dim < rank; ++dim) {
        if (shape[dim] == 0) return true;
        if (shape[dim] < 0 || strides[dim] < 0 || count > most_bytes / shape[dim] ||
            __builtin_mul_overflow(shape[dim] - 1, strides[dim], &step) || step > (most_bytes - bytes) / item_size)
            return is_empty(rank - dim, shape + dim);
        count *= shape[dim];
        bytes += step * item_size;
    }
    return true;
}

// `at` describes the tensor, e.g. "entry 'forward', input".
inline precast_status check_kind(const char* at, const char* name, precast_dtype dtype, int32_t rank,
                                 const precast_tensor& tensor) {
    if (tensor.rank != rank)
        return fail(PRECAST_MISMATCH, "%s '%s': expected %d dimensions, got %d", at, name, rank, tensor.rank);
    if (!is_same(tensor.dtype, dtype))
        return fail(PRECAST_MISMATCH, "%s '%s': expected dtype code %d with %d bits, got %d with %d", at, name, dtype.code,
                    dtype.bits, tensor.dtype.code, tensor.dtype.bits);
    if (tensor.device.type != 1) return fail(PRECAST_MISMATCH, "%s '%s' is not on the CPU", at, name);
    if (tensor.rank > 0 && !tensor.shape) return fail(PRECAST_INVALID_ARGUMENT, "%s '%s' has no shape", at, name);
    return PRECAST_OK;
}

inline precast_status check_shape(const char* at, const char* name, const precast_tensor& tensor, const int64_t* shape) {
    bool is_empty = false;
    for (int32_t dim = 0; dim < tensor.rank; ++dim) {
        is_empty |= shape[dim] == 0;
        if (tensor.shape[dim] != shape[dim])
            return fail(PRECAST_MISMATCH, "%s '%s': dimension %d is %lld, expected %lld", at, name, dim,
                        static_cast<long long>(tensor.shape[dim]), static_cast<long long>(shape[dim]));
    }
    if (!tensor.data && !is_empty) return fail(PRECAST_INVALID_ARGUMENT, "%s '%s' has no data", at, name);
    return PRECAST_OK;
}

// Whether a tensor has the expected strides; those of dimensions of size 0 or 1 do not matter.
inline bool has_strides(const precast_tensor& tensor, const int64_t* shape, const int64_t* strides) {
    int64_t row_major = 1;
    bool is_empty = false, is_same = true;
    for (int32_t dim = tensor.rank - 1; dim >= 0; --dim) {
        const int64_t actual = tensor.strides ? tensor.strides[dim] : row_major;
        is_same &= shape[dim] == 1 || actual == strides[dim];
        is_empty |= shape[dim] == 0;
        row_major *= shape[dim];
    }
    return is_same || is_empty;
}

// Whether elements are aligned for their type: mapped or external memory need not be.
inline bool is_aligned(const precast_tensor& tensor) {
    return reinterpret_cast<uintptr_t>(start_of(tensor)) % static_cast<uintptr_t>(tensor.dtype.bits / 8) == 0;
}

inline void copy_rows(int32_t rank, const int64_t* shape, const char* from, const int64_t* from_strides, char* to,
                      const int64_t* to_strides, int64_t item_size) {
    if (rank == 0) {
        std::memcpy(to, from, static_cast<size_t>(item_size));
        return;
    }
    if (rank == 1 && from_strides[0] == 1 && to_strides[0] == 1) {
        std::memcpy(to, from, static_cast<size_t>(shape[0] * item_size));
        return;
    }
    for (int64_t position = 0; position < shape[0]; ++position)
        copy_rows(rank - 1, shape + 1, from + position * from_strides[0] * item_size, from_strides + 1,
                  to + position * to_strides[0] * item_size, to_strides + 1, item_size);
}

inline void copy_elements(int32_t rank, const int64_t* shape, const char* from, const int64_t* from_strides, char* to,
                          const int64_t* to_strides, int64_t item_size) {
    // Iterating over many empty rows would take as long as over full ones.
    if (!is_empty(rank, shape)) copy_rows(rank, shape, from, from_strides, to, to_strides, item_size);
}

// The strides of a tensor whose shape is known to match; row-major ones are written to `room`.
inline const int64_t* strides_of(const precast_tensor& tensor, int64_t (&room)[PRECAST_MAX_RANK]) {
    if (tensor.strides) return tensor.strides;
    int64_t step = 1;
    for (int32_t dim = tensor.rank - 1; dim >= 0; --dim) {
        room[dim] = step;
        step *= tensor.shape[dim];
    }
    return room;
}

}  // namespace precast
