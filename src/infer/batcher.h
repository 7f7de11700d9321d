#pragma once
// Batcher: generates many texts at once. A step runs the model over the new tokens of all running
// sequences: one of each sequence that decodes, and a chunk of the prompts of others. Sequences may
// be added and cancelled between any two steps. Keys and values lie in a pool of blocks
// (block_pool.h); if it is exhausted, the youngest sequence gives its blocks back and is computed
// again later. A sequence gets the tokens that it would get alone, bit for bit.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "infer/block_pool.h"
#include "infer/runner.h"
#include "models/model.h"
#include "sampling/sampler.h"

namespace brrr::infer {

struct BatcherOptions {
  DType precision = DType::f32;  // of weights, products and the cache
  int64_t parallel = 16;         // the most sequences that run at once
  /// The most tokens that a step reads while it reads prompts, those of the sequences that decode
  /// included.
  int64_t prefill_tokens = 256;
  /// Positions of a sequence, after which it forgets the older half; 0: the model's context, which
  /// is also the most.
  int64_t context = 0;
  /// Positions of the pool, rounded up to blocks; 0: room for `parallel` sequences of `context`
  /// positions. Fewer if the memory limit allows fewer, but room for one sequence at least.
  int64_t pool_positions = 0;
  /// The most tokens that prompt lookup guesses in a step, over all sequences.
  int64_t guessed_tokens = 0;
  Memory memory = {};  // limit of the process; by default none
};

/// Why a sequence ended.
enum class Finish {
  length,     // max_new_tokens
  stopped,    // on_token returned false
  cancelled,  // by cancel()
};

/// Names a sequence of a batcher.
using SequenceId = int64_t;

struct SequenceRequest {
  std::vector<int32_t> prompt;  // at least one token
  Sampling sampling = {};
  uint32_t sample_number = 0;  // another stream of random numbers for each answer to a prompt
  int64_t max_new_tokens = 0;
  bool wants_logprobs = false;
  /// Tokens that are guessed per step from earlier occurrences of the last tokens in the text, and
  /// kept if the model chooses them, too; 0: none. The text is the same.
  int64_t prompt_lookup = 0;
  /// Gets each token as it comes, with its log probability before temperature and penalties (0
  /// unless it is wanted); may return false to end the sequence.
  std::function<bool(int32_t token, double logprob)> on_token = {};
  std::function<void(Finish)> on_finish = {};
  /// Gets the logits [V] behind the sequence instead of a token that was drawn from them. The
  /// sequence then waits until append(), fork() and cancel() say how it goes on;
  /// `max_new_tokens`, `on_token` and what draws tokens are ignored.
  std::function<void(SequenceId, std::span<const float> logits)> on_logits = {};
};

/// Counts since the beginning.
struct BatcherCounts {
  int64_t steps = 0;
  int64_t tokens = 0;         // that the model read: prompts and what it generated
  int64_t padded_tokens = 0;  // rows that were computed beside them, to share programs
  int64_t generated = 0;
  int64_t shared = 0;                      // tokens of prompts whose keys were in the pool already
  int64_t preempted = 0;                   // sequences that gave their blocks back
  int64_t guessed = 0, guessed_right = 0;  // by prompt lookup
};

class Batcher {
 public:
  using Id = SequenceId;

  /// `weights` has each parameter of the model by name. Throws UserError (exit 3) if one sequence
  /// does not fit within the memory limit.
  Batcher(models::ModelPtr model, const Backend& backend,
          std::shared_ptr<const WeightSource> weights, const BatcherOptions& options = {});
  ~Batcher();

  /// Whether the backend reads keys and values in blocks.
  static bool runs_on(const Backend& backend);

  /// Queues a sequence. Throws UserError for a prompt that is empty or has tokens outside the
  /// vocabulary. A prompt longer than the context loses its beginning, as Generator's does.
  Id add(SequenceRequest request);
  /// Ends a sequence. Does nothing for one that has ended.
  void cancel(Id id);
  /// Continues a sequence that waits for a token behind its logits.
  void append(Id id, int32_t token);
  /// Adds a sequence that continues the waiting sequence `id` by `token`, and shares its full
  /// blocks. The waiting one may be continued, forked again or cancelled.
  Id fork(Id id, int32_t token);
  /// Runs one step. Returns false, and does nothing, if all sequences have ended or wait for their
  /// token.
  bool step();

  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t running() const { return std::ssize(running_) + std::ssize(forked_); }
  int64_t context() const { return context_; }
  int64_t pool_blocks() const { return pool_.blocks(); }
  /// Bytes of the pool over all layers.
  int64_t pool_bytes() const;
  const BatcherCounts& counts() const { return counts_; }

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Draw {
    int32_t token = 0;
    double logprob = 0;
  };
  /// The part of a step that one sequence has.
  struct Share {
    Sequence* sequence;
    int64_t count;                         // tokens that are run
    int64_t first_wanted = 0, wanted = 0;  // rows of logits
    Draw first = {};                       // from the first of them
  };

  void build(const Backend& backend, std::shared_ptr<const WeightSource> weights,
             int64_t pool_blocks);
  int64_t bytes_per_block() const;
  void admit();
  bool waits_for_prefix(const Sequence& s) const;
  std::vector<Share> plan();
  /// Gets the blocks for the next `count` tokens. Returns false if the sequence was preempted
  /// instead.
  bool reserve(Sequence& s, int64_t count);
  void preempt(Sequence& s);
  void release_blocks(Sequence& s);
  std::span<const float> run(std::vector<Share>& shares);
  PortValues inputs_for(int64_t tokens, int64_t sequences, int64_t wanted) const;
  Sequence& waiting_for_token(Id id);
  /// Tells a token that was chosen. Returns whether the sequence goes on.
  bool tell(Sequence& s, int32_t token, double logprob);
  /// Adds a token to the window, which forgets its older half if it is full.
  void grow(Sequence& s, int32_t token);
  static Draw draw_token(Sequence& s, std::span<const float> row);
  void draw_first_tokens(std::vector<Share>& shares, std::span<const float> logits);
  void accept(const Share& share, std::span<const float> logits);
  void publish_full_blocks(Sequence& s);
  void finish(Sequence& s, Finish why);

  models::ModelPtr model_;
  BatcherOptions options_;
  int64_t vocabulary_, context_, table_;
  BlockPool pool_;
  std::unique_ptr<Runner> runner_;
  std::deque<SequencePtr> waiting_;   // the first is admitted first
  std::vector<SequencePtr> running_;  // the oldest first
  std::vector<SequencePtr> forked_;   // run from the next step on
  Id next_ = 1;
  BatcherCounts counts_;
};

}  // namespace brrr::infer
