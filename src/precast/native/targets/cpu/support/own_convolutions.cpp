// A separate file: these are large, and are compiled in parallel with the code that calls oneDNN.
#include "own_convolutions.h"

#include "depthwise.h"
#include "depthwise_convolution.h"
#include "winograd_convolution.h"

namespace precast {

bool convolve_by_winograd(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& epilogue) {
    return winograd_convolution(problem).run(context, inputs, epilogue);
}

bool convolve_depthwise(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& prologue,
                        const epilogue& epilogue) {
    return depthwise_convolution_of(problem).run(context, inputs, prologue, epilogue);
}

bool depthwise_filter_gradient(const convolution_problem& problem) {
    return depthwise_gradient(problem).run();
}

}  // namespace precast
