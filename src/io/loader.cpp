#include "io/loader.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/errors.h"
#include "base/rng.h"
#include "io/json_file.h"
#include "io/permutation.h"

namespace brrr::io {
namespace {

constexpr uint32_t kOffsetStream = 0x4f460000u;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr struct {
  Sampling mode;
  std::string_view name;
} kModes[] = {{Sampling::kRandom, "random"},
              {Sampling::kEpoch, "epoch"},
              {Sampling::kSequential, "sequential"}};

void check_options(const TokenSource& source, const LoaderOptions& o) {
  if (o.batch < 1) usage_error("the batch size is {}; at least 1 was expected", o.batch);
  if (o.context < 1) usage_error("the context is {} tokens; at least 1 was expected", o.context);
  if (o.batch > (int64_t{1} << 40) / o.context)
    usage_error("a batch of {} rows of {} tokens does not fit any memory", o.batch, o.context);
  BRRR_CHECK(o.world >= 1 && o.rank >= 0 && o.rank < o.world, "rank {} of {}", o.rank, o.world);
  BRRR_CHECK(o.vocab > 0 && o.prefetch >= 0, "vocab {}, prefetch {}", o.vocab, o.prefetch);
  const int64_t tokens = source.tokens();
  if (tokens < 2)
    user_error("{} has {} tokens; a token and its successor are the least", source.description(),
               tokens);
  if (o.mode != Sampling::kSequential && tokens < o.context + 1)
    user_error(
        "the context of {} tokens is longer than the text: {} has {}, at least {} are needed; use "
        "a context "
        "of {} or less, or more text",
        o.context, source.description(), tokens, o.context + 1, tokens - 1);
}

}  // namespace

std::string_view name_of(Sampling mode) {
  for (const auto& entry : kModes)
    if (entry.mode == mode) return entry.name;
  return "unknown";
}

Sampling sampling_from_name(std::string_view name) {
  for (const auto& entry : kModes)
    if (entry.name == name) return entry.mode;
  usage_error("unknown sampling '{}': random, epoch or sequential was expected", name);
}

std::string LoaderState::to_json() const {
  return Json{{"mode", name_of(mode)}, {"epoch", epoch},     {"position", position},
              {"seed", seed},          {"source", source},   {"tokens", tokens},
              {"batch", batch},        {"context", context}, {"world", world}}
      .dump();
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
      user_error("{}: '{}' is {}; a count from {} to {} was expected", what, key, describe(value),
                 least, most);
    return value.get<int64_t>();
  };
  const auto string = [&](const char* key) {
    const Json& value = field(key);
    if (!value.is_string())
      user_error("{}: '{}' is {}; a string was expected", what, key, describe(value));
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
  state.world = count("world", 1, kMost);
  return state;
}

Loader::Loader(const TokenSource& source, const LoaderOptions& options)
    : source_(source), options_(options) {
  check_options(source, options);
  fingerprint_ = source.fingerprint();
  windows_ = ceil_div(source.tokens() - 1, options.context);
  if (options.prefetch > 0)
    thread_ = std::jthread([this](std::stop_token stop) { prefetch(stop); });
}

Loader::~Loader() = default;  // the jthread asks for the stop, which wakes the wait, and joins

int64_t Loader::batches_per_pass() const {
  const int64_t rows = options_.batch * options_.world;
  if (options_.mode == Sampling::kRandom)
    return ceil_div(source_.tokens(), rows * options_.context);
  return ceil_div(windows_, rows);
}

int64_t Loader::epoch_of(int64_t position) const {
  switch (options_.mode) {
    case Sampling::kRandom:
      return 0;
    case Sampling::kEpoch:
      return position * options_.batch * options_.world / windows_;
    case Sampling::kSequential:
      return position / batches_per_pass();
  }
  return 0;
}

int64_t Loader::row_offset(int64_t row) const {
  switch (options_.mode) {
    case Sampling::kRandom: {
      // A stream of its own per row: the offset depends on nothing that came before.
      const auto wide = static_cast<uint64_t>(row);
      RngStream rng({options_.seed, static_cast<uint32_t>(wide)},
                    kOffsetStream + static_cast<uint32_t>(wide >> 32));
      return static_cast<int64_t>(
          rng.next_below(static_cast<uint64_t>(source_.tokens() - options_.context)));
    }
    case Sampling::kEpoch: {
      const Permutation order(static_cast<uint64_t>(windows_),
                              {options_.seed, static_cast<uint32_t>(row / windows_)});
      return options_.context * static_cast<int64_t>(order(static_cast<uint64_t>(row % windows_)));
    }
    case Sampling::kSequential: {
      const int64_t in_pass = row % (batches_per_pass() * options_.batch * options_.world);
      return in_pass < windows_ ? options_.context * in_pass : -1;
    }
  }
  return -1;
}

void Loader::fill(int64_t index, Batch& batch) const {
  const int64_t T = options_.context;
  const auto size = static_cast<size_t>(options_.batch * T);
  batch.inputs.assign(size, 0);
  batch.targets.assign(size, kIgnoreId);
  batch.real_tokens = 0;
  for (int64_t b = 0; b < options_.batch; ++b) {
    const int64_t offset =
        row_offset((index * options_.batch + b) * options_.world + options_.rank);
    if (offset < 0) continue;
    const int64_t n = std::min(T, source_.tokens() - 1 - offset);
    const auto count = static_cast<size_t>(n);
    const auto inputs = std::span(batch.inputs).subspan(static_cast<size_t>(b * T), count);
    const auto targets = std::span(batch.targets).subspan(static_cast<size_t>(b * T), count);
    source_.read(offset, inputs);
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    source_.read(offset + n, targets.last(1));
    source_.check_ids(inputs, offset, options_.vocab);
    source_.check_ids(targets.last(1), offset + n, options_.vocab);
    batch.real_tokens += n;
  }
}

void Loader::prefetch(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool work = changed_.wait(lock, stop, [&] {
      return !error_ && ready_.size() < static_cast<size_t>(options_.prefetch);
    });
    if (!work || stop.stop_requested()) return;
    const int64_t index = produce_;
    const uint64_t generation = generation_;
    Batch batch;
    if (!spare_.empty()) {
      batch = std::move(spare_.back());
      spare_.pop_back();
    }
    std::exception_ptr error;
    lock.unlock();
    try {
      fill(index, batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (generation != generation_) {  // restore() came in between
      spare_.push_back(std::move(batch));
      continue;
    }
    if (error) {
      error_ = error;
    } else {
      ready_.push_back(std::move(batch));
      ++produce_;
    }
    changed_.notify_all();
  }
}

const Batch& Loader::next() {
  if (options_.prefetch == 0) {
    const Stopwatch waiting;
    fill(position_, current_);
    seconds_waited_ += waiting.seconds();
    ++position_;
    return current_;
  }
  std::unique_lock lock(mutex_);
  if (ready_.empty() && !error_) {
    const Stopwatch waiting;
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    seconds_waited_ += waiting.seconds();
  }
  if (ready_.empty()) std::rethrow_exception(error_);  // the batches before the failure come first
  if (!current_.inputs.empty()) spare_.push_back(std::move(current_));
  current_ = std::move(ready_.front());
  ready_.pop_front();
  ++position_;
  changed_.notify_all();
  return current_;
}

LoaderState Loader::state() const {
  return {options_.mode,    epoch_of(position_), position_,        options_.seed, fingerprint_,
          source_.tokens(), options_.batch,      options_.context, options_.world};
}

void Loader::restore(const LoaderState& state) {
  const auto same = [](const char* field, const auto& saved, const auto& now, const char* advice) {
    if (saved != now)
      user_error("cannot continue reading: the saved run had {} {}, now it is {}; {}", field, saved,
                 now, advice);
  };
  const LoaderState now = this->state();
  const char* options = "resume with the same options";
  const char* text = "resume with the same text and tokenizer";
  same("sampling", name_of(state.mode), name_of(now.mode), options);
  same("batch size", state.batch, now.batch, options);
  same("context", state.context, now.context, options);
  same("world size", state.world, now.world, options);
  same("data seed", state.seed, now.seed, options);
  same("token count", state.tokens, now.tokens, text);
  same("text fingerprint", state.source, now.source, text);
  const int64_t most = (int64_t{1} << 62) / options_.batch / options_.world;
  if (state.position < 0 || state.position > most || epoch_of(state.position) != state.epoch)
    user_error("the data loader's state is damaged: epoch {} does not belong to position {}",
               state.epoch, state.position);
  std::lock_guard lock(mutex_);
  position_ = produce_ = state.position;
  ++generation_;
  for (Batch& batch : ready_) spare_.push_back(std::move(batch));
  ready_.clear();
  error_ = nullptr;
  changed_.notify_all();
}

}  // namespace brrr::io
