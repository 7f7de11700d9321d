// One token after the other from a model with random weights: how close to the memory's speed.

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "backend/cpu/target.h"
#include "folders/model_folder.h"
#include "infer/generator.h"
#include "infer/run_precision.h"
#include "insight/bench/bench.h"
#include "insight/bench/number_check.h"
#include "insight/machine/machine.h"
#include "insight/profile/timed_step.h"
#include "models/initialise.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

constexpr int64_t kBurst = 8;  // tokens of one measurement

class Decoder {
 public:
  explicit Decoder(const DecodeOptions& o) : options_(o) {
    precision_ = infer::run_precision(o.precision.value_or(Precision::bfloat16));
    if (o.model.empty()) {
      const train::TrainOptions preset = train::resolve({{"preset", o.preset}});
      model_ = train::model_of(preset, preset.vocab_size > 0 ? preset.vocab_size : kCharacters);
    } else {
      const fs::path folder = io::find_model(o.model);
      model_ = io::read_definition(folder);
      if (!o.precision && io::holds_integers(folder))
        precision_ = infer::for_made_weights(*infer::own_precision(
            io::open_model(folder, {.reads_tokenizer = false}), cpu::cpu_backend()));
      options_.preset = o.model;
    }
    const models::ModelSizes sizes = model_->sizes();
    if (options_.prompt == 0) options_.prompt = std::clamp<int64_t>(sizes.context / 2, 1, 64);
    if (options_.prompt + kBurst > sizes.context)
      usage_error("--prompt {}: {} tokens and a burst of {} exceed the context of {}",
                  options_.prompt, options_.prompt, kBurst, sizes.context);
    infer::GeneratorOptions g;
    g.precision = precision_.dtype;
    g.quantization = precision_.quantization;
    g.cache = options_.cache;
    const auto weights = models::initial_weights(*model_, 1);
    const auto checked = [&](std::string_view name, std::span<float> out) {
      weights(name, out);
      check_numbers("decode: " + std::string(name), DType::f32, std::as_bytes(out), Zeros::pass);
    };
    generator_.emplace(model_, cpu::cpu_backend(), models::made_weights(*model_, checked), g);
    std::mt19937 random(7);
    std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(sizes.vocabulary - 1));
    for (int64_t i = 0; i < options_.prompt; ++i) prompt_.push_back(id(random));
  }

  // The prompt stands in the cache but for its last token, after the first call.
  void burst() {
    infer::Sampling greedy;
    greedy.temperature = 0;
    generator_->generate(prompt_, kBurst, infer::Sampler(greedy, 0));
  }

  DecodeRow row(const Timing& burst) const {
    DecodeRow r;
    r.preset = options_.preset;
    r.precision = precision_.name;
    r.position = options_.prompt + kBurst / 2;
    const double one = 1.0 / static_cast<double>(kBurst);
    r.ms = {burst.median * one, burst.low * one, burst.high * one};
    r.tokens_per_second = 1e3 / r.ms.median;
    r.bytes = bytes_per_token(*model_, precision_, options_.cache, r.position);
    return r;
  }

 private:
  DecodeOptions options_;
  infer::RunPrecision precision_;
  models::ModelPtr model_;
  std::optional<infer::Generator> generator_;
  std::vector<int32_t> prompt_;
};

}  // namespace

int64_t bytes_per_token(const models::Model& model, const infer::RunPrecision& precision,
                        CachePrecision cache, int64_t position) {
  const auto width = static_cast<int64_t>(bytes_of(precision.dtype));
  const WeightQuantization& q = precision.quantization;
  const int64_t weights = model.multiplied_count();
  int64_t quantized = q.bits == 0 ? 0 : weights;
  if (q.bits != 0 && q.only != nullptr) {
    quantized = 0;
    for (const models::ParameterInfo& p : model.parameters())
      if (q.only->contains(p.name)) quantized += p.shape.elements();
  }
  const int64_t integers = q.bits * quantized / 8 + (q.group > 0 ? 4 * quantized / q.group : 0);
  const models::ModelSizes sizes = model.sizes();
  const int64_t of_position =
      cache == CachePrecision::int8
          ? sizes.cache_width + static_cast<int64_t>(sizeof(float)) * sizes.cache_heads
          : width * sizes.cache_width;
  return integers + width * (weights - quantized) + of_position * position;
}

std::vector<DecodeRow> bench_decode(const std::vector<DecodeOptions>& options, double seconds) {
  std::vector<std::unique_ptr<Decoder>> decoders;
  std::vector<std::function<void()>> functions;
  for (const DecodeOptions& o : options) {
    decoders.push_back(std::make_unique<Decoder>(o));
    functions.push_back([d = decoders.back().get()] { d->burst(); });
  }
  const double read = measure_peaks(read_machine()).bandwidth.read;
  const auto timings = interleave(functions, seconds);
  std::vector<DecodeRow> rows;
  for (size_t i = 0; i < decoders.size(); ++i) {
    rows.push_back(decoders[i]->row(timings[i]));
    DecodeRow& r = rows.back();
    r.bandwidth_fraction = static_cast<double>(r.bytes) / (1e-3 * r.ms.median) / read;
  }
  return rows;
}

}  // namespace brrr::insight
