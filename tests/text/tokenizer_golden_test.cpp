// GPT-2's BPE against tiktoken: tests/golden/bpe_gpt2.json, made by make_bpe_goldens.py beside it,
// and the encodings that were published with GPT-2 and its ports. Needs gpt2/ in $BRRR_DATA.

#include <gtest/gtest.h>

#include "base/encoding/utf8.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "support/random_text.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

using test::hash_ids;
using test::hash_text;
using test::kHashStart;
using test::random_text;

constexpr uint32_t kBlockSize = 1000;

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
    uint64_t texts_hash = kHashStart, ids_hash = kHashStart;
    for (uint32_t i = block * kBlockSize; i < (block + 1) * kBlockSize; ++i) {
      const std::string text = random_text(i);
      texts_hash = hash_text(texts_hash, text);
      ids.clear();
      tokenizer_->encode(text, ids);
      ids_hash = hash_ids(ids_hash, ids);
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
  uint64_t hash = kHashStart;
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
    for (const int32_t i : ids) hash = test::fnv(hash, static_cast<uint32_t>(i));
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
