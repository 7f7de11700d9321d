#include "base/sha1.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

// The examples of FIPS 180-4 and RFC 3174.
TEST(Sha1, GivesThePublishedDigests) {
  EXPECT_EQ(sha1_hex(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(sha1_hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sha1_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(sha1_hex(std::string(1'000'000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST(Sha1, PiecesOfAnySizeGiveTheSame) {
  const std::string text(300, 'x');
  for (size_t length = 0; length <= text.size(); length += 13)
    for (const size_t piece : {1, 63, 64, 65}) {
      Sha1 hash;
      for (size_t at = 0; at < length; at += piece)
        hash.update(std::string_view(text).substr(at, std::min(piece, length - at)));
      EXPECT_EQ(hash.finish_hex(), sha1_hex(text.substr(0, length))) << length << " " << piece;
    }
}

// As `git hash-object` prints them.
TEST(Sha1, NamesBlobsAsGitDoes) {
  EXPECT_EQ(git_blob_name(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob_name("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  const test::TempFolder folder;
  write_file_atomically(folder / "file", "hello\n");
  EXPECT_EQ(git_blob_name_of_file(folder / "file"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

}  // namespace
}  // namespace brrr
