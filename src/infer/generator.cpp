#include "infer/generator.h"

#include <algorithm>
#include <bit>

#include "infer/model_runnable.h"
#include "models/causal_lm.h"

namespace brrr::infer {
namespace {

constexpr int64_t kWindowStep = 64;  // without a cache, lengths are rounded up to this

/// Room for that many positions: powers of two and the steps halfway between them, so that a few
/// sizes serve all requests; at most the model's.
int64_t rounded_up(int64_t positions, int64_t most) {
  constexpr int64_t kLeast = 128;
  if (positions <= 0) return most;
  int64_t room = kLeast;
  while (room < positions) room = room % 3 == 0 ? room / 3 * 4 : room / 2 * 3;
  return std::min(room, most);
}

int64_t context_of(const models::Model& model, int64_t asked) {
  const int64_t most = models::longest_generated_text(model.sizes());
  return asked > 0 ? std::min(asked, most) : most;
}

std::shared_ptr<const Runnable> runnable_for(const models::ModelPtr& model,
                                             std::shared_ptr<const WeightSource> weights,
                                             const GeneratorOptions& options, int64_t context) {
  return options.use_cache ? decode_runnable(model, std::move(weights), context, options.precision)
                           : forward_runnable(model, std::move(weights), TextLayout::padded);
}

RunnableOptions how_to_run(const GeneratorOptions& options) {
  RunnableOptions how;
  how.passes = for_inference(options.precision, options.quantization, options.cache);
  return how;
}

/// One row of tokens, and the place of the first of them where a cache holds those before it.
PortValues inputs_for(std::vector<int32_t> tokens, std::optional<int64_t> position) {
  PortValues inputs;
  const int64_t length = std::ssize(tokens);
  inputs.emplace("tokens", HostTensor::of<int32_t>({1, length}, tokens));
  if (position)
    inputs.emplace("position", HostTensor::of<int32_t>({}, {static_cast<int32_t>(*position)}));
  return inputs;
}

}  // namespace

Generator::Generator(models::ModelPtr model, const Backend& backend,
                     std::shared_ptr<const WeightSource> weights, const GeneratorOptions& options)
    : vocabulary_(model->sizes().vocabulary),
      context_(rounded_up(options.positions, context_of(*model, options.context))),
      options_(options),
      runner_(runnable_for(model, std::move(weights), options, context_), backend,
              how_to_run(options), counting_all(options.memory), 0, 0),
      cached_(!models::is_recurrent(model->sizes())) {
  std::vector<PortValues> inputs;
  for (const int64_t length : {int64_t{1}, largest_length()})
    inputs.push_back(inputs_for(std::vector<int32_t>(static_cast<size_t>(length)),
                                options_.use_cache ? std::optional(int64_t{0}) : std::nullopt));
  runner_.prepare(inputs);
  runner_.allocate();
}

/// How many tokens a program will read at once, as far as the options tell.
int64_t Generator::largest_length() const {
  if (!options_.use_cache) return padded(options_.positions > 0 ? options_.positions : context_);
  const auto prompt = static_cast<uint64_t>(std::clamp(options_.prompt, int64_t{1}, context_));
  return static_cast<int64_t>(std::bit_floor(prompt));
}

int64_t Generator::padded(int64_t length) const {
  return std::min(context_, (length + kWindowStep - 1) / kWindowStep * kWindowStep);
}

// Logits after the last token of the window.
std::span<const float> Generator::logits_of(std::span<const int32_t> window) {
  if (options_.use_cache)
    return cached_.logits_of(
        window, window.size(), [this](std::span<const int32_t> tokens, int64_t position) {
          return runner_.run_in_place(inputs_for({tokens.begin(), tokens.end()}, position)).numbers;
        });
  const auto used = static_cast<size_t>(std::ssize(window));
  std::vector<int32_t> tokens(window.begin(), window.end());
  tokens.resize(static_cast<size_t>(padded(std::ssize(window))));  // causal: not seen
  const auto rows = runner_.run_in_place(inputs_for(std::move(tokens), std::nullopt)).numbers;
  const auto width = static_cast<size_t>(vocabulary_);
  return rows.subspan((used - 1) * width, width);
}

std::vector<int32_t> Generator::generate(std::span<const int32_t> prompt, int64_t count,
                                         Sampler sampler,
                                         const std::function<bool(int32_t)>& on_token) {
  const Window window{context_, vocabulary_,
                      [this](std::span<const int32_t> tokens) { return logits_of(tokens); }};
  return continue_text(window, prompt, count, std::move(sampler), on_token);
}

}  // namespace brrr::infer
