#pragma once
// Files as their bytes are without compression: gzip and Zstandard archives of one file, known by
// their first bytes, and any other file as it is. Read as a stream in bounded memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"

namespace brrr::io {

enum class Packing { none, gzip, zstd };
/// By the first bytes, which four are enough for.
Packing packing_of(std::string_view begin);
/// The same for a file. Throws UserError where it cannot be read.
Packing packing_of_file(const fs::path& path);
/// A name without ".gz" or ".zst": its ending then says what is inside.
fs::path unpacked_name(const fs::path& path);

class UnpackedFile {
 public:
  explicit UnpackedFile(const fs::path& path);
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;
  ~UnpackedFile();

  /// Up to `bytes`, from where the last call ended; 0 at the end. Throws UserError that names the
  /// file: it cannot be read; the archive is damaged or ends too early; it unpacks to more than
  /// kMostRatio times its size, which no text does.
  size_t read(char* data, size_t bytes);

  static constexpr uint64_t kMostRatio = 1000;
  static constexpr uint64_t kAlwaysAllowed = uint64_t{64} << 20;  // bytes that any archive may have

 private:
  class Decoder;
  class Gzip;
  class Zstd;

  fs::path path_;
  InputFile file_;
  std::unique_ptr<Decoder> decoder_;  // null for a file that is not packed
  std::string packed_;                // a piece of the file
  size_t packed_at_ = 0;              // bytes of it that are unpacked
  uint64_t packed_bytes_ = 0, unpacked_bytes_ = 0;
  bool at_end_ = false;  // of the file
};

/// The whole content. Throws UserError as UnpackedFile does, for more than `limit` bytes, and for
/// an archive that unpacks to more than this process may use (ExitCode::kNoMemory).
std::string read_unpacked(const fs::path& path, uint64_t limit);

}  // namespace brrr::io
