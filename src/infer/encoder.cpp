#include "infer/encoder.h"

#include <algorithm>

#include "passes/pipeline.h"

namespace brrr::infer {
namespace {

// What the programs of all lengths may take for themselves: this share of the arena, or this.
constexpr int64_t kProgramShare = 8, kLeastForPrograms = int64_t{16} << 20;

}  // namespace

Encoder::Encoder(models::ModelPtr model, const Backend& backend,
                 std::shared_ptr<const WeightSource> weights, const EncoderOptions& options)
    : model_(std::move(model)),
      head_(model_->task().head),
      vocabulary_(model_->sizes().vocabulary),
      context_(model_->sizes().context),
      options_(options),
      memory_(backend, options.memory),
      engine_(backend, WrittenBy::loader),
      bindings_(engine_) {
  engine_.use_weights(std::move(weights));
  program_for(1, padded_length(1, context_));
  memory_.check(engine_);
  engine_.allocate();
  bindings_.set_budget(std::max(kLeastForPrograms, engine_.arena_bytes() / kProgramShare));
  engine_.load_weights();
}

Graph Encoder::compiled(const Graph& graph) const {
  PipelineOptions p;
  p.precision = options_.precision;
  p.parameter_dtype = options_.precision;
  p.refresher = Refresher::loader;
  return run_pipeline(graph, engine_.backend().target(), p);
}

// The batch of a binding of Head::masked_token is the number of places in one row.
size_t Encoder::program_for(int64_t batch, int64_t length) {
  const auto compile = [&](const Binding& b) {
    std::vector graphs{compiled(head_ == models::Head::masked_token
                                    ? model_->forward_at(1, b.length, b.batch)
                                    : model_->forward(b.batch, b.length))};
    memory_.set_limit(engine_, graphs[0], options_.beside);
    return graphs;
  };
  return memory_.run([&] { return bindings_.get({batch, length}, compile)[0]; });
}

void Encoder::check(const EncoderRow& row) const {
  BRRR_CHECK(row.types.empty() || row.types.size() == row.ids.size(), "{} types of {} tokens",
             row.types.size(), row.ids.size());
  if (row.ids.empty()) user_error("a text has no tokens; expected at least one");
  if (std::ssize(row.ids) > context_)
    user_error("a text has {} tokens, more than the model's limit of {}", row.ids.size(), context_);
  for (const int32_t id : row.ids)
    if (id < 0 || id >= vocabulary_)
      user_error("token {} lies outside the vocabulary of {}", id, vocabulary_);
}

void Encoder::Feed::add(const EncoderRow& row, int64_t length) {
  const size_t end = tokens.size() + static_cast<size_t>(length);
  tokens.insert(tokens.end(), row.ids.begin(), row.ids.end());
  tokens.resize(end);
  types.insert(types.end(), row.types.begin(), row.types.end());
  types.resize(end);
  lengths.push_back(static_cast<int32_t>(row.ids.size()));
}

void Encoder::Feed::give(Call& call, bool has_types) const {
  call.set("tokens", std::span<const int32_t>(tokens));
  if (has_types) call.set("types", std::span<const int32_t>(types));
  call.set("lengths", std::span<const int32_t>(lengths));
}

void Encoder::run(std::span<const EncoderRow> rows, const OnRow& on_row) {
  BRRR_CHECK(head_ != models::Head::masked_token, "logits_at() tells masked tokens");
  for (const EncoderRow& row : rows) check(row);
  run_in_batches(rows, options_.batch_size,
                 [&](std::span<const size_t> chosen) { run_batch(rows, chosen, on_row); });
}

int64_t Encoder::width() const {
  return model_->sizes().width * std::ssize(model_->task().pooling);
}

void Encoder::run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                        const OnRow& on_row) {
  const auto batch = std::ssize(chosen);
  const int64_t length = padded_length(std::ssize(rows[chosen[0]].ids), context_);
  const size_t program = program_for(batch, length);
  Feed feed;
  for (const size_t row : chosen) feed.add(rows[row], length);
  Call call{program, {}, {}};
  feed.give(call, model_->has_token_types());
  engine_.run(std::span(&call, 1));
  const bool embeds = head_ == models::Head::embedding;
  const auto bytes = engine_.read_output(program, embeds ? "embedding" : "logits", room_);
  const std::span all(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
  const size_t of_row = all.size() / chosen.size();
  for (size_t i = 0; i < chosen.size(); ++i) {
    const size_t tokens = rows[chosen[i]].ids.size();
    const size_t numbers = head_ == models::Head::token_classes
                               ? of_row / static_cast<size_t>(length) * tokens
                               : of_row;
    on_row(chosen[i], all.subspan(i * of_row, numbers));
  }
}

std::span<const float> Encoder::logits_at(const EncoderRow& row, std::span<const int32_t> places) {
  BRRR_CHECK(head_ == models::Head::masked_token && !places.empty(), "logits_at");
  check(row);
  const int64_t length = padded_length(std::ssize(row.ids), context_);
  const size_t program = program_for(std::ssize(places), length);
  Feed feed;
  feed.add(row, length);
  Call call{program, {}, {}};
  feed.give(call, model_->has_token_types());
  call.set("places", places);
  engine_.run(std::span(&call, 1));
  const auto bytes = engine_.read_output(program, "logits", room_);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace brrr::infer
