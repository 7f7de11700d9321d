// One token after the other from a model with random weights: how close to the memory's speed.

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "backend/cpu/target.h"
#include "folders/model_folder.h"
#include "infer/generator.h"
#include "infer/options.h"
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
    // The spellings of `brrr generate`; others are refused.
    infer::GenerateOptions generate;
    const auto& table = infer::generate_option_table();
    table.set(generate, table.find("precision"), o.precision, "--precision");
    options_.precision = generate.precision;
    if (o.model.empty()) {
      const train::TrainOptions preset = train::resolve({{"preset", o.preset}});
      model_ = train::model_of(preset, preset.vocab_size > 0 ? preset.vocab_size : kCharacters);
    } else {
      model_ = io::read_definition(io::find_model(o.model));
      options_.preset = o.model;
    }
    const models::ModelSizes sizes = model_->sizes();
    if (options_.prompt == 0) options_.prompt = std::clamp<int64_t>(sizes.context / 2, 1, 64);
    if (options_.prompt + kBurst > sizes.context)
      usage_error("--prompt {}: {} tokens and a burst of {} exceed the context of {}",
                  options_.prompt, options_.prompt, kBurst, sizes.context);
    infer::GeneratorOptions g;
    g.precision = dtype_of_precision(options_.precision);
    g.quantization = quantization_of_precision(options_.precision);
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
    r.precision = options_.precision;
    r.position = options_.prompt + kBurst / 2;
    const double one = 1.0 / static_cast<double>(kBurst);
    r.ms = {burst.median * one, burst.low * one, burst.high * one};
    r.tokens_per_second = 1e3 / r.ms.median;
    const auto width = static_cast<int64_t>(bytes_of(dtype_of_precision(options_.precision)));
    const Quantization q = quantization_of_precision(options_.precision);
    const int64_t weights = model_->multiplied_count();
    const int64_t integers = q.bits * weights / 8 + (q.group > 0 ? 4 * weights / q.group : 0);
    r.bytes = (q.bits == 0 ? width * weights : integers) +
              width * model_->sizes().cache_width * r.position;
    return r;
  }

 private:
  DecodeOptions options_;
  models::ModelPtr model_;
  std::optional<infer::Generator> generator_;
  std::vector<int32_t> prompt_;
};

}  // namespace

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
