#include "train/options/preference_options.h"

#include "base/human.h"

namespace brrr::train {

void add_preference_rows(OptionTable<TrainOptions>& t) {
  using O = TrainOptions;
  t.choice("dpo-loss", &O::dpo_loss, {{"sigmoid"}, {"ipo"}}, "NAME",
           "loss of --task dpo: sigmoid (direct preference optimization, Rafailov et al. 2023) or "
           "ipo (identity preference optimization, Azar et al. 2023)",
           {"loss-type", "pref-loss"});
  t.real("dpo-beta", &O::dpo_beta, {.low = 0, .high = 1e6, .low_open = true}, "X",
         "--task dpo: how much a log probability that rises above the reference's counts; smaller "
         "values let the model move further",
         {"beta", "pref-beta"});
  t.real("dpo-label-smoothing", &O::dpo_label_smoothing, {.low = 0, .high = 0.5, .high_open = true},
         "X",
         "--task dpo with --dpo-loss sigmoid: probability that a pair is labelled the wrong way "
         "round (conservative DPO, Mitchell 2023)");
}

void fill_preferences(TrainOptions& o) {
  if (traits_of(o).data != TaskData::preferences) return;
  if (!o.was_given("sampling")) o.sampling = "documents";
  // Peer checkpoints do not hold the reference's log probabilities.
  if (o.peer_checkpoint_steps < 0) o.peer_checkpoint_steps = 0;
  // TRL's DPOConfig has 1e-6, for all parameters; fill_lora() takes ten times that for adapters.
  constexpr double kLearningRate = 1e-6;
  if (!o.was_given("learning-rate")) o.learning_rate = kLearningRate;
}

void refuse_preference_options(const TrainOptions& o) {
  if (traits_of(o).data == TaskData::preferences) return;
  const TrainOptions usual;
  for (const char* name : {"dpo-loss", "dpo-beta", "dpo-label-smoothing"}) {
    const auto& row = train_option_table().find(name);
    if (row.get(o) != row.get(usual))
      usage_error("--{} is for pairs of answers: it needs --task dpo", name);
  }
}

void check_label_smoothing_of_pairs(const TrainOptions& o) {
  if (o.dpo_label_smoothing > 0 && o.dpo_loss != "sigmoid")
    usage_error("--dpo-label-smoothing applies to --dpo-loss sigmoid only; got --dpo-loss {}",
                o.dpo_loss);
}

void validate_preferences(const TrainOptions& o) {
  check_label_smoothing_of_pairs(o);
  if (o.keeps_peer_checkpoints())
    usage_error(
        "--task dpo: copies of a run in memory do not hold the reference's log probabilities: "
        "expected --peer-checkpoint-steps 0");
  if (!o.wants_resume() && o.pack != "none")
    usage_error(
        "--task dpo never pads: both sequences of a pair and all pairs of a batch lie one behind "
        "the other; leave --pack out");
}

models::PreferenceLoss preference_loss_of(const TrainOptions& o) {
  return {models::preference_loss_kind(o.dpo_loss), o.dpo_beta, o.dpo_label_smoothing};
}

}  // namespace brrr::train
