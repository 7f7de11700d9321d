#pragma once
// brrr info FOLDER: what a model's folder holds, and how its weights are quantised.

#include <string>

namespace brrr::cli {

/// Prints it, as one JSON object with `json`. Throws UserError for what is no model.
void print_folder_info(const std::string& name, bool json);

}  // namespace brrr::cli
