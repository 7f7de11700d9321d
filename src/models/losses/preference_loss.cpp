#include "models/losses/preference_loss.h"

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr::models {

PreferenceLoss::Kind preference_loss_kind(std::string_view name) {
  if (name == "sigmoid") return PreferenceLoss::Kind::sigmoid;
  BRRR_CHECK(name == "ipo", "the loss '{}'", name);
  return PreferenceLoss::Kind::ipo;
}

const std::vector<std::string>& preference_figures() {
  static const std::vector<std::string> names = {"rewards/accuracies", "rewards/margins",
                                                 "rewards/chosen",     "rewards/rejected",
                                                 "logps/chosen",       "logps/rejected"};
  return names;
}

void add_preference_loss(Graph& g, Value losses, Value targets, Value starts, Value reference,
                         Value scale, const PreferenceLoss& loss) {
  const int64_t tokens = losses.shape().size(0), sequences = starts.shape().size(0) - 1,
                pairs = sequences / 2;
  BRRR_CHECK(sequences == 2 * pairs, "{} sequences are no pairs", sequences);
  const auto by_pair = [&](Value of_token) {  // sums over sequences, [P, 2]
    return reshape(segment_sum(reshape(of_token, {tokens, 1}), starts), {pairs, 2});
  };
  const auto number = [&](double x) { return scalar(g, x, DType::f32); };
  const auto chosen = [&](Value x) { return reshape(slice(x, 1, 0, 1), {pairs}); };
  const auto rejected = [&](Value x) { return reshape(slice(x, 1, 1, 1), {pairs}); };

  const Value log_probabilities = -by_pair(losses);
  const Value counts = by_pair(cast(not_equal(targets, scalar(g, -1, DType::i32)), DType::f32));
  const Value is_pair = greater(chosen(counts), number(0));
  const Value weights = cast(is_pair, DType::f32);
  Value ratios = log_probabilities - reshape(reference, {pairs, 2});
  const bool is_ipo = loss.kind == PreferenceLoss::Kind::ipo;
  if (is_ipo) ratios = ratios / maximum(counts, number(1));
  const Value rewards = ratios * number(loss.beta);
  const Value margins = chosen(rewards) - rejected(rewards);

  Value of_pairs;
  if (is_ipo) {
    const Value distance = margins * number(1 / loss.beta) - number(1 / (2 * loss.beta));
    of_pairs = distance * distance * weights;
  } else {
    // -log sigmoid(c - r) is the cross-entropy of the rewards [c, r] with the class 0.
    const Value classes = where(is_pair, scalar(g, 0, DType::i32), scalar(g, -1, DType::i32));
    of_pairs = cross_entropy(rewards, classes).losses;
    // -log sigmoid(-m) = m - log sigmoid(m)
    if (loss.label_smoothing > 0)
      of_pairs = of_pairs + margins * weights * number(loss.label_smoothing);
  }
  const auto output = [&](const std::string& name, Value of_pair) {
    g.output(name, sum(of_pair, {0}) * scale);
  };
  output("loss", of_pairs);
  output("rewards/chosen", chosen(rewards) * weights);
  output("rewards/rejected", rejected(rewards) * weights);
  output("rewards/accuracies", cast(greater(margins, number(0)), DType::f32) * weights);
  output("rewards/margins", margins * weights);
  output("logps/chosen", chosen(log_probabilities) * weights);
  output("logps/rejected", rejected(log_probabilities) * weights);
  g.output(kLogProbabilities, reshape(log_probabilities, {sequences}));
}

}  // namespace brrr::models
