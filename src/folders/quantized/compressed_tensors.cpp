#include "folders/quantized/compressed_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/errors.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "folders/quantized/fp8.h"
#include "folders/quantized/integer_matrix.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr const char* kScale = ".weight_scale";
constexpr const char* kPacked = ".weight_packed";
constexpr const char* kShape = ".weight_shape";
constexpr const char* kZeroPoint = ".weight_zero_point";
constexpr const char* kGroupIndex = ".weight_g_idx";
constexpr int64_t kLargestGroup = int64_t{1} << 20;

std::string layer_of(std::string_view tensor, std::string_view suffix) {
  return std::string(tensor.substr(0, tensor.size() - suffix.size()));
}

/// Reads a quantization_config, key by key.
class CompressedParser {
 public:
  explicit CompressedParser(const QuantizationConfig& config) : config_(config) {}

  FolderQuantization parse() {
    config_.expect("quantization_status", {"compressed", "frozen", Json()});
    for (const char* key : {"kv_cache_scheme", "sparsity_config", "transform_config"})
      if (const Json value = config_.get(key);
          !value.is_null() && !(value.is_object() && value.empty()))
        config_.refuse(key, value, "none");
    FolderQuantization q;
    const Json format = config_.get("format");
    if (format != "int-quantized" && format != "pack-quantized" && format != "float-quantized")
      config_.refuse("format", format, "int-quantized, pack-quantized or float-quantized");
    q.packed = format == "pack-quantized";
    if (format == "float-quantized") {
      q.format = QuantizedFormat::compressed_floats;
      q.symmetric = false;
    }
    const Json groups = config_.get("config_groups");
    if (!groups.is_object() || groups.empty())
      config_.refuse("config_groups", groups, "a group for all linear layers");
    read_groups(groups, q);
    q.ignore = config_.names("ignore");
    return q;
  }

 private:
  /// The group of all linear layers, and groups of named layers that differ in bits and groups.
  void read_groups(const Json& groups, FolderQuantization& q) const {
    const auto is_general = [&](const Json& group) {
      const Json targets = group.is_object() ? group.value("targets", Json()) : Json();
      return groups.size() == 1 ||
             (targets.is_array() && std::ranges::find(targets, Json("Linear")) != targets.end());
    };
    const auto general = std::ranges::find_if(groups, is_general);
    if (general == groups.end() || std::ranges::count_if(groups, is_general) != 1)
      config_.refuse("config_groups", groups, "one group whose targets are Linear");
    const FolderQuantization plain = q;
    read_group(*general, q);
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group == general) continue;
      FolderQuantization other = plain;
      read_group(*group, other);
      FolderQuantization same = q;
      same.bits = other.bits, same.group = other.group, same.others.clear();
      if (other != same)
        config_.refuse("config_groups", *group, "groups that differ in num_bits and group_size");
      const Json targets = group->value("targets", Json());
      if (!targets.is_array()) config_.refuse("config_groups.targets", targets, "names of layers");
      for (const Json& target : targets) {
        if (!target.is_string() || target.get_ref<const std::string&>().starts_with("re:"))
          config_.refuse("config_groups.targets", target, "names of layers");
        q.others[target.get<std::string>()] = {other.bits, other.group};
      }
    }
  }

  void read_group(const Json& group, FolderQuantization& q) const {
    const std::string at = "config_groups.";
    if (!group.is_object()) config_.refuse("config_groups", group, "an object for each group");
    if (const Json output = group.value("output_activations", Json()); !output.is_null())
      config_.refuse(at + "output_activations", output, "null");
    if (const Json format = group.value("format", Json());
        !format.is_null() && format != config_.get("format"))
      config_.refuse(at + "format", format, "the format of the whole folder");
    const Json weights = group.value("weights", Json());
    if (!weights.is_object()) config_.refuse(at + "weights", weights, "an object");
    const std::string prefix = at + "weights.";
    config_.expect(weights, prefix, "dynamic", {false, Json()});
    const Json rows = group.value("input_activations", Json());
    if (!rows.is_null() && !rows.is_object())
      config_.refuse(at + "input_activations", rows, "an object or null");
    if (q.format == QuantizedFormat::compressed_floats)
      read_floats(weights, prefix, q);
    else
      read_integers(weights, prefix, rows, at + "input_activations.", q);
  }

  void read_integers(const Json& weights, const std::string& prefix, const Json& rows,
                     const std::string& rows_prefix, FolderQuantization& q) const {
    config_.expect(weights, prefix, "type", {"int"});
    config_.expect(weights, prefix, "num_bits", {8, 4});
    config_.expect(weights, prefix, "strategy", {"channel", "group"});
    config_.expect(weights, prefix, "symmetric", {true, false});
    q.symmetric = weights["symmetric"] == true;
    // The columns of a group are not neighbours with "group"; with "weight" and "static" they are.
    config_.expect(weights, prefix, "actorder", {Json(), "group", "weight", "static", false});
    q.act_order = weights.value("actorder", Json()) == "group";
    q.bits = weights["num_bits"].get<int64_t>();
    if (weights["strategy"] == "group") {
      const Json size = weights.value("group_size", Json());
      if (!size.is_number_integer() || size.get<int64_t>() < 8 ||
          size.get<int64_t>() > kLargestGroup || size.get<int64_t>() % 8 != 0)
        config_.refuse(prefix + "group_size", size, "a multiple of 8");
      q.group = size.get<int64_t>();
    }
    if (rows.is_null()) return;
    config_.expect(rows, rows_prefix, "type", {"int"});
    config_.expect(rows, rows_prefix, "num_bits", {8});
    config_.expect(rows, rows_prefix, "dynamic", {true});
    config_.expect(rows, rows_prefix, "symmetric", {true});
    config_.expect(rows, rows_prefix, "strategy", {"token"});
    q.dynamic = true;
  }

  /// The rows that weights multiply stay floats here, whatever input_activations says.
  void read_floats(const Json& weights, const std::string& prefix, FolderQuantization& q) const {
    config_.expect(weights, prefix, "type", {"float"});
    config_.expect(weights, prefix, "symmetric", {true});
    config_.expect(weights, prefix, "num_bits", {8});
    config_.expect(weights, prefix, "strategy", {"channel", "tensor", "block"});
    if (weights["strategy"] == "block")
      read_block(config_, prefix + "block_structure", weights.value("block_structure", Json()), q);
  }

  const QuantizationConfig& config_;
};

/// A quantised weight in the files.
struct StoredWeight {
  IntegerForm form;
  TensorView integers, scales;
  bool packed = false;
  std::vector<int8_t> zeros = {};      // [rows, groups]; empty: all are 0
  std::vector<int32_t> group_of = {};  // [columns]; empty: groups are neighbours

  bool is_on_grid() const { return zeros.empty() && group_of.empty(); }
};

std::vector<float> scales_of(const StoredWeight& w) {
  std::vector<float> scales(static_cast<size_t>(w.scales.shape.elements()));
  convert(w.scales.dtype, w.scales.bytes.data(), DType::f32, scales.data(),
          w.scales.shape.elements());
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

/// The integers less their zero points.
std::vector<int8_t> differences_of(const StoredWeight& w) {
  std::vector<int8_t> integers = integers_of(w);
  if (w.zeros.empty()) return integers;
  const auto width = static_cast<size_t>(w.form.columns_of_group());
  for (size_t i = 0; i < integers.size(); ++i)
    integers[i] = static_cast<int8_t>(integers[i] - w.zeros[i / width]);
  return integers;
}

/// Writes scale * (integer - zero) of a weight with zero points or with groups that are spread.
void dequantize_spread(const StoredWeight& w, std::span<float> to) {
  const std::vector<int8_t> integers = integers_of(w);
  const std::vector<float> scales = scales_of(w);
  const int64_t width = w.form.columns_of_group();
  parallel_for(w.form.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < w.form.columns; ++column) {
        const int64_t group =
            w.group_of.empty() ? column / width : w.group_of[static_cast<size_t>(column)];
        const auto at = static_cast<size_t>(row * w.form.columns + column);
        const auto part = static_cast<size_t>(row * w.form.groups() + group);
        const int zero = w.zeros.empty() ? 0 : w.zeros[part];
        to[at] = scales[part] * static_cast<float>(integers[at] - zero);
      }
  });
}

/// Finds the parts of every quantised weight.
class WeightFinder {
 public:
  WeightFinder(std::shared_ptr<const WeightSource> files, const FolderQuantization& q)
      : finder_(std::move(files)), q_(q) {}

  std::map<std::string, StoredWeight> find() const {
    std::map<std::string, StoredWeight> found;
    finder_.files()->each([&](const TensorView& t) {
      const std::string_view name = t.name;
      if (name.ends_with(kPacked))
        found.emplace(layer_of(name, kPacked) + std::string(kWeightSuffix), packed_weight(t));
      else if (name.ends_with(kWeightSuffix) && t.dtype == DType::i8)
        found.emplace(t.name, plain_weight(t));
    });
    finder_.files()->each([&](const TensorView& t) {
      for (const char* suffix : {kScale, kShape, kZeroPoint, kGroupIndex})
        if (std::string_view(t.name).ends_with(suffix) &&
            !found.contains(layer_of(t.name, suffix) + std::string(kWeightSuffix)))
          finder_.refuse(t.name, "belongs to no quantised weight of the file");
    });
    if (found.empty())
      user_error(
          "{} holds no quantised weight, although config.json has a {}; copy or download the "
          "folder again",
          finder_.files()->what(), kQuantizationKey);
    return found;
  }

 private:
  StoredWeight plain_weight(const TensorView& t) const {
    if (t.shape.rank() != 2)
      finder_.refuse(t.name, "must be a matrix of integers; has " + t.shape.str());
    StoredWeight w;
    const std::string layer = layer_of(t.name, kWeightSuffix);
    const IntegerGrid grid = q_.grid_of(layer);
    w.form = {t.shape.size(0), t.shape.size(1), grid.bits, grid.group};
    w.integers = t;
    check(w, layer);
    return w;
  }

  StoredWeight packed_weight(const TensorView& t) const {
    const std::string layer = layer_of(t.name, kPacked);
    const TensorView& shape = finder_.part(layer + kShape, t.name);
    if (shape.shape.elements() != 2 || (shape.dtype != DType::i64 && shape.dtype != DType::i32))
      finder_.refuse(shape.name, "must hold two integers, the sizes of the weight");
    StoredWeight w;
    int64_t sizes[2];
    for (int64_t i = 0; i < 2; ++i)
      sizes[i] = static_cast<int64_t>(load_as_double(shape.dtype, shape.bytes.data(), i));
    constexpr int64_t kLargest = int64_t{1} << 31;
    if (std::min(sizes[0], sizes[1]) < 1 || std::max(sizes[0], sizes[1]) > kLargest)
      finder_.refuse(shape.name, fmt::format("has the sizes {} and {}", sizes[0], sizes[1]));
    const IntegerGrid grid = q_.grid_of(layer);
    w.form = {sizes[0], sizes[1], grid.bits, grid.group};
    w.packed = true;
    w.integers = t;
    if (t.dtype != DType::i32 || t.shape != Shape({w.form.rows, w.form.words_of_row()}))
      finder_.refuse(t.name,
                     fmt::format("must be i32 [{},{}] for {} bits by {}; the file has {} {}",
                                 w.form.rows, w.form.words_of_row(), grid.bits, shape.name,
                                 name_of(t.dtype), t.shape.str()));
    check(w, layer);
    return w;
  }

  /// Finds and checks scales, zero points and groups.
  void check(StoredWeight& w, const std::string& layer) const {
    const TensorView& scales = finder_.part(layer + kScale, w.integers.name);
    if (w.form.group != 0 && w.form.columns % w.form.group != 0)
      finder_.refuse(w.integers.name, fmt::format("has {} inputs, which groups of {} do not divide",
                                                  w.form.columns, w.form.group));
    const Shape wanted({w.form.rows, w.form.groups()});
    const bool is_vector = w.form.group == 0 && scales.shape == Shape({w.form.rows});
    if (!is_float(scales.dtype) || (scales.shape != wanted && !is_vector))
      finder_.refuse(scales.name,
                     fmt::format("must be floats {} by config.json; the file has {} {}",
                                 wanted.str(), name_of(scales.dtype), scales.shape.str()));
    finder_.check_scales(scales);
    w.scales = scales;
    if (q_.symmetric) {
      const TensorView* zero = finder_.find(layer + kZeroPoint);
      if (zero != nullptr &&
          std::ranges::any_of(zero->bytes, [](std::byte b) { return b != std::byte{0}; }))
        finder_.refuse(zero->name,
                       "holds zero points, although config.json says that there are none");
    } else {
      read_zeros(w, finder_.part(layer + kZeroPoint, w.integers.name));
    }
    if (q_.act_order)
      read_group_of(w, finder_.part(layer + kGroupIndex, w.integers.name));
    else if (finder_.find(layer + kGroupIndex) != nullptr)
      finder_.refuse(layer + kGroupIndex, "reorders columns, although config.json does not say so");
  }

  /// Packed zero points lie [rows / integers of a word, groups], with the offset of the integers.
  void read_zeros(StoredWeight& w, const TensorView& t) const {
    const int64_t groups = w.form.groups(), per = w.form.integers_of_word();
    const Shape wanted({w.packed ? ceil_div(w.form.rows, per) : w.form.rows, groups});
    const DType dtype = w.packed ? DType::i32 : DType::i8;
    if (t.dtype != dtype || t.shape != wanted)
      finder_.refuse(t.name,
                     fmt::format("must be {} {} by config.json; the file has {} {}", name_of(dtype),
                                 wanted.str(), name_of(t.dtype), t.shape.str()));
    const auto mask = static_cast<uint64_t>((1 << w.form.bits) - 1);
    for (int64_t row = 0; row < w.form.rows; ++row)
      for (int64_t group = 0; group < groups; ++group) {
        if (!w.packed) {
          w.zeros.push_back(static_cast<int8_t>(
              static_cast<int64_t>(load_integer(dtype, t.bytes.data(), row * groups + group))));
          continue;
        }
        const uint64_t word = load_integer(dtype, t.bytes.data(), row / per * groups + group);
        const auto stored = static_cast<int>((word >> (w.form.bits * (row % per))) & mask);
        w.zeros.push_back(static_cast<int8_t>(stored - w.form.offset()));
      }
  }

  void read_group_of(StoredWeight& w, const TensorView& t) const {
    if (t.dtype != DType::i32 || t.shape != Shape({w.form.columns}))
      finder_.refuse(t.name, fmt::format("must be i32 [{}]; the file has {} {}", w.form.columns,
                                         name_of(t.dtype), t.shape.str()));
    w.group_of.resize(static_cast<size_t>(w.form.columns));
    std::memcpy(w.group_of.data(), t.bytes.data(), t.bytes.size());
    for (const int32_t g : w.group_of)
      if (g < 0 || g >= w.form.groups())
        finder_.refuse(t.name,
                       fmt::format("holds the group {}; expected 0 to {}", g, w.form.groups() - 1));
  }

  TensorFinder finder_;
  const FolderQuantization& q_;
};

}  // namespace

std::string with_quantization(std::string_view text, const FolderQuantization& q,
                              const std::string& what) {
  nlohmann::ordered_json config = parse_ordered_json(text, what);
  nlohmann::ordered_json rows;
  if (q.dynamic)
    rows = {{"num_bits", 8},
            {"type", "int"},
            {"symmetric", true},
            {"strategy", "token"},
            {"dynamic", true}};
  const auto group_of = [&](const IntegerGrid& grid, const std::vector<std::string>& targets) {
    nlohmann::ordered_json weights{
        {"num_bits", grid.bits}, {"type", "int"},
        {"symmetric", true},     {"strategy", grid.group > 0 ? "group" : "channel"},
        {"group_size", nullptr}, {"dynamic", false}};
    if (grid.group > 0) weights["group_size"] = grid.group;
    return nlohmann::ordered_json{{"targets", targets},
                                  {"weights", weights},
                                  {"input_activations", rows},
                                  {"output_activations", nullptr}};
  };
  nlohmann::ordered_json groups{{"group_0", group_of({q.bits, q.group}, {"Linear"})}};
  std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> others;
  for (const auto& [layer, grid] : q.others) others[{grid.bits, grid.group}].push_back(layer);
  for (const auto& [grid, layers] : others)
    groups[fmt::format("group_{}", groups.size())] = group_of({grid.first, grid.second}, layers);
  config[kQuantizationKey] = {{"quant_method", "compressed-tensors"},
                              {"format", q.packed ? "pack-quantized" : "int-quantized"},
                              {"quantization_status", "compressed"},
                              {"config_groups", groups},
                              {"ignore", q.ignore},
                              {"kv_cache_scheme", nullptr}};
  return config.dump(2) + "\n";
}

FolderQuantization parse_compressed(const QuantizationConfig& config) {
  return CompressedParser(config).parse();
}

QuantizedWeights find_compressed(std::shared_ptr<const WeightSource> files,
                                 const FolderQuantization& q) {
  QuantizedWeights found;
  for (const auto& [name, stored] : WeightFinder(files, q).find()) {
    const std::string layer = layer_of(name, kWeightSuffix);
    QuantizedWeight w;
    w.rows = stored.form.rows;
    w.columns = stored.form.columns;
    w.parts = {name};
    for (const char* part : {kPacked, kScale, kShape, kZeroPoint, kGroupIndex})
      w.parts.push_back(layer + part);
    // A difference from a zero point takes a bit more than the integers.
    if (stored.group_of.empty() && (stored.zeros.empty() || stored.form.bits == 4))
      w.integers = {.grid = {stored.zeros.empty() ? stored.form.bits : 8, stored.form.group},
                    .integers = [stored = stored] { return differences_of(stored); },
                    .scales = [stored = stored] { return scales_of(stored); }};
    w.read = [stored = stored, files](std::span<float> to) {
      if (stored.is_on_grid())
        dequantize(stored.form, integers_of(stored), scales_of(stored), to);
      else
        dequantize_spread(stored, to);
      files->let_go(stored.integers.bytes);
    };
    found.weights.emplace(name, std::move(w));
  }
  return found;
}

}  // namespace brrr::io
