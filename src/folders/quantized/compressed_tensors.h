#pragma once
// Folders whose weights are quantised, in the form of compressed-tensors, which transformers and
// vLLM read: config.json has a "quantization_config", and a linear layer NAME has
//   int-quantized:   NAME.weight i8 [out, in]
//   pack-quantized:  NAME.weight_packed i32 [out, in / 4] (8 bits) or [out, in / 8] (4 bits),
//                    NAME.weight_shape i64 [2]
// with NAME.weight_scale [out, 1] or [out, in / group] of floats.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/weight_source.h"

namespace brrr::io {

/// What the name of a layer's weight ends in.
inline constexpr std::string_view kWeightSuffix = ".weight";

/// How the weights of a folder are quantised: symmetric integers.
struct FolderQuantization {
  int64_t bits = 8;      // of weights: 8 or 4
  int64_t group = 0;     // inputs of a layer that share a scale; 0: all of them
  bool dynamic = false;  // the rows that weights multiply are quantised to 8 bits when they come
  bool packed = false;   // pack-quantized; else int-quantized
  std::vector<std::string> ignore = {};  // the layers that are kept, as config.json names them

  bool operator==(const FolderQuantization&) const = default;
};

/// "8 bits, dynamic, a scale for each output"
std::string description(const FolderQuantization& quantization);

/// The text of config.json with the quantization_config that says so. `text` has none.
std::string with_quantization(std::string_view text, const FolderQuantization& quantization,
                              const std::string& what);

/// The quantization_config of a config.json; nothing where it has none. Throws UserError, which
/// names the value and what is supported, for one that is not read.
std::optional<FolderQuantization> parse_quantization(std::string_view config,
                                                     const std::string& what);
std::optional<FolderQuantization> read_quantization(const fs::path& folder);

/// The tensors of `files`, in which each quantised weight is an f32 tensor that is made when it is
/// read. Scales are checked at once. Throws UserError, which names the tensor, where a part of a
/// weight is missing or has another shape, and where a scale is negative or not finite.
std::shared_ptr<const WeightSource> dequantized(std::shared_ptr<const WeightSource> files,
                                                const FolderQuantization& quantization);

/// The weight files of a folder, dequantized() where its config.json says that they are quantised.
std::shared_ptr<const WeightSource> open_weight_source(const fs::path& folder);

/// Whether the integers of 4 bits reach -8, which our kernels' -7 to 7 do not hold: other programs
/// write them. Looks at one weight, because a quantiser that uses -8 uses it in nearly every group.
bool reaches_lowest(const WeightSource& files, const FolderQuantization& quantization);

}  // namespace brrr::io
