#include "base/sha1.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"

namespace brrr {
namespace {

std::string git_header(uint64_t bytes) {
  std::string header = fmt::format("blob {}", bytes);
  header += '\0';
  return header;
}

}  // namespace

void Sha1::compress(const uint8_t* block) {
  uint32_t w[80];
  for (size_t i = 0; i < 16; ++i)
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 |
           static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state_;
  for (size_t i = 0; i < 80; ++i) {
    uint32_t mixed = 0, constant = 0;
    if (i < 20)
      mixed = (b & c) | (~b & d), constant = 0x5a827999;
    else if (i < 40)
      mixed = b ^ c ^ d, constant = 0x6ed9eba1;
    else if (i < 60)
      mixed = (b & c) | (b & d) | (c & d), constant = 0x8f1bbcdc;
    else
      mixed = b ^ c ^ d, constant = 0xca62c1d6;
    const uint32_t next = std::rotl(a, 5) + mixed + e + constant + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  state_[0] += a, state_[1] += b, state_[2] += c, state_[3] += d, state_[4] += e;
}

void Sha1::update(std::string_view bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), n);
    filled_ += n;
    bytes.remove_prefix(n);
    if (filled_ < block_.size()) return;
    compress(block_.data());
    filled_ = 0;
  }
}

std::string Sha1::finish_hex() {
  const uint64_t bits = 8 * bytes_;
  std::string tail("\x80");
  tail.append((119 - filled_) % 64, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(bits >> shift);
  update(tail);
  BRRR_CHECK(filled_ == 0, "{} bytes left of the last block", filled_);
  std::string hex;
  for (const uint32_t word : state_) hex += fmt::format("{:08x}", word);
  return hex;
}

std::string sha1_hex(std::string_view bytes) {
  Sha1 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

std::string git_blob_name(std::string_view content) {
  Sha1 hash;
  hash.update(git_header(content.size()));
  hash.update(content);
  return hash.finish_hex();
}

std::string git_blob_name_of_file(const std::filesystem::path& path) {
  InputFile file(path);
  Sha1 hash;
  hash.update(git_header(file.size()));
  std::string piece(size_t{1} << 18, '\0');
  while (const size_t n = file.read(piece.data(), piece.size()))
    hash.update(std::string_view(piece.data(), n));
  return hash.finish_hex();
}

}  // namespace brrr
