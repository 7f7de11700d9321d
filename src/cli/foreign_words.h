#pragma once
// Verbs and options that users bring from llama.cpp, ollama, vLLM, Hugging Face and PEFT: each is
// read as ours where Brrr has the thing, or refused by a sentence that says so and names what comes
// nearest. Names of options that set a field of `train` are in train/options/foreign_names.h.

#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace brrr::cli {

/// The command line, from the verb on, with our verb in place of a foreign one. Throws UserError
/// (exit 2) for a verb whose work Brrr does not do.
std::vector<std::string> with_our_verb(std::vector<std::string> args);

/// The arguments behind a verb with our options in place of foreign ones. What `options` has under
/// the same name stays. Throws UserError (exit 2) for an option whose work the verb does not do.
std::vector<std::string> with_our_options(std::span<const OptionInfo> options,
                                          std::vector<std::string> args,
                                          const std::string& command);

}  // namespace brrr::cli
