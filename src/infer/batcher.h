#pragma once
// Batcher generates many texts at once (continuous batching). A step runs the model over the new
// tokens of all running sequences: one token of each sequence that decodes, and chunks of the
// prompts of others. Sequences may be added and cancelled between any two steps. The KV cache is a
// pool of blocks (block_pool.h). If it is exhausted, the youngest sequence is preempted: its blocks
// are freed and computed again later. A sequence gets the tokens that it would get alone, bit for
// bit.

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
#include "passes/precision/cache_precision.h"
#include "passes/weights/weight_choice.h"
#include "sampling/sampler.h"

namespace brrr::infer {

struct BatcherOptions {
  DType precision = DType::f32;          // dtype of weights and products
  WeightQuantization quantization = {};  // of weights
  CachePrecision cache = CachePrecision::computed;
  /// Each sequence selects one adapter of the AdaptedModel, all of them, or the base alone.
  /// Otherwise every sequence gets the sum of all adapters.
  bool chooses_adapters = false;
  int64_t parallel = 16;  // maximum number of running sequences
  /// Maximum number of tokens of a step that reads prompts, decoding sequences included.
  int64_t prefill_tokens = 256;
  /// Maximum length of a sequence, which then drops its older half; 0: the model's context.
  int64_t context = 0;
  /// Size of the pool in positions, rounded up to blocks; 0: `parallel` sequences of `context`
  /// positions. It is smaller if the memory limit requires it, but holds one sequence.
  int64_t pool_positions = 0;
  /// Maximum number of tokens that prompt lookup guesses in a step, over all sequences.
  int64_t guessed_tokens = 0;
  Memory memory = {};  // limit of the process; by default none
};

/// Why a sequence ended.
enum class Finish {
  length,     // max_new_tokens
  stopped,    // on_token returned false
  cancelled,  // by cancel()
};

/// Identifies a sequence of a batcher.
using SequenceId = int64_t;

struct SequenceRequest {
  std::vector<int32_t> prompt;  // at least one token
  Sampling sampling = {};
  uint32_t sample_number = 0;  // selects the stream of random numbers
  /// With BatcherOptions::chooses_adapters: 1-based index of the adapter; 0 selects the base, and
  /// kAllAdapters (passes/adapters/choose_adapters.h) the sum of all adapters.
  int32_t adapter = 0;
  int64_t max_new_tokens = 0;
  bool wants_logprobs = false;
  /// Maximum number of tokens guessed per step by prompt_lookup.h; 0: none. It does not change the
  /// text.
  int64_t prompt_lookup = 0;
  /// Receives each token and its log probability before temperature and penalties (0 unless
  /// wants_logprobs). Returns whether the sequence continues.
  std::function<bool(int32_t token, double logprob)> on_token = {};
  std::function<void(Finish)> on_finish = {};
  /// If set, no token is sampled: it receives the next-token logits [V], and the sequence waits for
  /// append(), fork() or cancel(). Sampling options, max_new_tokens and on_token are ignored.
  std::function<void(SequenceId, std::span<const float> logits)> on_logits = {};
};

/// Statistics since the batcher was made.
struct BatcherCounts {
  int64_t steps = 0;
  int64_t tokens = 0;         // input tokens of the model
  int64_t padded_tokens = 0;  // rows of padding, because programs have fixed sizes
  int64_t generated = 0;
  int64_t shared = 0;                      // prompt tokens found in the prefix cache
  int64_t preempted = 0;                   // preemptions
  int64_t guessed = 0, guessed_right = 0;  // tokens of prompt lookup
  /// Seconds from the admission of a sequence to its first token, over all sequences, and from a
  /// token to the next one of the same sequence.
  double fastest_first_token = 0, slowest_first_token = 0, longest_gap = 0;
};

class Batcher {
 public:
  using Id = SequenceId;

  /// `weights` has each parameter of the model by name. Throws UserError (exit 3) if one sequence
  /// does not fit within the memory limit.
  Batcher(models::ModelPtr model, const Backend& backend,
          std::shared_ptr<const WeightSource> weights, const BatcherOptions& options = {});
  ~Batcher();

  /// Queues a sequence. Of a prompt longer than the context only the last half context is read, as
  /// Generator does. Throws UserError for a prompt that is empty or has tokens outside the
  /// vocabulary.
  Id add(SequenceRequest request);
  /// Ends a sequence. Does nothing for one that has ended.
  void cancel(Id id);
  /// Appends a token to a sequence that waits for one (on_logits).
  void append(Id id, int32_t token);
  /// Adds a copy of the waiting sequence `id`, with `token` appended, that shares its full blocks.
  /// The original still waits for its token.
  Id fork(Id id, int32_t token);
  /// Runs one step. Returns false, and does nothing, if all sequences have ended or wait for their
  /// token.
  bool step();

  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t running() const { return std::ssize(running_) + std::ssize(forked_); }
  int64_t context() const { return context_; }
  int64_t pool_blocks() const { return pool_.blocks(); }
  /// Size of the pool in bytes, over all layers.
  int64_t pool_bytes() const;
  /// Size of the weights, those of adapters included, in the form that products read.
  int64_t weight_bytes() const;
  const BatcherCounts& counts() const { return counts_; }

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Draw {
    int32_t token = 0;
    double logprob = 0;
  };
  /// The part of one sequence in a step.
  struct StepPart {
    Sequence* sequence;
    int64_t count;                         // input tokens
    int64_t first_wanted = 0, wanted = 0;  // rows of the logits
    Draw first = {};                       // token drawn from the first of these rows
  };
  /// Inputs of Model::decode_sequences(). Rows beyond those of the sequences are padding.
  struct StepInputs {
    std::vector<int32_t> tokens, positions, slots, starts, lengths, blocks, wanted;
    std::vector<int32_t> adapters;  // one per token where sequences choose; else empty
    /// Pads to these sizes, of which `table` is the length of a row of `blocks`.
    PortValues padded(int64_t tokens, int64_t sequences, int64_t wanted, int64_t table,
                      bool chooses_adapters) &&;
  };

  void build(const Backend& backend, std::shared_ptr<const WeightSource> weights,
             int64_t pool_blocks);
  void admit();
  bool waits_for_prefix(const Sequence& s) const;
  std::vector<StepPart> plan();
  /// Allocates blocks for the next `count` tokens and preempts the youngest sequences if the pool
  /// is exhausted. Returns false if that was this sequence.
  bool reserve(Sequence& s, int64_t count);
  void preempt(Sequence& s);
  void release_blocks(Sequence& s);
  std::span<const float> run(std::vector<StepPart>& parts);
  Sequence& waiting_for_token(Id id);
  /// Records how long the sequence waited for its next token.
  void count_wait(Sequence& s);
  /// Passes a sampled token on and appends it. Returns whether the sequence continues.
  bool take(Sequence& s, int32_t token, double logprob);
  /// Appends a token to the window, which drops its older half first if it is full.
  void grow(Sequence& s, int32_t token);
  static Draw draw_token(Sequence& s, std::span<const float> row);
  void draw_first_tokens(std::vector<StepPart>& parts, std::span<const float> logits);
  void accept(const StepPart& part, std::span<const float> logits);
  void cache_full_blocks(Sequence& s);
  void finish(Sequence& s, Finish why);

  models::ModelPtr model_;
  BatcherOptions options_;
  int64_t vocabulary_, context_, table_;
  int64_t adapters_ = 0;  // that sequences choose among
  BlockPool pool_;
  std::unique_ptr<Runner> runner_;
  std::deque<SequencePtr> waiting_;   // in the order of admission
  std::vector<SequencePtr> running_;  // the oldest first
  std::vector<SequencePtr> forked_;   // join running_ at the next step
  Id next_ = 1;
  BatcherCounts counts_;
};

}  // namespace brrr::infer
