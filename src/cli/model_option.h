#pragma once
// The --model option of the verbs that use a model.

#include <string>

#include "base/options.h"
#include "infer/open/named_model.h"

namespace brrr::cli {

/// What a verb reads besides a model.
enum class AlsoReads { nothing, prompt_file, text, text_or_shards };
/// Adds the words that stand alone on a command line to the options that were given: a folder, a
/// file of a model or a name is --model, another file is what the verb reads. Throws UserError
/// (exit 2) for a second model.
KeyValues with_words(const Arguments& args, AlsoReads reads);

/// Throws UserError for a model for pictures, which the verb cannot take. `what` is what is not
/// done with it: "quantised".
void refuse_pictures(const models::Model& model, const fs::path& folder, const char* what);

using infer::find_named_model;
using infer::memory_of;
using infer::open_exchange_model;
using infer::open_named_model;
using infer::precision_of;
using infer::RunPrecision;

}  // namespace brrr::cli
