// Trains a model from C++: a step that precast.train_step saved, with a schedule of its own, over batches made here. The
// step is that of examples/make_model.py.
//
// Build and run:
//
//   python examples/make_model.py .
//   c++ -std=c++17 -I "$(precast paths include)" examples/cpp/train_model.cpp -ldl -o train_model
//   ./train_model "$(precast paths onednn)" step/native/native/model.so step/weights.safetensors 200
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "precast.h"

namespace {

constexpr int64_t rows = 16, columns = 4;

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

class Training {
public:
    Training(const Library& library, const char* weights)
        : last_error(library.find<decltype(precast_last_error)>("precast_last_error")),
          close(library.find<decltype(precast_close)>("precast_close")),
          run(library.find<decltype(precast_run)>("precast_run")),
          read_state(library.find<decltype(precast_read_state)>("precast_read_state")),
          write_state(library.find<decltype(precast_write_state)>("precast_write_state")) {
        precast_open_options options{};
        options.abi_version = PRECAST_ABI_VERSION;
        options.weights_path = weights;
        check(library.find<decltype(precast_open)>("precast_open")(&options, &model));
        check(library.find<decltype(precast_find_entry)>("precast_find_entry")(model, "train_step", &entry));
    }
    ~Training() { close(model); }
    Training(const Training&) = delete;
    Training& operator=(const Training&) = delete;

    // The loss; parameters and the optimizer's state are updated behind the interface.
    float step(std::vector<float>& x, std::vector<float>& y) const {
        int64_t x_shape[] = {rows, columns}, y_shape[] = {rows, 1};
        const std::array<precast_tensor, 2> batch{{
            {x.data(), {1, 0}, 2, {2, 32, 1}, x_shape, nullptr, 0},
            {y.data(), {1, 0}, 2, {2, 32, 1}, y_shape, nullptr, 0},
        }};
        float loss = 0;
        const precast_tensor result{&loss, {1, 0}, 0, {2, 32, 1}, nullptr, nullptr, 0};
        check(run(model, entry, batch.data(), batch.size(), &result, 1));
        return loss;
    }

    double learning_rate() const {
        double rate = 0;
        const precast_tensor target{&rate, {1, 0}, 0, {2, 64, 1}, nullptr, nullptr, 0};
        check(read_state(model, "optimizer.groups.0.lr", &target));
        return rate;
    }

    void set_learning_rate(double rate) const {
        const precast_tensor source{&rate, {1, 0}, 0, {2, 64, 1}, nullptr, nullptr, 0};
        check(write_state(model, "optimizer.groups.0.lr", &source));
    }

private:
    void check(precast_status status) const {
        if (status != PRECAST_OK) throw std::runtime_error(last_error());
    }

    decltype(precast_last_error)* last_error;
    decltype(precast_close)* close;
    decltype(precast_run)* run;
    decltype(precast_read_state)* read_state;
    decltype(precast_write_state)* write_state;
    precast_model* model = nullptr;
    size_t entry = 0;
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) return std::fprintf(stderr, "usage: train_model LIBDNNL MODEL WEIGHTS STEPS\n"), 2;
    try {
        const Library onednn(arguments[1]), library(arguments[2]);
        const Training training(library, arguments[3]);
        const long steps = std::atol(arguments[4]);
        std::vector<float> x(rows * columns), y(rows);
        for (long step = 0; step < steps; ++step) {
            for (int64_t row = 0; row < rows; ++row) {
                y[static_cast<size_t>(row)] = 0;
                for (int64_t column = 0; column < columns; ++column) {
                    const int64_t number = (7 * step + 5 * row + 3 * column) % 16;
                    x[static_cast<size_t>(row * columns + column)] = static_cast<float>(number) / 16;
                    y[static_cast<size_t>(row)] += static_cast<float>(number) / 64;
                }
            }
            if (step == steps / 2) training.set_learning_rate(training.learning_rate() / 10);
            const float loss = training.step(x, y);
            if (step % 20 == 0 || step == steps - 1) std::printf("step %3ld: loss %.9g\n", step + 1, loss);
        }
    } catch (const std::exception& problem) {
        return std::fprintf(stderr, "%s\n", problem.what()), 1;
    }
}
