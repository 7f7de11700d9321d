#include "data/loader.h"

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/memory.h"
#include "data/window_batches.h"
#include "formats/json_file.h"

namespace brrr::io {

std::string LoaderState::to_json() const {
  Json json{{"mode", name_of(mode)}, {"epoch", epoch},    {"position", position},
            {"seed", seed},          {"source", source},  {"tokens", tokens},
            {"batch", batch},        {"context", context}};
  if (anchor != Anchor{}) json["group"] = anchor.group, json["group_row"] = anchor.row;
  if (batches_per_step > 1) json["batches_per_step"] = batches_per_step;
  return json.dump();
}

LoaderState LoaderState::from_json(std::string_view text) {
  const std::string what = "the data loader's state";
  const Json json = parse_json(text, what);
  const auto field = [&](const char* key) -> const Json& {
    if (!json.is_object() || !json.contains(key))
      user_error("{} has no '{}'; it is damaged", what, key);
    return json[key];
  };
  const auto count = [&](const char* key, int64_t least, int64_t most) {
    const Json& value = field(key);
    const bool fits =
        value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!fits || value.get<int64_t>() < least)
      user_error("{}: '{}' is {}; expected a count from {} to {}", what, key, describe(value),
                 least, most);
    return value.get<int64_t>();
  };
  const auto string = [&](const char* key) {
    const Json& value = field(key);
    if (!value.is_string())
      user_error("{}: '{}' is {}; expected a string", what, key, describe(value));
    return value.get<std::string>();
  };
  constexpr int64_t kMost = int64_t{1} << 40;
  LoaderState state;
  state.mode = sampling_from_name(string("mode"));
  state.epoch = count("epoch", 0, std::numeric_limits<int64_t>::max());
  state.position = count("position", 0, kMost);
  state.seed = static_cast<uint32_t>(count("seed", 0, std::numeric_limits<uint32_t>::max()));
  state.source = string("source");
  state.tokens = count("tokens", 0, std::numeric_limits<int64_t>::max());
  state.batch = count("batch", 1, kMost);
  state.context = count("context", 1, kMost);
  if (json.contains("group"))
    state.anchor = {count("group", 0, kMost), count("group_row", 0, int64_t{1} << 62)};
  if (json.contains("batches_per_step"))
    state.batches_per_step = count("batches_per_step", 1, kMost);
  return state;
}

namespace {

constexpr int64_t kMostWorkers = 256;
constexpr double kMostBytesAhead = 0x1p30;

int batches_ahead(const LoaderOptions& o, int64_t bytes_per_position) {
  if (o.workers < 0 || o.workers > kMostWorkers)
    usage_error("{} data loader workers; expected 0 to {}", o.workers, kMostWorkers);
  if (o.prefetch_factor < 1)
    usage_error("a prefetch factor of {}; expected at least 1", o.prefetch_factor);
  if (o.workers == 0) return 1;
  const double ahead = static_cast<double>(o.workers) * static_cast<double>(o.prefetch_factor);
  const double bytes =
      ahead * static_cast<double>(bytes_per_position) * static_cast<double>(o.batch * o.context);
  if (bytes > kMostBytesAhead && ahead > 2)
    usage_error(
        "{} workers x a prefetch factor of {}: prefetched batches would take {}; lower one of them",
        o.workers, o.prefetch_factor, memory_text(std::llround(bytes)));
  return static_cast<int>(ahead);
}

}  // namespace

Loader::Loader(std::unique_ptr<BatchSource> source, const LoaderOptions& options)
    : source_(std::move(source)), options_(options), fingerprint_(source_->fingerprint()) {
  const int ahead = batches_ahead(options, source_->bytes_per_position());
  prefetcher_ = std::make_unique<Prefetcher>(*source_, static_cast<int>(options.workers), ahead);
}

Loader::Loader(const TokenSource& source, const LoaderOptions& options)
    : Loader(std::make_unique<WindowBatches>(source, options), options) {}

LoaderState Loader::state() const {
  const int64_t position = prefetcher_->position();
  return {options_.mode,
          source_->epoch_of(position),
          position,
          options_.seed,
          fingerprint_,
          source_->tokens(),
          options_.batch,
          options_.context,
          source_->anchor(position),
          options_.batches_per_step};
}

void Loader::restore(const LoaderState& state) {
  const auto same = [](const char* field, const auto& saved, const auto& now, const char* advice) {
    if (saved != now)
      user_error("cannot resume reading: the saved run had {} {}, now it is {}; {}", field, saved,
                 now, advice);
  };
  const LoaderState now = this->state();
  const char* options = "resume with the same options";
  const char* text = "resume with the same text and tokenizer";
  same("sampling", name_of(state.mode), name_of(now.mode), options);
  same("batch size", state.batch, now.batch, options);
  same("context", state.context, now.context, options);
  same("data seed", state.seed, now.seed, options);
  same("token count", state.tokens, now.tokens, text);
  same("text fingerprint", state.source, now.source, text);
  const int64_t most = (int64_t{1} << 62) / options_.batch;
  const auto damaged = [&] {
    user_error("the data loader's state is damaged: epoch {} does not belong to position {}",
               state.epoch, state.position);
  };
  if (state.position < 0 || state.position > most ||
      !source_->start_from(state.anchor, state.position))
    damaged();
  // Before steps were recorded, epochs of documents ended with a batch.
  const bool same_steps = state.batches_per_step == options_.batches_per_step;
  if (same_steps && source_->epoch_of(state.position) != state.epoch) {
    source_->start_from(now.anchor, now.position);
    damaged();
  }
  prefetcher_->seek(state.position);
}

}  // namespace brrr::io
