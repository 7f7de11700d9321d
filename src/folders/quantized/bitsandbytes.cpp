#include "folders/quantized/bitsandbytes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/blocks/four_bit.h"
#include "base/errors.h"
#include "base/integers.h"
#include "base/threads/parallel.h"

namespace brrr::io {
namespace {

constexpr const char* kBnbRowMaxima = ".SCB";
constexpr const char* kBnbRowFormat = ".weight_format";
constexpr const char* kBnbState = ".quant_state.bitsandbytes__";
constexpr const char* kBnbMaxima = ".absmax";
constexpr const char* kBnbMap = ".quant_map";
constexpr const char* kBnbNestedMaxima = ".nested_absmax";
constexpr const char* kBnbNestedMap = ".nested_quant_map";
constexpr int64_t kValuesOfMap = 16, kValuesOfNestedMap = 256;
/// The constant that bitsandbytes multiplies by for 1 / 127.
constexpr float kOneOver127 = 7.874015718698502e-3F;

/// A weight in blocks of 4-bit values.
struct NibbleWeight {
  std::string name, type;  // "nf4" or "fp4"
  int64_t rows = 0, columns = 0, block = 64, nested_block = 0;
  TensorView nibbles, maxima;
  std::vector<float> map, nested_maxima, nested_map;
  float nested_offset = 0;

  int64_t elements() const { return rows * columns; }

  float maximum(int64_t b) const {
    if (nested_block == 0) {
      float value = 0;
      std::memcpy(&value, maxima.bytes.data() + 4 * b, sizeof(value));
      return value;
    }
    const auto index = static_cast<size_t>(maxima.bytes[static_cast<size_t>(b)]);
    return nested_map[index] * nested_maxima[static_cast<size_t>(b / nested_block)] + nested_offset;
  }

  /// The block type that holds the same values; nullopt where the file's table is another one or
  /// its blocks are no multiple of ours.
  std::optional<Storage> storage() const {
    const bool is_nf4 = type == "nf4";
    if (columns % blocks::kFourBitValues != 0 || block % blocks::kFourBitValues != 0 ||
        !std::ranges::equal(map, is_nf4 ? blocks::nf4_values() : blocks::fp4_values()))
      return std::nullopt;
    return storage_from_name(is_nf4 ? blocks::kNf4Storage : blocks::kFp4Storage);
  }

  /// Writes the values as blocks of storage(). A block of the file may become several.
  void write(std::span<std::byte> to) const {
    constexpr size_t kCodes = blocks::kFourBitValues / 2;
    const int64_t own = block / blocks::kFourBitValues;
    for (int64_t b = 0; b < elements() / blocks::kFourBitValues; ++b) {
      const float scale = maximum(b / own);
      std::byte* const at = to.data() + b * blocks::kFourBitBytes;
      std::memcpy(at, &scale, sizeof(scale));
      std::memcpy(at + sizeof(scale), nibbles.bytes.data() + static_cast<size_t>(b) * kCodes,
                  kCodes);
    }
  }

  void read(std::span<float> to) const {
    // Blocks are even, so that no byte belongs to two.
    parallel_for(ceil_div(elements(), block), 256, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float scale = maximum(b);
        for (int64_t i = b * block; i < std::min((b + 1) * block, elements()); ++i) {
          const auto pair = static_cast<size_t>(nibbles.bytes[static_cast<size_t>(i / 2)]);
          to[static_cast<size_t>(i)] = map[i % 2 == 0 ? pair >> 4 : pair & 15] * scale;
        }
      }
    });
  }
};

/// Reads the JSON of a quant_state.
class QuantState {
 public:
  QuantState(const TensorFinder& finder, const TensorView& state) : finder_(finder), state_(state) {
    const std::string_view text(reinterpret_cast<const char*>(state.bytes.data()),
                                state.bytes.size());
    json_ = parse_json(text, fmt::format("{}: {}", finder.files()->what(), state.name));
    if (!json_.is_object()) refuse("", json_, "an object");
  }

  int64_t size(const char* key) const {
    const Json value = json_.value(key, Json());
    constexpr int64_t kMost = 1 << 20;
    if (!value.is_number_integer() || value.get<int64_t>() < 2 || value.get<int64_t>() > kMost ||
        value.get<int64_t>() % 2 != 0)
      refuse(key, value, "an even size");
    return value.get<int64_t>();
  }
  bool has(const char* key) const { return !json_.value(key, Json()).is_null(); }

  std::pair<int64_t, int64_t> shape() const {
    const Json value = json_.value("shape", Json());
    const bool is_pair = value.is_array() && value.size() == 2 && value[0].is_number_integer() &&
                         value[1].is_number_integer();
    if (!is_pair || !is_size_of_matrix(value[0].get<int64_t>(), value[1].get<int64_t>()))
      refuse("shape", value, "the two sizes of a matrix");
    return {value[0].get<int64_t>(), value[1].get<int64_t>()};
  }

  float offset() const {
    const Json value = json_.value("nested_offset", Json());
    if (!value.is_number() || !std::isfinite(value.get<float>()))
      refuse("nested_offset", value, "a number");
    return value.get<float>();
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& expected) const {
    finder_.refuse(state_.name,
                   fmt::format("holds {}{}: expected {}; found {}", "quant_state",
                               key.empty() ? "" : "." + key, expected, describe(value)));
  }

  const TensorFinder& finder_;
  const TensorView& state_;
  Json json_;
};

class BitsandbytesFinder {
 public:
  explicit BitsandbytesFinder(std::shared_ptr<const WeightSource> files)
      : finder_(std::move(files)) {}

  QuantizedWeights find() {
    finder_.each_with(kBnbRowMaxima,
                      [&](const std::string& name, const TensorView& t) { add_rows(name, t); });
    for (const char* type : {"nf4", "fp4"})
      finder_.each_with(
          kBnbState + std::string(type),
          [&](const std::string& name, const TensorView& t) { add_nibbles(name, type, t); });
    refuse_incomplete();
    if (found_.weights.empty())
      user_error(
          "{} holds no quantised weight (NAME.SCB or NAME.weight.quant_state), although "
          "quant_method is bitsandbytes; copy or download the folder again",
          finder_.files()->what());
    return std::move(found_);
  }

 private:
  void add_rows(const std::string& layer, const TensorView& maxima) {
    const std::string name = layer + std::string(kWeightSuffix);
    const TensorView integers = finder_.part(name, maxima.name);
    if (integers.dtype != DType::i8 || integers.shape.rank() != 2 ||
        !is_size_of_matrix(integers.shape.size(0), integers.shape.size(1)))
      finder_.refuse(name, fmt::format("must be a matrix of i8; the file has {} {}",
                                       name_of(integers.dtype), integers.shape.str()));
    const TensorView* const format = finder_.find(layer + kBnbRowFormat);
    if (format != nullptr &&
        std::ranges::any_of(format->bytes, [](std::byte b) { return b != std::byte{0}; }))
      finder_.refuse(format->name,
                     "says that the integers do not lie in rows, which is not supported: save the "
                     "model again with bitsandbytes 0.45 or newer");
    QuantizedWeight w;
    w.rows = integers.shape.size(0);
    w.columns = integers.shape.size(1);
    w.parts = {name, maxima.name, layer + kBnbRowFormat};
    const std::vector<float> rows = finder_.floats(maxima, Shape({w.rows}), in_quotes(name));
    w.read = [integers, rows, columns = w.columns, files = finder_.files()](std::span<float> to) {
      parallel_for(std::ssize(rows), 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
            const auto q = static_cast<int8_t>(integers.bytes[static_cast<size_t>(i)]);
            // In the order of bitsandbytes, so that the bits are the same.
            to[static_cast<size_t>(i)] =
                static_cast<float>(q) * rows[static_cast<size_t>(row)] * kOneOver127;
          }
      });
      files->let_go(integers.bytes);
    };
    w.integers = {.grid = {8, 0},
                  .integers =
                      [integers] {
                        std::vector<int8_t> values(integers.bytes.size());
                        std::memcpy(values.data(), integers.bytes.data(), values.size());
                        return values;
                      },
                  .scales =
                      [rows] {
                        std::vector<float> scales(rows);
                        for (float& scale : scales) scale *= kOneOver127;
                        return scales;
                      }};
    found_.weights.emplace(name, std::move(w));
  }

  void add_nibbles(const std::string& name, const std::string& type, const TensorView& state) {
    const QuantState json(finder_, state);
    NibbleWeight n;
    n.name = name;
    n.type = type;
    std::tie(n.rows, n.columns) = json.shape();
    n.block = json.size("blocksize");
    n.nibbles = finder_.part(name, state.name);
    // Any dtype: bnb_4bit_quant_storage.
    if (std::ssize(n.nibbles.bytes) != ceil_div(n.elements(), 2))
      finder_.refuse(
          name, fmt::format("must have {} bytes for the shape [{},{}] of its "
                            "quant_state; the file has {}",
                            ceil_div(n.elements(), 2), n.rows, n.columns, n.nibbles.bytes.size()));
    const int64_t blocks = ceil_div(n.elements(), n.block);
    const std::string why = fmt::format("the blocks of {} values of its quant_state", n.block);
    const TensorView& map = finder_.part(name + kBnbMap, state.name);
    n.map = finder_.floats(map, Shape({kValuesOfMap}), "the 16 values of 4 bits");
    n.maxima = finder_.part(name + kBnbMaxima, state.name);
    if (json.has("nested_blocksize")) {
      n.nested_block = json.size("nested_blocksize");
      n.nested_offset = json.offset();
      finder_.part(n.maxima.name, name, DType::u8, Shape({blocks}), why);
      n.nested_map = finder_.floats(finder_.part(name + kBnbNestedMap, state.name),
                                    Shape({kValuesOfNestedMap}), "the 256 values of 8 bits");
      n.nested_maxima =
          finder_.floats(finder_.part(name + kBnbNestedMaxima, state.name),
                         Shape({ceil_div(blocks, n.nested_block)}),
                         fmt::format("the blocks of {} maxima of its quant_state", n.nested_block));
    } else {
      finder_.part(n.maxima.name, name, DType::f32, Shape({blocks}), why);
      finder_.floats(n.maxima, Shape({blocks}), why);
    }
    has_nibbles_ = true;
    found_.layout = fmt::format("{} in blocks of {}{}", type, n.block,
                                n.nested_block > 0 ? ", double quantization" : "");
    QuantizedWeight w;
    w.rows = n.rows;
    w.columns = n.columns;
    w.parts = {name, state.name};
    for (const char* part : {kBnbMaxima, kBnbMap, kBnbNestedMaxima, kBnbNestedMap})
      w.parts.push_back(name + part);
    w.read = [n, files = finder_.files()](std::span<float> to) {
      n.read(to);
      files->let_go(n.nibbles.bytes);
    };
    if (const auto storage = n.storage()) {
      w.storage = *storage;
      w.blocks = [n, files = finder_.files()](std::span<std::byte> to) {
        n.write(to);
        files->let_go(n.nibbles.bytes);
      };
    }
    found_.weights.emplace(name, std::move(w));
  }

  /// Refuses a weight whose other parts are missing.
  void refuse_incomplete() const {
    finder_.each_with(kBnbMaxima, [&](const std::string& name, const TensorView& t) {
      if (!found_.weights.contains(name))
        finder_.refuse(t.name, fmt::format("has no {}{}nf4 or fp4 beside it, so that shape and "
                                           "block size of {} are not known. Copy or download the "
                                           "folder again",
                                           name, kBnbState, in_quotes(name)));
    });
    finder_.each_with(kWeightSuffix, [&](const std::string&, const TensorView& t) {
      if (found_.weights.contains(t.name)) return;
      if (t.dtype == DType::i8)
        finder_.refuse(t.name,
                       "holds integers, but there is no SCB beside it with their scales. "
                       "Copy or download the folder again");
      if (t.dtype == DType::u8)
        finder_.refuse(t.name,
                       "holds values of 4 bits, but there is no quant_state beside it. "
                       "Copy or download the folder again");
    });
  }

  TensorFinder finder_;
  QuantizedWeights found_;
  bool has_nibbles_ = false;
};

}  // namespace

FolderQuantization parse_bitsandbytes(const QuantizationConfig& config) {
  FolderQuantization q;
  q.format = QuantizedFormat::bitsandbytes;
  const bool is_8 = config.flag("load_in_8bit"), is_4 = config.flag("load_in_4bit");
  if (is_8 == is_4)
    config.refuse("load_in_8bit", config.get("load_in_8bit"), "true for it or for load_in_4bit");
  q.bits = is_8 ? 8 : 4;
  if (is_4) config.expect("bnb_4bit_quant_type", {"nf4", "fp4", Json()});
  q.symmetric = is_8;
  q.ignore = config.names("llm_int8_skip_modules");
  return q;
}

QuantizedWeights find_bitsandbytes(std::shared_ptr<const WeightSource> files,
                                   const FolderQuantization&) {
  return BitsandbytesFinder(std::move(files)).find();
}

}  // namespace brrr::io
