#pragma once
// Files: whole reads, memory maps, and writes that are either complete or absent. Every failure is
// a UserError that names the file, what was tried and the system's reason.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace brrr {

namespace fs = std::filesystem;

/// A regular file that is open for reading. Folders, pipes and devices are refused: to read those
/// may block, or never end.
class InputFile {
 public:
  explicit InputFile(const fs::path& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  int fd() const { return fd_; }
  uint64_t size() const { return size_; }  // bytes when it was opened
  /// Up to `bytes`, from where the last call ended; 0 at the end.
  size_t read(void* data, size_t bytes);

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// More than any file that is read as a whole and is not text to train on.
constexpr uint64_t kLargestWholeFile = uint64_t{1} << 30;

/// The whole file as bytes, refused beyond `limit` bytes.
std::string read_file(const fs::path& path, uint64_t limit = kLargestWholeFile);

// A folder may come from somebody else, with links in it. Reading goes through links; writing never
// does, so that such a folder cannot lead a file of ours to another place: what is written anew
// replaces the link, and what is appended to must not be one. The folder itself may be a link, and
// so may a file that the user named (write_named_file).

enum class WriteMode {
  fresh,   // a new file; whatever else has the name is unlinked
  append,  // at the end of the file, which is created where it is missing
  update,  // into the file that is there
};
/// Opens a regular file for writing, never through a link. Returns its descriptor.
int open_for_writing(const fs::path& path, WriteMode mode);

/// Writes `path` through a temporary file beside it: write, fsync, rename, fsync of the folder. A
/// crash or a full disk leaves the previous content untouched.
void write_file_atomically(const fs::path& path, std::string_view bytes);
/// The same without waiting for the disk: for what can be made again and is checked when it is
/// read.
void write_cache_file(const fs::path& path, std::string_view bytes);
/// The same for a file that the user named: a link goes on pointing where it points, and a pipe or
/// a device is written to.
void write_named_file(const fs::path& path, std::string_view bytes);

/// The name of this process's temporary file for `path`, in the same folder.
fs::path temporary_beside(const fs::path& path);
/// What a temporary folder of ours holds, so that it is known as such.
inline constexpr const char* kTemporaryMark = ".brrr-temporary";
/// Removes the temporary files with such names, and marked folders, that processes left in a folder
/// when they were killed.
void remove_dead_temporaries(const fs::path& folder);

/// Creates the folder and its parents.
void create_folder(const fs::path& path);
/// Creates a folder inside one that may come from somebody else: it must not be a link.
void create_own_folder(const fs::path& path);

/// Removes a folder with what is in it, following no link. The file `mark`, which shows whose
/// folder it is, goes last, so that a kill in the middle leaves it marked. Best effort: it is for
/// folders that a later call tries again.
void remove_marked_folder(const fs::path& path, std::string_view mark);

/// fsync of a folder, so that a rename inside it survives a power cut.
void sync_folder(const fs::path& path);

/// Sequential writer of a new file, which replaces whatever has its name: append, then finish() =
/// flush + fsync + close. Without finish() the destructor closes and leaves whatever was written.
class FileWriter {
 public:
  explicit FileWriter(const fs::path& path);
  /// Writes to a descriptor that is open, and closes it. `path` is for errors.
  FileWriter(const fs::path& path, int fd) : path_(path), fd_(fd) {}
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();
  void write(const void* data, size_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  uint64_t bytes_written() const { return written_; }
  void finish(bool sync = true);

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

/// A file that appears under its name when it is complete: until commit() its bytes are in a
/// temporary file beside it, which the destructor removes.
class NewFile {
 public:
  explicit NewFile(const fs::path& path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();
  FileWriter& out() { return out_; }
  void commit(bool sync = true);

 private:
  fs::path path_, temporary_;
  FileWriter out_;
};

/// Read-only memory map of a file; empty files map to an empty span. Movable.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const fs::path& path() const { return path_; }
  /// The pages of some of bytes(), which were read once, no longer count as memory of this process.
  void let_go(std::span<const std::byte> read) const;

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// The size and the CRC-32C of a file. Read in pieces, not mapped: a bad sector is then an error
/// and not a signal, and the pages do not count as memory of this process.
struct FileSum {
  uint64_t bytes = 0;
  std::string crc32c;  // eight hexadecimal digits
  bool operator==(const FileSum&) const = default;
};
FileSum sum_of_file(const fs::path& path);

/// CRC-32C (Castagnoli), as TensorBoard's records and our checkpoints use it. `crc` continues a
/// sum.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);
/// A sum as files record it: eight hexadecimal digits.
std::string crc_text(uint32_t crc);

/// Test hook: when BRRR_FAULT names `point`, acts as told: "=enospc" throws as a full disk would,
/// "=kill" raises SIGKILL, "=pause:MS" sleeps. Free when the variable is unset.
void fault_point(const char* point);

}  // namespace brrr
