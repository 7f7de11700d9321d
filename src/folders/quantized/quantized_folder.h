#pragma once
// Folders whose weights are quantised: config.json has a "quantization_config", whose quant_method
// names the format, and linear layers are stored in the tensors of that format.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "folders/quantized/quantized_weights.h"

namespace brrr::io {

enum class QuantizedFormat : uint8_t {
  compressed_integers,  // compressed-tensors: int-quantized and pack-quantized
  compressed_floats,    // compressed-tensors: float-quantized
  gptq,
  awq,
  bitsandbytes,
  fp8,
};

/// How the weights of a folder are quantised, as config.json says it.
struct FolderQuantization {
  int64_t bits = 8;      // of weights: 8 or 4
  int64_t group = 0;     // inputs of a layer that share a scale; 0: all of them
  bool dynamic = false;  // the rows that weights multiply are quantised to 8 bits when they come
  bool packed = false;   // compressed integers: pack-quantized; else int-quantized
  std::vector<std::string> ignore = {};  // the layers that are kept, as config.json names them
  QuantizedFormat format = QuantizedFormat::compressed_integers;
  bool symmetric = true;   // integers without zero points
  bool act_order = false;  // the columns of a group are not neighbours
  bool says_v2 = false;    // GPTQ: zero points are stored as they are, not less one
  /// Layers with other bits or groups, by name (compressed integers).
  std::map<std::string, IntegerGrid> others = {};
  /// FP8: rows and columns of a block that shares a scale; 0: none.
  int64_t block_rows = 0, block_columns = 0;

  IntegerGrid grid_of(const std::string& layer) const {
    const auto at = others.find(layer);
    return at == others.end() ? IntegerGrid{bits, group} : at->second;
  }
  bool operator==(const FolderQuantization&) const = default;
};

/// "8 bits, dynamic, a scale for each output"; "GPTQ, 4 bits, groups of 128"
std::string description(const FolderQuantization& quantization);
/// "pack-quantized", "gptq", ...
std::string_view name_of_format(const FolderQuantization& quantization);

/// The quantization_config of a config.json; nothing where it has none. Throws UserError, which
/// names the value and what is supported, for one that is not read.
std::optional<FolderQuantization> parse_quantization(std::string_view config,
                                                     const std::string& what);
/// That of a folder. Older GPTQ folders have it in quantize_config.json.
std::optional<FolderQuantization> read_quantization(const fs::path& folder);

/// Throws UserError, which names the tensor, where a part of a weight is missing or has another
/// shape, and where a scale is not finite.
QuantizedWeights find_quantized(std::shared_ptr<const WeightSource> files,
                                const FolderQuantization& quantization);

/// The tensors of `files`, in which each quantised weight is an f32 tensor that is made when it is
/// read. Throws UserError as find_quantized does.
std::shared_ptr<const WeightSource> dequantized(std::shared_ptr<const WeightSource> files,
                                                const FolderQuantization& quantization);

/// The weight files of a folder, dequantized() where its config.json says that they are quantised;
/// or those of a GGUF file.
std::shared_ptr<const WeightSource> open_weight_source(const fs::path& folder);

/// The integers that products read by default.
struct ProductIntegers {
  IntegerGrid grid;       // without bits: products read bf16
  bool are_same = false;  // the integers of the file
};

/// Decides what products read by default: the file's own integers if every weight has them. Weights
/// with act-order, nf4 or FP8 have none: their values are rounded to 8 bits in groups of 32, or to
/// bf16 if the number of inputs of no layer is a multiple of 32.
ProductIntegers product_integers(const QuantizedWeights& weights);

}  // namespace brrr::io
