/* Trains a model from plain C: a step that precast.train_step saved, over pieces of a text whose bytes are its characters.
 * examples/train/gpt.py makes all that this needs, builds it, and runs it:
 *
 *   cc -I "$(precast paths include)" examples/c/train_model.c -ldl -o train_model
 *   ./train_model "$(precast paths onednn)" native/native/model.so state.safetensors text.txt STEPS ROWS LENGTH
 *
 * The state comes from a file that model.state.save wrote (or out of the package: weights.safetensors), and goes on living
 * behind the interface: precast_read_state reads any of it, such as the parameters, by its name.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "precast.h"

typedef struct {
    precast_status (*open)(const precast_open_options*, precast_model**);
    precast_status (*close)(precast_model*);
    precast_status (*find_entry)(const precast_model*, const char*, size_t*);
    precast_status (*run)(precast_model*, size_t, const precast_tensor*, size_t, const precast_tensor*, size_t);
    precast_status (*read_state)(precast_model*, const char*, const precast_tensor*);
    const char* (*last_error)(void);
} library;

static void fail(const char* what, const char* why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ISO C has no way from a pointer to data to one to a function but through memory. */
static void find(void* handle, const char* name, void* function) {
    *(void**)function = dlsym(handle, name);
    if (!*(void**)function) fail("the library has no", name);
}

static library load(const char* onednn, const char* path) {
    if (!dlopen(onednn, RTLD_NOW | RTLD_GLOBAL)) fail("oneDNN", dlerror());
    void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail("the model", dlerror());
    library found;
    find(handle, "precast_open", &found.open);
    find(handle, "precast_close", &found.close);
    find(handle, "precast_find_entry", &found.find_entry);
    find(handle, "precast_run", &found.run);
    find(handle, "precast_read_state", &found.read_state);
    find(handle, "precast_last_error", &found.last_error);
    return found;
}

static unsigned char* read_text(const char* path, long* size) {
    FILE* const file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail("cannot read", path);
    *size = ftell(file);
    rewind(file);
    unsigned char* const text = malloc((size_t)*size + 1);
    if (!text || fread(text, 1, (size_t)*size, file) != (size_t)*size) fail("cannot read", path);
    fclose(file);
    return text;
}

int main(int count, char** arguments) {
    if (count != 8) fail(arguments[0], "ONEDNN LIBRARY STATE TEXT STEPS ROWS LENGTH");
    const library api = load(arguments[1], arguments[2]);
    const precast_open_options options = {.abi_version = PRECAST_ABI_VERSION, .weights_path = arguments[3]};
    precast_model* model = NULL;
    size_t entry = 0;
    if (api.open(&options, &model) || api.find_entry(model, "train_step", &entry)) fail("open", api.last_error());

    long size = 0;
    unsigned char* const text = read_text(arguments[4], &size);
    const long steps = atol(arguments[5]);
    const int64_t rows = atol(arguments[6]), columns = atol(arguments[7]) + 1;
    if (rows < 1 || columns < 2 || size < columns) fail(arguments[4], "is too short");
    int64_t* const batch = malloc((size_t)(rows * columns) * sizeof *batch);
    if (!batch) fail("batch", "out of memory");
    int64_t shape[] = {rows, columns};
    const precast_tensor input = {.data = batch, .device = {1, 0}, .rank = 2, .dtype = {0, 64, 1}, .shape = shape};
    float loss = 0;
    const precast_tensor output = {.data = &loss, .device = {1, 0}, .dtype = {2, 32, 1}};

    uint64_t random = 1;
    for (long step = 1; step <= steps; ++step) {
        for (int64_t row = 0; row < rows; ++row) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const unsigned char* const piece = text + (random >> 33) % (uint64_t)(size - columns + 1);
            for (int64_t column = 0; column < columns; ++column) batch[row * columns + column] = piece[column];
        }
        if (api.run(model, entry, &input, 1, &output, 1)) fail("step", api.last_error());
        if (step == 1 || step % 50 == 0) printf("step %4ld: loss %.3f\n", step, loss);
    }

    int64_t seed = 0;
    const precast_tensor target = {.data = &seed, .device = {1, 0}, .dtype = {0, 64, 1}};
    if (api.read_state(model, "random.seed", &target)) fail("read state", api.last_error());
    printf("state can be read: random.seed is %lld\n", (long long)seed);
    free(batch);
    free(text);
    return api.close(model) ? 1 : 0;
}
