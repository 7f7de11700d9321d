#pragma once
// SHA-256 (FIPS 180-4): names the content of corpora, tokenizers and downloads. Uses the
// processor's SHA instructions where present, portable code elsewhere; both give
// the same digest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace brrr {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  /// `portable` forces the portable code (tests compare the two).
  explicit Sha256(bool portable = false);
  void update(const void* data, size_t bytes);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  /// The digest of everything so far. The object may not be used afterwards.
  Digest finish();
  /// finish() as 64 lower-case hexadecimal digits.
  std::string finish_hex();

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t bytes_ = 0;
  void (*compress_)(uint32_t*, const uint8_t*, size_t);
};

std::string sha256_hex(std::string_view bytes);
/// The digest of a file's content. Throws UserError when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace brrr
