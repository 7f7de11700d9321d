// tokenizer.model and tekken.json against the libraries that made them (sentencepiece, tiktoken,
// mistral-common): hashes per thousand texts are in tests/golden/tokenizer_models.json. Published
// models are looked for in $BRRR_MODELS.

#include <algorithm>

#include "base/encoding/base64.h"
#include "base/env.h"
#include "base/sha256.h"
#include "support/golden_tokenizer.h"
#include "support/models_folder.h"
#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::hash_ids;
using test::hash_text;
using test::kHashStart;
using Ids = std::vector<int32_t>;

class TokenizerModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = test::read_golden("tokenizer_models.json")["models"][GetParam()];
    added_ = golden_["added"].get<std::vector<std::string>>();
    if (golden_.contains("model")) {
      write_file_atomically(folder_ / "tokenizer.model",
                            *decode_base64(golden_["model"].get_ref<const std::string&>()));
      tokenizer_ = load_tokenizer(folder_.path());
      return;
    }
    const fs::path path = test::models_folder() / golden_["file"].get<std::string>();
    if (!fs::exists(path)) GTEST_SKIP() << path << " is missing; $BRRR_MODELS names its folder";
    if (sha256_hex(read_file(path)) != golden_["sha256"].get<std::string>())
      GTEST_SKIP() << path << " is another version than the goldens were made of";
    tokenizer_ = load_tokenizer(path);
  }

  void check(const std::vector<std::string>& texts, const Json& expected, const std::string& what) {
    uint64_t of_texts = kHashStart, of_ids = kHashStart, of_decoded = kHashStart;
    Ids ids;
    for (const std::string& text : texts) {
      ids.clear();
      tokenizer_->encode(text, ids);
      of_texts = hash_text(of_texts, text);
      of_ids = hash_ids(of_ids, ids);
      of_decoded = hash_text(of_decoded, tokenizer_->decode(ids));
    }
    const auto hex = [](uint64_t hash) { return fmt::format("{:016x}", hash); };
    const std::string again = fmt::format(
        "; to see its texts and ids: python3 tests/golden/make_sentencepiece_goldens.py models "
        "DATA "
        "MODELS --block {} N",
        GetParam());
    ASSERT_EQ(hex(of_texts), expected[0].get<std::string>()) << "other texts in " << what;
    ASSERT_EQ(hex(of_ids), expected[1].get<std::string>()) << "other ids in " << what << again;
    ASSERT_EQ(hex(of_decoded), expected[2].get<std::string>())
        << "other decoded text in " << what << again;
  }

  test::TempFolder folder_;
  Json golden_;
  std::vector<std::string> added_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerModel, RandomTexts) {
  constexpr uint32_t kBlock = 1000;
  const test::Assigned assigned(test::read_golden("unigram_cases.json")["assigned"]);
  ASSERT_EQ(golden_["random"].size(), 100u);
  for (uint32_t block = 0; block < 100; ++block) {
    std::vector<std::string> texts;
    for (uint32_t i = block * kBlock; i < (block + 1) * kBlock; ++i)
      texts.push_back(test::text_with_token(assigned, i, added_));
    check(texts, golden_["random"][block], fmt::format("block {}", block));
    if (HasFatalFailure()) return;
  }
}

TEST_P(TokenizerModel, Sentences) {
  const auto data = env::get("BRRR_DATA");
  const fs::path folder = fs::path(data.value_or("")) / "sentences";
  if (!data || !fs::exists(folder)) GTEST_SKIP() << "BRRR_DATA has no sentences/";
  const std::vector<std::string> lines = test::sentences(folder);
  ASSERT_EQ(lines.size(), 23'703u);
  for (size_t at = 0; at < lines.size(); at += 1000) {
    const auto begin = lines.begin() + static_cast<ptrdiff_t>(at);
    const auto end = lines.begin() + static_cast<ptrdiff_t>(std::min(at + 1000, lines.size()));
    check({begin, end}, golden_["sentences"][at / 1000], fmt::format("sentences {}", at));
    if (HasFatalFailure()) return;
  }
  // All of them as one text, whole and in pieces.
  if (tokenizer_->kind() == "unigram") return;  // it sums over whole texts
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const Ids whole = tokenizer_->encode(text);
  ASSERT_FALSE(tokenizer_->cut_rule().never());
  Ids ids;
  for (size_t at = 0, pieces = 0; at < text.size(); ++pieces) {
    const size_t end = tokenizer_->cut_rule().next(text, at + 1 + pieces % 5000);
    tokenizer_->encode(std::string_view(text).substr(at, end - at), {.inside = at > 0}, ids);
    at = end;
  }
  EXPECT_EQ(ids, whole);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerModel,
                         ::testing::Values("unigram", "bpe", "llama3", "mistral-v1", "mistral-v3",
                                           "tekken"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace brrr::io
