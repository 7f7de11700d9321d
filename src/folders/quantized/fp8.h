#pragma once
// Weights in 8-bit floats (e4m3): NAME.weight [out, in] with
//   NAME.weight_scale_inv [ceil(out / 128), ceil(in / 128)], for blocks (DeepSeek, Qwen3)
//   NAME.weight_scale     [out, 1], [1], or for blocks likewise (compressed-tensors'
//   float-quantized,
//                         fbgemm_fp8)
// Either is multiplied by.

#include "folders/quantized/quantization_config.h"
#include "folders/quantized/quantized_folder.h"

namespace brrr::io {

/// quant_method fp8 and fbgemm_fp8.
FolderQuantization parse_fp8(const QuantizationConfig& config);

/// Reads the sizes of a block, `value`, if it is not null.
void read_block(const QuantizationConfig& config, const std::string& key, const Json& value,
                FolderQuantization& q);

/// Throws UserError as find_quantized() does.
QuantizedWeights find_fp8(std::shared_ptr<const WeightSource> files, const FolderQuantization& q);

}  // namespace brrr::io
