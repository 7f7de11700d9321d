#pragma once
// bitsandbytes. load_in_8bit: a linear layer NAME has
//   NAME.weight i8 [out, in] and NAME.SCB f32 [out]: x = q * SCB / 127
// load_in_4bit (nf4 and fp4): values in blocks of `blocksize` in row-major order,
//   NAME.weight                   two values in a byte, the first in the high nibble
//   NAME.weight.absmax            f32 [blocks]: x = quant_map[nibble] * absmax
//   NAME.weight.quant_map         f32 [16]
//   NAME.weight.quant_state.bitsandbytes__nf4  the bytes of JSON: shape, blocksize, ...
// With double quantization absmax is u8, and stands for
//   nested_quant_map[absmax] * nested_absmax[block / nested_blocksize] + nested_offset

#include "folders/quantized/quantization_config.h"
#include "folders/quantized/quantized_folder.h"

namespace brrr::io {

FolderQuantization parse_bitsandbytes(const QuantizationConfig& config);

/// Throws UserError as find_quantized() does.
QuantizedWeights find_bitsandbytes(std::shared_ptr<const WeightSource> files,
                                   const FolderQuantization& q);

}  // namespace brrr::io
