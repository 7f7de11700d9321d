#include "infer/generator.h"

#include <algorithm>
#include <bit>

#include "passes/pipeline.h"

namespace brrr::infer {
namespace {

constexpr int64_t kWindowStep = 64;  // without a cache, lengths are rounded up to this
// What the programs of all lengths may take for themselves: this share of the arena, or this.
constexpr int64_t kBudgetShare = 8, kLeastBudget = int64_t{4} << 20;

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
  const int64_t most = model.sizes().context;
  return asked > 0 ? std::min(asked, most) : most;
}

}  // namespace

Generator::Generator(models::ModelPtr model, const Backend& backend,
                     std::shared_ptr<const WeightSource> weights, const GeneratorOptions& options)
    : model_(std::move(model)),
      context_(rounded_up(options.positions, context_of(*model_, options.context))),
      options_(options),
      memory_(backend, options.memory),
      engine_(backend, WrittenBy::loader),
      bindings_(engine_) {
  engine_.use_weights(std::move(weights));
  program_for(1);
  program_for(largest_length());
  memory_.check(engine_);
  engine_.allocate();
  bindings_.set_budget(std::max(kLeastBudget, engine_.arena_bytes() / kBudgetShare));
  engine_.load_weights();
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

size_t Generator::program_for(int64_t length) {
  const auto compile = [&](const Binding& b) {
    std::vector graphs{compiled(b)};
    memory_.set_limit(engine_, graphs[0]);
    return graphs;
  };
  return memory_.run([&] { return bindings_.get({.length = length}, compile)[0]; });
}

Graph Generator::compiled(const Binding& binding) const {
  const Graph graph =
      options_.use_cache
          ? model_->decode(
                {.length = binding.length, .capacity = context_, .cache = options_.precision})
          : model_->forward(binding.batch, binding.length);
  PipelineOptions p;
  p.precision = options_.precision;
  p.parameter_dtype = options_.precision;
  p.refresher = Refresher::loader;
  return run_pipeline(graph, engine_.backend().target(), p);
}

// One row of the program's logits.
std::span<const float> Generator::logits_row(size_t program, int64_t row) {
  const auto bytes = engine_.read_output(program, "logits", room_);
  const auto* all = reinterpret_cast<const float*>(bytes.data());
  const int64_t vocabulary = model_->sizes().vocabulary;
  return {all + row * vocabulary, static_cast<size_t>(vocabulary)};
}

std::span<const float> Generator::run_cached(std::span<const int32_t> tokens, int64_t position) {
  const size_t program = program_for(static_cast<int64_t>(tokens.size()));
  const auto at = static_cast<int32_t>(position);
  Call call{program, {}, {}};
  call.set("tokens", tokens);
  call.set("position", std::span(&at, 1));
  engine_.run(std::span(&call, 1));
  return logits_row(program, 0);
}

// Logits after the last token of the window.
std::span<const float> Generator::logits_of(std::span<const int32_t> window) {
  if (!options_.use_cache) {
    const int64_t used = static_cast<int64_t>(window.size());
    const int64_t length = padded(used);
    const size_t program = program_for(length);
    std::vector<int32_t> tokens(window.begin(), window.end());
    tokens.resize(static_cast<size_t>(length), 0);  // causal: what follows cannot be seen
    engine_.set_input<int32_t>(program, "tokens", tokens);
    engine_.run(program);
    return logits_row(program, used - 1);
  }
  return cached_.logits_of(window, window.size(),
                           [this](std::span<const int32_t> tokens, int64_t position) {
                             return run_cached(tokens, position);
                           });
}

std::vector<int32_t> Generator::generate(std::span<const int32_t> prompt, int64_t count,
                                         Sampler sampler,
                                         const std::function<bool(int32_t)>& on_token) {
  const Window window{context_, model_->sizes().vocabulary,
                      [this](std::span<const int32_t> tokens) { return logits_of(tokens); }};
  return continue_text(window, prompt, count, std::move(sampler), on_token);
}

}  // namespace brrr::infer
