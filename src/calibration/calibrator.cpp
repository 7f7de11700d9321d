#include "calibration/calibrator.h"

#include <algorithm>
#include <cmath>

#include "base/human.h"
#include "base/threads/parallel.h"
#include "calibration/output_error.h"

namespace brrr::calibration {
namespace {

/// Gram matrices gathered at once take at most this many bytes, unless one layer needs more; the
/// process takes about three times as much while they are gathered.
constexpr int64_t kGramBytes = int64_t{1} << 28;
constexpr int kClippings = 9;  // 1, 0.95, ... 0.6 of the range
constexpr float kClippingStep = 0.05f;
constexpr int64_t kRowsOfThread = 4;

/// A group of numbers rounded to integers of a scale.
void round_group(std::span<const float> numbers, float scale, int most, std::span<int8_t> to) {
  const auto top = static_cast<float>(most);
  for (size_t i = 0; i < numbers.size(); ++i)
    to[i] = static_cast<int8_t>(std::clamp(std::nearbyint(numbers[i] / scale), -top, top));
}

/// d G dᵀ of a group's differences, with the group's part of the Gram matrix.
double square_of_group(std::span<const float> numbers, std::span<const int8_t> integers,
                       float scale, const float* gram, int64_t columns) {
  const size_t width = numbers.size();
  std::vector<float> d(width);
  for (size_t i = 0; i < width; ++i) d[i] = scale * static_cast<float>(integers[i]) - numbers[i];
  double sum = 0;
  for (size_t i = 0; i < width; ++i) {
    float product = 0;
    const float* const line = gram + static_cast<int64_t>(i) * columns;
#pragma omp simd reduction(+ : product)
    for (size_t j = 0; j < width; ++j) product += line[j] * d[j];
    sum += static_cast<double>(product) * static_cast<double>(d[i]);
  }
  return sum;
}

}  // namespace

io::IntegerMatrix quantize_clipped(std::span<const float> weight, const io::IntegerForm& form,
                                   std::span<const float> gram) {
  io::IntegerMatrix result = io::quantize(weight, form);
  const auto width = static_cast<size_t>(form.columns_of_group());
  const int64_t groups = form.groups();
  parallel_for(form.rows, kRowsOfThread, [&](int64_t begin, int64_t end) {
    std::vector<int8_t> tried(width);
    for (int64_t g = begin * groups; g < end * groups; ++g) {
      const size_t first = static_cast<size_t>(g) * width;
      const std::span<const float> numbers = weight.subspan(first, width);
      const std::span<int8_t> integers = std::span(result.integers).subspan(first, width);
      float& scale = result.scales[static_cast<size_t>(g)];
      const float whole = scale;
      const int64_t column = g % groups * form.columns_of_group();
      const float* const part = gram.data() + column * (form.columns + 1);
      double least = square_of_group(numbers, integers, whole, part, form.columns);
      for (int step = 1; step < kClippings; ++step) {
        const float clipped = whole * (1 - kClippingStep * static_cast<float>(step));
        round_group(numbers, clipped, form.most(), tried);
        const double error = square_of_group(numbers, tried, clipped, part, form.columns);
        if (error >= least) continue;
        least = error;
        scale = clipped;
        std::ranges::copy(tried, integers.begin());
      }
    }
  });
  return result;
}

Calibrator::Calibrator(const io::ModelFolder& model, std::vector<io::LinearLayer> layers,
                       CalibrationText text, infer::Memory memory)
    : model_(model),
      layers_(std::move(layers)),
      text_(std::move(text)),
      memory_(std::move(memory)) {}

const InputStatistics& Calibrator::statistics(const std::string& weight) {
  if (!gathered_.contains(weight)) gather_from(weight);
  const auto at = gathered_.find(weight);
  BRRR_CHECK(at != gathered_.end(), "no product reads {}", weight);
  return *at->second;
}

void Calibrator::gather_from(const std::string& weight) {
  gathered_.clear();
  const auto first = std::ranges::find(layers_, weight, &io::LinearLayer::parameter);
  BRRR_CHECK(first != layers_.end(), "{} is no layer", weight);
  ParameterSet wanted;
  int64_t bytes = 0;
  for (auto layer = first; layer != layers_.end(); ++layer) {
    bytes += layer->inputs * layer->inputs * int64_t{sizeof(float)};
    if (bytes > kGramBytes && !wanted.empty()) break;
    wanted.insert(layer->parameter);
  }
  // A later layer that reads the same rows may not fit; its statistics are then gathered again.
  gathered_ = gather_statistics(calibrated_runnable(model_), wanted, text_.runs, memory_);
}

std::vector<ScalingPlace> Calibrator::places() const {
  return scaling_places(*model_.definition, layers_);
}

io::WeightChanges Calibrator::smoothing(double strength) {
  return calibration::smoothing(
      model_, places(),
      [this](const std::string& w) -> const InputStatistics& { return statistics(w); }, strength);
}

io::WeightChanges Calibrator::activation_aware_scaling(int64_t bits, int64_t group) {
  return calibration::activation_aware_scaling(
      model_, places(),
      [this](const std::string& w) -> const InputStatistics& { return statistics(w); }, bits,
      group);
}

io::LayerQuantizer Calibrator::measured(Choose choose, io::WeightChanges changes) {
  return [this, choose = std::move(choose), changes = std::move(changes)](
             const io::LinearLayer& layer, std::span<const float> weight,
             const io::IntegerForm& form) {
    const InputStatistics& original = statistics(layer.parameter);
    const auto factors = changes.input_factors.find(layer.parameter);
    InputStatistics scaled;
    if (factors != changes.input_factors.end()) scaled = divided(original, factors->second);
    const InputStatistics& inputs = factors == changes.input_factors.end() ? original : scaled;
    io::IntegerMatrix chosen = choose(weight, form, inputs);
    const int64_t width = form.columns;
    const auto back = [&](const io::IntegerMatrix& q) {
      std::vector<float> numbers(weight.size());
      io::dequantize(q.form, q.integers, q.scales, numbers);
      return sampled_rows(numbers, width);
    };
    LayerErrors& errors = errors_[layer.parameter];
    errors.chosen = output_error(sampled_rows(weight, width), back(chosen), inputs.gram, width);
    // Rounding to nearest takes the weight as it was.
    std::vector<float> unscaled(weight.begin(), weight.end());
    if (factors != changes.input_factors.end())
      for (size_t i = 0; i < unscaled.size(); ++i)
        unscaled[i] /= factors->second[i % factors->second.size()];
    errors.nearest = output_error(sampled_rows(unscaled, width), back(io::quantize(unscaled, form)),
                                  original.gram, width);
    return chosen;
  };
}

io::LayerQuantizer Calibrator::gptq(const GptqOptions& options, io::WeightChanges changes) {
  return measured(
      [options](std::span<const float> weight, const io::IntegerForm& form,
                const InputStatistics& inputs) {
        return calibration::gptq(weight, form, inputs.gram, options);
      },
      std::move(changes));
}

io::LayerQuantizer Calibrator::clipping(io::WeightChanges changes) {
  return measured(
      [](std::span<const float> weight, const io::IntegerForm& form,
         const InputStatistics& inputs) { return quantize_clipped(weight, form, inputs.gram); },
      std::move(changes));
}

io::LayerQuantizer Calibrator::nearest(io::WeightChanges changes) {
  return measured([](std::span<const float> weight, const io::IntegerForm& form,
                     const InputStatistics&) { return io::quantize(weight, form); },
                  std::move(changes));
}

}  // namespace brrr::calibration
