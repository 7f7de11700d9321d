#pragma once
// A folder in the system's place for temporary files that lives as long as this object. It is
// marked, so that a later process finds and removes it where this one was killed.

#include <string>

#include "base/file.h"

namespace brrr {

class TemporaryFolder {
 public:
  /// `name` begins the folder's name: "brrr-texts".
  explicit TemporaryFolder(const std::string& name)
      : path_(temporary_beside(fs::temp_directory_path() / name)) {
    create_own_folder(path_);
    write_cache_file(path_ / kTemporaryMark, "");
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { remove_marked_folder(path_, kTemporaryMark); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace brrr
