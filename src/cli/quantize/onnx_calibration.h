#pragma once
// The inputs on which an ONNX file is measured and calibrated, and the ranges that its activations
// have on them.

#include <vector>

#include "cli/quantize/quantize_options.h"
#include "folders/quantized/quantized_onnx.h"
#include "runtime/made_inputs.h"
#include "runtime/runnable.h"

namespace brrr::cli {

/// Inputs of one run or, with --method static, of as many as an input has files; an input with one
/// file is the same in all runs. Says on stderr what is made up. Throws UserError for names that
/// come a different number of times.
std::vector<MadeInputs> onnx_inputs(const Runnable& runnable, const QuantizeOptions& options);

/// The ranges of the activations that static quantisation rounds. Throws UserError where there are
/// none.
io::ActivationRanges activation_ranges(const std::shared_ptr<const Runnable>& runnable,
                                       const std::vector<io::OnnxWeight>& chosen,
                                       const std::vector<MadeInputs>& inputs,
                                       const QuantizeOptions& options);

}  // namespace brrr::cli
