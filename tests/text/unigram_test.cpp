// Unigram and charsmaps against the library `tokenizers`: models and hashes of what it makes of
// random texts are in tests/golden/unigram_cases.json.

#include "text/unigram/unigram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/encoding/base64.h"
#include "base/errors.h"
#include "support/golden_tokenizer.h"
#include "support/random_text.h"
#include "text/precompiled.h"

namespace brrr::io {
namespace {

using test::hash_ids;
using test::hash_text;
using test::kHashStart;
using Ids = std::vector<int32_t>;

std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

/// few_letters of make_sentencepiece_goldens.py.
std::string few_letters(uint32_t index) {
  static const char* const letters[] = {"a", "b", "c", "d", "z", "q", "<", "\u2581", " ", "e"};
  const std::string text = test::random_text(index);
  std::string out;
  const uint8_t* const end = as_bytes(text.data() + text.size());
  for (const uint8_t* p = as_bytes(text.data()); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    p += c.bytes;
    if (c.code <= 0x20) continue;
    if (c.code < 0x3000)
      out += letters[c.code % 10];
    else if (c.code % 4 != 0)
      out += "<unk>the";
    else
      append_utf8(out, c.code);
  }
  return out;
}

UnigramModel model_of(const Json& json) {
  UnigramModel model;
  model.least_score = std::numeric_limits<double>::infinity();
  for (const Json& piece : json["vocab"]) {
    model.add(piece[0].get<std::string>(), piece[1].get<double>());
    model.least_score = std::min(model.least_score, model.scores.back());
  }
  model.unknown = json["unk_id"].get<int32_t>();
  if (json["byte_fallback"].get<bool>()) {
    model.byte_ids.assign(256, -1);
    for (uint32_t id = 0; id < model.size(); ++id)
      for (uint32_t byte = 0; byte < 256; ++byte)
        if (model.token(id) == fmt::format("<0x{:02X}>", byte))
          model.byte_ids[byte] = static_cast<int32_t>(id);
  }
  return model;
}

Ids encoded(const UnigramEncoder& model, std::string_view text) {
  Ids ids;
  model.encode({&text, 1}, text.data() + text.size(), ids);
  return ids;
}

TEST(Unigram, MatchesTokenizers) {
  const Json all = test::read_golden("unigram_cases.json");
  const test::Assigned assigned(all["assigned"]);
  ASSERT_EQ(all["models"].size(), 6u);
  for (const Json& json : all["models"]) {
    const UnigramEncoder model(model_of(json));
    for (size_t block = 0; block < json["ids"].size(); ++block) {
      uint64_t of_texts = kHashStart, of_ids = kHashStart;
      for (uint32_t i = 0; i < 1000; ++i) {
        const auto index = static_cast<uint32_t>(block * 1000 + i);
        const std::string text =
            index % 2 ? few_letters(index) : assigned.replace_others(test::random_text(index));
        of_texts = hash_text(of_texts, text);
        of_ids = hash_ids(of_ids, encoded(model, text));
      }
      ASSERT_EQ(hex(of_texts), json["ids"][block][0]) << json["name"] << ", block " << block;
      ASSERT_EQ(hex(of_ids), json["ids"][block][1]) << json["name"] << ", block " << block;
    }
  }
}

TEST(Unigram, TakesBytesThatAreNoText) {
  const Json all = test::read_golden("unigram_cases.json");
  const UnigramEncoder model(model_of(all["models"][1]));
  const int32_t byte = model.model().byte_ids[0xff];
  EXPECT_EQ(encoded(model, "\xff\xff"), (Ids{byte, byte}));
  EXPECT_EQ(encoded(model, ""), Ids{});
}

TEST(Unigram, RefusesWhatNoTokenSpells) {
  UnigramModel model;
  model.add("a", -1);
  model.least_score = -1;
  const UnigramEncoder encoder(std::move(model));
  EXPECT_EQ(encoded(encoder, "aa"), (Ids{0, 0}));
  try {
    encoded(encoder, "aab");
    FAIL() << "an unknown character must be refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "no token spells the text 'b' (at byte 2), and the model has no unknown token; "
                 "use text of the kind that it was made from");
  }
}

TEST(Unigram, LongPiecesAreNotRemembered) {
  UnigramModel model;
  model.add("?", 0);
  model.add("ab", -1);
  model.least_score = -1;
  model.unknown = 0;
  const UnigramEncoder encoder(std::move(model));
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "ab";
  EXPECT_EQ(encoded(encoder, text), Ids(100'000, 1));
  EXPECT_EQ(encoded(encoder, text + "x").back(), 0);
}

TEST(PieceTrie, FindsEveryKey) {
  std::mt19937 random(7);
  std::vector<std::string> keys;
  for (int i = 0; i < 5000; ++i) {
    std::string key;
    for (size_t length = 1 + random() % 6; length > 0; --length)
      key.push_back(static_cast<char>(random() % (i % 2 ? 256 : 3)));
    keys.push_back(std::move(key));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::vector<PieceTrie::Entry> entries;
  for (uint32_t i = 0; i < keys.size(); ++i) entries.emplace_back(keys[i], i);
  std::shuffle(entries.begin(), entries.end(), random);
  const PieceTrie trie(entries);
  for (uint32_t i = 0; i < keys.size(); ++i) EXPECT_EQ(trie.find(keys[i]), i);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int length = 0; length < 8; ++length)
      text.push_back(static_cast<char>(random() % (i % 2 ? 256 : 3)));
    std::vector<uint32_t> expected, found;
    for (size_t length = 1; length <= text.size(); ++length) {
      const auto key = std::lower_bound(keys.begin(), keys.end(), text.substr(0, length));
      if (key != keys.end() && *key == text.substr(0, length))
        expected.push_back(static_cast<uint32_t>(key - keys.begin()));
    }
    const uint8_t* const p = as_bytes(text.data());
    trie.visit(p, p + text.size(), [&](const uint8_t* end, uint32_t value) {
      EXPECT_EQ(keys[value].size(), static_cast<size_t>(end - p));
      found.push_back(value);
    });
    ASSERT_EQ(found, expected);
  }
  const PieceTrie empty;
  EXPECT_EQ(empty.find(std::string_view("\0", 1)), PieceTrie::kNone);
  EXPECT_EQ(empty.find("a"), PieceTrie::kNone);
}

TEST(Precompiled, MatchesTokenizers) {
  const Json all = test::read_golden("unigram_cases.json");
  const test::Assigned assigned(all["assigned"]);
  const auto map = Precompiled::read_base64(all["charsmap"].get<std::string>(), "charsmap");
  ASSERT_EQ(all["normalized"].size(), 20u);
  for (uint32_t block = 0; block < 20; ++block) {
    uint64_t of_texts = kHashStart, of_results = kHashStart;
    for (uint32_t i = block * 1000; i < (block + 1) * 1000; ++i) {
      const std::string text = assigned.replace_others(test::random_text(i));
      of_texts = hash_text(of_texts, text);
      of_results = hash_text(of_results, map.normalized(text));
    }
    ASSERT_EQ(hex(of_texts), all["normalized"][block][0]) << "block " << block;
    ASSERT_EQ(hex(of_results), all["normalized"][block][1]) << "block " << block;
  }
}

TEST(Precompiled, ClustersAndLongestTexts) {
  const Json all = test::read_golden("unigram_cases.json");
  const auto map = Precompiled::read_base64(all["charsmap"].get<std::string>(), "charsmap");
  // A short cluster is replaced as a whole by what stands for its beginning.
  EXPECT_EQ(map.normalized("e\u0301"), "E");
  EXPECT_EQ(map.normalized("\r\n"), " ");
  EXPECT_EQ(map.normalized("\xff\xfe\xff"), "\xff\xfe\xff");
  EXPECT_EQ(map.normalized("abc"), "abc");
  EXPECT_EQ(map.normalized('\t'), " ");
  EXPECT_EQ(map.normalized('x'), "x");
  EXPECT_EQ(map.longest("abcd")->length, 3u);
  EXPECT_EQ(map.longest("abcd")->replacement, "");
  EXPECT_EQ(map.longest("abd")->replacement, "ba");
  EXPECT_EQ(map.longest("e\u0301x")->replacement, "\u00e9");
  EXPECT_FALSE(map.longest("xyz"));
  EXPECT_FALSE(map.longest(""));
  EXPECT_FALSE(map.longest(std::string_view("\0", 1)));
  EXPECT_EQ(map.most_growth(), 15u);
}

TEST(Precompiled, RefusesBrokenMaps) {
  const auto refusal = [](const std::string& bytes) -> std::string {
    try {
      (void)Precompiled::read(bytes, "f: charsmap");
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const auto units = [](std::vector<uint32_t> all) {
    std::string out;
    for (const uint32_t unit : all)
      for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(unit >> 8 * i & 0xff));
    return out;
  };
  const std::string pool("x\0", 2);
  EXPECT_EQ(refusal("abc"),
            "f: charsmap has 3 bytes; expected the size of a trie, a trie and replacements");
  EXPECT_EQ(refusal(units({12, 0}) + pool),
            "f: charsmap says that its trie has 12 bytes; expected a multiple of 4 from 4 to 6, "
            "the bytes that follow");
  EXPECT_EQ(refusal(units({4, 0}) + "x"),
            "f: charsmap: its replacements do not end with a NUL byte; is it truncated?");
  EXPECT_EQ(refusal(units({4, 0})),
            "f: charsmap: its replacements do not end with a NUL byte; is it truncated?");
  EXPECT_EQ(refusal(units({4, 0}) + std::string("\xff\0", 2)),
            "f: charsmap: its replacements are not UTF-8 at byte 0");
  EXPECT_EQ(refusal(units({4, 1u << 8 | 5u << 10}) + pool),
            "f: charsmap: unit 0 of its trie points to unit 5 of 1");
  EXPECT_EQ(refusal(units({8, 1u << 8 | 1u << 10, 0x80000002u}) + pool),
            "f: charsmap: unit 1 of its trie points to byte 2 of 2 of replacements");
  EXPECT_EQ(refusal(units({8, 1u << 8 | 1u << 10, 0x80000000u}) + std::string(1025, 'x') + pool),
            "f: charsmap: unit 1 of its trie represents a text of more than 1024 bytes");
  EXPECT_EQ(refusal(units({8, 1u << 8 | 1u << 10, 0x80000000u}) + pool), "");
  EXPECT_THROW((void)Precompiled::read_base64("a", "f"), UserError);
}

TEST(Base64, RoundTripsAndRefuses) {
  std::mt19937 random(1);
  for (size_t length = 0; length < 50; ++length) {
    std::string bytes;
    for (size_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>(random()));
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
  }
  EXPECT_EQ(encode_base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
  for (const char* wrong :
       {"a", "ab", "abc", "a===", "ab=c", "abc-", "YW5=", "YX==", "ab\n=", "===="})
    EXPECT_FALSE(decode_base64(wrong)) << wrong;
}

}  // namespace
}  // namespace brrr::io
