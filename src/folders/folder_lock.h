#pragma once
// The lock that keeps two processes from writing to one folder at once.

#include <string>

#include "base/file.h"

namespace brrr::io {

/// One process per folder: an advisory lock on the folder itself, gone with the process. Throws
/// UserError when another one holds it; file systems without locks go unlocked.
class FolderLock {
 public:
  /// `what`: what the other process then does there ("preparing shards").
  FolderLock(const fs::path& folder, const std::string& what);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  /// Whether another process has it now. Those who ask do not see each other.
  static bool is_held(const fs::path& folder);

 private:
  int fd_;
};

}  // namespace brrr::io
