#include "folders/quantized/awq.h"

#include <array>
#include <cstring>

#include "base/errors.h"
#include "folders/quantized/zero_points.h"

namespace brrr::io {
namespace {

constexpr const char* kAwqIntegers = ".qweight";
constexpr const char* kAwqZeros = ".qzeros";
constexpr const char* kAwqScales = ".scales";
constexpr int64_t kAwqOfWord = 8;
/// The nibble that holds output i of a word: the inverse of (0, 2, 4, 6, 1, 3, 5, 7).
constexpr std::array<int, kAwqOfWord> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

/// The eight integers of a word in the order of the outputs.
void unpack_awq_word(std::span<const std::byte> words, int64_t at, int32_t* to) {
  uint32_t word = 0;
  std::memcpy(&word, words.data() + 4 * at, sizeof(word));
  for (const int nibble : kAwqNibble) *to++ = static_cast<int32_t>((word >> (4 * nibble)) & 15U);
}

struct AwqLayer {
  int64_t outputs = 0, inputs = 0, group = 0;
  TensorView integers, zeros, scales;

  ZeroPointMatrix matrix() const {
    ZeroPointMatrix m;
    m.outputs = outputs;
    m.inputs = inputs;
    m.group_of = neighbouring_groups(inputs, group);
    const int64_t elements = scales.shape.elements();
    m.scales.resize(static_cast<size_t>(elements));
    convert(scales.dtype, scales.bytes.data(), DType::f32, m.scales.data(), elements);
    m.zeros.resize(m.scales.size());
    for (int64_t at = 0; at < elements / kAwqOfWord; ++at)
      unpack_awq_word(zeros.bytes, at, m.zeros.data() + at * kAwqOfWord);
    m.integers = [bytes = integers.bytes, outputs = outputs](int64_t input, int64_t first,
                                                             std::span<int32_t> to) {
      for (int64_t i = 0; i < std::ssize(to); i += kAwqOfWord)
        unpack_awq_word(bytes, (input * outputs + first + i) / kAwqOfWord, to.data() + i);
    };
    return m;
  }
};

AwqLayer awq_layer(const TensorFinder& finder, const FolderQuantization& q, const std::string& name,
                   const TensorView& integers) {
  if (integers.dtype != DType::i32 || integers.shape.rank() != 2 ||
      !is_size_of_matrix(integers.shape.size(0), integers.shape.size(1)) ||
      !is_size_of_matrix(integers.shape.size(0), integers.shape.size(1) * kAwqOfWord))
    finder.refuse(integers.name, fmt::format("must be a matrix of i32; the file has {} {}",
                                             name_of(integers.dtype), integers.shape.str()));
  AwqLayer l;
  l.integers = integers;
  l.inputs = integers.shape.size(0);
  l.outputs = integers.shape.size(1) * kAwqOfWord;
  l.group = q.group;
  if (q.group > 0 && l.inputs % q.group != 0)
    finder.refuse(integers.name, fmt::format("has {} inputs, which groups of {} do not divide",
                                             l.inputs, q.group));
  const int64_t groups = q.group == 0 ? 1 : l.inputs / q.group;
  const std::string why = fmt::format("group_size {} of config.json and {}",
                                      q.group == 0 ? -1 : q.group, in_quotes(integers.name));
  l.scales = finder.part(name + kAwqScales, integers.name);
  finder.floats(l.scales, Shape({groups, l.outputs}), why);
  finder.check_scales(l.scales);
  l.zeros = finder.part(name + kAwqZeros, integers.name, DType::i32,
                        Shape({groups, l.outputs / kAwqOfWord}), why);
  return l;
}

}  // namespace

FolderQuantization parse_awq(const QuantizationConfig& config) {
  FolderQuantization q;
  q.format = QuantizedFormat::awq;
  config.expect("bits", {4});
  q.bits = 4;
  q.group = config.group_size("group_size");
  q.symmetric = false;
  for (const char* key : {"version", "format"}) config.expect(key, {"gemm", "GEMM", Json()});
  q.ignore = config.names("modules_to_not_convert");
  return q;
}

QuantizedWeights find_awq(std::shared_ptr<const WeightSource> files, const FolderQuantization& q) {
  const TensorFinder finder(std::move(files));
  QuantizedWeights found;
  finder.each_with(kAwqIntegers, [&](const std::string& name, const TensorView& t) {
    const AwqLayer l = awq_layer(finder, q, name, t);
    QuantizedWeight w;
    w.rows = l.outputs;
    w.columns = l.inputs;
    for (const char* part : {kAwqIntegers, kAwqZeros, kAwqScales}) w.parts.push_back(name + part);
    w.read = [l, source = finder.files()](std::span<float> to) {
      l.matrix().dequantize(to);
      source->let_go(l.integers.bytes);
    };
    // A difference from a zero point takes a bit more than the integers.
    w.integers = {.grid = {8, q.group},
                  .integers = [l] { return l.matrix().differences(); },
                  .scales = [l] { return l.matrix().scales_of_rows(); }};
    found.weights.emplace(name + std::string(kWeightSuffix), std::move(w));
  });
  if (found.weights.empty())
    user_error(
        "{} holds no quantised weight (NAME.qweight), although quant_method is awq; copy or "
        "download the folder again",
        finder.files()->what());
  return found;
}

}  // namespace brrr::io
