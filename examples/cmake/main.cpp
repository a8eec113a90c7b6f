// Prints the three probabilities that the model computes for four numbers on the command line.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "precast.h"

namespace {

void check(precast_status status, const char* what) {
    if (status != PRECAST_OK) throw std::runtime_error(std::string(what) + ": " + precast_last_error());
}

struct Closing {
    void operator()(precast_model* model) const { precast_close(model); }
};
using Model = std::unique_ptr<precast_model, Closing>;

Model open_model() {
    precast_model* model = nullptr;
    check(precast_open(nullptr, &model), "open");
    return Model(model);
}

precast_tensor matrix(float* data, int64_t* shape, int64_t* strides) {
    precast_tensor tensor{};
    tensor.data = data;
    tensor.device = {1, 0};     // the CPU
    tensor.dtype = {2, 32, 1};  // float32
    tensor.rank = 2;
    tensor.shape = shape;
    tensor.strides = strides;
    return tensor;
}

void classify(precast_model* model, std::array<float, 4> numbers) {
    std::array<int64_t, 2> rows{1, 4}, result_shape{}, result_strides{};
    std::array<float, 3> probabilities{};
    const precast_tensor input = matrix(numbers.data(), rows.data(), nullptr);
    precast_tensor output = matrix(probabilities.data(), result_shape.data(), result_strides.data());
    check(precast_infer(model, 0, &input, 1, &output, 1), "infer");  // fills sizes and strides of the result
    check(precast_run(model, 0, &input, 1, &output, 1), "run");
    for (const float probability : probabilities) std::printf("%.6f\n", static_cast<double>(probability));
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) return std::fprintf(stderr, "usage: classify A B C D\n"), 2;
    try {
        const Model model = open_model();
        std::array<float, 4> numbers{};
        for (int i = 0; i < 4; ++i) numbers[static_cast<size_t>(i)] = std::strtof(arguments[i + 1], nullptr);
        classify(model.get(), numbers);
    } catch (const std::exception& error) {
        return std::fprintf(stderr, "%s\n", error.what()), 1;
    }
    return 0;
}
