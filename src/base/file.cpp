#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "base/env.h"
#include "base/errors.h"

namespace brrr {
namespace {

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  const char* advice = "";
  if (error == ENOSPC || error == EDQUOT) advice = "; free some space and run again";
  if (error == EFBIG) advice = "; raise the limit on the size of files (ulimit -f) and run again";
  if (error == EACCES || error == EROFS || error == EPERM)
    advice = "; choose a place you may write to, or change its permissions";
  user_error("cannot {} {}: {}{}", verb, path.string(), std::strerror(error), advice);
}

[[noreturn]] void fail_reading(const fs::path& path, int error) {
  if (error == EISDIR) user_error("cannot read {}: it is a folder; expected a file", path.string());
  const char* advice = "";
  if (error == ENOENT || error == ENOTDIR) advice = "; check the name";
  if (error == EACCES || error == EPERM)
    advice = "; make it readable (chmod), or name another file";
  user_error("cannot read {}: {}{}", path.string(), std::strerror(error), advice);
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

// O_NONBLOCK: opening a pipe that nobody writes to returns at once. Regular files ignore it.
InputFile::InputFile(const fs::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  if (fd_ < 0) fail_reading(path, errno);
  struct stat info {};
  const int error = ::fstat(fd_, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  if (error == 0 && S_ISREG(info.st_mode)) {
    size_ = static_cast<uint64_t>(info.st_size);
    return;
  }
  ::close(fd_);
  if (error != 0) fail_reading(path, error);
  user_error("cannot read {}: it is a {}; expected a regular file", path.string(),
             S_ISFIFO(info.st_mode)   ? "pipe"
             : S_ISSOCK(info.st_mode) ? "socket"
                                      : "device");
}

InputFile::~InputFile() { ::close(fd_); }

size_t InputFile::read(void* data, size_t bytes) {
  for (;;) {
    const ssize_t n = ::read(fd_, data, bytes);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) fail_reading(path_, errno);
  }
}

std::string read_file(const fs::path& path, uint64_t limit) {
  InputFile file(path);
  std::string out;
  const auto check = [&](uint64_t bytes) {
    if (bytes > limit)
      user_error("cannot read {}: it is larger than {} bytes", path.string(), limit);
  };
  check(file.size());
  out.reserve(file.size() + 1);
  std::array<char, 1 << 16> buffer;
  while (const size_t n = file.read(buffer.data(), buffer.size())) {
    check(out.size() + n);
    out.append(buffer.data(), n);
  }
  return out;
}

FileSum sum_of_file(const fs::path& path) {
  InputFile file(path);
  std::string piece(size_t{1} << 18, '\0');
  uint64_t bytes = 0;
  uint32_t crc = 0;
  while (const size_t n = file.read(piece.data(), piece.size())) {
    crc = crc32c(piece.data(), n, crc);
    bytes += n;
  }
  return {bytes, crc_text(crc)};
}

std::string crc_text(uint32_t crc) { return fmt::format("{:08x}", crc); }

namespace {

/// Errors name `named`: the user knows nothing of a temporary file.
int open_as(const fs::path& path, WriteMode mode, const fs::path& named) {
  // O_NONBLOCK: opening a pipe that nobody reads fails at once. Regular files ignore it.
  int flags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  if (mode == WriteMode::fresh) flags |= O_CREAT | O_EXCL;
  if (mode == WriteMode::append) flags |= O_CREAT | O_APPEND;
  int fd = ::open(path.c_str(), flags, 0644);
  if (fd < 0 && errno == EEXIST && mode == WriteMode::fresh) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("replace", named, errno);
    fd = ::open(path.c_str(), flags, 0644);
  }
  if (fd < 0 && errno == ELOOP)
    user_error(
        "cannot write {}: it is a link, and its target may belong to someone else; replace it by a "
        "copy of the file, or delete it",
        named.string());
  if (fd < 0) fail("write", named, errno);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  ::close(fd);
  user_error("cannot write {}: it is not a regular file; delete it", named.string());
}

}  // namespace

int open_for_writing(const fs::path& path, WriteMode mode) { return open_as(path, mode, path); }

void create_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("create the folder", path, error.value());
  if (!fs::is_directory(path)) fail("create the folder", path, ENOTDIR);
}

void create_own_folder(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_symlink(fs::symlink_status(path, ignored)))
    user_error(
        "cannot write to {}: it is a link, and its target may belong to someone else; replace it "
        "by a folder, or delete it",
        path.string());
  create_folder(path);
}

void remove_marked_folder(const fs::path& path, std::string_view mark) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(path, ignored))) return;
  for (fs::directory_iterator at(path, ignored), end; !ignored && at != end; at.increment(ignored))
    if (at->path().filename().string() != mark) {
      std::error_code stays;
      fs::remove_all(at->path(), stays);
      if (stays) return;
    }
  if (ignored) return;
  fs::remove(path / mark, ignored);
  fs::remove(path, ignored);
}

namespace {

// The mark of our temporary files: a name that nobody else gives.
constexpr std::string_view kTemporary = ".brrr-tmp-";
constexpr size_t kLongestKeptName = 200;  // of the 255 bytes that a name may have

/// The process in a name that temporary_beside() made, 0 for any other name.
pid_t process_of_temporary(std::string_view name) {
  if (!name.starts_with(kTemporary)) return 0;
  name.remove_prefix(kTemporary.size());
  pid_t process = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
  const bool ours = error == std::errc() && process > 0 && end != name.data() + name.size();
  return ours && *end == '-' ? process : 0;
}

}  // namespace

fs::path temporary_beside(const fs::path& path) {
  return path.parent_path() / fmt::format("{}{}-{}", kTemporary, ::getpid(),
                                          path.filename().string().substr(0, kLongestKeptName));
}

void remove_dead_temporaries(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const pid_t process = process_of_temporary(at->path().filename().string());
    if (process == 0 || (::kill(process, 0) == 0 || errno != ESRCH)) continue;
    const fs::file_type type = at->symlink_status(error).type();
    if (type == fs::file_type::regular) ::unlink(at->path().c_str());
    if (type == fs::file_type::directory && fs::exists(at->path() / kTemporaryMark, error))
      remove_marked_folder(at->path(), kTemporaryMark);
  }
}

void sync_folder(const fs::path& path) {
  Descriptor folder(path.empty() ? fs::path(".") : path, O_RDONLY | O_DIRECTORY);
  if (folder.get() < 0) fail("open the folder", path, errno);
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail("sync the folder", path, errno);
}

namespace {

void write_whole(const fs::path& path, std::string_view bytes, bool sync) {
  NewFile file(path);
  file.out().write(bytes);
  file.commit(sync);
}

}  // namespace

NewFile::NewFile(const fs::path& path)
    : path_(path),
      temporary_(temporary_beside(path)),
      out_(path, open_as(temporary_, WriteMode::fresh, path)) {}

NewFile::~NewFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::commit(bool sync) {
  out_.finish(sync);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", path_, errno);
  temporary_.clear();
  if (sync) sync_folder(path_.parent_path());
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  write_whole(path, bytes, true);
}
void write_cache_file(const fs::path& path, std::string_view bytes) {
  write_whole(path, bytes, false);
}

void write_named_file(const fs::path& given, std::string_view bytes) {
  std::error_code ignored;
  const fs::file_status status = fs::status(given, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    const int fd = ::open(given.c_str(), O_WRONLY | O_CLOEXEC);  // there is nothing to replace
    if (fd < 0) fail("write", given, errno);
    FileWriter out(given, fd);
    out.write(bytes);
    out.finish();
    return;
  }
  const bool leads_on = fs::is_symlink(fs::symlink_status(given, ignored)) && fs::exists(status);
  write_whole(leads_on ? fs::canonical(given) : given, bytes, true);
}

FileWriter::FileWriter(const fs::path& path)
    : path_(path), fd_(open_for_writing(path, WriteMode::fresh)) {}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(const void* data, size_t bytes) {
  const char* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, cursor, std::min<size_t>(bytes, size_t{1} << 26));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path_, errno);
    cursor += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void FileWriter::finish(bool sync) {
  if (sync && ::fsync(fd_) != 0 && errno != EINVAL) fail("sync", path_, errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("close", path_, errno);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const InputFile file(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) fail_reading(path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::let_go(std::span<const std::byte> read) const {
  BRRR_CHECK(read.data() >= data_ && read.data() + read.size() <= data_ + size_, "other bytes");
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(read.data() - data_);
  const size_t begin = offset / page * page;  // a map begins at a page
  if (read.empty()) return;
  ::madvise(const_cast<std::byte*>(data_) + begin, offset + read.size() - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? 0x82f63b78u : 0u);
    t[0][i] = c;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
  return t;
}
constexpr CrcTables kCrc = make_crc_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const unsigned char* p, size_t n,
                                                        uint32_t c) {
  uint64_t wide = c;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  c = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) c = __builtin_ia32_crc32qi(c, *p);
  return c;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t c = ~crc;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~crc32c_sse42(p, bytes, c);
#endif
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= c;
    c = kCrc[7][low & 0xff] ^ kCrc[6][(low >> 8) & 0xff] ^ kCrc[5][(low >> 16) & 0xff] ^
        kCrc[4][low >> 24] ^ kCrc[3][high & 0xff] ^ kCrc[2][(high >> 8) & 0xff] ^
        kCrc[1][(high >> 16) & 0xff] ^ kCrc[0][high >> 24];
  }
  for (; bytes > 0; ++p, --bytes) c = kCrc[0][(c ^ *p) & 0xff] ^ (c >> 8);
  return ~c;
}

namespace {

// "start" is where the program begins: it makes a misspelt BRRR_FAULT an error at once.
constexpr const char* kFaultPoints[] = {"start",
                                        "checkpoint.write",
                                        "checkpoint.manifest",
                                        "checkpoint.rename",
                                        "checkpoint.prune",
                                        "checkpoint.set_aside",
                                        "safetensors.write",
                                        "gguf.write",
                                        "shard.write",
                                        "prepare.record",
                                        "prepare.publish",
                                        "hub.write",
                                        "log.write",
                                        "ranks.exchange",
                                        "peer_checkpoint.write"};

/// Whether `action` is `name` and a number: "pause:20".
bool has_number(const std::string& action, const std::string& name) {
  return action.starts_with(name + ":") && action.size() > name.size() + 1 && action.size() < 16 &&
         action.find_first_not_of("0123456789", name.size() + 1) == std::string::npos;
}
unsigned long number_of(const std::string& action) {
  return std::stoul(action.substr(action.find(':') + 1));
}

/// Where in `faults` the action for this point begins: behind "POINT=", or "POINT@RANK=" for the
/// process whose rank that is.
size_t find_action(const std::string& faults, const std::string& point) {
  for (const std::string& start : {point, point + "@" + env::get("RANK").value_or("none")}) {
    const size_t at = faults.find(start + "=");
    if (at != std::string::npos && (at == 0 || faults[at - 1] == ',')) return at + start.size() + 1;
  }
  return std::string::npos;
}

void check_faults(const std::string& faults) {
  for (size_t begin = 0; begin <= faults.size();) {
    const size_t end = std::min(faults.find(',', begin), faults.size());
    const std::string fault = faults.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = std::min(fault.find('='), fault.size());
    const std::string point = fault.substr(0, std::min(equals, fault.find('@')));
    const std::string action = fault.substr(std::min(equals + 1, fault.size()));
    if (std::find(std::begin(kFaultPoints), std::end(kFaultPoints), point) ==
        std::end(kFaultPoints))
      usage_error("BRRR_FAULT: there is no fault point '{}'; there are: {}", point,
                  fmt::join(kFaultPoints, ", "));
    if (action != "enospc" && action != "kill" && !has_number(action, "pause") &&
        !has_number(action, "kill") && !has_number(action, "term"))
      usage_error(
          "BRRR_FAULT: {}: expected enospc, kill, kill:N or term:N (the N-th time), or pause:MS; "
          "got '{}'",
          point, action);
  }
}

}  // namespace

void fault_point(const char* point) {
  const std::string faults = env::get("BRRR_FAULT").value_or("");
  if (faults.empty()) return;
  check_faults(faults);
  const size_t begin = find_action(faults, point);
  if (begin == std::string::npos) return;
  const std::string action = faults.substr(begin, faults.find(',', begin) - begin);
  if (action == "enospc") fail("write", point, ENOSPC);
  if (action == "kill") ::raise(SIGKILL);
  if (action.starts_with("pause:")) ::usleep(static_cast<useconds_t>(1000 * number_of(action)));
  if (!action.starts_with("kill:") && !action.starts_with("term:")) return;
  static std::mutex mutex;
  static std::map<std::string, unsigned long> times;
  const std::lock_guard hold(mutex);
  if (++times[point] == number_of(action)) ::raise(action.starts_with("kill:") ? SIGKILL : SIGTERM);
}

}  // namespace brrr
