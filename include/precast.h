/* The C interface of a compiled model: the same for a model in process and for one that was shipped as a file.
 *
 * Every call returns a status; nothing throws, aborts or prints. After a status other than PRECAST_OK,
 * precast_last_error() says in words what went wrong in this thread's last call.
 *
 * Threads: any number of threads may call precast_run on one model at the same time; each call works in its own scratch
 * memory, and weights are only read. Opening and closing a model must not overlap with other calls on it.
 *
 * Memory: the caller owns all tensors. Outputs are allocated by the caller before precast_run, in the shapes and strides
 * that precast_infer gives for the inputs at hand; so results can be written straight into whatever memory they are
 * wanted in. Weights are not copied: they must stay where they are until precast_close.
 */
#ifndef PRECAST_H
#define PRECAST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRECAST_ABI_VERSION 1
#define PRECAST_MAX_RANK 16

#if defined(__GNUC__)
#define PRECAST_API __attribute__((visibility("default")))
#else
#define PRECAST_API
#endif

typedef int32_t precast_status;
enum {
    PRECAST_OK = 0,
    PRECAST_INVALID_ARGUMENT = 1, /* a null pointer, an unknown entry, a wrong version */
    PRECAST_MISMATCH = 2,         /* a tensor or weight does not fit what the entry declares */
    PRECAST_OUT_OF_MEMORY = 3,
    PRECAST_FAILED = 4, /* a step of the program failed */
    PRECAST_INDEX_OUT_OF_RANGE = 5
};

/* Same layout as DLPack's DLDevice, DLDataType and DLTensor, under our own names so that both headers can be included. */
typedef struct {
    int32_t type; /* 1: CPU */
    int32_t id;
} precast_device;

typedef struct {
    uint8_t code; /* 0: signed, 1: unsigned, 2: float, 4: bfloat, 6: bool */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} precast_dtype;

typedef struct {
    void* data;
    precast_device device;
    int32_t rank;
    precast_dtype dtype;
    int64_t* shape;
    int64_t* strides; /* in elements; NULL: row-major */
    uint64_t byte_offset;
} precast_tensor;

typedef struct {
    const char* name;
    precast_tensor tensor;
} precast_named_tensor;

/* Runs an operator that was not compiled: reads inputs, fills outputs, returns 0 or an error. `step` counts the entry's
 * fallback steps from 0; `sizes` are the values of its dynamic sizes. */
typedef int32_t (*precast_fallback)(void* data, int32_t entry, int32_t step, const precast_tensor* inputs,
                                    size_t input_count, const precast_tensor* outputs, size_t output_count,
                                    const int64_t* sizes, size_t size_count);

typedef struct {
    uint32_t abi_version; /* PRECAST_ABI_VERSION */
    const precast_named_tensor* weights;
    size_t weight_count;
    precast_fallback fallback; /* NULL: entries with fallback steps are refused */
    void* fallback_data;
} precast_open_options;

typedef struct precast_model precast_model;

PRECAST_API uint32_t precast_abi_version(void);

/* What went wrong in this thread's last call that failed; valid until its next call. Never NULL. */
PRECAST_API const char* precast_last_error(void);

/* Opens the model in this library. NULL options: no weights, no fallback. */
PRECAST_API precast_status precast_open(const precast_open_options* options, precast_model** model);
PRECAST_API precast_status precast_close(precast_model* model);

PRECAST_API precast_status precast_entry_count(const precast_model* model, size_t* count);
PRECAST_API precast_status precast_entry_name(const precast_model* model, size_t entry, const char** name);

/* The entry's inputs, outputs, weights and dynamic sizes as JSON text, owned by the model. */
PRECAST_API precast_status precast_entry_json(const precast_model* model, size_t entry, const char** json);

/* Fills rank, dtype, device, and the arrays `shape` and `strides` point to (room for the rank) of each output; not data. */
PRECAST_API precast_status precast_infer(precast_model* model, size_t entry, const precast_tensor* inputs,
                                         size_t input_count, precast_tensor* outputs, size_t output_count);

/* Runs the entry. Inputs may have any strides; outputs must have those that precast_infer gives. */
PRECAST_API precast_status precast_run(precast_model* model, size_t entry, const precast_tensor* inputs,
                                       size_t input_count, const precast_tensor* outputs, size_t output_count);

#ifdef __cplusplus
}
#endif

#endif
