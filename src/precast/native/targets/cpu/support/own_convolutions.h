// Convolutions in loops of ours. Each computes the requested operand, or returns false if another algorithm is needed or better.
#pragma once

#include "context.h"
#include "epilogue.h"
#include "plain_convolution.h"

namespace precast {

bool convolve_by_winograd(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& epilogue);
bool convolve_depthwise(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& prologue,
                        const epilogue& epilogue);
bool convolve_directly(const convolution_problem& problem, context& context, const strided* inputs, const epilogue& epilogue);
bool depthwise_filter_gradient(const convolution_problem& problem);

}  // namespace precast
