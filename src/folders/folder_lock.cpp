#include "folders/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/errors.h"

namespace brrr::io {

namespace {

constexpr int kTries = 20;  // a twentieth of a second: is_held() lets go sooner

int open_folder(const fs::path& folder) {
  return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool is_refused(int fd, int kind) {
  return ::flock(fd, kind | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder, const std::string& what) : fd_(open_folder(folder)) {
  if (fd_ < 0) return;
  for (int tries = 1; is_refused(fd_, LOCK_EX); ++tries) {
    if (tries < kTries) {
      ::usleep(2500);
      continue;
    }
    ::close(fd_);
    user_error("another process is {} in {}; wait for it, or choose another folder", what,
               folder.string());
  }
}

bool FolderLock::is_held(const fs::path& folder) {
  const int fd = open_folder(folder);
  const bool held = fd >= 0 && is_refused(fd, LOCK_SH);
  if (fd >= 0) ::close(fd);
  return held;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace brrr::io
