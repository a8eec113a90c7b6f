/* Runs a compiled model from plain C: the classifier of examples/make_model.py, which takes any number of rows of 4 and
 * gives 3 probabilities for each. Code and weights are both in the library.
 *
 * Build and run. The model calls oneDNN, so the program links it; the linker must keep it, though only the model calls it:
 *
 *   python examples/make_model.py .
 *   ONEDNN=$(precast paths onednn)
 *   cc -I "$(precast paths include)" examples/c/run_model.c -Wl,--no-as-needed ./model.so "$ONEDNN" \
 *      -Wl,-rpath,"$(dirname "$ONEDNN")" -o run_model
 *   ./run_model
 */
#include <stdio.h>
#include <stdlib.h>

#include "precast.h"

enum { ROWS = 6, COLUMNS = 4 };

static int check(precast_status status, const char* what) {
    if (status != PRECAST_OK) fprintf(stderr, "%s: %s\n", what, precast_last_error());
    return status == PRECAST_OK;
}

static int print_state(precast_model* model, const char* name) {
    int64_t value = 0;
    const precast_tensor target = {.data = &value, .device = {1, 0}, .dtype = {0, 64, 1}};
    if (!check(precast_read_state(model, name, &target), "read state")) return 0;
    printf("%s %lld\n", name, (long long)value);
    return 1;
}

static int run(precast_model* model) {
    size_t entry = 0;
    const char* json = NULL;
    if (!check(precast_find_entry(model, "forward", &entry), "find")) return 0;
    if (!check(precast_entry_json(model, entry, &json), "describe")) return 0;
    printf("%s\n", json);

    float x[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; ++i) x[i] = (float)(i % 7) / 7.0f - 0.4f;
    int64_t x_shape[] = {ROWS, COLUMNS};
    const precast_tensor input = {.data = x, .device = {1, 0}, .rank = 2, .dtype = {2, 32, 1}, .shape = x_shape};

    /* The model says how large its result is for this input; we say where it goes. */
    int64_t shape[PRECAST_MAX_RANK], strides[PRECAST_MAX_RANK];
    precast_tensor output = {.shape = shape, .strides = strides};
    if (!check(precast_infer(model, entry, &input, 1, &output, 1), "infer")) return 0;
    float* result = malloc((size_t)(shape[0] * shape[1]) * sizeof *result);
    if (!result) return 0;
    output.data = result;
    const int is_done = check(precast_run(model, entry, &input, 1, &output, 1), "run");
    for (int64_t row = 0; is_done && row < shape[0]; ++row)
        printf("%.6f %.6f %.6f\n", result[3 * row], result[3 * row + 1], result[3 * row + 2]);
    free(result);
    return is_done && print_state(model, "rows_seen");
}

int main(void) {
    precast_model* model = NULL;
    if (!check(precast_open(NULL, &model), "open")) return 1;
    const int is_done = run(model);
    return check(precast_close(model), "close") && is_done ? 0 : 1;
}
