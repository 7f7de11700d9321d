#include "base/cache.h"

#include "base/env.h"
#include "base/errors.h"

namespace brrr {

std::filesystem::path cache_folder() {
  namespace fs = std::filesystem;
  if (const auto cache = env::get("BRRR_CACHE")) return *cache;
  if (const auto cache = env::get("XDG_CACHE_HOME")) return fs::path(*cache) / "brrr";
  if (const auto home = env::get("HOME")) return fs::path(*home) / ".cache" / "brrr";
  user_error("no cache folder: none of BRRR_CACHE, XDG_CACHE_HOME and HOME is set; set BRRR_CACHE");
}

}  // namespace brrr
