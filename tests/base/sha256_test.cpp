#include "base/sha256.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace brrr {
namespace {

std::string hash(std::string_view text, bool portable) {
  Sha256 h(portable);
  h.update(text);
  return h.finish_hex();
}

class Sha256Vectors : public ::testing::TestWithParam<bool> {};

// The examples of FIPS 180-4 and of NIST's test-vector set.
TEST_P(Sha256Vectors, Nist) {
  const bool portable = GetParam();
  EXPECT_EQ(hash("", portable), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc", portable),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", portable),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                 "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                 portable),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a'), portable),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

INSTANTIATE_TEST_SUITE_P(Both, Sha256Vectors, ::testing::Bool());

TEST(Sha256, PiecesAndBothImplementationsAgree) {
  RngStream rng({7, 0}, 1);
  for (size_t size = 0; size < 300; ++size) {
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(rng.next_u32());
    Sha256 pieces;
    for (size_t at = 0; at < size;) {
      const size_t n = std::min<size_t>(size - at, rng.next_below(90));
      pieces.update(text.data() + at, n);
      at += n;
    }
    const std::string expected = hash(text, true);
    EXPECT_EQ(hash(text, false), expected) << size;
    EXPECT_EQ(pieces.finish_hex(), expected) << size;
  }
}

}  // namespace
}  // namespace brrr
