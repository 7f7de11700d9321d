#include "folders/quantized/gptq.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "folders/quantized/zero_points.h"

namespace brrr::io {
namespace {

constexpr const char* kGptqIntegers = ".qweight";
constexpr const char* kGptqZeros = ".qzeros";
constexpr const char* kGptqScales = ".scales";
constexpr const char* kGptqGroups = ".g_idx";

uint32_t gptq_word(std::span<const std::byte> words, int64_t at) {
  uint32_t word = 0;
  std::memcpy(&word, words.data() + 4 * at, sizeof(word));
  return word;
}

/// The tensors of a layer, checked.
struct GptqLayer {
  std::string name;
  int64_t bits = 4, outputs = 0, inputs = 0, groups = 1;
  TensorView integers, zeros, scales;
  std::vector<int32_t> group_of;
  bool is_permuted = false;  // the columns of a group are not neighbours

  int64_t of_word() const { return 32 / bits; }

  ZeroPointMatrix matrix(bool is_v2) const {
    ZeroPointMatrix m;
    m.outputs = outputs;
    m.inputs = inputs;
    m.group_of = group_of;
    m.scales.resize(static_cast<size_t>(groups * outputs));
    convert(scales.dtype, scales.bytes.data(), DType::f32, m.scales.data(), groups * outputs);
    const uint32_t mask = (1U << bits) - 1;
    // Whole words, as GPTQModel adds them: a zero point 0 has borrowed from the next one.
    const uint32_t ones = is_v2 ? 0 : bits == 4 ? 0x11111111U : 0x01010101U;
    m.zeros.reserve(m.scales.size());
    for (int64_t at = 0; at < groups * outputs / of_word(); ++at)
      for (int64_t i = 0; i < of_word(); ++i)
        m.zeros.push_back(
            static_cast<int32_t>(((gptq_word(zeros.bytes, at) + ones) >> (bits * i)) & mask));
    m.integers = [bytes = integers.bytes, bits = bits, outputs = outputs, per = of_word(), mask](
                     int64_t input, int64_t first, std::span<int32_t> to) {
      const int64_t row = input / per * outputs + first, shift = input % per * bits;
      for (size_t i = 0; i < to.size(); ++i)
        to[i] =
            static_cast<int32_t>((gptq_word(bytes, row + static_cast<int64_t>(i)) >> shift) & mask);
    };
    return m;
  }
};

class GptqFinder {
 public:
  GptqFinder(std::shared_ptr<const WeightSource> files, const FolderQuantization& q)
      : finder_(std::move(files)), q_(q) {}

  QuantizedWeights find() {
    finder_.each_with(kGptqIntegers, [&](const std::string& name, const TensorView& t) {
      layers_.push_back(layer(name, t));
    });
    if (layers_.empty())
      user_error(
          "{} holds no quantised weight (NAME.qweight), although quant_method is gptq; copy or "
          "download the folder again",
          finder_.files()->what());
    const bool is_v2 = decide_version();
    QuantizedWeights found;
    found.layout = layout(is_v2);
    const bool is_symmetric = q_.symmetric && has_middle_;
    for (const GptqLayer& l : layers_) {
      QuantizedWeight w;
      w.rows = l.outputs;
      w.columns = l.inputs;
      for (const char* part : {kGptqIntegers, kGptqZeros, kGptqScales, kGptqGroups})
        w.parts.push_back(l.name + part);
      w.read = [l, is_v2, files = finder_.files()](std::span<float> to) {
        l.matrix(is_v2).dequantize(to);
        files->let_go(l.integers.bytes);
      };
      // A difference from a zero point takes a bit more than the integers.
      if (!l.is_permuted && (is_symmetric || q_.bits == 4))
        w.integers = {.grid = {is_symmetric ? q_.bits : 8, q_.group},
                      .integers = [l, is_v2] { return l.matrix(is_v2).differences(); },
                      .scales = [l, is_v2] { return l.matrix(is_v2).scales_of_rows(); }};
      found.weights.emplace(l.name + std::string(kWeightSuffix), std::move(w));
    }
    return found;
  }

 private:
  GptqLayer layer(const std::string& name, const TensorView& integers) const {
    GptqLayer l;
    l.name = name;
    l.bits = q_.bits;
    if (integers.dtype != DType::i32 || integers.shape.rank() != 2)
      finder_.refuse(integers.name, fmt::format("must be a matrix of i32; the file has {} {}",
                                                name_of(integers.dtype), integers.shape.str()));
    l.integers = integers;
    l.outputs = integers.shape.size(1);
    l.inputs = integers.shape.size(0) * l.of_word();
    if (!is_size_of_matrix(l.outputs, l.inputs) || l.outputs % l.of_word() != 0)
      finder_.refuse(integers.name, fmt::format("has the shape {}, which is no weight of {} bits",
                                                integers.shape.str(), l.bits));
    if (q_.group > 0 && l.inputs % q_.group != 0)
      finder_.refuse(integers.name, fmt::format("has {} inputs, which groups of {} do not divide",
                                                l.inputs, q_.group));
    l.groups = q_.group == 0 ? 1 : l.inputs / q_.group;
    const std::string why = fmt::format("{} bits and group_size {} of config.json and {}", q_.bits,
                                        q_.group == 0 ? -1 : q_.group, in_quotes(integers.name));
    l.scales = finder_.part(name + kGptqScales, integers.name);
    finder_.floats(l.scales, Shape({l.groups, l.outputs}), why);
    finder_.check_scales(l.scales);
    l.zeros = finder_.part(name + kGptqZeros, integers.name, DType::i32,
                           Shape({l.groups, l.outputs / l.of_word()}), why);
    read_groups(l);
    return l;
  }

  void read_groups(GptqLayer& l) const {
    const std::vector<int32_t> neighbours = neighbouring_groups(l.inputs, q_.group);
    l.group_of = neighbours;
    const std::string name = l.name + kGptqGroups;
    const TensorView* const t = finder_.find(name);
    if (t == nullptr && !q_.act_order) return;
    if (t == nullptr)
      finder_.refuse(name,
                     "is missing, and config.json says desc_act: without it, the group of each "
                     "input is not known. Copy or download the folder again");
    finder_.part(name, l.integers.name, DType::i32, Shape({l.inputs}), in_quotes(l.integers.name));
    std::memcpy(l.group_of.data(), t->bytes.data(), t->bytes.size());
    for (const int32_t g : l.group_of)
      if (g < 0 || g >= l.groups)
        finder_.refuse(name, fmt::format("holds the group {}; expected 0 to {}", g, l.groups - 1));
    l.is_permuted = l.group_of != neighbours;
  }

  /// Whether the zero points are stored as they are. Those of symmetric weights are 2^(bits - 1).
  bool decide_version() {
    if (!q_.symmetric) return q_.says_v2;
    const uint32_t ones = q_.bits == 4 ? 0x11111111U : 0x01010101U;
    const uint32_t middle = ones << (q_.bits - 1);
    bool is_v1 = true, is_v2 = true;
    for (const GptqLayer& l : layers_)
      for (int64_t at = 0; at < std::ssize(l.zeros.bytes) / 4; ++at) {
        const uint32_t word = gptq_word(l.zeros.bytes, at);
        is_v1 = is_v1 && word == middle - ones;
        is_v2 = is_v2 && word == middle;
      }
    has_middle_ = is_v1 || is_v2;
    return has_middle_ ? is_v2 : q_.says_v2;
  }

  std::string layout(bool is_v2) const {
    std::string text = fmt::format("zero points of version {}", is_v2 ? 2 : 1);
    if (q_.symmetric && has_middle_ && is_v2 != q_.says_v2)
      text += fmt::format(" by their values, although config.json says {}",
                          q_.says_v2 ? "gptq_v2" : "gptq");
    if (q_.symmetric && !has_middle_) text += ", not symmetric although config.json says so";
    return text;
  }

  TensorFinder finder_;
  const FolderQuantization& q_;
  std::vector<GptqLayer> layers_;
  bool has_middle_ = false;  // all zero points are those of symmetric weights
};

}  // namespace

FolderQuantization parse_gptq(const QuantizationConfig& config) {
  FolderQuantization q;
  q.format = QuantizedFormat::gptq;
  config.expect("bits", {4, 8});
  q.bits = config.get("bits").get<int64_t>();
  q.group = config.group_size("group_size");
  q.act_order = config.flag("desc_act");
  const Json symmetric = config.get("sym");
  q.symmetric = symmetric.is_null() || config.flag("sym");
  config.expect("is_marlin_format", {false, Json()});
  config.expect("pack_dtype", {"int32", Json()});
  for (const char* key : {"checkpoint_format", "format"}) {
    config.expect(key, {"gptq", "gptq_v2", Json()});
    q.says_v2 = q.says_v2 || config.get(key) == "gptq_v2";
  }
  const Json dynamic = config.get("dynamic");
  if (!dynamic.is_null() && !dynamic.is_object()) config.refuse("dynamic", dynamic, "an object");
  if (dynamic.is_object())
    for (const auto& [pattern, change] : dynamic.items()) {
      // "-:PATTERN" keeps layers in floats.
      if (!pattern.starts_with("-:")) config.refuse("dynamic." + pattern, change, "none");
      q.ignore.push_back(pattern.substr(2));
    }
  return q;
}

QuantizedWeights find_gptq(std::shared_ptr<const WeightSource> files, const FolderQuantization& q) {
  return GptqFinder(std::move(files), q).find();
}

}  // namespace brrr::io
