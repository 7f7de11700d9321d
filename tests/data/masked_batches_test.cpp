// Masked language modelling: which tokens are chosen, what becomes of them, and that masks are a
// function of the seed and the row.

#include "data/masked_batches.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <map>

#include "data/document_batches.h"
#include "data/loader.h"
#include "data/window_batches.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

constexpr int32_t kCls = 1, kSep = 2, kPad = 3, kMask = 4, kUnknown = 5;
constexpr int64_t kVocab = 50;

MaskOptions mask_options() {
  MaskOptions o;
  o.cls = kCls, o.sep = kSep, o.pad = kPad, o.mask = kMask;
  o.vocab = kVocab;
  o.special_ids = {kUnknown};
  return o;
}

BatchOptions batch_options(int64_t batch, int64_t context, Sampling mode = Sampling::kEpoch) {
  BatchOptions o;
  o.mode = mode;
  o.batch = batch;
  o.context = context;
  o.vocab = kVocab;
  o.seed = 7;
  return o;
}

/// Ids from 6 on, and now and then the unknown one.
TokenSource text_of(size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i)
    ids.push_back(i % 17 == 3 ? kUnknown : static_cast<int32_t>(6 + i * i % 44));
  return TokenSource::from_ids(std::move(ids));
}

std::unique_ptr<BatchSource> windows(const TokenSource& source, const BatchOptions& options) {
  return std::make_unique<WindowBatches>(source, MaskedBatches::options_for_text(options));
}

/// A batch with the original ids back in their places.
std::vector<int32_t> unmasked(const Batch& b) {
  std::vector<int32_t> ids = b.ids("tokens");
  for (size_t i = 0; i < ids.size(); ++i)
    if (b.ids("targets")[i] != kIgnoreId) ids[i] = b.ids("targets")[i];
  return ids;
}

TEST(MaskedBatches, RowsAreTheTextBetweenClsAndSep) {
  const TokenSource source = text_of(100);  // the last row of the epoch is short
  const BatchOptions options = batch_options(3, 12, Sampling::kSequential);
  const auto text = windows(source, options);
  MaskOptions mask = mask_options();
  mask.has_types = true;
  const MaskedBatches batches(windows(source, options), options, mask);
  Batch plain, b;
  for (int64_t i = 0; i < 2 * batches.batches_per_pass(); ++i) {
    text->fill(i, plain);
    batches.fill(i, b);
    const std::vector<int32_t> ids = unmasked(b);
    ASSERT_EQ(ids.size(), 3 * 12u);
    ASSERT_EQ(b.ids("types"), std::vector<int32_t>(3 * 12, 0));
    ASSERT_EQ(b.ids("lengths").size(), 3u);
    int64_t scored = 0;
    for (size_t row = 0; row < 3; ++row) {
      std::vector<int32_t> expected;
      for (size_t k = 0; k < 10 && plain.ids("targets")[row * 10 + k] != kIgnoreId; ++k)
        expected.push_back(plain.ids("tokens")[row * 10 + k]);
      if (!expected.empty()) {
        expected.insert(expected.begin(), kCls);
        expected.push_back(kSep);
      }
      EXPECT_EQ(b.ids("lengths")[row], std::max<int32_t>(1, static_cast<int32_t>(expected.size())));
      const size_t length = expected.size();
      expected.resize(12, kPad);
      const auto begin = static_cast<std::ptrdiff_t>(row * 12);
      ASSERT_EQ(std::vector<int32_t>(ids.begin() + begin, ids.begin() + begin + 12), expected);
      int64_t of_row = 0;
      for (size_t k = 0; k < 12; ++k) {
        const int32_t target = b.ids("targets")[row * 12 + k];
        if (target == kIgnoreId) continue;
        ++of_row;
        EXPECT_GE(target, 6);  // no special token
        EXPECT_TRUE(k > 0 && k + 1 < length);
      }
      EXPECT_EQ(of_row > 0, length > 0);
      scored += of_row;
    }
    EXPECT_EQ(b.count, scored);
  }
  batches.fill(batches.batches_per_pass() - 1, b);  // 10 rows of 10 tokens in batches of 3
  EXPECT_EQ(b.ids("lengths"), (std::vector<int32_t>{11, 1, 1}));
}

// Flat rows have the tokens and masks of padded ones.
TEST(MaskedBatches, FlatRowsAreThePaddedOnesWithoutPadding) {
  const TokenSource source = text_of(700);
  std::vector<Document> documents;
  for (int64_t at = 0, length = 2; at + length <= 700; at += length, length = 2 + length * 7 % 19)
    documents.push_back({at, at + length});
  BatchOptions options = batch_options(5, 12, Sampling::kDocuments);
  const auto make = [&] {
    return MaskedBatches(std::make_unique<DocumentBatches>(
                             source, documents, MaskedBatches::options_for_text(options)),
                         options, mask_options());
  };
  const MaskedBatches padded = make();
  options.flat = true;
  options.lengths = flat_lengths(5 * 12);
  const MaskedBatches flat = make();
  Batch a, b;
  size_t saved = 0;
  for (int64_t i = 0; i < 2 * flat.batches_per_pass(); ++i) {
    flat.fill(i, a);
    padded.fill(i, b);
    EXPECT_EQ(a.count, b.count);
    const auto rows = a.rows(1), padded_rows = b.rows(1);
    ASSERT_EQ(rows.size(), padded_rows.size());
    for (size_t r = 0; r < rows.size(); ++r)
      for (size_t t = 0; t < rows[r].tokens; ++t)
        for (const char* name : {"tokens", "targets"})
          EXPECT_EQ(a.ids(name)[rows[r].begin + t], b.ids(name)[padded_rows[r].begin + t]);
    ASSERT_GE(b.positions(), a.positions());
    saved += b.positions() - a.positions();
  }
  EXPECT_GT(saved, 0u);
}

TEST(MaskedBatches, PartsAreTheOnesThatWereAskedFor) {
  const TokenSource source = text_of(4000);
  const BatchOptions options = batch_options(16, 130);
  const MaskedBatches batches(windows(source, options), options, mask_options());
  int64_t text = 0, chosen = 0, masked = 0, same = 0, random = 0;
  std::map<int32_t, int64_t> drawn;
  Batch b;
  for (int64_t i = 0; i < 60; ++i) {
    batches.fill(i, b);
    const std::vector<int32_t> ids = unmasked(b);
    for (size_t k = 0; k < ids.size(); ++k) {
      if (ids[k] > kUnknown) ++text;
      if (b.ids("targets")[k] == kIgnoreId) continue;
      ++chosen;
      if (b.ids("tokens")[k] == kMask) ++masked;
      if (b.ids("tokens")[k] == b.ids("targets")[k]) ++same;
      if (b.ids("tokens")[k] != kMask && b.ids("tokens")[k] != b.ids("targets")[k])
        ++random, ++drawn[b.ids("tokens")[k]];
    }
  }
  // Five standard deviations of a binomial distribution.
  const auto expect_part = [](int64_t count, int64_t of, double part) {
    const auto n = static_cast<double>(of);
    EXPECT_NEAR(static_cast<double>(count), n * part, 5 * std::sqrt(n * part * (1 - part)));
  };
  expect_part(chosen, text, 0.15);
  expect_part(masked, chosen, 0.8);
  // The vocabulary has 0 and 6 to 49, so one random token of 45 is the same by chance.
  expect_part(random, chosen, 0.1 * 44 / 45);
  expect_part(same, chosen, 0.1 + 0.1 / 45);
  EXPECT_EQ(drawn.size(), 45u);
  for (const auto& [id, count] : drawn) {
    EXPECT_TRUE(id == 0 || id > kUnknown) << id;
    expect_part(count, random, 1.0 / 45);
  }
}

TEST(MaskedBatches, ProbabilityOneChoosesAllAndNoRowIsWithoutTarget) {
  const TokenSource source = text_of(300);
  const BatchOptions options = batch_options(4, 7);
  MaskOptions mask = mask_options();
  mask.probability = 1;
  mask.masked = 1, mask.randomised = 0;
  Batch b;
  MaskedBatches(windows(source, options), options, mask).fill(0, b);
  for (size_t k = 0; k < b.ids("tokens").size(); ++k)
    EXPECT_EQ(b.ids("targets")[k] != kIgnoreId, b.ids("tokens")[k] == kMask);
  EXPECT_GE(b.count, 4 * 4);  // all but unknown ones

  mask.probability = 1e-9;  // each row gets one by the rule, evenly over the places
  const MaskedBatches rare(windows(source, options), options, mask);
  std::map<size_t, int> places;
  for (int64_t i = 0; i < 500; ++i) {
    rare.fill(i, b);
    EXPECT_EQ(b.count, 4);
    for (size_t row = 0; row < 4; ++row) {
      size_t targets = 0;
      for (size_t k = 0; k < 7; ++k)
        if (b.ids("targets")[row * 7 + k] != kIgnoreId) ++targets, ++places[k];
      EXPECT_EQ(targets, b.ids("lengths")[row] > 1 ? 1u : 0u);
    }
  }
  for (size_t k = 1; k <= 5; ++k) EXPECT_NEAR(places[k], 400, 100) << k;
}

TEST(MaskedBatches, ARowOfSpecialTokensHasNoTarget) {
  const TokenSource source = TokenSource::from_ids(std::vector<int32_t>(20, kUnknown));
  const BatchOptions options = batch_options(2, 6);
  const MaskedBatches batches(windows(source, options), options, mask_options());
  Batch b;
  batches.fill(0, b);
  EXPECT_EQ(b.count, 0);
  EXPECT_EQ(b.ids("lengths"), (std::vector<int32_t>{6, 6}));
}

TEST(MaskedBatches, WholeWordsAreChosenOrNot) {
  // Words of one to four tokens: those from 30 on continue the word before them.
  std::vector<int32_t> ids;
  std::vector<bool> continues(kVocab);
  for (int32_t id = 30; id < kVocab; ++id) continues[static_cast<size_t>(id)] = true;
  for (int32_t i = 0; i < 3000; ++i) {
    ids.push_back(i % 23 == 0 ? kUnknown : 6 + i % 24);
    for (int32_t k = 0; k < i * i % 4; ++k) ids.push_back(30 + (i + k) % 20);
  }
  const TokenSource source = TokenSource::from_ids(ids);
  const BatchOptions options = batch_options(8, 66);
  MaskOptions mask = mask_options();
  mask.continues_word = continues;
  mask.special_ids.push_back(30);  // a special token inside a word parts it
  const MaskedBatches batches(windows(source, options), options, mask);
  Batch b;
  int64_t words = 0, chosen = 0;
  for (int64_t i = 0; i < 100; ++i) {
    batches.fill(i, b);
    const std::vector<int32_t> original = unmasked(b);
    for (size_t k = 0; k < original.size(); ++k) {
      const bool is_text = original[k] > kUnknown && original[k] != 30;
      const bool is_scored = b.ids("targets")[k] != kIgnoreId;
      if (!is_text) {
        ASSERT_FALSE(is_scored);
        continue;
      }
      const int32_t before = original[k - 1];
      const bool inside = original[k] > 30 && before > kUnknown && before != 30;
      if (inside) {
        ASSERT_EQ(is_scored, b.ids("targets")[k - 1] != kIgnoreId) << i << " " << k;
      } else {
        ++words;
        chosen += is_scored;
      }
    }
  }
  const auto n = static_cast<double>(words);
  EXPECT_NEAR(static_cast<double>(chosen), 0.15 * n, 5 * std::sqrt(n * 0.15 * 0.85));
}

TEST(MaskedBatches, TokensThatContinueWords) {
  const auto bpe = train_bpe("a banana and a bandana. bandanas and bananas, and", 266);
  const std::vector<bool> of_bpe = ids_that_continue_words(*bpe);
  ASSERT_EQ(of_bpe.size(), 266u);
  for (int32_t id = 0; id < 265; ++id) {
    const std::string text = bpe->decode(std::vector<int32_t>{id});
    EXPECT_EQ(of_bpe[static_cast<size_t>(id)], std::isalnum(static_cast<unsigned char>(text[0])) ||
                                                   static_cast<unsigned char>(text[0]) >= 0x80)
        << text;
  }
  EXPECT_FALSE(of_bpe[265]);  // the end of the text

  const fs::path minilm = test::models_folder() / "minilm";
  if (!fs::exists(minilm / "tokenizer.json"))
    GTEST_SKIP() << minilm << " has no tokenizer.json; $BRRR_MODELS names the folder with minilm";
  const std::vector<bool> of_bert = ids_that_continue_words(*load_tokenizer(minilm));
  const std::string names = read_file(minilm / "vocab.txt");
  size_t id = 0, continuing = 0;
  for (size_t at = 0; at < names.size(); ++id) {
    const size_t end = names.find('\n', at);
    const std::string name = names.substr(at, end - at);
    at = end + 1;
    // Pieces like "##!" never occur, because punctuation stands alone.
    const bool is_punctuation = name.size() == 3 && std::ispunct(name[2]);
    if (is_punctuation) continue;
    ASSERT_EQ(of_bert[id], name.size() > 2 && name.starts_with("##")) << name;
    continuing += of_bert[id];
  }
  EXPECT_EQ(id, 30522u);
  EXPECT_GT(continuing, 5000u);
}

TEST(MaskedBatches, EpochsMaskAnewAndARestoredLoaderContinues) {
  const TokenSource source = text_of(500);
  LoaderOptions options;
  static_cast<BatchOptions&>(options) = batch_options(4, 18);
  const auto make = [&](int64_t workers) {
    options.workers = workers;
    return std::make_unique<Loader>(
        std::make_unique<MaskedBatches>(windows(source, options), options, mask_options()),
        options);
  };
  const auto first = make(3);
  for (int i = 0; i < 21; ++i) first->next();
  const auto second = make(0);
  second->restore(LoaderState::from_json(first->state().to_json()));
  for (int i = 0; i < 40; ++i) {
    const Batch &a = first->next(), &b = second->next();
    ASSERT_EQ(a.ids("tokens"), b.ids("tokens"));
    ASSERT_EQ(a.ids("targets"), b.ids("targets"));
    ASSERT_EQ(a.ids("lengths"), b.ids("lengths"));
  }
  // The same text in the same order, once per pass.
  const BatchOptions in_order = batch_options(4, 18, Sampling::kSequential);
  const MaskedBatches batches(windows(source, in_order), in_order, mask_options());
  Batch a, b;
  batches.fill(0, a);
  batches.fill(batches.batches_per_pass(), b);
  EXPECT_EQ(unmasked(a), unmasked(b));
  EXPECT_NE(a.ids("targets"), b.ids("targets"));
  BatchOptions other = in_order;
  other.seed = 8;
  MaskedBatches(windows(source, other), other, mask_options()).fill(0, b);
  EXPECT_EQ(unmasked(a), unmasked(b));
  EXPECT_NE(a.ids("targets"), b.ids("targets"));
}

TEST(MaskedBatches, AStepHasTheSameMasksHoweverItIsCut) {
  const TokenSource source = text_of(700);
  std::vector<Document> documents;
  for (int64_t at = 0; at < 700; at += 20) documents.push_back({at, at + 3 + at * 7 % 17});
  const auto rows_of = [&](int64_t batch) {
    BatchOptions options = batch_options(batch, 16, Sampling::kGroupByLength);
    options.lengths = quarter_lengths(16);
    options.batches_per_step = 12 / batch;
    const MaskedBatches batches(std::make_unique<DocumentBatches>(
                                    source, documents, MaskedBatches::options_for_text(options)),
                                options, mask_options());
    std::vector<std::vector<int32_t>> rows;
    Batch b;
    for (int64_t i = 0; i < 3 * options.batches_per_step; ++i) {
      batches.fill(i, b);
      const size_t T = b.ids("tokens").size() / static_cast<size_t>(batch);
      EXPECT_TRUE(T == 8 || T == 16) << T;
      for (size_t row = 0; row < static_cast<size_t>(batch); ++row) {
        auto& ids = rows.emplace_back();
        for (size_t k = 0; k < T; ++k)
          if (b.ids("targets")[row * T + k] != kIgnoreId)
            ids.insert(ids.end(), {static_cast<int32_t>(k), b.ids("tokens")[row * T + k],
                                   b.ids("targets")[row * T + k]});
      }
    }
    return rows;
  };
  const auto whole = rows_of(12);
  EXPECT_EQ(rows_of(4), whole);
  EXPECT_EQ(rows_of(1), whole);
}

TEST(MaskedBatches, FingerprintsTellTextsAndMasksApart) {
  const TokenSource source = text_of(200), other = text_of(201);
  const BatchOptions options = batch_options(2, 10);
  const auto print = [&](const TokenSource& text, const MaskOptions& mask) {
    return MaskedBatches(windows(text, options), options, mask).fingerprint();
  };
  const MaskOptions mask = mask_options();
  MaskOptions rare = mask, whole_words = mask;
  rare.probability = 0.1;
  whole_words.continues_word.assign(kVocab, false);
  EXPECT_EQ(print(source, mask), print(source, mask));
  EXPECT_NE(print(source, mask), print(other, mask));
  EXPECT_NE(print(source, mask), print(source, rare));
  EXPECT_NE(print(source, mask), print(source, whole_words));
}

TEST(MaskedBatches, OptionsThatCannotBe) {
  const TokenSource source = text_of(100);
  const BatchOptions options = batch_options(2, 10);
  EXPECT_USER_ERROR(MaskedBatches::options_for_text(batch_options(2, 2)),
                    "the context is 2 tokens; [CLS], [SEP] and a token of text need at least 3");
  const auto make = [&](auto change) {
    MaskOptions mask = mask_options();
    change(mask);
    MaskedBatches(windows(source, options), options, mask);
  };
  EXPECT_USER_ERROR((make([](MaskOptions& m) { m.probability = 0; }), 0),
                    "tokens are masked with probability 0; expected more than 0 and at most 1");
  EXPECT_USER_ERROR((make([](MaskOptions& m) { m.probability = std::nan(""); }), 0),
                    "more than 0 and at most 1");
  EXPECT_USER_ERROR((make([](MaskOptions& m) { m.masked = 0.8, m.randomised = 0.3; }), 0),
                    "0.8 become [MASK] and 0.3 a random token");
  EXPECT_USER_ERROR((make([](MaskOptions& m) {
                       for (int32_t id = 0; id < kVocab; ++id) m.special_ids.push_back(id);
                     }),
                     0),
                    "all 50 tokens of the vocabulary are special");
}

}  // namespace
}  // namespace brrr::io
