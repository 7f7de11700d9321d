#pragma once
// Names that users bring from nanoGPT, Hugging Face's TrainingArguments and TRL, axolotl,
// LLaMA-Factory and MLX-LM, and that differ from the names of our options: each sets one or several
// of ours, changes nothing here (harmless_names.h), or is refused with what to do instead.

#include <optional>
#include <string>
#include <vector>

#include "train/options.h"

namespace brrr::train {

/// Adds their rows.
void add_foreign_rows(OptionTable<TrainOptions>& table);

/// What an option that is several of ours says in our names; nothing for other options. Throws
/// UserError (exit 2) where the value has no meaning here.
std::optional<KeyValues> in_our_names(const std::string& option, const std::string& value);

/// The defaults of nanoGPT's train.py, over which its configuration files are written.
const KeyValues& nanogpt_defaults();

/// What eval_steps, save_steps or logging_steps holds until the number of epochs is known.
inline constexpr double kEachEpoch = -2;

/// A budget is for `auto`: it asks for it, and another policy forgets it.
void set_rematerialize(TrainOptions& options, const std::string& policy);

}  // namespace brrr::train
