#pragma once
// Where tests look for published models and tokenizers, which are no part of the repository.

#include <filesystem>

#include "base/env.h"

namespace brrr::test {

inline std::filesystem::path models_folder() {
  if (const auto folder = env::get("BRRR_MODELS")) return *folder;
  return std::filesystem::path(env::get("HOME").value_or("")) / ".cache/brrr/models";
}

}  // namespace brrr::test
