#pragma once
// Whether a file that is read over hours is still the one that was opened: its size, its time of
// change and its inode.

#include <cstdint>

#include "base/file.h"

namespace brrr::io {

struct FileStamp {
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Of an open file. Throws UserError that names `path`.
FileStamp stamp_of(int fd, const fs::path& path);
/// Of the file that `path` names; all zeros when there is none.
FileStamp stamp_of(const fs::path& path);
/// Throws UserError when `now` is another stamp than `then`.
void check_unchanged(const fs::path& path, const FileStamp& then, const FileStamp& now);

}  // namespace brrr::io
