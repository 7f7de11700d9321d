#pragma once
// Where what was downloaded, measured or compiled on this machine is kept.

#include <filesystem>

namespace brrr {

/// BRRR_CACHE, else XDG_CACHE_HOME/brrr, else ~/.cache/brrr. UserError when none is set.
std::filesystem::path cache_folder();

}  // namespace brrr
