#pragma once
// Names of other programs that change nothing here: their harmless values are accepted, others are
// refused with what to do instead.

#include <string>
#include <string_view>

#include "train/options.h"

namespace brrr::train {

/// Spellings of "not given", separated by spaces.
inline constexpr const char* kOff = "false none null 0 off no {} []";

/// Whether `value`, in any case, is one of `words`, which are separated by spaces.
bool is_among(const std::string& value, std::string_view words);

/// Adds their rows.
void add_harmless_rows(OptionTable<TrainOptions>& table);

}  // namespace brrr::train
