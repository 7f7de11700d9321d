#pragma once
// brrr quantize FILE.onnx: an ONNX file with integers in place of the weights of MatMul and Gemm.

#include "cli/quantize/quantize_options.h"

namespace brrr::cli {

/// Reports what quantising costs and gains, then writes the file. Throws UserError.
int quantize_onnx_file(const QuantizeOptions& options);

}  // namespace brrr::cli
