#include "direct_convolution.h"

#include "own_convolutions.h"

namespace precast {

bool convolve_directly(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& epilogue) {
    return direct::convolution(problem).run(context, inputs, epilogue);
}

}  // namespace precast
