#pragma once
// GPTQ (AutoGPTQ, GPTQModel): a linear layer NAME of `bits` 4 or 8 has
//   NAME.qweight i32 [in * bits / 32, out], the integer of the lowest input in the lowest bits
//   NAME.qzeros  i32 [groups, out * bits / 32]
//   NAME.scales  f16 [groups, out]
//   NAME.g_idx   i32 [in], the group of each input
// The first version of the format stores zero points less one, the second as they are.

#include "folders/quantized/quantization_config.h"
#include "folders/quantized/quantized_folder.h"

namespace brrr::io {

FolderQuantization parse_gptq(const QuantizationConfig& config);

/// Throws UserError as find_quantized() does. Which version symmetric files have is decided by
/// their zero points, because some writers label the second version as the first.
QuantizedWeights find_gptq(std::shared_ptr<const WeightSource> files, const FolderQuantization& q);

}  // namespace brrr::io
