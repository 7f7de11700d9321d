#pragma once
// Options of --task dpo.

#include "models/losses/preference_loss.h"
#include "train/options.h"

namespace brrr::train {

void add_preference_rows(OptionTable<TrainOptions>& table);
void fill_preferences(TrainOptions& options);
/// Throws UserError (exit 2) if an option of this group was given without --task dpo.
void refuse_preference_options(const TrainOptions& options);
/// Throws UserError (exit 2) if label smoothing is combined with a loss other than sigmoid.
void check_label_smoothing_of_pairs(const TrainOptions& options);
/// Throws UserError (exit 2) for options that cannot be combined with --task dpo.
void validate_preferences(const TrainOptions& options);

models::PreferenceLoss preference_loss_of(const TrainOptions& options);

}  // namespace brrr::train
