#pragma once
// BeamSearch finds likely continuations of a prompt. Beams are sequences of a batcher, which share
// the full blocks of their common tokens. It follows transformers' beam search with
// early_stopping=False: the score of a continuation is the sum of its log probabilities divided by
// its length to the power of the length penalty.

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "infer/batcher.h"

namespace brrr::infer {

struct BeamOptions {
  int64_t beams = 4;
  int64_t max_new_tokens = 0;
  double length_penalty = 1;    // larger values prefer longer texts
  std::set<int32_t> ends = {};  // end tokens
  int32_t adapter = 0;          // as SequenceRequest has it
};

/// A finished continuation of the prompt.
struct Hypothesis {
  std::vector<int32_t> ids;  // without the token that ended it
  double score = 0;
  bool has_ended = false;  // by an end token; else max_new_tokens was reached
};

class BeamSearch {
 public:
  /// Receives at most options.beams hypotheses, the best first.
  using OnFinish = std::function<void(std::vector<Hypothesis>)>;

  /// Queues the search; steps of the batcher advance it. The batcher must outlive this and allow as
  /// many running sequences as there are beams. Throws as Batcher::add does.
  BeamSearch(Batcher& batcher, std::vector<int32_t> prompt, BeamOptions options,
             OnFinish on_finish);
  BeamSearch(const BeamSearch&) = delete;
  BeamSearch& operator=(const BeamSearch&) = delete;

 private:
  struct Candidate {
    double score;  // sum of log probabilities
    size_t beam;
    int32_t token;
  };
  struct Beam {
    Batcher::Id id = 0;
    std::vector<int32_t> ids;
    double score = 0;
    std::vector<Candidate> next = {};  // empty until the logits of the step are known
  };

  size_t candidates() const;
  void read(Batcher::Id id, std::span<const float> logits);
  void select();
  void add_hypothesis(std::vector<int32_t> ids, double sum, int64_t length, bool has_ended);
  bool cannot_improve(double best_sum, int64_t length) const;
  void finish();

  Batcher& batcher_;
  BeamOptions options_;
  OnFinish on_finish_;
  std::vector<Beam> beams_;
  std::vector<Hypothesis> done_;  // the best first
};

}  // namespace brrr::infer
