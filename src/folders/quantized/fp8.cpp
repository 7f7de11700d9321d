#include "folders/quantized/fp8.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/integers.h"
#include "base/threads/parallel.h"

namespace brrr::io {
namespace {

constexpr std::array<const char*, 2> kFp8Scales = {".weight_scale_inv", ".weight_scale"};
/// Scales of the rows that weights multiply, which are not needed.
constexpr std::array<const char*, 4> kFp8RowScales = {".input_scale", ".input_scale_ub",
                                                      ".activation_scale", ".output_scale"};

struct Fp8Weight {
  int64_t rows = 0, columns = 0;
  int64_t block_rows = 0, block_columns = 0;  // what shares a scale
  TensorView numbers;
  std::vector<float> scales;

  void read(std::span<float> to) const {
    std::array<float, 256> values{};
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = float_from_f8e4m3(static_cast<uint8_t>(i));
    const int64_t across = ceil_div(columns, block_columns);
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t b = 0; b < across; ++b) {
          const float scale = scales[static_cast<size_t>(row / block_rows * across + b)];
          const int64_t last = std::min(columns, (b + 1) * block_columns);
          for (int64_t i = row * columns + b * block_columns; i < row * columns + last; ++i) {
            const auto at = static_cast<size_t>(i);
            to[at] = values[static_cast<size_t>(numbers.bytes[at])] * scale;
          }
        }
    });
  }
};

Fp8Weight fp8_weight(const TensorFinder& finder, const FolderQuantization& q,
                     const std::string& layer, const TensorView& numbers) {
  if (numbers.shape.rank() != 2 || !is_size_of_matrix(numbers.shape.size(0), numbers.shape.size(1)))
    finder.refuse(numbers.name,
                  fmt::format("must be a matrix of 8-bit floats; has {}", numbers.shape.str()));
  Fp8Weight w;
  w.numbers = numbers;
  w.rows = numbers.shape.size(0);
  w.columns = numbers.shape.size(1);
  const TensorView* scales = finder.find(layer + kFp8Scales[0]);
  if (scales == nullptr) scales = &finder.part(layer + kFp8Scales[1], numbers.name);
  Shape wanted({w.rows, 1});
  w.block_rows = 1;
  w.block_columns = w.columns;
  if (q.block_rows > 0) {
    w.block_rows = q.block_rows;
    w.block_columns = q.block_columns;
    wanted = Shape({ceil_div(w.rows, w.block_rows), ceil_div(w.columns, w.block_columns)});
  } else if (scales->shape.elements() == 1) {
    w.block_rows = w.rows;
    wanted = scales->shape;
  } else if (scales->shape.rank() == 1) {
    wanted = Shape({w.rows});
  }
  w.scales = finder.floats(*scales, wanted, "config.json and " + in_quotes(numbers.name));
  return w;
}

}  // namespace

void read_block(const QuantizationConfig& config, const std::string& key, const Json& value,
                FolderQuantization& q) {
  if (value.is_null()) return;
  constexpr int64_t kLargest = 1 << 20;
  const auto is_size = [](const Json& n) {
    return n.is_number_integer() && n.get<int64_t>() >= 1 && n.get<int64_t>() <= kLargest;
  };
  if (!value.is_array() || value.size() != 2 || !is_size(value[0]) || !is_size(value[1]))
    config.refuse(key, value, "two sizes, such as [128, 128]");
  q.block_rows = value[0].get<int64_t>();
  q.block_columns = value[1].get<int64_t>();
}

FolderQuantization parse_fp8(const QuantizationConfig& config) {
  FolderQuantization q;
  q.format = QuantizedFormat::fp8;
  q.symmetric = false;
  config.expect("fmt", {"e4m3", Json()});
  config.expect("activation_scheme", {"dynamic", "static", Json()});
  read_block(config, "weight_block_size", config.get("weight_block_size"), q);
  for (const char* key : {"modules_to_not_convert", "ignored_layers"})
    for (std::string& name : config.names(key)) q.ignore.push_back(std::move(name));
  return q;
}

QuantizedWeights find_fp8(std::shared_ptr<const WeightSource> files, const FolderQuantization& q) {
  const TensorFinder finder(std::move(files));
  QuantizedWeights found;
  finder.each_with(kWeightSuffix, [&](const std::string& layer, const TensorView& t) {
    if (t.dtype != DType::f8e4m3) return;
    const Fp8Weight fp8 = fp8_weight(finder, q, layer, t);
    QuantizedWeight w;
    w.rows = fp8.rows;
    w.columns = fp8.columns;
    w.parts = {t.name};
    for (const char* part : kFp8Scales) w.parts.push_back(layer + part);
    for (const char* part : kFp8RowScales) w.parts.push_back(layer + part);
    w.read = [fp8, source = finder.files()](std::span<float> to) {
      fp8.read(to);
      source->let_go(fp8.numbers.bytes);
    };
    found.weights.emplace(t.name, std::move(w));
  });
  if (found.weights.empty())
    user_error(
        "{} holds no weight in 8-bit floats, although config.json has a quantization_config; copy "
        "or download the folder again",
        finder.files()->what());
  return found;
}

}  // namespace brrr::io
