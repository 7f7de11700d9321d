#pragma once
// Names that users bring from nanoGPT, Hugging Face's TrainingArguments and TRL, axolotl,
// LLaMA-Factory and MLX-LM, and that differ from the names of our options: each sets one or several
// of ours, changes nothing here (harmless_names.h), or is refused with what to do instead.

#include <optional>
#include <string>
#include <vector>

#include "train/options.h"

namespace brrr::train {

/// Adds a row to the option table for each of these names.
void add_foreign_rows(OptionTable<TrainOptions>& table);

/// Translates an option that stands for other options of ours; nullopt for all other options.
/// Throws UserError (exit 2) for a value that no option of ours corresponds to.
std::optional<KeyValues> in_our_names(const std::string& option, const std::string& value);

/// The defaults of nanoGPT's train.py, over which its configuration files are written.
const KeyValues& nanogpt_defaults();

/// Value of eval_steps, save_steps or logging_steps that stands for "once per epoch" until the
/// number of epochs is known.
inline constexpr double kEachEpoch = -2;

/// A budget is for `auto`: it asks for it, and another policy forgets it.
void set_rematerialize(TrainOptions& options, const std::string& policy);

}  // namespace brrr::train
