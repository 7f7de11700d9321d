#pragma once
// Weights of convolutions of pictures with channels last as integers of 8 bits.

#include "passes/layout/channels_last.h"
#include "passes/weights/weight_choice.h"

namespace brrr {

/// Where weights of 8 bits multiply rows of 8 bits, convolutions multiply pictures of 8 bits: a
/// weight has a scale for each output channel, each picture one of its own. Weights must be made of
/// chosen parameters and have at least kLeastQuantizedSize output channels and terms.
WindowWeights quantize_convolutions(const Graph& graph, const Target& target,
                                    const WeightQuantization& quantization);

}  // namespace brrr
