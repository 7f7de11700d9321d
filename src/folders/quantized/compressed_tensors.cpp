#include "folders/quantized/compressed_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/errors.h"
#include "folders/quantized/integer_matrix.h"
#include "folders/weights.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr const char* kKey = "quantization_config";
constexpr const char* kMethod = "compressed-tensors";
constexpr const char* kScale = ".weight_scale";
constexpr const char* kPacked = ".weight_packed";
constexpr const char* kShape = ".weight_shape";
constexpr const char* kZeroPoint = ".weight_zero_point";
constexpr int64_t kLargestGroup = int64_t{1} << 20;

std::string layer_of(std::string_view tensor, std::string_view suffix) {
  return std::string(tensor.substr(0, tensor.size() - suffix.size()));
}

/// Reads a quantization_config, key by key.
class ConfigParser {
 public:
  ConfigParser(const Json& config, std::string what) : config_(config), what_(std::move(what)) {}

  FolderQuantization parse() {
    if (!config_.is_object()) refuse("", config_, "an object");
    expect(config_, "", "quant_method", {kMethod});
    expect(config_, "", "quantization_status", {"compressed", "frozen", Json()});
    for (const char* key : {"kv_cache_scheme", "sparsity_config", "transform_config"})
      if (const Json value = config_.value(key, Json());
          !value.is_null() && !(value.is_object() && value.empty()))
        refuse(key, value, "none");
    FolderQuantization q;
    const Json format = config_.value("format", Json());
    if (format != "int-quantized" && format != "pack-quantized")
      refuse("format", format, "int-quantized or pack-quantized");
    q.packed = format == "pack-quantized";
    const Json groups = config_.value("config_groups", Json());
    if (!groups.is_object() || groups.size() != 1)
      refuse("config_groups", groups, "one group for all linear layers");
    read_group(*groups.begin(), q);
    const Json ignore = config_.value("ignore", Json::array());
    if (!ignore.is_array() && !ignore.is_null()) refuse("ignore", ignore, "a list of names");
    if (ignore.is_array())
      for (const Json& name : ignore) {
        if (!name.is_string()) refuse("ignore", name, "names of layers");
        q.ignore.push_back(name.get<std::string>());
      }
    return q;
  }

 private:
  void read_group(const Json& group, FolderQuantization& q) const {
    const std::string at = "config_groups.";
    if (!group.is_object()) refuse("config_groups", group, "an object for each group");
    if (const Json output = group.value("output_activations", Json()); !output.is_null())
      refuse(at + "output_activations", output, "null");
    if (const Json format = group.value("format", Json());
        !format.is_null() && format != config_.value("format", Json()))
      refuse(at + "format", format, "the format of the whole folder");
    const Json weights = group.value("weights", Json());
    if (!weights.is_object()) refuse(at + "weights", weights, "an object");
    const std::string prefix = at + "weights.";
    expect(weights, prefix, "type", {"int"});
    expect(weights, prefix, "num_bits", {8, 4});
    expect(weights, prefix, "symmetric", {true});
    expect(weights, prefix, "dynamic", {false, Json()});
    expect(weights, prefix, "strategy", {"channel", "group"});
    // "group" reorders the columns by a tensor weight_g_idx; "weight" and "static" do not.
    expect(weights, prefix, "actorder", {Json(), "weight", "static", false});
    q.bits = weights["num_bits"].get<int64_t>();
    if (weights["strategy"] == "group") {
      const Json size = weights.value("group_size", Json());
      if (!size.is_number_integer() || size.get<int64_t>() < 8 ||
          size.get<int64_t>() > kLargestGroup || size.get<int64_t>() % 8 != 0)
        refuse(prefix + "group_size", size, "a multiple of 8");
      q.group = size.get<int64_t>();
    }
    const Json rows = group.value("input_activations", Json());
    if (rows.is_null()) return;
    if (!rows.is_object()) refuse(at + "input_activations", rows, "an object or null");
    const std::string rows_prefix = at + "input_activations.";
    expect(rows, rows_prefix, "type", {"int"});
    expect(rows, rows_prefix, "num_bits", {8});
    expect(rows, rows_prefix, "dynamic", {true});
    expect(rows, rows_prefix, "symmetric", {true});
    expect(rows, rows_prefix, "strategy", {"token"});
    q.dynamic = true;
  }

  void expect(const Json& object, const std::string& prefix, const char* key,
              const std::vector<Json>& supported) const {
    const Json value = object.value(key, Json());
    if (std::ranges::find(supported, value) != supported.end()) return;
    std::vector<std::string> texts;
    for (const Json& one : supported)
      if (!one.is_null()) texts.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    refuse(prefix + key, value, fmt::format("{}", fmt::join(texts, " or ")));
  }

  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& expected) const {
    user_error("{}: {}{}{} is not supported: expected {}; found {}", what_, kKey,
               key.empty() ? "" : ".", key, expected, describe(value));
  }

  const Json& config_;
  std::string what_;
};

/// A quantised weight in the files.
struct StoredWeight {
  IntegerForm form;
  TensorView integers, scales;
  bool packed = false;
};

/// Finds the parts of every quantised weight.
class WeightFinder {
 public:
  WeightFinder(const WeightSource& files, const FolderQuantization& q) : files_(files), q_(q) {}

  std::map<std::string, StoredWeight> find() const {
    std::map<std::string, StoredWeight> found;
    files_.each([&](const TensorView& t) {
      const std::string_view name = t.name;
      if (name.ends_with(kPacked))
        found.emplace(layer_of(name, kPacked) + std::string(kWeightSuffix), packed_weight(t));
      else if (name.ends_with(kWeightSuffix) && t.dtype == DType::i8)
        found.emplace(t.name, plain_weight(t));
    });
    files_.each([&](const TensorView& t) {
      for (const char* suffix : {kScale, kShape, kZeroPoint})
        if (std::string_view(t.name).ends_with(suffix) &&
            !found.contains(layer_of(t.name, suffix) + std::string(kWeightSuffix)))
          refuse(t.name, "belongs to no quantised weight of the file");
    });
    if (found.empty())
      user_error(
          "{} holds no quantised weight, although config.json has a {}; copy or download the "
          "folder again",
          files_.what(), kKey);
    return found;
  }

 private:
  StoredWeight plain_weight(const TensorView& t) const {
    if (t.shape.rank() != 2) refuse(t.name, "must be a matrix of integers; has " + t.shape.str());
    StoredWeight w;
    w.form = {t.shape.size(0), t.shape.size(1), q_.bits, q_.group};
    w.integers = t;
    check(w, layer_of(t.name, kWeightSuffix));
    return w;
  }

  StoredWeight packed_weight(const TensorView& t) const {
    const std::string layer = layer_of(t.name, kPacked);
    const TensorView& shape = part(layer + kShape, t.name);
    if (shape.shape.elements() != 2 || (shape.dtype != DType::i64 && shape.dtype != DType::i32))
      refuse(shape.name, "must hold two integers, the sizes of the weight");
    StoredWeight w;
    int64_t sizes[2];
    for (int64_t i = 0; i < 2; ++i)
      sizes[i] = static_cast<int64_t>(load_as_double(shape.dtype, shape.bytes.data(), i));
    constexpr int64_t kLargest = int64_t{1} << 31;
    if (std::min(sizes[0], sizes[1]) < 1 || std::max(sizes[0], sizes[1]) > kLargest)
      refuse(shape.name, fmt::format("has the sizes {} and {}", sizes[0], sizes[1]));
    w.form = {sizes[0], sizes[1], q_.bits, q_.group};
    w.packed = true;
    w.integers = t;
    if (t.dtype != DType::i32 || t.shape != Shape({w.form.rows, w.form.words_of_row()}))
      refuse(t.name, fmt::format("must be i32 [{},{}] for {} bits by {}; the file has {} {}",
                                 w.form.rows, w.form.words_of_row(), q_.bits, shape.name,
                                 name_of(t.dtype), t.shape.str()));
    check(w, layer);
    return w;
  }

  /// Finds and checks the scales; a zero point must be zero.
  void check(StoredWeight& w, const std::string& layer) const {
    const TensorView& scales = part(layer + kScale, w.integers.name);
    if (w.form.group != 0 && w.form.columns % w.form.group != 0)
      refuse(w.integers.name, fmt::format("has {} inputs, which groups of {} do not divide",
                                          w.form.columns, w.form.group));
    const Shape wanted({w.form.rows, w.form.groups()});
    const bool is_vector = w.form.group == 0 && scales.shape == Shape({w.form.rows});
    if (!is_float(scales.dtype) || (scales.shape != wanted && !is_vector))
      refuse(scales.name, fmt::format("must be floats {} by config.json; the file has {} {}",
                                      wanted.str(), name_of(scales.dtype), scales.shape.str()));
    for (int64_t i = 0; i < scales.shape.elements(); ++i) {
      const double scale = load_as_double(scales.dtype, scales.bytes.data(), i);
      if (!(scale >= 0) || !std::isfinite(scale))
        refuse(scales.name, fmt::format("holds the scale {}; expected positive numbers", scale));
    }
    w.scales = scales;
    const TensorView* zero = files_.find(layer + kZeroPoint);
    if (zero != nullptr &&
        std::ranges::any_of(zero->bytes, [](std::byte b) { return b != std::byte{0}; }))
      refuse(zero->name, "holds zero points; only symmetric weights are supported");
    if (files_.find(layer + ".weight_g_idx") != nullptr)
      refuse(layer + ".weight_g_idx", "reorders columns, which is not supported");
  }

  const TensorView& part(const std::string& name, const std::string& of) const {
    const TensorView* tensor = files_.find(name);
    if (tensor == nullptr)
      user_error("{}: the tensor {} is missing; {} needs it. Copy or download the folder again",
                 files_.what(), in_quotes(name), in_quotes(of));
    return *tensor;
  }

  [[noreturn]] void refuse(const std::string& tensor, const std::string& why) const {
    user_error("{}: the tensor {} {}", files_.what(), in_quotes(tensor), why);
  }

  const WeightSource& files_;
  const FolderQuantization& q_;
};

std::vector<float> scales_of(const StoredWeight& w) {
  std::vector<float> scales(static_cast<size_t>(w.scales.shape.elements()));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<float>(
        load_as_double(w.scales.dtype, w.scales.bytes.data(), static_cast<int64_t>(i)));
  return scales;
}

std::vector<int8_t> integers_of(const StoredWeight& w) {
  std::vector<int8_t> integers(static_cast<size_t>(w.form.rows * w.form.columns));
  if (w.packed)
    unpack(w.form, w.integers.bytes, integers);
  else
    std::memcpy(integers.data(), w.integers.bytes.data(), integers.size());
  return integers;
}

}  // namespace

std::string description(const FolderQuantization& q) {
  return fmt::format(
      "{} bits, {}, {}", q.bits, q.dynamic ? "dynamic" : "weight-only",
      q.group > 0 ? fmt::format("groups of {}", q.group) : "a scale for each output");
}

std::string with_quantization(std::string_view text, const FolderQuantization& q,
                              const std::string& what) {
  nlohmann::ordered_json config = parse_ordered_json(text, what);
  nlohmann::ordered_json weights{
      {"num_bits", q.bits},    {"type", "int"},
      {"symmetric", true},     {"strategy", q.group > 0 ? "group" : "channel"},
      {"group_size", nullptr}, {"dynamic", false}};
  if (q.group > 0) weights["group_size"] = q.group;
  nlohmann::ordered_json rows;
  if (q.dynamic)
    rows = {{"num_bits", 8},
            {"type", "int"},
            {"symmetric", true},
            {"strategy", "token"},
            {"dynamic", true}};
  const nlohmann::ordered_json group{{"targets", {"Linear"}},
                                     {"weights", weights},
                                     {"input_activations", rows},
                                     {"output_activations", nullptr}};
  config[kKey] = {{"quant_method", kMethod},
                  {"format", q.packed ? "pack-quantized" : "int-quantized"},
                  {"quantization_status", "compressed"},
                  {"config_groups", {{"group_0", group}}},
                  {"ignore", q.ignore},
                  {"kv_cache_scheme", nullptr}};
  return config.dump(2) + "\n";
}

std::optional<FolderQuantization> parse_quantization(std::string_view config,
                                                     const std::string& what) {
  const Json root = parse_json(config, what);
  if (!root.is_object()) return std::nullopt;
  const auto at = root.find(kKey);
  if (at == root.end() || at->is_null()) return std::nullopt;
  return ConfigParser(*at, what).parse();
}

std::optional<FolderQuantization> read_quantization(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return parse_quantization(read_file(path), path.string());
}

std::shared_ptr<const WeightSource> dequantized(std::shared_ptr<const WeightSource> source,
                                                const FolderQuantization& quantization) {
  const auto weights = std::make_shared<const std::map<std::string, StoredWeight>>(
      WeightFinder(*source, quantization).find());
  const auto make = [source, weights](std::string_view name, std::span<float> to) {
    const StoredWeight& w = weights->at(std::string(name));
    dequantize(w.form, integers_of(w), scales_of(w), to);
    source->let_go(w.integers.bytes);
  };
  const auto list = std::make_shared<WeightList>(source->what(), source, make);
  for (const auto& [name, w] : *weights)
    list->add({name, DType::f32, Shape({w.form.rows, w.form.columns}), {}});
  source->each([&](const TensorView& t) {
    const std::string_view name = t.name;
    for (const char* suffix : {kPacked, kScale, kShape, kZeroPoint})
      if (name.ends_with(suffix) &&
          weights->contains(layer_of(name, suffix) + std::string(kWeightSuffix)))
        return;
    if (!weights->contains(t.name)) list->add(t);
  });
  return list;
}

std::shared_ptr<const WeightSource> open_weight_source(const fs::path& folder) {
  const auto files = std::make_shared<const WeightFiles>(folder);
  const auto quantization = read_quantization(folder);
  if (!quantization) return files;
  return dequantized(files, *quantization);
}

bool reaches_lowest(const WeightSource& files, const FolderQuantization& quantization) {
  if (quantization.bits != 4) return false;
  const auto weights = WeightFinder(files, quantization).find();
  const std::vector<int8_t> integers = integers_of(weights.begin()->second);
  return std::ranges::find(integers, -8) != integers.end();
}

}  // namespace brrr::io
