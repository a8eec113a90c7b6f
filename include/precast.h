/* The C interface of a compiled model, for models in process and for models shipped as a file.
 *
 * Every call returns a status; nothing throws, aborts or prints. After a status other than PRECAST_OK,
 * precast_last_error() describes what went wrong in this thread's last call.
 *
 * Threads: any number of threads may call precast_run on one model at the same time; each call works in its own scratch
 * memory over shared weights. Calls of an entry that updates state, and writes to the state, wait for each other. Opening
 * and closing a model must not overlap with other calls on it.
 *
 * Memory: the caller owns all tensors. The caller allocates outputs before precast_run, in the shapes and strides
 * that precast_infer returns for the inputs at hand, so that results are written directly to where they are
 * wanted. If sizes of outputs are data-dependent, precast_infer returns their upper bounds, and precast_run
 * writes the actual sizes and strides to the arrays that `shape` and `strides` of each output point to.
 *
 * State: the model's named tensors, i.e. weights and buffers. State that no entry updates is not copied and must stay
 * in place until precast_close; state that an entry updates is copied when the model is opened. A failed call leaves the
 * state as it was.
 */
#ifndef PRECAST_H
#define PRECAST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRECAST_ABI_VERSION 3 /* 3: outputs whose sizes depend on data */
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
    uint8_t code; /* 0: signed, 1: unsigned, 2: float, 4: bfloat, 5: complex, 6: bool */
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

/* Runs an operator that was not compiled: reads inputs, writes outputs, returns 0 or an error. `step` counts the entry's
 * fallback steps from 0; `sizes` are the values of its dynamic sizes. */
typedef int32_t (*precast_fallback)(void* data, int32_t entry, int32_t step, const precast_tensor* inputs,
                                    size_t input_count, const precast_tensor* outputs, size_t output_count,
                                    const int64_t* sizes, size_t size_count);

/* Each tensor of the state is looked up in `weights`, then in the file at `weights_path` or, without one, in the weights
 * inside the library. */
typedef struct {
    uint32_t abi_version; /* PRECAST_ABI_VERSION */
    int32_t threads;      /* how many threads one call uses, at most 4096; 0: as many as OpenMP would */
    const precast_named_tensor* weights;
    size_t weight_count;
    const char* weights_path;  /* a safetensors file, which is mapped and must stay as it is; may be NULL */
    precast_fallback fallback; /* NULL: entries with fallback steps are refused */
    void* fallback_data;
} precast_open_options;

typedef struct precast_model precast_model;

PRECAST_API uint32_t precast_abi_version(void);

/* What went wrong in this thread's last failed call; valid until its next call. Never NULL. */
PRECAST_API const char* precast_last_error(void);

/* Opens the model in this library. NULL options: no weights but the library's own, no fallback. */
PRECAST_API precast_status precast_open(const precast_open_options* options, precast_model** model);
PRECAST_API precast_status precast_close(precast_model* model);

/* The library's manifest: how entries are called from Python, as JSON text; "" if there is none. */
PRECAST_API precast_status precast_manifest_json(const char** json);

PRECAST_API precast_status precast_entry_count(const precast_model* model, size_t* count);
PRECAST_API precast_status precast_entry_name(const precast_model* model, size_t entry, const char** name);

/* The number of the entry of that name. */
PRECAST_API precast_status precast_find_entry(const precast_model* model, const char* name, size_t* entry);

/* The entry's inputs, outputs, weights, updates of state and dynamic sizes as JSON text, owned by the model. */
PRECAST_API precast_status precast_entry_json(const precast_model* model, size_t entry, const char** json);

/* Writes rank, dtype, device, and the arrays `shape` and `strides` point to (room for the rank) of each output; not data. */
PRECAST_API precast_status precast_infer(precast_model* model, size_t entry, const precast_tensor* inputs,
                                         size_t input_count, precast_tensor* outputs, size_t output_count);

/* Runs the entry. Inputs may have any strides; outputs must have the sizes and strides that precast_infer returns. */
PRECAST_API precast_status precast_run(precast_model* model, size_t entry, const precast_tensor* inputs,
                                       size_t input_count, const precast_tensor* outputs, size_t output_count);

/* The names of the model's state. */
PRECAST_API precast_status precast_state_count(const precast_model* model, size_t* count);
PRECAST_API precast_status precast_state_name(const precast_model* model, size_t number, const char** name);

/* Writes rank, dtype, device, and the arrays `shape` and `strides` point to (room for PRECAST_MAX_RANK); not data. */
PRECAST_API precast_status precast_describe_state(const precast_model* model, const char* name, precast_tensor* tensor);

/* Copies a tensor of the state out to, or in from, the caller's memory: same dtype and shape, any strides. */
PRECAST_API precast_status precast_read_state(precast_model* model, const char* name, const precast_tensor* target);
PRECAST_API precast_status precast_write_state(precast_model* model, const char* name, const precast_tensor* source);

#ifdef __cplusplus
}
#endif

#endif
