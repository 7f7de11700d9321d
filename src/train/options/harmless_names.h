#pragma once
// Names of other programs that change nothing here: their harmless values are accepted, others are
// refused with what to do instead.

#include <string>
#include <string_view>

#include "train/options.h"

namespace brrr::train {

/// Spellings of "not given", separated by spaces.
inline constexpr const char* kOff = "false none null 0 off no {} []";

/// Returns whether `value` is one of the space-separated `words`, ignoring case.
bool is_among(const std::string& value, std::string_view words);

/// Adds a row to the option table for each of these names.
void add_harmless_rows(OptionTable<TrainOptions>& table);

}  // namespace brrr::train
