#include "cli/quantize/measure.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/cpu/target.h"
#include "base/human.h"
#include "infer/encoder.h"
#include "infer/evaluate.h"
#include "infer/generator.h"
#include "infer/held_out_text.h"
#include "insight/bench/bench.h"

namespace brrr::cli {
namespace {

constexpr size_t kLeastTexts = 8, kMostTexts = 64, kLongestText = 128;  // the latter in tokens
constexpr size_t kShortestText = 200;  // bytes of a text that is made of the default text's lines
constexpr double kSecondsOfSpeed = 3;  // of all precisions
constexpr int64_t kPrompt = 16, kBurst = 8;  // tokens

/// The model in one of the precisions.
struct Variant {
  Precision name = Precision::fp32;
  const io::ModelFolder* model = nullptr;
  DType dtype = DType::f32;
  WeightQuantization quantization = {};
  int64_t bytes = 0;
};

std::vector<Variant> variants_of(const io::ModelFolder& model, const io::ModelFolder& back,
                                 const io::QuantizedModel& made, Precision name) {
  const int64_t parameters = model.definition->parameter_count();
  return {{Precision::fp32, &model, DType::f32, {}, 4 * parameters},
          {Precision::bfloat16, &model, DType::bf16, {}, 2 * parameters},
          {name, &back, DType::bf16, back.own_quantization(), made.stored_bytes()}};
}

class LanguageMeasure {
 public:
  LanguageMeasure(const io::ModelFolder& model, const MeasureOptions& options)
      : model_(model), memory_(options.memory) {
    const infer::HeldOutText held = infer::read_held_out_text(options.text, *model.tokenizer);
    description_ = held.description;
    ids_ = infer::tokens_to_compare_on(held, *model.tokenizer, model.definition->parameter_count());
  }

  QuantizeMeasurements run(const std::vector<Variant>& variants) const {
    QuantizeMeasurements m;
    m.has_loss = true;
    m.text = description_;
    std::vector<infer::ComparedModel> models;
    for (const Variant& v : variants)
      models.push_back({v.model->weights, {v.name, v.dtype, v.quantization}});
    const std::vector<infer::TokenComparison> compared = infer::compare_on_tokens(
        model_.definition, models, ids_,
        std::min(model_.definition->sizes().context, infer::kMostComparedContext), memory_);
    m.counted = std::ssize(ids_) - 1;
    for (size_t i = 0; i < variants.size(); ++i) {
      const Variant& v = variants[i];
      if (!std::isfinite(compared[i].loss))
        user_error("{} in {}: {}", model_.folder.string(), v.name,
                   infer::fault_of_loss(compared[i].loss, model_));
      MeasuredPrecision p;
      p.name = v.name;
      p.bytes = v.bytes;
      p.tokens = compared[i];
      m.precisions.push_back(p);
    }
    add_speeds(variants, m);
    return m;
  }

 private:
  void add_speeds(const std::vector<Variant>& variants, QuantizeMeasurements& m) const {
    const int64_t context = model_.definition->sizes().context;
    const int64_t prompt = std::min({kPrompt, std::ssize(ids_), std::max<int64_t>(1, context / 2)});
    const int64_t burst = std::min(kBurst, context - prompt);
    if (burst < 1) return;
    const std::span<const int32_t> begin = std::span(ids_).first(static_cast<size_t>(prompt));
    std::vector<std::unique_ptr<infer::Generator>> generators;
    std::vector<std::function<void()>> functions;
    for (const Variant& v : variants) {
      generators.push_back(std::make_unique<infer::Generator>(
          v.model->definition, cpu::cpu_backend(), v.model->weights,
          infer::GeneratorOptions{.precision = v.dtype,
                                  .quantization = v.quantization,
                                  .positions = prompt + burst,
                                  .memory = memory_}));
      functions.push_back([g = generators.back().get(), begin, burst] {
        infer::Sampling greedy;
        greedy.temperature = 0;
        g->generate(begin, burst, infer::Sampler(greedy, 0));
      });
    }
    const auto timings = insight::interleave(functions, kSecondsOfSpeed);
    for (size_t i = 0; i < timings.size(); ++i)
      m.precisions[i].per_second = 1e3 * static_cast<double>(burst) / timings[i].median;
  }

  const io::ModelFolder& model_;
  infer::Memory memory_;
  std::vector<int32_t> ids_;
  std::string description_;
};

/// Texts of a file: its lines, but of the default text lines together, because those are short.
std::vector<std::string> texts_of(const infer::HeldOutText& held) {
  std::vector<std::string> texts;
  std::string text;
  for (size_t begin = 0; begin < held.text.size();) {
    const size_t end = std::min(held.text.find('\n', begin), held.text.size());
    text += (text.empty() ? "" : " ") + held.text.substr(begin, end - begin);
    begin = end + 1;
    if (text.empty() || (held.is_default && text.size() < kShortestText)) continue;
    texts.push_back(std::move(text));
    text.clear();
  }
  if (texts.size() <= kMostTexts) return texts;
  std::vector<std::string> chosen;  // spread evenly
  for (size_t i = 0; i < kMostTexts; ++i) chosen.push_back(texts[i * texts.size() / kMostTexts]);
  return chosen;
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1 : 0);
}

class EncoderMeasure {
 public:
  EncoderMeasure(const io::ModelFolder& model, const MeasureOptions& options)
      : model_(model), memory_(options.memory), definition_(model.definition) {
    // Compare vectors rather than logits of a masked language model, which would need masked
    // tokens.
    if (definition_->task().head == models::Head::masked_token)
      definition_ = definition_->with_task({.head = models::Head::embedding});
    const infer::HeldOutText held = infer::read_held_out_text(options.text, *model.tokenizer);
    description_ = held.description;
    const auto longest = std::min(static_cast<size_t>(definition_->sizes().context), kLongestText);
    std::vector<int32_t> all;
    for (const std::string& text : texts_of(held)) {
      io::ModelInput input = model.tokenizer->model_input(text, std::nullopt, longest);
      if (input.ids.empty()) continue;
      all.insert(all.end(), input.ids.begin(), input.ids.end());
      inputs_.push_back(std::move(input));
    }
    if (inputs_.size() < kLeastTexts)
      user_error("--text: {} has {}, one per line; expected at least {} to compare vectors of",
                 description_, counted(std::ssize(inputs_), "text"), kLeastTexts);
    infer::check_known(all, *model.tokenizer, description_);
  }

  QuantizeMeasurements run(const std::vector<Variant>& variants) const {
    QuantizeMeasurements m;
    m.text = description_;
    m.counted = std::ssize(inputs_);
    m.has_classes = definition_->task().head == models::Head::classes;
    std::vector<infer::EncoderRow> rows;
    for (const io::ModelInput& input : inputs_) rows.push_back({input.ids, input.types});
    std::vector<std::unique_ptr<infer::Encoder>> encoders;
    std::vector<std::function<void()>> functions;
    std::vector<Vectors> vectors;
    for (const Variant& v : variants) {
      infer::EncoderOptions how;
      how.precision = v.dtype;
      how.quantization = v.quantization;
      how.memory = memory_;
      encoders.push_back(
          std::make_unique<infer::Encoder>(definition_, cpu::cpu_backend(), v.model->weights, how));
      infer::Encoder* const encoder = encoders.back().get();
      functions.push_back(
          [encoder, &rows] { encoder->run(rows, [](size_t, std::span<const float>) {}); });
      vectors.emplace_back(rows.size());
      encoder->run(rows, [&](size_t row, std::span<const float> numbers) {
        vectors.back()[row].assign(numbers.begin(), numbers.end());
      });
      m.precisions.push_back(compared(v, vectors.front(), vectors.back()));
    }
    const auto timings = insight::interleave(functions, kSecondsOfSpeed);
    for (size_t i = 0; i < timings.size(); ++i)
      m.precisions[i].per_second = 1e3 * static_cast<double>(rows.size()) / timings[i].median;
    return m;
  }

 private:
  using Vectors = std::vector<std::vector<float>>;

  MeasuredPrecision compared(const Variant& v, const Vectors& reference,
                             const Vectors& vectors) const {
    MeasuredPrecision p;
    p.name = v.name;
    p.bytes = v.bytes;
    double sum = 0, same = 0;
    for (size_t i = 0; i < vectors.size(); ++i) {
      for (const float x : vectors[i])
        if (!std::isfinite(x))
          user_error("{} in {}: the result contains NaN or infinity; check the weights",
                     model_.folder.string(), v.name);
      const double c = cosine(reference[i], vectors[i]);
      sum += c;
      p.least_cosine = std::min(p.least_cosine, c);
      const auto best = [](const std::vector<float>& row) {
        return std::ranges::max_element(row) - row.begin();
      };
      same += best(reference[i]) == best(vectors[i]) ? 1 : 0;
    }
    p.mean_cosine = sum / static_cast<double>(vectors.size());
    p.agreement = same / static_cast<double>(vectors.size());
    return p;
  }

  const io::ModelFolder& model_;
  infer::Memory memory_;
  models::ModelPtr definition_;
  std::vector<io::ModelInput> inputs_;
  std::string description_;
};

}  // namespace

double QuantizeMeasurements::loss_increase() const {
  if (!has_loss) return 100 * (1 - quantised().mean_cosine);
  return 100 * quantised().tokens.loss_difference / std::max(fp32().tokens.loss, 1e-9);
}

double QuantizeMeasurements::speedup() const {
  return bf16().per_second > 0 ? quantised().per_second / bf16().per_second : 1;
}

QuantizeMeasurements measure_quantized(const io::ModelFolder& model, const io::QuantizedModel& made,
                                       const MeasureOptions& options) {
  const io::ModelFolder back = made.as_read_back();
  const std::vector<Variant> variants = variants_of(model, back, made, options.precision);
  if (model.definition->task().head == models::Head::next_token)
    return LanguageMeasure(model, options).run(variants);
  return EncoderMeasure(model, options).run(variants);
}

}  // namespace brrr::cli
