#include "base/cache.h"

#include "base/env.h"
#include "base/errors.h"

namespace brrr {

std::filesystem::path cache_folder() {
  namespace fs = std::filesystem;
  if (const auto cache = env::get("BRRR_CACHE")) return *cache;
  if (const auto cache = env::get("XDG_CACHE_HOME")) return fs::path(*cache) / "brrr";
  if (const auto home = env::get("HOME")) return fs::path(*home) / ".cache" / "brrr";
  user_error("no cache folder: BRRR_CACHE, XDG_CACHE_HOME and HOME are all unset; set BRRR_CACHE");
}

std::filesystem::path hugging_face_folder() {
  namespace fs = std::filesystem;
  if (const auto home = env::get("HF_HOME")) return *home;
  if (const auto cache = env::get("XDG_CACHE_HOME")) return fs::path(*cache) / "huggingface";
  return fs::path(env::get("HOME").value_or(".")) / ".cache" / "huggingface";
}

std::filesystem::path hugging_face_cache() {
  if (const auto cache = env::get("HF_HUB_CACHE")) return *cache;
  return hugging_face_folder() / "hub";
}

}  // namespace brrr
