// Archives are read as a stream: whole, joined, damaged, cut off, and such that unpack to absurdly
// much.

#include "data/packed/unpacked_file.h"

#include <gtest/gtest.h>

#include "base/memory.h"
#include "support/packed.h"
#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

/// Text that does not compress to nothing.
std::string text_of_bytes(size_t bytes) {
  RngStream words({test::kTextSeed, 0}, 7);
  std::string text;
  while (text.size() < bytes) text += fmt::format("{} ", words.next_u32());
  text.resize(bytes);
  return text;
}

std::string unpacked(const fs::path& path, size_t piece_bytes) {
  UnpackedFile file(path);
  std::string content, piece(piece_bytes, '\0');
  while (const size_t n = file.read(piece.data(), piece.size())) content.append(piece, 0, n);
  return content;
}

TEST(UnpackedFile, EveryKindGivesTheContent) {
  const test::TempFolder folder;
  const fs::path path = folder / "file";
  for (const size_t bytes : {0, 1, 65'536, 300'000}) {
    const std::string text = text_of_bytes(bytes);
    const std::string gzip = test::gzip_of(text), zstd = test::zstd_of(text);
    EXPECT_EQ(packing_of(gzip), Packing::gzip);
    EXPECT_EQ(packing_of(zstd), Packing::zstd);
    EXPECT_EQ(packing_of(text), Packing::none);
    for (const std::string& content : {text, gzip, zstd})
      for (const size_t piece : {1'000, 100'000}) {
        write_file_atomically(path, content);
        EXPECT_EQ(unpacked(path, piece), text) << bytes << " " << piece;
        EXPECT_EQ(read_unpacked(path, 300'000), text);
      }
  }
}

TEST(UnpackedFile, ArchivesMayConsistOfParts) {
  const test::TempFolder folder;
  const fs::path path = folder / "file";
  write_file_atomically(path, test::gzip_of("one ") + test::gzip_of("") + test::gzip_of("two"));
  EXPECT_EQ(unpacked(path, 100), "one two");
  write_file_atomically(path, test::gzip_of("padded") + std::string(100'000, '\0'));
  EXPECT_EQ(unpacked(path, 100), "padded");
  const std::string skipped("\x50\x2a\x4d\x18\x03\x00\x00\x00xyz", 11);
  write_file_atomically(path, test::zstd_of("one ") + skipped + test::zstd_of("two"));
  EXPECT_EQ(unpacked(path, 100), "one two");
}

TEST(UnpackedFile, DamagedAndTruncatedArchivesAreErrors) {
  const test::TempFolder folder;
  const fs::path path = folder / "some.archive";
  const std::string text = text_of_bytes(20'000);
  for (const std::string& archive : {test::gzip_of(text), test::zstd_of(text)}) {
    for (const size_t bytes : {archive.size() - 1, archive.size() / 2, size_t{6}}) {
      write_file_atomically(path, archive.substr(0, bytes));
      EXPECT_USER_ERROR(unpacked(path, 1'000), "some.archive is an archive that ends too early");
    }
    // Every byte counts: in the middle, and in the checksum at the end.
    for (const size_t place : {archive.size() / 2, archive.size() - 7, archive.size() - 2}) {
      std::string damaged = archive;
      damaged[place] = static_cast<char>(damaged[place] ^ 0x55);
      write_file_atomically(path, damaged);
      const std::string error = test::user_error_of([&] { unpacked(path, 1'000); });
      EXPECT_NE(error.find("some.archive is "), std::string::npos) << place << ": " << error;
    }
    write_file_atomically(path, archive + "rubbish");
    EXPECT_USER_ERROR(unpacked(path, 1'000), "some.archive is a damaged archive");
  }
}

TEST(UnpackedFile, WhatUnpacksToAbsurdlyMuchIsRefused) {
  const test::TempFolder folder;
  const fs::path path = folder / "bomb";
  std::string zeros(size_t{16} << 20, '0'), bomb;
  const std::string part = test::zstd_of(zeros);
  for (int i = 0; i < 16; ++i) bomb += part;
  ASSERT_LT(bomb.size(), size_t{100'000});
  write_file_atomically(path, bomb);
  zeros.clear();
  zeros.shrink_to_fit();
  UnpackedFile file(path);
  std::string piece(size_t{1} << 20, '\0');
  uint64_t bytes = 0;
  const auto read_all = [&] {
    while (const size_t n = file.read(piece.data(), piece.size())) bytes += n;
  };
  EXPECT_USER_ERROR(read_all(), "bomb unpacks to more than 1000 times its size");
  EXPECT_LE(bytes, UnpackedFile::kAlwaysAllowed + (uint64_t{1} << 20));
  EXPECT_USER_ERROR(read_unpacked(path, size_t{1} << 20), "bomb unpacks to more than 1.0 MiB");
  // A frame with a window of 1 GiB, which would need as much memory.
  write_file_atomically(path, std::string("\x28\xb5\x2f\xfd\x00\xa0\x09\x00\x00x", 10));
  EXPECT_USER_ERROR(read_unpacked(path, 1'000),
                    "bomb is a damaged archive (Frame requires too much");
}

}  // namespace
}  // namespace brrr::io
