#pragma once
// AWQ (AutoAWQ, version "gemm"): a linear layer NAME of 4 bits has
//   NAME.qweight i32 [in, out / 8], nibble i of a word (the lowest is 0) is output
//                (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight
//   NAME.qzeros  i32 [groups, out / 8], likewise
//   NAME.scales  f16 [groups, out]

#include "folders/quantized/quantization_config.h"
#include "folders/quantized/quantized_folder.h"

namespace brrr::io {

FolderQuantization parse_awq(const QuantizationConfig& config);

/// Throws UserError as find_quantized() does.
QuantizedWeights find_awq(std::shared_ptr<const WeightSource> files, const FolderQuantization& q);

}  // namespace brrr::io
