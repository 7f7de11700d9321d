#include "data/file_stamp.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace brrr::io {
namespace {

FileStamp stamp_from(const struct stat& s) {
  return {static_cast<uint64_t>(s.st_size),
          int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec,
          static_cast<uint64_t>(s.st_ino)};
}

}  // namespace

FileStamp stamp_of(int fd, const fs::path& path) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) user_error("cannot read {}: {}", path.string(), std::strerror(errno));
  return stamp_from(s);
}

FileStamp stamp_of(const fs::path& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 ? stamp_from(s) : FileStamp{};
}

void check_unchanged(const fs::path& path, const FileStamp& then, const FileStamp& now) {
  if (now == then) return;
  user_error(
      "{} changed while it was read ({} bytes, {} at the start): a run needs unchanged data; "
      "restore the file and --resume, or start another run",
      path.string(), now.bytes, then.bytes);
}

}  // namespace brrr::io
