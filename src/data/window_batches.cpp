#include "data/window_batches.h"

#include <algorithm>

#include "base/errors.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/rng.h"
#include "data/permutation.h"

namespace brrr::io {
namespace {

constexpr uint32_t kOffsetStream = 0x4f460000u;

}  // namespace

WindowBatches::WindowBatches(const TokenSource& source, const BatchOptions& options)
    : source_(source), options_(options) {
  check_options(options);
  const int64_t tokens = source.tokens();
  if (tokens < 2)
    user_error("{} has {}; expected at least 2 tokens", source.description(),
               counted(tokens, "token"));
  if (options.mode != Sampling::kSequential && tokens < options.context + 1)
    user_error(
        "the context of {} tokens is longer than the text: {} has {}, at least {} are needed; use "
        "a context of {} or less, or more text",
        options.context, source.description(), tokens, options.context + 1, tokens - 1);
  windows_ = ceil_div(tokens - 1, options.context);
}

int64_t WindowBatches::batches_per_pass() const {
  if (options_.mode == Sampling::kRandom)
    return ceil_div(source_.tokens(), options_.batch * options_.context);
  return ceil_div(windows_, options_.batch);
}

int64_t WindowBatches::epoch_of(int64_t index) const {
  if (options_.mode == Sampling::kEpoch) return index * options_.batch / windows_;
  return options_.mode == Sampling::kSequential ? index / batches_per_pass() : 0;
}

int64_t WindowBatches::row_offset(int64_t row) const {
  if (options_.mode == Sampling::kRandom) {
    // A stream of its own per row: the offset depends on nothing that came before.
    const auto wide = static_cast<uint64_t>(row);
    RngStream rng({options_.seed, static_cast<uint32_t>(wide)},
                  kOffsetStream + static_cast<uint32_t>(wide >> 32));
    return static_cast<int64_t>(
        rng.next_below(static_cast<uint64_t>(source_.tokens() - options_.context)));
  }
  if (options_.mode == Sampling::kEpoch) {
    const Permutation order(static_cast<uint64_t>(windows_),
                            {options_.seed, static_cast<uint32_t>(row / windows_)});
    return options_.context * static_cast<int64_t>(order(static_cast<uint64_t>(row % windows_)));
  }
  const int64_t in_pass = row % (batches_per_pass() * options_.batch);
  return in_pass < windows_ ? options_.context * in_pass : -1;
}

void WindowBatches::fill(int64_t index, Batch& batch) const {
  const int64_t T = options_.context;
  const Batch::Text all = batch.make_text(options_.batch, T);
  for (int64_t b = 0; b < options_.batch; ++b) {
    const int64_t offset = row_offset(options_.row(index, b));
    if (offset < 0) continue;
    const int64_t n = std::min(T, source_.tokens() - 1 - offset);
    const auto count = static_cast<size_t>(n);
    const auto inputs = all.tokens.subspan(static_cast<size_t>(b * T), count);
    const auto targets = all.targets.subspan(static_cast<size_t>(b * T), count);
    source_.read(offset, inputs);
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    source_.read(offset + n, targets.last(1));
    source_.check_ids(inputs, offset, options_.vocab);
    source_.check_ids(targets.last(1), offset + n, options_.vocab);
    batch.count += n;
  }
}

}  // namespace brrr::io
