// GPT-2's BPE against tiktoken: tests/golden/bpe_gpt2.json, made by make_bpe_goldens.py beside it,
// and the encodings that were published with GPT-2 and its ports. Needs gpt2/ in $BRRR_DATA.

#include <gtest/gtest.h>

#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "formats/json_file.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

constexpr uint32_t kSeed = 20240521;
constexpr uint32_t kBlockSize = 1000;

const char* const kWords[] = {" the",    " of",
                              "Hello",   " world",
                              "ing",     " Internationalization",
                              "don't",   "I'LL",
                              "HTTP",    " antidisestablish",
                              "foo_bar", "://",
                              "...",     " ---",
                              "==",      "()",
                              "};",      "\r\n",
                              "naïve",   " Größe",
                              "привет",  " мир",
                              "日本語",  "한국어",
                              "العربية", "हिन्दी",
                              "ไทย",     "👩‍👩‍👧",
                              "🇩🇪",      "e\u0301"};
const char* const kContractions[] = {"'s", "'t",  "'re", "'ve", "'m",  "'ll",     "'d",
                                     "'S", "'LL", "'r",  "'",   "''s", "\u2019s", " 's"};
const char* const kNumbers[] = {"²", "½", "٣", "Ⅷ",     "〇",   "१",
                                "𝟗", "①", "৳", "1,000", "3.14", "0x1F"};
constexpr uint32_t kSpaces[] = {0x20,   0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x85,
                                0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0x180E, 0xFEFF};
constexpr uint32_t kMarks[] = {0x200D, 0xFE0F, 0x200C, 0x20E3};

uint32_t skip_surrogates(uint32_t code) { return code >= 0xD800 ? code + 0x800 : code; }

/// random_text of make_bpe_goldens.py, letter for letter.
std::string random_text(uint32_t index) {
  RngStream words({.seed = kSeed, .step = 0}, index);
  std::string out;
  const auto put = [&out](uint32_t code) { append_utf8(out, code); };
  const uint32_t segments = words.next_u32() % 12;
  for (uint32_t segment = 0; segment < segments; ++segment) {
    const uint32_t kind = words.next_u32() % 18;
    const uint32_t count = 1 + words.next_u32() % 8;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t r = words.next_u32();
      switch (kind) {
        case 0:
          out += kWords[r % std::size(kWords)];
          break;
        case 1:
          out += kContractions[r % std::size(kContractions)];
          break;
        case 2:
          out += kNumbers[r % std::size(kNumbers)];
          break;
        case 3:
          put(kSpaces[r % std::size(kSpaces)]);
          break;
        case 4:
          put(' ');
          break;
        case 5:
          put('a' + r % 26);
          break;
        case 6:
          put(0x20 + r % 95);
          break;
        case 7:
          put('0' + r % 10);
          break;
        case 8:
          put(r >> 31 ? r % 0x20 : 0x7F + r % 0x21);
          break;
        case 9:
          put(0x80 + r % 0x1D0);
          break;
        case 10:
          put(0x300 + r % 0x70);
          break;
        case 11:
          put(0x370 + r % 0x6D0);
          break;
        case 12:
          put(0x3040 + r % 0xC0);
          break;
        case 13:
          put(0x4E00 + r % 0x51A5);
          break;
        case 14:
          put(r & 1 ? kMarks[r >> 30] : 0x1F300 + (r >> 1) % 0x600);
          break;
        case 15:
          put(0xAC00 + r % 0x2BA4);
          break;
        case 16:
          put(skip_surrogates(r % 0xF800));
          break;
        default:
          put(skip_surrogates(r % 0x10F800));
          break;
      }
    }
  }
  return out;
}

uint64_t fnv(uint64_t hash, uint32_t number) { return (hash ^ number) * 0x100000001B3u; }

class TokenizerGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto data = env::get("BRRR_DATA");
    if (!data)
      GTEST_SKIP() << "BRRR_DATA is not set; gpt2/vocab.json and merges.txt are read from it";
    const fs::path folder = fs::path(*data) / "gpt2";
    if (!fs::exists(folder / "vocab.json")) GTEST_SKIP() << folder << " has no vocab.json";
    tokenizer_ = load_tokenizer(folder);
    const fs::path golden = fs::path(BRRR_SOURCE_DIR) / "tests/golden/bpe_gpt2.json";
    golden_ = parse_json(read_file(golden), golden.string());
  }
  void check(const Json& item, const std::string& what) {
    const auto text = item["text"].get<std::string>();
    const auto expected = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_->encode(text), expected) << what << ": " << item["text"].dump();
    EXPECT_EQ(tokenizer_->decode(expected), text) << what;
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  Json golden_;
};

TEST_F(TokenizerGolden, Published) {
  EXPECT_EQ(tokenizer_->kind(), "bpe");
  EXPECT_EQ(tokenizer_->vocab_size(), 50257);
  EXPECT_EQ(tokenizer_->end_of_text(), 50256);
  EXPECT_EQ(tokenizer_->encode("Hello world"), (std::vector<int32_t>{15496, 995}));
  EXPECT_EQ(tokenizer_->encode("Hello, I'm a language model,"),
            (std::vector<int32_t>{15496, 11, 314, 1101, 257, 3303, 2746, 11}));
  EXPECT_EQ(tokenizer_->encode("<|endoftext|>"),
            (std::vector<int32_t>{27, 91, 437, 1659, 5239, 91, 29}));
  EXPECT_EQ(tokenizer_->decode(std::vector<int32_t>{50256}), "<|endoftext|>");
}

TEST_F(TokenizerGolden, Vectors) {
  ASSERT_GT(golden_["vectors"].size(), 150u);
  for (const Json& item : golden_["vectors"]) check(item, "vector");
  for (const auto& [index, item] : golden_["written_out"].items()) {
    EXPECT_EQ(random_text(static_cast<uint32_t>(std::stoul(index))),
              item["text"].get<std::string>());
    check(item, "random text " + index);
  }
}

TEST_F(TokenizerGolden, RandomTexts) {
  ASSERT_EQ(golden_["blocks"].size(), 100u);
  std::vector<int32_t> ids;
  for (uint32_t block = 0; block < 100; ++block) {
    uint64_t texts_hash = 0xCBF29CE484222325u, ids_hash = texts_hash;
    for (uint32_t i = block * kBlockSize; i < (block + 1) * kBlockSize; ++i) {
      const std::string text = random_text(i);
      const uint8_t* const end = as_bytes(text.data() + text.size());
      for (const uint8_t* p = as_bytes(text.data()); p < end;) {
        const DecodedChar c = decode_utf8(p, end);
        texts_hash = fnv(texts_hash, c.code);
        p += c.bytes;
      }
      texts_hash = fnv(texts_hash, 0xFFFFFFFF);
      ids.clear();
      tokenizer_->encode(text, ids);
      for (const int32_t id : ids) ids_hash = fnv(ids_hash, static_cast<uint32_t>(id));
      ids_hash = fnv(ids_hash, 0xFFFFFFFF);
      ASSERT_EQ(tokenizer_->decode(ids), text) << "random text " << i;
    }
    const auto& expected = golden_["blocks"][block];
    ASSERT_EQ(fmt::format("{:016x}", texts_hash), expected[0].get<std::string>())
        << "the generator of block " << block << " differs from random_text in make_bpe_goldens.py";
    ASSERT_EQ(fmt::format("{:016x}", ids_hash), expected[1].get<std::string>())
        << "ids of block " << block << " differ from tiktoken's; to see its texts and ids: python3 "
        << "tests/golden/make_bpe_goldens.py FOLDER_WITH_GPT2_VOCAB_AND_MERGES --block " << block;
  }
}

// The text of every token, where it is text: tiktoken's ids for it, which are nearly always the
// token itself.
TEST_F(TokenizerGolden, TextsOfAllTokens) {
  uint64_t hash = 0xCBF29CE484222325u;
  int texts = 0;
  for (int32_t id = 0; id < 50256; ++id) {
    const std::string bytes = tokenizer_->decode(std::vector<int32_t>{id});
    const std::vector<int32_t> ids = tokenizer_->encode(bytes);
    ASSERT_EQ(tokenizer_->decode(ids), bytes);
    const uint8_t* p = as_bytes(bytes.data());
    const uint8_t* const end = p + bytes.size();
    bool is_text = true;
    while (p < end) {
      const DecodedChar c = decode_utf8(p, end);
      is_text = is_text && c.code != kInvalidByte;
      p += c.bytes;
    }
    if (!is_text) continue;
    ++texts;
    for (const int32_t i : ids) hash = fnv(hash, static_cast<uint32_t>(i));
  }
  EXPECT_EQ(texts, golden_["tokens"]["texts"].get<int>());
  EXPECT_EQ(fmt::format("{:016x}", hash), golden_["tokens"]["ids"].get<std::string>());
}

TEST_F(TokenizerGolden, Shakespeare) {
  const fs::path path = fs::path(*env::get("BRRR_DATA")) / "shakespeare/input.txt";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is missing";
  const std::string text = read_file(path);
  // nanoGPT's data/shakespeare/readme: the first 90% of the characters are 301,966 tokens, the rest
  // 36,059.
  const auto cut = static_cast<size_t>(static_cast<double>(text.size()) * 0.9);
  EXPECT_EQ(tokenizer_->encode(std::string_view(text).substr(0, cut)).size(), 301966u);
  EXPECT_EQ(tokenizer_->encode(std::string_view(text).substr(cut)).size(), 36059u);
}

}  // namespace
}  // namespace brrr::io
