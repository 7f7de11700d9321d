// BPE training against a plain recount after every merge, its promises, and what is saved.

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "support/bpe_model.h"
#include "support/temp_folder.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

using test::TempFolder;

/// Pairs counted anew after every merge, in words written out one by one.
std::vector<std::pair<std::string, std::string>> train_naively(const std::string& text,
                                                               int merges) {
  std::map<std::vector<int>, int64_t> words;
  std::vector<std::string> tokens;
  for (const uint8_t b : bytes_by_letter()) tokens.emplace_back(1, static_cast<char>(b));
  const auto id_of = [&](char c) {
    return static_cast<int>(std::find(tokens.begin(), tokens.begin() + 256, std::string(1, c)) -
                            tokens.begin());
  };
  for (const uint8_t *p = as_bytes(text.data()), *end = p + text.size(); p < end;) {
    const uint8_t* q = next_piece(CharTable::get(), p, end);
    std::vector<int> word;
    for (; p < q; ++p) word.push_back(id_of(static_cast<char>(*p)));
    ++words[word];
  }
  std::vector<std::pair<std::string, std::string>> made;
  while (static_cast<int>(made.size()) < merges) {
    std::map<std::pair<int, int>, int64_t> counts;
    for (const auto& [word, count] : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    std::pair<int, int> best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts) {
      const std::string spelling = tokens[pair.first] + tokens[pair.second];
      if (count > most && std::find(tokens.begin(), tokens.end(), spelling) == tokens.end()) {
        most = count;
        best = pair;
      }
    }
    if (most == 1) break;
    made.emplace_back(tokens[best.first], tokens[best.second]);
    tokens.push_back(tokens[best.first] + tokens[best.second]);
    std::map<std::vector<int>, int64_t> merged_words;
    for (const auto& [word, count] : words) {
      std::vector<int> merged;
      for (size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second) {
          merged.push_back(static_cast<int>(tokens.size()) - 1);
          ++i;
        } else {
          merged.push_back(word[i]);
        }
      }
      merged_words[merged] += count;
    }
    words = std::move(merged_words);
  }
  return made;
}

std::vector<std::pair<std::string, std::string>> merges_of(const BpeModel& model) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const BpeMerge& merge : model.merges) {
    EXPECT_EQ(std::string(model.token(merge.left)) + std::string(model.token(merge.right)),
              model.token(merge.result));
    out.emplace_back(model.token(merge.left), model.token(merge.right));
  }
  return out;
}

std::string random_words(uint32_t stream, size_t bytes, std::string_view letters) {
  RngStream rng({.seed = 5, .step = 1}, stream);
  std::string text;
  while (text.size() < bytes) text += letters[rng.next_below(letters.size())];
  return text;
}

TEST(TrainBpe, EqualsARecountAfterEveryMerge) {
  for (uint32_t stream = 0; stream < 40; ++stream) {
    // Few letters and long runs, so that pairs overlap with themselves and with their neighbours.
    const char* alphabets[] = {"ab", "aab  ", "abc '.1", "\xd0\xbf\xff e", "aaaaaaab\n"};
    const std::string text = random_words(stream, 200 + 20 * stream, alphabets[stream % 5]);
    const auto expected = train_naively(text, 25);
    ASSERT_GT(expected.size(), 5u);
    const BpeModel model = train_bpe_model(text, 257 + static_cast<int32_t>(expected.size()));
    ASSERT_EQ(merges_of(model), expected) << "stream " << stream;
  }
}

TEST(TrainBpe, KnownResult) {
  // "ab" occurs 4 times, then (" ", "ab") 3 times.
  const auto tokenizer = train_bpe("ab ab ab ab", 259);
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->end_of_text(), 258);
  EXPECT_EQ(tokenizer->encode("ab ab"), (std::vector<int32_t>{256, 257}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{257, 256, 258}), " abab<|endoftext|>");
}

TEST(TrainBpe, LargeTextInChunksEqualsItsRepetition) {
  // 3 MiB of text is counted in chunks; the same text once, scaled, has the same most frequent
  // pairs.
  const std::string once = random_words(9, 3000, "abcde     ,\n") + ".\n";
  std::string text;
  while (text.size() < (size_t{3} << 20)) text += once;
  const BpeModel model = train_bpe_model(text, 320);
  EXPECT_EQ(model, train_bpe_model(text, 320));
  EXPECT_EQ(model.merges, train_bpe_model(once + once, 320).merges);
}

TEST(TrainBpe, LongWordIsNotQuadratic) {
  // One word of 2 MB: a trainer that walks whole words per merge would need hours of work.
  const BpeModel model = train_bpe_model(random_words(3, 2'000'000, "acgt"), 1000);
  EXPECT_EQ(model.size(), 1000u);
}

TEST(TrainBpe, SavedFilesLoadBackIdentical) {
  const std::string text = random_words(1, 20000, "etaoin \xe4\xb8\xad\"\\\n'123\xff") +
                           " \"quoted\\\" \xe4\xb8\xad\xe5\x9b\xbd";
  const auto tokenizer = train_bpe(text, 600);
  const TempFolder folder;
  tokenizer->save(folder.path());
  const auto loaded = load_tokenizer(folder.path());
  EXPECT_EQ(test::bpe_model(*loaded), test::bpe_model(*tokenizer));
  EXPECT_EQ(loaded->encode(text), tokenizer->encode(text));
  EXPECT_LT(tokenizer->encode(text).size(), text.size() * 4 / 5);
  EXPECT_EQ(loaded->decode(tokenizer->encode(text)), text);
}

TEST(TrainBpe, Errors) {
  EXPECT_USER_ERROR(train_bpe("some text", 256), "256 tokens is too small");
  EXPECT_USER_ERROR(train_bpe("", 300), "needs more text");
  EXPECT_USER_ERROR(train_bpe("abab abab", 1000), "no pair of tokens occurs twice");
  EXPECT_EQ(train_bpe("", 257)->vocab_size(), 257);
}

}  // namespace
}  // namespace brrr::io
