/* Runs a compiled model from plain C. The model computes gelu(x @ w + b).sum() for x: 8x4, w: 4x6, b: 6, and its
 * gradients with respect to x, w and b; w and b are weights, given when the model is opened.
 *
 * Build and run, with oneDNN in $LIB and model.so made by Precast (the linker must keep oneDNN, which only the model
 * calls):
 *
 *   cc -I include examples/c/run_model.c -Wl,--no-as-needed ./model.so $LIB/libdnnl.so.3 -Wl,-rpath,$LIB -o run_model
 */
#include <stdio.h>
#include <stdlib.h>

#include "precast.h"

enum { OUTPUTS = 4 };

static precast_tensor matrix(float* data, int32_t rank, int64_t* shape) {
    precast_tensor tensor = {.data = data, .device = {1, 0}, .rank = rank, .dtype = {2, 32, 1}, .shape = shape};
    return tensor;
}

static void fill(float* data, int count) {
    for (int i = 0; i < count; ++i) data[i] = (float)(i % 7) / 7.0f - 0.4f;
}

static int check(precast_status status, const char* what) {
    if (status != PRECAST_OK) fprintf(stderr, "%s: %s\n", what, precast_last_error());
    return status == PRECAST_OK;
}

int main(void) {
    static float x[32], w[24], b[6], tangent[1] = {1.0f};
    int64_t x_shape[] = {8, 4}, w_shape[] = {4, 6}, b_shape[] = {6};
    fill(x, 32), fill(w, 24), fill(b, 6);

    const precast_named_tensor weights[] = {{"layer.w", matrix(w, 2, w_shape)}, {"layer.b", matrix(b, 1, b_shape)}};
    const precast_open_options options = {.abi_version = PRECAST_ABI_VERSION, .weights = weights, .weight_count = 2};
    precast_model* model = NULL;
    if (!check(precast_open(&options, &model), "open")) return 1;

    const char* json = NULL;
    if (!check(precast_entry_json(model, 0, &json), "describe")) return 1;
    printf("%s\n", json);

    const precast_tensor inputs[] = {matrix(x, 2, x_shape), matrix(tangent, 0, NULL)};
    int64_t shapes[OUTPUTS][PRECAST_MAX_RANK], strides[OUTPUTS][PRECAST_MAX_RANK];
    precast_tensor outputs[OUTPUTS];
    for (int i = 0; i < OUTPUTS; ++i) outputs[i].shape = shapes[i], outputs[i].strides = strides[i];
    if (!check(precast_infer(model, 0, inputs, 2, outputs, OUTPUTS), "infer")) return 1;
    for (int i = 0; i < OUTPUTS; ++i) {
        size_t count = 1;
        for (int32_t dim = 0; dim < outputs[i].rank; ++dim) count *= (size_t)shapes[i][dim];
        outputs[i].data = malloc(count * sizeof(float));
    }
    if (!check(precast_run(model, 0, inputs, 2, outputs, OUTPUTS), "run")) return 1;

    for (int i = 0; i < OUTPUTS; ++i) {
        printf("%.6g\n", ((const float*)outputs[i].data)[0]);
        free(outputs[i].data);
    }
    return check(precast_close(model), "close") ? 0 : 1;
}
