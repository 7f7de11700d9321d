#pragma once
// BeamSearch: the likeliest continuations of a prompt, several beams at once, whose common tokens
// share their blocks in the batcher's pool. Scores and the end of the search are those of
// transformers' num_beams with early_stopping=False: a continuation's score is the sum of its log
// probabilities divided by its length to the power of the length penalty.

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
  double length_penalty = 1;    // above 0: longer texts are preferred
  std::set<int32_t> ends = {};  // tokens that end a text
};

/// A continuation of the prompt.
struct Hypothesis {
  std::vector<int32_t> ids;  // without the token that ended it
  double score = 0;
  bool has_ended = false;  // by a token, not at max_new_tokens
};

class BeamSearch {
 public:
  /// Gets at most options.beams hypotheses, the best first.
  using OnFinish = std::function<void(std::vector<Hypothesis>)>;

  /// Queues the search in the batcher, whose `parallel` is at least the number of beams; its steps
  /// advance it. The batcher outlives it. Throws as Batcher::add does.
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
    std::vector<Candidate> next = {};  // once its logits are there
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
