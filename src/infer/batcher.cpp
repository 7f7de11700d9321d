#include "infer/batcher.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/threads/parallel.h"
#include "infer/model_runnable.h"
#include "infer/prompt_lookup.h"
#include "ops/ops.h"
#include "sampling/continuation.h"

namespace brrr::infer {
namespace {

using models::kBlockRows;

int64_t blocks_for(int64_t positions) { return (positions + kBlockRows - 1) / kBlockRows; }

/// Sizes of programs are powers of two, so that few programs serve all steps.
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
  std::vector<int32_t> window;  // tokens at positions 0, 1, ...: prompt and what follows it
  int64_t computed = 0;         // positions whose keys and values are in the pool
  std::vector<int32_t> blocks;
  std::vector<BlockPool::Content> contents;  // of the full blocks
  std::vector<int32_t> guess;                // tokens behind the window that this step tries
  PromptLookup lookup;
  int64_t made = 0;
  bool awaits_token = false;  // on_logits has its logits
  bool has_ended = false;

  Sequence(Id number, SequenceRequest r)
      : id(number),
        request(std::move(r)),
        sampler(request.sampling, request.sample_number),
        lookup(request.prompt_lookup) {}
  int64_t pending() const { return std::ssize(window) - computed; }
  BlockPool::Content last_content() const { return contents.empty() ? 0 : contents.back(); }
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
  if (options_.context > 0) context_ = std::min(context_, options_.context);
  table_ = blocks_for(context_);
  const int64_t most = options_.parallel * table_;
  int64_t wanted =
      options_.pool_positions > 0 ? std::min(most, blocks_for(options_.pool_positions)) : most;
  wanted = std::max(wanted, table_);
  if (options_.memory.limit.bytes > 0 && wanted > table_) {
    // Memory that remains beside a pool for one sequence.
    build(backend, weights, table_);
    const int64_t left = options_.memory.limit.bytes - runner_->forecast().needed();
    wanted = std::clamp(table_ + left / bytes_per_block(), table_, wanted);
  }
  // A second session needs a little more than the first: what does not fit is tried smaller.
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
  how.passes = for_inference(options_.precision);
  runner_.reset();
  runner_ = std::make_unique<Runner>(
      sequences_runnable(model_, std::move(weights), pool_blocks, options_.precision), backend, how,
      counting_all(options_.memory), 0, 0);
  const int64_t sequences = rounded_up(options_.parallel);
  const int64_t guessing = rounded_up(options_.parallel + options_.guessed_tokens);
  const std::vector<PortValues> inputs{
      inputs_for(sequences, sequences, sequences),
      inputs_for(std::max(guessing, rounded_up(options_.prefill_tokens)), sequences, guessing)};
  runner_->prepare(inputs);
}

bool Batcher::runs_on(const Backend& backend) {
  Graph g;
  const Value x = g.input("x", {1, 24}, DType::f32), pool = g.input("pool", {16, 8}, DType::f32);
  const AttentionPlaces places{.heads = 1,
                               .kv_heads = 1,
                               .width = 8,
                               .value_width = 8,
                               .q = {0, 0, true},
                               .k = {1, 0, true},
                               .v = {1, 0, true},
                               .y_in_rows = true};
  AttentionOptions options;
  options.causal = true;
  options.lengths = g.input("lengths", {1}, DType::i32);
  options.starts = g.input("starts", {2}, DType::i32);
  options.blocks = g.input("blocks", {1, 1}, DType::i32);
  options.block_rows = kBlockRows;
  const Value sources[] = {x, pool};
  const Value y = attention(sources, places, options).y;
  return backend.target().runs(g, y.id.node);
}

int64_t Batcher::bytes_per_block() const {
  return kBlockRows * model_->sizes().cache_width *
         static_cast<int64_t>(bytes_of(options_.precision));
}
int64_t Batcher::pool_bytes() const { return pool_.blocks() * bytes_per_block(); }

Batcher::Id Batcher::add(SequenceRequest request) {
  BRRR_CHECK(request.max_new_tokens > 0 || request.on_logits, "a sequence without new tokens");
  if (request.prompt.empty()) user_error("the prompt has no tokens; give at least one");
  for (const int32_t id : request.prompt)
    if (id < 0 || id >= vocabulary_)
      user_error("token {} of the prompt lies outside the vocabulary of {}", id, vocabulary_);
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
  // The last blocks of a prefix are of use to nobody without the first: they are reused first.
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block) pool_.release(*block);
  s.blocks.clear();
  s.contents.clear();
  s.computed = 0;
}

/// Whether a running sequence is about to compute blocks that this one can share.
bool Batcher::waits_for_prefix(const Sequence& s) const {
  return std::ranges::any_of(running_, [&](const SequencePtr& other) {
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
    // At least one token is run, for its logits.
    const int64_t shareable = (std::ssize(s.window) - 1) / kBlockRows;
    for (int64_t b = std::ssize(s.blocks); b < shareable; ++b) {
      const auto found = pool_.share(s.last_content(), s.block_tokens(b));
      if (!found) break;
      s.blocks.push_back(found->first);
      s.contents.push_back(found->second);
    }
    s.computed = std::ssize(s.blocks) * kBlockRows;
    const int64_t missing = blocks_for(std::ssize(s.window) + 1) - std::ssize(s.blocks);
    if (!running_.empty() && (missing > pool_.available() || waits_for_prefix(s))) {
      release_blocks(s);
      return;
    }
    counts_.shared += s.computed;
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

std::vector<Batcher::Share> Batcher::plan() {
  // Tokens that decode count, too, so that a whole chunk of prompts fills its program.
  const int64_t decoding =
      std::ranges::count_if(running_, [](const SequencePtr& s) { return s->pending() == 1; });
  int64_t budget = std::max<int64_t>(1, options_.prefill_tokens - decoding);
  int64_t guesses = options_.guessed_tokens;
  std::vector<Share> shares;
  // Sequences may be preempted on the way, the last first.
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
    shares.push_back({.sequence = &s, .count = count});
  }
  return shares;
}

PortValues Batcher::inputs_for(int64_t tokens, int64_t sequences, int64_t wanted) const {
  const auto zeros = [](const std::vector<int64_t>& sizes, int32_t value = 0) {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return HostTensor::of<int32_t>(sizes, std::vector<int32_t>(static_cast<size_t>(n), value));
  };
  PortValues inputs;
  for (const char* name : {"tokens", "positions"}) inputs.emplace(name, zeros({tokens}));
  inputs.emplace("slots", zeros({tokens}, -1));
  inputs.emplace("starts", zeros({sequences + 1}));
  inputs.emplace("lengths", zeros({sequences}));
  inputs.emplace("blocks", zeros({sequences, table_}));
  inputs.emplace("wanted", zeros({wanted}));
  return inputs;
}

std::span<const float> Batcher::run(std::vector<Share>& shares) {
  int64_t tokens = 0, wanted = 0;
  for (Share& share : shares) {
    const Sequence& s = *share.sequence;
    tokens += share.count;
    const bool reaches_end = share.count >= s.pending();
    share.first_wanted = wanted;
    share.wanted = reaches_end ? 1 + std::ssize(s.guess) : 0;
    wanted += share.wanted;
  }
  const int64_t sequences = rounded_up(std::ssize(shares));
  const int64_t rows = std::max(sequences, rounded_up(tokens)), logits = rounded_up(wanted);
  std::vector<int32_t> ids, positions, slots, starts, lengths, rows_wanted;
  std::vector<int32_t> table(static_cast<size_t>(sequences * table_), 0);
  for (size_t r = 0; r < shares.size(); ++r) {
    const Sequence& s = *shares[r].sequence;
    starts.push_back(static_cast<int32_t>(ids.size()));
    for (int64_t i = 0; i < shares[r].count; ++i) {
      const int64_t at = s.computed + i, behind = at - std::ssize(s.window);
      ids.push_back(behind < 0 ? s.window[static_cast<size_t>(at)]
                               : s.guess[static_cast<size_t>(behind)]);
      positions.push_back(static_cast<int32_t>(at));
      slots.push_back(static_cast<int32_t>(
          s.blocks[static_cast<size_t>(at / kBlockRows)] * kBlockRows + at % kBlockRows));
    }
    lengths.push_back(static_cast<int32_t>(s.computed + shares[r].count));
    for (int64_t i = shares[r].wanted; i > 0; --i)
      rows_wanted.push_back(static_cast<int32_t>(std::ssize(ids) - i));
    std::ranges::copy(s.blocks, table.begin() + static_cast<int64_t>(r) * table_);
  }
  starts.resize(static_cast<size_t>(sequences) + 1, static_cast<int32_t>(ids.size()));
  lengths.resize(static_cast<size_t>(sequences), 0);
  ids.resize(static_cast<size_t>(rows), 0);
  positions.resize(static_cast<size_t>(rows), 0);
  slots.resize(static_cast<size_t>(rows), -1);
  rows_wanted.resize(static_cast<size_t>(logits), 0);
  PortValues inputs;
  inputs.emplace("tokens", HostTensor::of<int32_t>({rows}, ids));
  inputs.emplace("positions", HostTensor::of<int32_t>({rows}, positions));
  inputs.emplace("slots", HostTensor::of<int32_t>({rows}, slots));
  inputs.emplace("starts", HostTensor::of<int32_t>({sequences + 1}, starts));
  inputs.emplace("lengths", HostTensor::of<int32_t>({sequences}, lengths));
  inputs.emplace("blocks", HostTensor::of<int32_t>({sequences, table_}, table));
  inputs.emplace("wanted", HostTensor::of<int32_t>({logits}, rows_wanted));
  counts_.tokens += tokens;
  counts_.padded_tokens += rows - tokens;
  ++counts_.steps;
  return runner_->run_in_place(inputs).numbers;
}

void Batcher::publish_full_blocks(Sequence& s) {
  for (int64_t b = std::ssize(s.contents); (b + 1) * kBlockRows <= s.computed; ++b)
    s.contents.push_back(
        pool_.publish(s.blocks[static_cast<size_t>(b)], s.last_content(), s.block_tokens(b)));
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

/// A preempted sequence waits for its token, too: its keys are computed again with the token's.
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
  // Full blocks are shared; keys in the last one are computed again.
  for (size_t b = 0; b < from.contents.size(); ++b) {
    pool_.add_user(from.blocks[b]);
    s->blocks.push_back(from.blocks[b]);
    s->contents.push_back(from.contents[b]);
  }
  s->computed = std::ssize(s->blocks) * kBlockRows;
  counts_.shared += s->computed;
  grow(*s, token);
  forked_.push_back(std::move(s));
  return forked_.back()->id;
}

bool Batcher::tell(Sequence& s, int32_t token, double logprob) {
  ++s.made;
  ++counts_.generated;
  const bool goes_on = !s.request.on_token || s.request.on_token(token, logprob);
  if (s.has_ended) {
    // Cancelled by its own callback.
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

/// Every sequence has a sampler of its own, so the first tokens are drawn on all threads.
void Batcher::draw_first_tokens(std::vector<Share>& shares, std::span<const float> logits) {
  const auto width = static_cast<size_t>(vocabulary_);
  parallel_pieces(std::ssize(shares), thread_count(), [&](int64_t i, int) {
    Share& share = shares[static_cast<size_t>(i)];
    if (share.wanted > 0 && !share.sequence->request.on_logits)
      share.first = draw_token(
          *share.sequence, logits.subspan(static_cast<size_t>(share.first_wanted) * width, width));
  });
}

void Batcher::accept(const Share& share, std::span<const float> logits) {
  Sequence& s = *share.sequence;
  if (s.has_ended) return;
  const int64_t before = std::ssize(s.window), guessed = std::ssize(s.guess);
  s.computed = std::min(s.computed + share.count, before);
  publish_full_blocks(s);
  const auto width = static_cast<size_t>(vocabulary_);
  if (s.request.on_logits) {
    if (share.wanted == 0) return;
    s.awaits_token = true;
    const auto row = logits.subspan(static_cast<size_t>(share.first_wanted) * width, width);
    return s.request.on_logits(s.id, row);
  }
  int64_t right = 0;
  for (int64_t i = 0; i < share.wanted; ++i) {
    const auto row = logits.subspan(static_cast<size_t>(share.first_wanted + i) * width, width);
    const Draw draw = i == 0 ? share.first : draw_token(s, row);
    const int32_t token = draw.token;
    if (!tell(s, token, draw.logprob)) break;
    if (i == guessed || token != s.guess[static_cast<size_t>(i)] || s.computed == 0) break;
    ++right;
    ++s.computed;  // the keys of this token are in the pool already
  }
  if (guessed == 0) return;
  counts_.guessed += guessed;
  counts_.guessed_right += right;
  s.lookup.learn(guessed, right);
  if (!s.has_ended) publish_full_blocks(s);
}

bool Batcher::step() {
  std::erase_if(running_, [](const SequencePtr& s) { return s->has_ended; });
  const auto has_work = [this] {
    return std::ranges::any_of(running_, [](const SequencePtr& s) { return s->pending() > 0; });
  };
  for (SequencePtr& s : forked_) running_.push_back(std::move(s));
  forked_.clear();
  admit();
  // Sequences that await a token may hold the blocks that others need to get theirs.
  while (!has_work() && !running_.empty() &&
         std::ranges::any_of(waiting_, [](const SequencePtr& s) { return !s->awaits_token; })) {
    preempt(*running_.back());
    admit();
  }
  if (!has_work()) return false;
  std::vector<Share> shares = plan();
  const std::span<const float> logits = run(shares);
  draw_first_tokens(shares, logits);
  for (const Share& share : shares) accept(share, logits);
  std::erase_if(running_, [](const SequencePtr& s) { return s->has_ended; });
  return true;
}

}  // namespace brrr::infer
