// Runs a compiled model from C++: the library is loaded at run time, its weights are mapped from a file, and several
// threads call it at the same time. The model is the classifier of examples/make_model.py.
//
// Build and run:
//
//   python examples/make_model.py .
//   c++ -std=c++17 -I "$(precast paths include)" examples/cpp/run_model.cpp -ldl -pthread -o run_model
//   ./run_model "$(precast paths onednn)" package/native/native/model.so package/weights.safetensors
#include <dlfcn.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "precast.h"

namespace {

class Library {
public:
    explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        if (!handle) throw std::runtime_error(dlerror());
    }
    template <class Function>
    Function* find(const char* name) const {
        void* const found = dlsym(handle, name);
        if (!found) throw std::runtime_error(std::string("the library has no ") + name);
        return reinterpret_cast<Function*>(found);
    }

private:
    void* handle;
};

class Model {
public:
    Model(const Library& library, const char* weights)
        : last_error(library.find<decltype(precast_last_error)>("precast_last_error")),
          close(library.find<decltype(precast_close)>("precast_close")),
          infer(library.find<decltype(precast_infer)>("precast_infer")),
          run(library.find<decltype(precast_run)>("precast_run")) {
        precast_open_options options{};
        options.abi_version = PRECAST_ABI_VERSION;
        options.threads = 1;
        options.weights_path = weights;
        check(library.find<decltype(precast_open)>("precast_open")(&options, &model));
    }
    ~Model() { close(model); }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    std::vector<float> operator()(std::vector<float>& x, int64_t rows) const {
        int64_t x_shape[] = {rows, 4}, shape[PRECAST_MAX_RANK], strides[PRECAST_MAX_RANK];
        const precast_tensor input{x.data(), {1, 0}, 2, {2, 32, 1}, x_shape, nullptr, 0};
        precast_tensor output{nullptr, {1, 0}, 0, {}, shape, strides, 0};
        check(infer(model, 0, &input, 1, &output, 1));
        std::vector<float> result(static_cast<size_t>(shape[0] * shape[1]));
        output.data = result.data();
        check(run(model, 0, &input, 1, &output, 1));
        return result;
    }

private:
    void check(precast_status status) const {
        if (status != PRECAST_OK) throw std::runtime_error(last_error());
    }

    decltype(precast_last_error)* last_error;
    decltype(precast_close)* close;
    decltype(precast_infer)* infer;
    decltype(precast_run)* run;
    precast_model* model = nullptr;
};

void classify(const Model& model, int64_t rows, std::vector<float>& result) {
    std::vector<float> x(static_cast<size_t>(4 * rows));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) / 7.0f - 0.4f;
    for (int call = 0; call < 100; ++call) result = model(x, rows);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) return std::fprintf(stderr, "usage: run_model LIBDNNL MODEL WEIGHTS\n"), 2;
    try {
        const Library onednn(arguments[1]), library(arguments[2]);
        const Model model(library, arguments[3]);
        std::vector<std::vector<float>> results(4);
        std::vector<std::thread> threads;
        for (size_t each = 0; each < results.size(); ++each)
            threads.emplace_back([&, each] { classify(model, static_cast<int64_t>(each) + 1, results[each]); });
        for (auto& thread : threads) thread.join();
        for (const auto& result : results) std::printf("%.6f %.6f %.6f\n", result[0], result[1], result[2]);
    } catch (const std::exception& problem) {
        return std::fprintf(stderr, "%s\n", problem.what()), 1;
    }
}
