// The hand-written splitter: classes against Unicode's own counts, pieces against hand-made cases,
// invalid bytes, and PCRE2 running GPT-2's pattern where that library is present.

#include "text/tokenizer_split.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/rng.h"
#include "text/patterns/split_pattern.h"
#include "text/tokenizer_unicode.h"

namespace brrr::io {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::string_view text) {
  Pieces out;
  const uint8_t* p = as_bytes(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const uint8_t* const q = next_piece(CharTable::get(), p, end);
    if (q <= p || q > end) {
      ADD_FAILURE() << "a piece of " << (q - p) << " bytes";
      return out;
    }
    out.emplace_back(reinterpret_cast<const char*>(p), q - p);
    p = q;
  }
  return out;
}

TEST(TokenizerSplit, ClassesOfUnicode16) {
  EXPECT_STREQ(kUnicodeVersion, "16.0.0");
  int count[4] = {};
  for (uint32_t code = 0; code < 0x110000; ++code)
    ++count[static_cast<int>(CharTable::get().of(code))];
  // DerivedGeneralCategory-16.0.0.txt: L* and N* totals; PropList-16.0.0.txt: White_Space.
  EXPECT_EQ(count[static_cast<int>(CharClass::kLetter)], 141028);
  EXPECT_EQ(count[static_cast<int>(CharClass::kNumber)], 1911);
  EXPECT_EQ(count[static_cast<int>(CharClass::kSpace)], 25);
  EXPECT_EQ(CharTable::get().of(0x110000), CharClass::kOther);
  EXPECT_EQ(CharTable::get().of(kInvalidByte), CharClass::kOther);
}

TEST(TokenizerSplit, Utf8DecodingOfEveryCodePointAndOfBrokenBytes) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    std::string s;
    append_utf8(s, code);
    const DecodedChar c = decode_utf8(as_bytes(s.data()), as_bytes(s.data() + s.size()));
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    ASSERT_EQ(c.code, surrogate ? kInvalidByte : code);
    ASSERT_EQ(c.bytes, surrogate ? 1 : s.size());
    for (size_t cut = 1; cut < s.size(); ++cut)
      ASSERT_EQ(decode_utf8(as_bytes(s.data()), as_bytes(s.data() + cut)).code, kInvalidByte);
  }
  for (const char* s :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    const std::string_view v = s;
    EXPECT_EQ(decode_utf8(as_bytes(v.data()), as_bytes(v.data() + v.size())).code, kInvalidByte)
        << v;
  }
}

TEST(TokenizerSplit, Cases) {
  EXPECT_EQ(split("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(split("  two  "), (Pieces{" ", " two", "  "}));
  EXPECT_EQ(split("a\n\n b"), (Pieces{"a", "\n\n", " b"}));
  EXPECT_EQ(split("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(split("I'll don't"), (Pieces{"I", "'ll", " don", "'t"}));
  EXPECT_EQ(split("I'LL"), (Pieces{"I", "'", "LL"}));
  EXPECT_EQ(split("!'s"), (Pieces{"!'", "s"}));
  EXPECT_EQ(split(" 's"), (Pieces{" '", "s"}));
  EXPECT_EQ(split("'sound"), (Pieces{"'s", "ound"}));
  EXPECT_EQ(split("'r"), (Pieces{"'", "r"}));
  EXPECT_EQ(split("x1 2½y"), (Pieces{"x", "1", " 2½", "y"}));
  EXPECT_EQ(split("x\u00a0y"), (Pieces{"x", "\u00a0", "y"}));
  EXPECT_EQ(split("x\u00a0 y"), (Pieces{"x", "\u00a0", " y"}));
  EXPECT_EQ(split("e\u0301x"), (Pieces{"e", "\u0301", "x"}));
  EXPECT_EQ(split(std::string_view("a\0b", 3)), (Pieces{"a", std::string(1, '\0'), "b"}));
  EXPECT_EQ(split(" "), (Pieces{" "}));
  EXPECT_EQ(split(""), (Pieces{}));
}

TEST(TokenizerSplit, InvalidBytesAreOtherCharacters) {
  EXPECT_EQ(split("a\xff\xfe!b"), (Pieces{"a", "\xff\xfe!", "b"}));
  EXPECT_EQ(split(" \x80x"), (Pieces{" \x80", "x"}));
  EXPECT_EQ(split("\xd0"), (Pieces{"\xd0"}));  // the first half of a letter
  EXPECT_EQ(split("я\xd1"), (Pieces{"я", "\xd1"}));
  EXPECT_EQ(split("\xed\xa0\x80z"), (Pieces{"\xed\xa0\x80", "z"}));  // a surrogate
  EXPECT_EQ(split("  \xe3\x80"), (Pieces{" ", " \xe3\x80"}));        // two thirds of U+3000
}

// Words of every length around the 16-byte steps, at every distance from the end.
TEST(TokenizerSplit, AsciiWordsOfEveryLength) {
  for (size_t length = 1; length < 70; ++length)
    for (size_t tail = 0; tail < 20; ++tail) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word += "azAZmM"[i % 6];
      const std::string rest(tail, '.');
      Pieces expected = {word};
      if (tail > 0) expected.push_back(rest);
      ASSERT_EQ(split(word + rest), expected);
      ASSERT_EQ(split(" " + word + "é" + rest).front(), " " + word + "é");
    }
  for (const char neighbour : {'@', '[', '`', '{', '\x7f', '0'})
    EXPECT_EQ(split(std::string("abc") + neighbour)[0], "abc");
}

Pieces find_all(const SplitPattern& pattern, std::string_view text) {
  Pieces out;
  size_t at = 0;
  while (const auto match = pattern.find(text, at)) {
    out.emplace_back(text.substr(match->first, match->second - match->first));
    at = match->second;
  }
  return out;
}

TEST(TokenizerSplit, AgreesWithPcre2) {
  const auto gpt2 = SplitPattern::regex(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "test");
  // The library may know another version of Unicode: only code points whose class is the same on
  // both sides are used, and they must be nearly all of the assigned ones.
  const auto letter = SplitPattern::regex(R"(\p{L})", "test"),
             number = SplitPattern::regex(R"(\p{N})", "test"),
             space = SplitPattern::regex(R"(\s)", "test");
  std::vector<uint32_t> same, special;
  int different = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string s;
    append_utf8(s, code);
    const CharClass theirs = letter.find(s, 0)   ? CharClass::kLetter
                             : number.find(s, 0) ? CharClass::kNumber
                             : space.find(s, 0)  ? CharClass::kSpace
                                                 : CharClass::kOther;
    if (theirs == CharTable::get().of(code)) {
      same.push_back(code);
      if (theirs == CharClass::kSpace) special.push_back(code);
    } else {
      ++different;
    }
  }
  ASSERT_LT(different, 20000);
  ASSERT_EQ(special.size(), 25u);
  for (const char c : std::string_view("'''''strevmlldSTREVMLLD 0123.,!?-_xyz"))
    special.push_back(static_cast<uint32_t>(c));
  for (uint32_t i = 0; i < 30000; ++i) {
    RngStream rng({.seed = 77, .step = 0}, i);
    std::string text;
    const uint64_t length = rng.next_below(40);
    while (text.size() < length)
      append_utf8(text, rng.next_below(4) == 0 ? same[rng.next_below(same.size())]
                                               : special[rng.next_below(special.size())]);
    ASSERT_EQ(split(text), find_all(gpt2, text)) << "stream " << i << " of seed 77";
  }
}

}  // namespace
}  // namespace brrr::io
