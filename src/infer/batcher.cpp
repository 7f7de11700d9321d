#include "infer/batcher.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/threads/parallel.h"
#include "infer/model_runnable.h"
#include "infer/prompt_lookup.h"
#include "models/adapters/adapted_model.h"
#include "passes/adapters/choose_adapters.h"
#include "sampling/continuation.h"

namespace brrr::infer {
namespace {

using models::kBlockRows;

int64_t blocks_for(int64_t positions) { return (positions + kBlockRows - 1) / kBlockRows; }

/// Rounds a size of a step up to a power of two, so that few programs serve all steps.
int64_t rounded_up(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n))));
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - top - std::log(sum);
}

}  // namespace

struct Batcher::Sequence {
  Id id = 0;
  SequenceRequest request;
  Sampler sampler;
  std::vector<int32_t> window;  // the tokens of positions 0, 1, ...
  int64_t computed = 0;         // number of positions whose keys and values are cached
  std::vector<int32_t> blocks;
  std::vector<BlockPool::Prefix> prefixes;  // prefix that ends with each full block
  std::vector<int32_t> guess;               // tokens that may follow the window
  PromptLookup lookup;
  int64_t made = 0;
  double waits_since = 0;     // when it was admitted or got its last token; 0: not admitted yet
  bool awaits_token = false;  // after on_logits
  bool has_ended = false;

  Sequence(Id number, SequenceRequest r)
      : id(number),
        request(std::move(r)),
        sampler(request.sampling, request.sample_number),
        lookup(request.prompt_lookup) {}
  int64_t pending() const { return std::ssize(window) - computed; }
  BlockPool::Prefix last_prefix() const {
    return prefixes.empty() ? BlockPool::root(request.adapter) : prefixes.back();
  }
  BlockPool::Tokens block_tokens(int64_t block) const {
    BlockPool::Tokens tokens;
    std::copy_n(window.begin() + block * kBlockRows, kBlockRows, tokens.begin());
    return tokens;
  }
};

Batcher::Batcher(models::ModelPtr model, const Backend& backend,
                 std::shared_ptr<const WeightSource> weights, const BatcherOptions& options)
    : model_(std::move(model)),
      options_(options),
      vocabulary_(model_->sizes().vocabulary),
      context_(model_->sizes().context),
      table_(1),
      pool_(1) {
  BRRR_CHECK(options_.parallel > 0 && options_.prefill_tokens > 0, "an empty step");
  if (options_.chooses_adapters) {
    const models::AdaptedModel* const adapted = model_->adapted();
    BRRR_CHECK(adapted != nullptr, "a choice of adapters of a model without any");
    adapted->check_choosable();
    adapters_ = std::ssize(adapted->adapters());
  }
  if (options_.context > 0) context_ = std::min(context_, options_.context);
  table_ = blocks_for(context_);
  const int64_t most = options_.parallel * table_;
  int64_t wanted =
      options_.pool_positions > 0 ? std::min(most, blocks_for(options_.pool_positions)) : most;
  wanted = std::max(wanted, table_);
  if (options_.memory.limit.bytes > 0 && wanted > table_) {
    // Build with the smallest pool to learn how much memory is left for a larger one.
    build(backend, weights, table_);
    const int64_t left = options_.memory.limit.bytes - runner_->forecast().needed();
    wanted = std::clamp(table_ + left / (pool_bytes() / table_), table_, wanted);
  }
  // The forecast was made before the first session; retry with a smaller pool if it was too low.
  while (!runner_ || pool_.blocks() != wanted) {
    try {
      build(backend, weights, wanted);
    } catch (const UserError& e) {
      if (e.code() != ExitCode::kNoMemory || wanted == table_) throw;
      wanted = std::max(table_, wanted - std::max<int64_t>(1, (wanted - table_) / 8));
      runner_.reset();
    }
  }
  runner_->allocate();
  pool_ = BlockPool(wanted);
}

Batcher::~Batcher() = default;

void Batcher::build(const Backend& backend, std::shared_ptr<const WeightSource> weights,
                    int64_t pool_blocks) {
  pool_ = BlockPool(pool_blocks);
  RunnableOptions how;
  how.passes = for_inference(options_.precision, options_.quantization, options_.cache);
  runner_.reset();
  runner_ =
      std::make_unique<Runner>(sequences_runnable(model_, std::move(weights), pool_blocks,
                                                  options_.precision, options_.chooses_adapters),
                               backend, how, counting_all(options_.memory), 0, 0);
  const int64_t sequences = rounded_up(options_.parallel);
  const int64_t guessing = rounded_up(options_.parallel + options_.guessed_tokens);
  const bool chooses = options_.chooses_adapters;
  const std::vector<PortValues> inputs{
      StepInputs().padded(sequences, sequences, sequences, table_, chooses),
      StepInputs().padded(std::max(guessing, rounded_up(options_.prefill_tokens)), sequences,
                          guessing, table_, chooses)};
  runner_->prepare(inputs);
}

int64_t Batcher::pool_bytes() const { return runner_->session().engine().forecast().state_bytes; }

int64_t Batcher::weight_bytes() const {
  return runner_->session().engine().forecast().parameter_bytes;
}

Batcher::Id Batcher::add(SequenceRequest request) {
  BRRR_CHECK(request.max_new_tokens > 0 || request.on_logits, "a sequence without new tokens");
  if (request.prompt.empty()) user_error("the prompt has no tokens; give at least one");
  for (const int32_t id : request.prompt)
    if (id < 0 || id >= vocabulary_)
      user_error("token {} of the prompt lies outside the vocabulary of {}", id, vocabulary_);
  const bool uses_all = request.adapter == kAllAdapters && options_.chooses_adapters;
  BRRR_CHECK(uses_all || (request.adapter >= 0 && request.adapter <= adapters_), "adapter {} of {}",
             request.adapter, adapters_);
  auto s = std::make_unique<Sequence>(next_++, std::move(request));
  s->sampler.read(s->request.prompt);
  s->window = s->request.prompt;
  if (std::ssize(s->window) > context_)
    s->window.erase(s->window.begin(), s->window.end() - kept_at_the_end(context_));
  waiting_.push_back(std::move(s));
  return waiting_.back()->id;
}

void Batcher::cancel(Id id) {
  for (const auto* list : {&running_, &forked_})
    for (const auto& s : *list)
      if (s->id == id && !s->has_ended) return finish(*s, Finish::cancelled);
  for (auto i = waiting_.begin(); i != waiting_.end(); ++i)
    if ((*i)->id == id) {
      const SequencePtr s = std::move(*i);
      waiting_.erase(i);
      return finish(*s, Finish::cancelled);
    }
}

void Batcher::finish(Sequence& s, Finish why) {
  release_blocks(s);
  s.has_ended = true;
  if (s.request.on_finish) s.request.on_finish(why);
}

void Batcher::release_blocks(Sequence& s) {
  // Release from the end, because a prefix is of no use without its first blocks.
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block) pool_.release(*block);
  s.blocks.clear();
  s.prefixes.clear();
  s.computed = 0;
}

/// Returns whether a running sequence is about to compute full blocks of this one's prefix.
bool Batcher::waits_for_prefix(const Sequence& s) const {
  return std::ranges::any_of(running_, [&](const SequencePtr& other) {
    if (other->request.adapter != s.request.adapter) return false;
    const auto [mine, theirs] = std::ranges::mismatch(s.window, other->window);
    const int64_t common = (mine - s.window.begin()) / kBlockRows * kBlockRows;
    return other->pending() > 1 && other->computed < common && s.computed < common;
  });
}

void Batcher::admit() {
  while (std::ssize(running_) < options_.parallel) {
    const auto next =
        std::ranges::find_if(waiting_, [](const SequencePtr& s) { return !s->awaits_token; });
    if (next == waiting_.end()) return;
    Sequence& s = **next;
    // The last token is always computed, for its logits.
    const int64_t shareable = (std::ssize(s.window) - 1) / kBlockRows;
    for (int64_t b = std::ssize(s.blocks); b < shareable; ++b) {
      const auto found = pool_.find(s.last_prefix(), s.block_tokens(b));
      if (!found) break;
      s.blocks.push_back(found->first);
      s.prefixes.push_back(found->second);
    }
    s.computed = std::ssize(s.blocks) * kBlockRows;
    const int64_t missing = blocks_for(std::ssize(s.window) + 1) - std::ssize(s.blocks);
    if (!running_.empty() && (missing > pool_.available() || waits_for_prefix(s))) {
      release_blocks(s);
      return;
    }
    counts_.shared += s.computed;
    if (s.waits_since == 0) s.waits_since = now_seconds();
    running_.push_back(std::move(*next));
    waiting_.erase(next);
  }
}

void Batcher::preempt(Sequence& s) {
  ++counts_.preempted;
  release_blocks(s);
  const auto at = std::ranges::find(running_, &s, &SequencePtr::get);
  waiting_.push_front(std::move(*at));
  running_.erase(at);
}

bool Batcher::reserve(Sequence& s, int64_t count) {
  while (std::ssize(s.blocks) < blocks_for(s.computed + count)) {
    const int32_t last = s.blocks.empty() ? -1 : s.blocks.back();
    if (const auto block = pool_.take(std::ssize(s.blocks), last)) {
      s.blocks.push_back(*block);
      continue;
    }
    Sequence& youngest = *running_.back();
    BRRR_CHECK(running_.size() > 1, "the pool has no room for one sequence");
    preempt(youngest);
    if (&youngest == &s) return false;
  }
  return true;
}

std::vector<Batcher::StepPart> Batcher::plan() {
  // Count decoding sequences, so that a full chunk does not exceed its program's size.
  const int64_t decoding =
      std::ranges::count_if(running_, [](const SequencePtr& s) { return s->pending() == 1; });
  int64_t budget = std::max<int64_t>(1, options_.prefill_tokens - decoding);
  int64_t guesses = options_.guessed_tokens;
  std::vector<StepPart> parts;
  // reserve() may preempt sequences at the end of running_.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    s.guess.clear();
    int64_t count = s.pending();
    if (count == 1 && s.request.prompt_lookup > 0) {
      const int64_t room = std::min(
          {context_ - std::ssize(s.window), s.request.max_new_tokens - s.made - 1, guesses});
      s.guess = s.lookup.guess(s.window, room);
      guesses -= std::ssize(s.guess);
      count += std::ssize(s.guess);
    } else if (count > 1) {
      count = std::min(count, budget);
    }
    if (count == 0 || !reserve(s, count)) continue;
    if (s.pending() > 1) budget -= count;
    parts.push_back({.sequence = &s, .count = count});
  }
  return parts;
}

PortValues Batcher::StepInputs::padded(int64_t token_count, int64_t sequence_count,
                                       int64_t wanted_count, int64_t table,
                                       bool chooses_adapters) && {
  PortValues inputs;
  const auto add = [&](const char* name, std::vector<int32_t>& values, std::vector<int64_t> sizes,
                       int32_t filler) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    values.resize(static_cast<size_t>(count), filler);
    inputs.emplace(name, HostTensor::of<int32_t>(sizes, values));
  };
  add("starts", starts, {sequence_count + 1}, static_cast<int32_t>(tokens.size()));
  add("tokens", tokens, {token_count}, 0);
  add("positions", positions, {token_count}, 0);
  add("slots", slots, {token_count}, -1);
  add("lengths", lengths, {sequence_count}, 0);
  add("blocks", blocks, {sequence_count, table}, 0);
  add("wanted", wanted, {wanted_count}, 0);
  if (chooses_adapters) add("adapters", adapters, {token_count}, 0);
  return inputs;
}

std::span<const float> Batcher::run(std::vector<StepPart>& parts) {
  int64_t tokens = 0, wanted = 0;
  for (StepPart& part : parts) {
    const Sequence& s = *part.sequence;
    tokens += part.count;
    const bool reaches_end = part.count >= s.pending();
    part.first_wanted = wanted;
    part.wanted = reaches_end ? 1 + std::ssize(s.guess) : 0;
    wanted += part.wanted;
  }
  const int64_t sequences = rounded_up(std::ssize(parts));
  const int64_t rows = std::max(sequences, rounded_up(tokens));
  StepInputs inputs;
  for (const StepPart& part : parts) {
    const Sequence& s = *part.sequence;
    inputs.starts.push_back(static_cast<int32_t>(inputs.tokens.size()));
    for (int64_t at = s.computed; at < s.computed + part.count; ++at) {
      const int64_t guessed = at - std::ssize(s.window);
      inputs.tokens.push_back(guessed < 0 ? s.window[static_cast<size_t>(at)]
                                          : s.guess[static_cast<size_t>(guessed)]);
      inputs.positions.push_back(static_cast<int32_t>(at));
      if (options_.chooses_adapters) inputs.adapters.push_back(s.request.adapter);
      inputs.slots.push_back(static_cast<int32_t>(
          s.blocks[static_cast<size_t>(at / kBlockRows)] * kBlockRows + at % kBlockRows));
    }
    inputs.lengths.push_back(static_cast<int32_t>(s.computed + part.count));
    for (int64_t i = part.wanted; i > 0; --i)
      inputs.wanted.push_back(static_cast<int32_t>(std::ssize(inputs.tokens) - i));
    inputs.blocks.insert(inputs.blocks.end(), s.blocks.begin(), s.blocks.end());
    inputs.blocks.resize(inputs.lengths.size() * static_cast<size_t>(table_), 0);
  }
  counts_.tokens += tokens;
  counts_.padded_tokens += rows - tokens;
  ++counts_.steps;
  return runner_
      ->run_in_place(std::move(inputs).padded(rows, sequences, rounded_up(wanted), table_,
                                              options_.chooses_adapters))
      .numbers;
}

void Batcher::cache_full_blocks(Sequence& s) {
  for (int64_t b = std::ssize(s.prefixes); (b + 1) * kBlockRows <= s.computed; ++b)
    s.prefixes.push_back(
        pool_.cache(s.blocks[static_cast<size_t>(b)], s.last_prefix(), s.block_tokens(b)));
}

void Batcher::grow(Sequence& s, int32_t token) {
  if (std::ssize(s.window) == context_) {
    release_blocks(s);
    const int64_t kept = std::min(kept_at_the_end(context_), context_ - 1);
    s.window.erase(s.window.begin(), s.window.end() - kept);
  }
  s.window.push_back(token);
  s.awaits_token = false;
}

/// Finds a sequence that waits for its token; it may have been preempted meanwhile.
Batcher::Sequence& Batcher::waiting_for_token(Id id) {
  Sequence* found = nullptr;
  const auto look = [&](const auto& list) {
    for (const SequencePtr& s : list)
      if (s->id == id && !s->has_ended) found = s.get();
  };
  look(running_);
  look(waiting_);
  BRRR_CHECK(found != nullptr && found->awaits_token, "sequence {} waits for no token", id);
  return *found;
}

void Batcher::append(Id id, int32_t token) { grow(waiting_for_token(id), token); }

Batcher::Id Batcher::fork(Id id, int32_t token) {
  const Sequence& from = waiting_for_token(id);
  auto s = std::make_unique<Sequence>(next_++, from.request);
  s->window = from.window;
  // Share full blocks. The partial last block is computed again.
  for (size_t b = 0; b < from.prefixes.size(); ++b) {
    pool_.retain(from.blocks[b]);
    s->blocks.push_back(from.blocks[b]);
    s->prefixes.push_back(from.prefixes[b]);
  }
  s->computed = std::ssize(s->blocks) * kBlockRows;
  counts_.shared += s->computed;
  grow(*s, token);
  forked_.push_back(std::move(s));
  return forked_.back()->id;
}

void Batcher::count_wait(Sequence& s) {
  const double now = now_seconds(), waited = now - s.waits_since;
  s.waits_since = now;
  if (s.made > 0) {
    counts_.longest_gap = std::max(counts_.longest_gap, waited);
    return;
  }
  const bool is_first = counts_.slowest_first_token == 0;
  counts_.slowest_first_token = std::max(counts_.slowest_first_token, waited);
  counts_.fastest_first_token = is_first ? waited : std::min(counts_.fastest_first_token, waited);
}

bool Batcher::take(Sequence& s, int32_t token, double logprob) {
  count_wait(s);
  ++s.made;
  ++counts_.generated;
  const bool goes_on = !s.request.on_token || s.request.on_token(token, logprob);
  if (s.has_ended) {
    // The callback cancelled its own sequence.
  } else if (!goes_on) {
    finish(s, Finish::stopped);
  } else if (s.made == s.request.max_new_tokens) {
    finish(s, Finish::length);
  } else {
    grow(s, token);
  }
  return !s.has_ended;
}

Batcher::Draw Batcher::draw_token(Sequence& s, std::span<const float> row) {
  const int32_t token = s.sampler.next(row);
  return {token, s.request.wants_logprobs ? log_probability(row, token) : 0};
}

/// Draws the first token of each sequence, in parallel: samplers are independent.
void Batcher::draw_first_tokens(std::vector<StepPart>& parts, std::span<const float> logits) {
  const auto width = static_cast<size_t>(vocabulary_);
  parallel_pieces(std::ssize(parts), thread_count(), [&](int64_t i, int) {
    StepPart& part = parts[static_cast<size_t>(i)];
    if (part.wanted > 0 && !part.sequence->request.on_logits)
      part.first = draw_token(
          *part.sequence, logits.subspan(static_cast<size_t>(part.first_wanted) * width, width));
  });
}

void Batcher::accept(const StepPart& part, std::span<const float> logits) {
  Sequence& s = *part.sequence;
  if (s.has_ended) return;
  const int64_t before = std::ssize(s.window), guessed = std::ssize(s.guess);
  s.computed = std::min(s.computed + part.count, before);
  cache_full_blocks(s);
  const auto width = static_cast<size_t>(vocabulary_);
  if (s.request.on_logits) {
    if (part.wanted == 0) return;
    s.awaits_token = true;
    const auto row = logits.subspan(static_cast<size_t>(part.first_wanted) * width, width);
    return s.request.on_logits(s.id, row);
  }
  int64_t right = 0;
  for (int64_t i = 0; i < part.wanted; ++i) {
    const auto row = logits.subspan(static_cast<size_t>(part.first_wanted + i) * width, width);
    const Draw draw = i == 0 ? part.first : draw_token(s, row);
    const int32_t token = draw.token;
    if (!take(s, token, draw.logprob)) break;
    if (i == guessed || token != s.guess[static_cast<size_t>(i)] || s.computed == 0) break;
    ++right;
    ++s.computed;  // the guessed token was right, so its keys are cached
  }
  if (guessed == 0) return;
  counts_.guessed += guessed;
  counts_.guessed_right += right;
  s.lookup.learn(guessed, right);
  if (!s.has_ended) cache_full_blocks(s);
}

bool Batcher::step() {
  std::erase_if(running_, [](const SequencePtr& s) { return s->has_ended; });
  const auto has_work = [this] {
    return std::ranges::any_of(running_, [](const SequencePtr& s) { return s->pending() > 0; });
  };
  for (SequencePtr& s : forked_) running_.push_back(std::move(s));
  forked_.clear();
  admit();
  // Sequences that wait for a token may hold all blocks: preempt them until another one can run.
  while (!has_work() && !running_.empty() &&
         std::ranges::any_of(waiting_, [](const SequencePtr& s) { return !s->awaits_token; })) {
    preempt(*running_.back());
    admit();
  }
  if (!has_work()) return false;
  std::vector<StepPart> parts = plan();
  const std::span<const float> logits = run(parts);
  draw_first_tokens(parts, logits);
  for (const StepPart& part : parts) accept(part, logits);
  std::erase_if(running_, [](const SequencePtr& s) { return s->has_ended; });
  return true;
}

}  // namespace brrr::infer
