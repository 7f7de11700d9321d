#pragma once
// Direct preference optimization (Rafailov et al. 2023): the loss of pairs of sequences, of which a
// person prefers the first, against the log probabilities that a reference model gave them.

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace brrr::models {

struct PreferenceLoss {
  enum class Kind {
    sigmoid,  // DPO: -log sigmoid(margin)
    ipo       // Azar et al. 2023: (mean log-ratio - 1 / (2 beta))^2
  };
  Kind kind = Kind::sigmoid;
  double beta = 0.1;
  /// Conservative DPO (Mitchell 2023): the probability that a pair is labelled the wrong way round.
  double label_smoothing = 0;
};
/// "sigmoid", "ipo".
PreferenceLoss::Kind preference_loss_kind(std::string_view name);

/// What add_preference_loss() outputs beside the loss, by TRL's names: "rewards/accuracies",
/// "rewards/margins", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected".
const std::vector<std::string>& preference_figures();
/// The output with log probabilities of the sequences, f32 [R].
inline constexpr const char* kLogProbabilities = "log_probabilities";

/// Adds the outputs of a graph whose sequences 2 i and 2 i + 1 are the preferred and the other one
/// of pair i; a pair without targets counts nowhere.
///   losses     [N] f32: cross-entropy of each token, 0 where it is not scored
///   targets    [N] i32: -1 where it is not scored
///   starts     [R + 1] i32: sequence r is tokens [starts[r], starts[r + 1])
///   reference  [R] f32: log probabilities of the sequences under the reference
///   scale      f32[]: 1 / pairs of a step; 1 for a sum
/// With the log probability p of a sequence's targets, its reward is beta (p - reference), and the
/// margin of a pair the difference of its rewards; ipo divides p and reference by the number of
/// targets. "loss" is the sum over the pairs times scale, and so are preference_figures().
void add_preference_loss(Graph& g, Value losses, Value targets, Value starts, Value reference,
                         Value scale, const PreferenceLoss& loss);

}  // namespace brrr::models
