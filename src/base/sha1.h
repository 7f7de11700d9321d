#pragma once
// SHA-1 (FIPS 180-4), by which Git names contents. It detects damage and mix-ups; it does not
// protect against somebody who builds two contents with one digest: that is what SHA-256 is for.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace brrr {

class Sha1 {
 public:
  void update(std::string_view bytes);
  /// The digest of everything so far as 40 lower-case hexadecimal digits. The object may not be
  /// used afterwards.
  std::string finish_hex();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 5> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t bytes_ = 0;
};

std::string sha1_hex(std::string_view bytes);
/// The name that Git gives to a content: SHA-1 of "blob BYTES", a NUL and the content.
std::string git_blob_name(std::string_view content);
/// The same for a file's content. Throws UserError when it cannot be read.
std::string git_blob_name_of_file(const std::filesystem::path& path);

}  // namespace brrr
