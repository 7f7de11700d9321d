#pragma once
// A folder for fuzzers of readers that take files; without GoogleTest, which their build lacks.

#include <unistd.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/file.h"

namespace brrr::test {

/// Removed when the process ends.
class FuzzFolder {
 public:
  FuzzFolder() {
    std::string pattern = (fs::temp_directory_path() / "brrr-fuzz-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;
  ~FuzzFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// It need not survive a power cut: a plain write is many times as fast as an atomic one.
inline void write_plainly(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace brrr::test
