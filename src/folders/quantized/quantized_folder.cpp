#include "folders/quantized/quantized_folder.h"

#include <algorithm>

#include "base/errors.h"
#include "base/human.h"
#include "folders/gguf/gguf_weights.h"
#include "folders/quantized/awq.h"
#include "folders/quantized/bitsandbytes.h"
#include "folders/quantized/compressed_tensors.h"
#include "folders/quantized/fp8.h"
#include "folders/quantized/gptq.h"
#include "folders/state_dict.h"
#include "folders/weights.h"
#include "formats/json_file.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {
namespace {

/// The groups in which products read weights whose own integers they cannot hold.
constexpr int64_t kRoundedGroup = 32;

/// A folder's GPTQ settings before they were part of config.json.
constexpr const char* kOlderConfig = "quantize_config.json";

FolderQuantization parse_method(const Json& json, const std::string& what) {
  const QuantizationConfig config(json, what);
  const Json method = config.get("quant_method");
  if (method == "compressed-tensors") return parse_compressed(config);
  if (method == "gptq") return parse_gptq(config);
  if (method == "awq") return parse_awq(config);
  if (method == "fp8" || method == "fbgemm_fp8") return parse_fp8(config);
  const bool is_unnamed =
      method.is_null() && (config.flag("load_in_8bit") || config.flag("load_in_4bit"));
  if (method == "bitsandbytes" || is_unnamed) return parse_bitsandbytes(config);
  config.refuse("quant_method", method,
                "awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8 or gptq");
}

std::string groups_text(int64_t group) {
  return group > 0 ? fmt::format("groups of {}", group) : "a scale for each output";
}

}  // namespace

std::string description(const FolderQuantization& q) {
  switch (q.format) {
    case QuantizedFormat::compressed_integers:
      return fmt::format("{} bits, {}, {}{}{}{}", q.bits, q.dynamic ? "dynamic" : "weight-only",
                         groups_text(q.group), q.symmetric ? "" : ", zero points",
                         q.act_order ? ", act-order" : "",
                         q.others.empty() ? ""
                                          : fmt::format("; {} in other bits or groups",
                                                        counted(std::ssize(q.others), "layer")));
    case QuantizedFormat::gptq:
      return fmt::format("GPTQ, {} bits, {}{}{}", q.bits, groups_text(q.group),
                         q.symmetric ? "" : ", zero points", q.act_order ? ", act-order" : "");
    case QuantizedFormat::awq:
      return fmt::format("AWQ, {} bits, {}, zero points", q.bits, groups_text(q.group));
    case QuantizedFormat::bitsandbytes:
      return fmt::format("bitsandbytes, {} bits", q.bits);
    case QuantizedFormat::compressed_floats:
    case QuantizedFormat::fp8:
      return q.block_rows > 0
                 ? fmt::format("8-bit floats, blocks of {} x {}", q.block_rows, q.block_columns)
                 : "8-bit floats";
  }
  return "";
}

std::string_view name_of_format(const FolderQuantization& q) {
  switch (q.format) {
    case QuantizedFormat::compressed_integers:
      return q.packed ? "pack-quantized" : "int-quantized";
    case QuantizedFormat::compressed_floats:
      return "float-quantized";
    case QuantizedFormat::gptq:
      return "gptq";
    case QuantizedFormat::awq:
      return "awq";
    case QuantizedFormat::bitsandbytes:
      return "bitsandbytes";
    case QuantizedFormat::fp8:
      return "fp8";
  }
  return "";
}

std::optional<FolderQuantization> parse_quantization(std::string_view config,
                                                     const std::string& what) {
  const Json root = parse_json(config, what);
  if (!root.is_object()) return std::nullopt;
  const auto at = root.find(kQuantizationKey);
  if (at == root.end() || at->is_null()) return std::nullopt;
  return parse_method(*at, what);
}

std::optional<FolderQuantization> read_quantization(const fs::path& folder) {
  const fs::path path = folder / "config.json", older = folder / kOlderConfig;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  if (auto quantization = parse_quantization(read_file(path), path.string())) return quantization;
  if (!fs::exists(older, ignored)) return std::nullopt;
  Json json = parse_json(read_file(older), older.string());
  if (json.is_object() && !json.contains("quant_method")) json["quant_method"] = "gptq";
  return parse_method(json, older.string());
}

QuantizedWeights find_quantized(std::shared_ptr<const WeightSource> files,
                                const FolderQuantization& q) {
  switch (q.format) {
    case QuantizedFormat::compressed_integers:
      return find_compressed(std::move(files), q);
    case QuantizedFormat::gptq:
      return find_gptq(std::move(files), q);
    case QuantizedFormat::awq:
      return find_awq(std::move(files), q);
    case QuantizedFormat::bitsandbytes:
      return find_bitsandbytes(std::move(files), q);
    case QuantizedFormat::compressed_floats:
    case QuantizedFormat::fp8:
      return find_fp8(std::move(files), q);
  }
  return {};
}

std::shared_ptr<const WeightSource> dequantized(std::shared_ptr<const WeightSource> files,
                                                const FolderQuantization& quantization) {
  return with_floats(files, find_quantized(files, quantization));
}

std::shared_ptr<const WeightSource> open_weight_source(const fs::path& folder) {
  if (is_gguf_file(folder)) return gguf_weights(std::make_shared<const GgufFile>(folder));
  if (is_state_dict(folder)) return open_state_dict(folder);
  const auto files = std::make_shared<const WeightFiles>(folder);
  const auto quantization = read_quantization(folder);
  if (!quantization) return files;
  return dequantized(files, *quantization);
}

ProductIntegers product_integers(const QuantizedWeights& found) {
  const auto has_integers = [](const auto& named) { return named.second.integers.has_value(); };
  if (!found.weights.empty() && std::ranges::all_of(found.weights, has_integers)) {
    IntegerGrid grid = found.weights.begin()->second.integers->grid;
    for (const auto& [name, weight] : found.weights)
      grid.bits = std::max(grid.bits, weight.integers->grid.bits);
    return {grid, true};
  }
  const bool fits = std::ranges::any_of(found.weights, [](const auto& named) {
    const QuantizedWeight& w = named.second;
    return w.columns % kRoundedGroup == 0 && is_worth_quantizing(Shape({w.rows, w.columns}));
  });
  return fits ? ProductIntegers{{8, kRoundedGroup}, false} : ProductIntegers{};
}

}  // namespace brrr::io
