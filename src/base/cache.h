#pragma once
// Where what was downloaded, measured or compiled on this machine is kept.

#include <filesystem>

namespace brrr {

/// BRRR_CACHE, else XDG_CACHE_HOME/brrr, else ~/.cache/brrr. UserError when none is set.
std::filesystem::path cache_folder();

/// Hugging Face's own folder: HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface.
std::filesystem::path hugging_face_folder();
/// The cache of the Hugging Face Hub, which Python's libraries share: HF_HUB_CACHE, else hub/ in
/// that folder.
std::filesystem::path hugging_face_cache();

}  // namespace brrr
