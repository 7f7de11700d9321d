// Batches of pairs: both sequences of a pair in one batch, answers alone scored, a step with the
// same pairs however it is cut, empty pairs at the end of a pass.

#include "data/preference_batches.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "data/hold_out.h"

namespace brrr::io {
namespace {

/// Pairs of given lengths (tokens of the prompt, the chosen and the rejected answer); ids are
/// places.
struct CountedPairs {
  explicit CountedPairs(const std::vector<std::array<int64_t, 3>>& lengths)
      : source(TokenSource::from_ids({})) {
    const auto add = [&](int64_t prompt, int64_t answer) {
      const int64_t begin = std::ssize(ids);
      for (int64_t i = 0; i < prompt + answer; ++i) {
        ids.push_back(static_cast<int32_t>(ids.size()));
        learnt.push_back(i < prompt ? 0 : 1);
      }
      return Document{begin, std::ssize(ids)};
    };
    for (const auto& [prompt, chosen, rejected] : lengths) {
      const Document first = add(prompt, chosen);
      pairs.push_back({first, add(prompt, rejected)});
    }
    source = TokenSource::from_ids(ids);
    for (size_t i = 0; i < 2 * pairs.size(); ++i) reference.push_back(-static_cast<float>(i) - 1);
  }
  PreferenceBatches batches(const BatchOptions& options) const {
    return {source, pairs, learnt, reference, options};
  }
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;
  std::vector<PreferencePair> pairs;
  std::vector<float> reference;
  TokenSource source;
};

BatchOptions options_of_pairs(Sampling mode, int64_t batch, int64_t batches_per_step = 1) {
  BatchOptions o;
  o.mode = mode;
  o.batch = batch;
  o.context = 32;
  o.vocab = 1 << 20;
  o.seed = 7;
  o.flat = true;
  o.sequences_per_row = 2;
  o.lengths = flat_lengths(batch * o.context);
  o.batches_per_step = batches_per_step;
  return o;
}

CountedPairs five_pairs() {
  return CountedPairs({{3, 5, 2}, {1, 1, 4}, {6, 2, 2}, {2, 9, 1}, {4, 3, 3}});
}

TEST(PreferenceBatches, HoldBothSequencesOfAPair) {
  const CountedPairs five = five_pairs();
  const PreferenceBatches batches = five.batches(options_of_pairs(Sampling::kSequential, 2));
  EXPECT_EQ(batches.batches_per_pass(), 3);
  Batch batch;
  batches.fill(1, batch);  // pairs 2 and 3
  EXPECT_EQ(batch.tensors[0].name, "tokens");
  EXPECT_EQ(batch.count, 2);
  EXPECT_EQ(batch.ids("starts"), (std::vector<int32_t>{0, 7, 14, 24, 26}));
  EXPECT_EQ(batch.values("reference"), (std::vector<float>{-5, -6, -7, -8}));
  const std::vector<Batch::Row> rows = batch.rows(1);
  for (size_t r = 0; r < rows.size(); ++r) {
    const PreferencePair& pair = five.pairs[2 + r / 2];
    const Document& document = r % 2 == 0 ? pair.chosen : pair.rejected;
    ASSERT_EQ(static_cast<int64_t>(rows[r].tokens), document.end - document.begin - 1);
    for (size_t i = 0; i < rows[r].tokens; ++i) {
      const auto place = document.begin + static_cast<int64_t>(i);
      EXPECT_EQ(batch.ids("tokens")[rows[r].begin + i], place);
      const bool scored = five.learnt[static_cast<size_t>(place) + 1] != 0;
      EXPECT_EQ(batch.ids("targets")[rows[r].begin + i], scored ? place + 1 : kIgnoreId);
      EXPECT_EQ(batch.ids("positions")[rows[r].begin + i], static_cast<int32_t>(i));
    }
  }
}

TEST(PreferenceBatches, EndWithEmptyPairs) {
  const CountedPairs five = five_pairs();
  const PreferenceBatches batches = five.batches(options_of_pairs(Sampling::kSequential, 2));
  Batch batch;
  batches.fill(2, batch);
  EXPECT_EQ(batch.count, 1);
  EXPECT_EQ(batch.ids("starts"), (std::vector<int32_t>{0, 6, 12, 12, 12}));
  EXPECT_EQ(batch.values("reference"), (std::vector<float>{-9, -10, 0, 0}));
}

/// The first token of each pair in a batch.
std::multiset<int32_t> first_tokens(const PreferenceBatches& batches, int64_t index) {
  Batch batch;
  batches.fill(index, batch);
  std::multiset<int32_t> all;
  const std::vector<Batch::Row> rows = batch.rows(1);
  for (size_t r = 0; r < rows.size(); r += 2)
    if (rows[r].tokens > 0) all.insert(batch.ids("tokens")[rows[r].begin]);
  return all;
}

TEST(PreferenceBatches, AStepHasTheSamePairsHoweverItIsCut) {
  const CountedPairs five = five_pairs();
  for (const Sampling mode : {Sampling::kDocuments, Sampling::kGroupByLength}) {
    const PreferenceBatches whole = five.batches(options_of_pairs(mode, 4)),
                            cut = five.batches(options_of_pairs(mode, 1, 4));
    EXPECT_EQ(whole.fingerprint(), cut.fingerprint());
    std::multiset<int32_t> epoch;
    for (int64_t step = 0; step < 2; ++step) {
      std::multiset<int32_t> of_parts;
      for (int64_t part = 0; part < 4; ++part) of_parts.merge(first_tokens(cut, 4 * step + part));
      EXPECT_EQ(of_parts, first_tokens(whole, step));
      epoch.merge(of_parts);
    }
    EXPECT_EQ(epoch.size(), five.pairs.size());
    EXPECT_EQ(std::set<int32_t>(epoch.begin(), epoch.end()).size(), five.pairs.size());
  }
}

TEST(PreferenceBatches, TheFingerprintTellsDataApart) {
  const CountedPairs five = five_pairs();
  const BatchOptions options = options_of_pairs(Sampling::kSequential, 1);
  const CountedPairs other({{3, 5, 2}, {1, 1, 4}, {6, 2, 2}, {2, 9, 1}, {4, 3, 4}});
  EXPECT_NE(five.batches(options).fingerprint(), other.batches(options).fingerprint());
  CountedPairs marks = five_pairs();
  marks.learnt[3] = 0;
  EXPECT_NE(five.batches(options).fingerprint(), marks.batches(options).fingerprint());
  CountedPairs scores = five_pairs();
  scores.reference.clear();
  EXPECT_EQ(five.batches(options).fingerprint(), scores.batches(options).fingerprint());
}

TEST(HeldOutRows, AreEveryKth) {
  const auto split = HeldOutRows(0.3).split(std::vector<int>{1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(split.train, (std::vector<int>{1, 2, 4, 5, 7}));
  EXPECT_EQ(split.validation, (std::vector<int>{3, 6}));
  EXPECT_TRUE(HeldOutRows(1e-300).split(std::vector<int>{1, 2}).validation.empty());
}

}  // namespace
}  // namespace brrr::io
