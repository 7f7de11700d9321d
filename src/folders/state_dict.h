#pragma once
// State dicts of PyTorch as models: a file with tensors and no configuration, whose names tell
// which net it is. The path of such a file stands for a folder.

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/weight_source.h"

namespace brrr::io {

/// Whether the path is a file .pth or .pt, or a .safetensors file without a config.json beside it.
bool is_state_dict(const fs::path& path);
/// The file .pth or .pt of a folder that holds no config.json, for which the folder stands. Throws
/// UserError where there are several.
std::optional<fs::path> state_dict_in(const fs::path& folder);
std::shared_ptr<const WeightSource> open_state_dict(const fs::path& path);
/// The text of a config.json for the net. Throws UserError where it is none that Brrr knows.
std::string state_dict_config(const fs::path& path);

}  // namespace brrr::io
