#pragma once
// The formats of compressed-tensors, which transformers and vLLM read. A linear layer NAME has
//   int-quantized:   NAME.weight i8 [out, in]
//   pack-quantized:  NAME.weight_packed i32 [out, in / 4] (8 bits) or [out, in / 8] (4 bits),
//                    NAME.weight_shape i64 [2]
// with NAME.weight_scale [out, 1] or [out, in / group] of floats. float-quantized is read by fp8.h.

#include <string>
#include <string_view>

#include "folders/quantized/quantization_config.h"
#include "folders/quantized/quantized_folder.h"

namespace brrr::io {

/// The text of config.json with the quantization_config that says so. `text` has none.
std::string with_quantization(std::string_view text, const FolderQuantization& quantization,
                              const std::string& what);

FolderQuantization parse_compressed(const QuantizationConfig& config);

/// The weights of int-quantized and pack-quantized files. Throws UserError as find_quantized()
/// does.
QuantizedWeights find_compressed(std::shared_ptr<const WeightSource> files,
                                 const FolderQuantization& q);

}  // namespace brrr::io
