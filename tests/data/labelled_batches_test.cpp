// Batches of encoded examples: each example once per pass with its own label, rows that fill a pass
// are not scored, and a step has the same rows however it is cut.

#include "data/labelled/labelled_batches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "data/document_batches.h"
#include "data/loader.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

constexpr int32_t kPadding = 9;

/// Rows of 3 to `longest` tokens. The first token tells which row it is, and labels follow from it.
std::vector<EncodedRow> some_rows(size_t count, int64_t longest, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<EncodedRow> rows;
  for (size_t i = 0; i < count; ++i) {
    EncodedRow row;
    row.ids.assign(3 + random() % static_cast<uint32_t>(longest - 2), 7);
    row.ids[0] = 100 + static_cast<int32_t>(i);
    row.types.assign(row.ids.size(), 0);
    row.types.back() = 1;
    row.label = static_cast<int32_t>(i % 3);
    row.values = {static_cast<float>(i), 0.5f};
    row.tags.assign(row.ids.size(), kIgnoreId);
    row.tags[1] = static_cast<int32_t>(i % 5);
    rows.push_back(std::move(row));
  }
  return rows;
}

LoaderOptions row_options(Sampling mode, int64_t batch, int64_t context) {
  LoaderOptions o;
  o.mode = mode;
  o.batch = batch;
  o.context = context;
  o.vocab = 100'000;
  o.seed = 11;
  return o;
}

constexpr LabelKind kKinds[] = {LabelKind::kClasses, LabelKind::kValues, LabelKind::kTags};
constexpr Sampling kOrders[] = {Sampling::kEpoch, Sampling::kGroupByLength, Sampling::kSequential};

// Every tensor of every batch against the row that it must hold.
TEST(LabelledBatches, APassHasEveryRowOnce) {
  const std::vector<EncodedRow> rows = some_rows(103, 40);
  for (const Sampling mode : kOrders)
    for (const LabelKind kind : kKinds) {
      LoaderOptions options = row_options(mode, 4, 40);
      options.lengths = quarter_lengths(40);
      options.batches_per_step = 2;
      const LabelledBatches batches(rows, "rows", options, {kind, kPadding, true});
      EXPECT_EQ(batches.batches_per_pass(), 26);
      for (int64_t pass = 0; pass < 2; ++pass) {
        std::vector<size_t> order;
        Batch b;
        for (int64_t i = 0; i < 26; ++i) {
          batches.fill(26 * pass + i, b);
          EXPECT_EQ(batches.epoch_of(26 * pass + i), pass);
          const auto held = batches.rows(26 * pass + i);
          order.insert(order.end(), held.begin(), held.end());
          const size_t T = b.ids("tokens").size() / 4;
          EXPECT_TRUE(T == 16 || T == 24 || T == 32 || T == 40) << T;
          ASSERT_EQ(b.ids("types").size(), 4 * T);
          ASSERT_EQ(b.ids("lengths").size(), 4u);
          ASSERT_EQ(b.ids("targets").size(), kind == LabelKind::kTags ? 4 * T : 4);
          ASSERT_EQ(b.values("values").size(), kind == LabelKind::kValues ? 8u : 0u);
          size_t longest = 1;
          for (size_t r = 0; r < 4; ++r) {
            EncodedRow row;  // an empty one
            row.values = {0, 0};
            if (r < held.size()) row = rows[held[r]];
            EXPECT_EQ(b.ids("lengths")[r],
                      std::max<int32_t>(1, static_cast<int32_t>(row.ids.size())));
            longest = std::max(longest, row.ids.size());
            row.ids.resize(T, kPadding);
            row.types.resize(T, 0);
            row.tags.resize(T, kIgnoreId);
            for (size_t k = 0; k < T; ++k) {
              ASSERT_EQ(b.ids("tokens")[r * T + k], row.ids[k]);
              ASSERT_EQ(b.ids("types")[r * T + k], row.types[k]);
              if (kind == LabelKind::kTags) {
                ASSERT_EQ(b.ids("targets")[r * T + k], row.tags[k]);
              }
            }
            if (kind == LabelKind::kClasses) {
              EXPECT_EQ(b.ids("targets")[r], row.label);
            }
            if (kind == LabelKind::kValues) {
              EXPECT_EQ(b.ids("targets")[r], r < held.size() ? 0 : kIgnoreId);
              EXPECT_EQ(
                  (std::vector<float>{b.values("values")[2 * r], b.values("values")[2 * r + 1]}),
                  row.values);
            }
          }
          if (i < 25) {
            EXPECT_TRUE(T == 16 || longest > T - 8) << T << " for " << longest;
          }
          EXPECT_EQ(b.count, static_cast<int64_t>(held.size()));  // one tag a row, too
        }
        EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 103u);
        EXPECT_EQ(order.size(), 103u);
        EXPECT_EQ(std::is_sorted(order.begin(), order.end()), mode == Sampling::kSequential);
        if (mode == Sampling::kGroupByLength) {  // the longest opens the pass
          for (const EncodedRow& row : rows) EXPECT_LE(row.ids.size(), rows[order[0]].ids.size());
        }
      }
    }
}

/// Expects the rows of a flat batch to be those of the padded one, without padding.
void expect_same_rows(const Batch& flat, const Batch& padded, const BatchOptions& options) {
  const std::vector<Batch::Row> rows = flat.rows(1), padded_rows = padded.rows(1);
  ASSERT_EQ(rows.size(), padded_rows.size());
  const size_t N = flat.positions();
  EXPECT_NE(std::ranges::find(options.lengths, static_cast<int64_t>(N)), options.lengths.end());
  EXPECT_TRUE(flat.ids("lengths").empty());
  ASSERT_EQ(flat.ids("positions").size(), N);
  EXPECT_EQ(flat.count, padded.count);
  EXPECT_EQ(flat.values("values"), padded.values("values"));
  size_t end = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    const auto [begin, tokens] = rows[b];
    EXPECT_EQ(begin, end);
    end += tokens;
    const bool is_empty = tokens == 0;
    ASSERT_EQ(is_empty ? 1 : tokens, padded_rows[b].tokens);
    for (size_t i = 0; i < tokens; ++i) {
      EXPECT_EQ(flat.ids("positions")[begin + i], static_cast<int32_t>(i));
      for (const char* name : {"tokens", "types", "targets"})
        if (padded.ids(name).size() == padded.positions()) {
          EXPECT_EQ(flat.ids(name)[begin + i], padded.ids(name)[padded_rows[b].begin + i]) << name;
        }
    }
  }
  if (padded.ids("targets").size() != padded.positions()) {
    EXPECT_EQ(flat.ids("targets"), padded.ids("targets"));
    return;
  }
  for (size_t i = end; i < N; ++i) EXPECT_EQ(flat.ids("targets")[i], kIgnoreId);
}

TEST(LabelledBatches, FlatRowsAreThePaddedOnesWithoutPadding) {
  const std::vector<EncodedRow> rows = some_rows(103, 40);
  for (const Sampling mode : kOrders)
    for (const LabelKind kind : kKinds) {
      LoaderOptions options = row_options(mode, 4, 40);
      options.batches_per_step = 2;
      const LabelledBatches padded(rows, "rows", options, {kind, kPadding, true});
      options.flat = true;
      options.lengths = flat_lengths(4 * 40);
      const LabelledBatches flat(rows, "rows", options, {kind, kPadding, true});
      EXPECT_EQ(flat.batches_per_pass(), padded.batches_per_pass());
      EXPECT_EQ(flat.fingerprint(), padded.fingerprint());
      Batch a, b;
      for (int64_t i = 0; i < 2 * flat.batches_per_pass(); ++i) {
        flat.fill(i, a);
        padded.fill(i, b);
        expect_same_rows(a, b, options);
      }
    }
}

TEST(RowOrder, FlatLengthsRoundUpByAnEighthAtMost) {
  for (const int64_t most : {1, 15, 16, 100, 4096, 12345, 1 << 20}) {
    const std::vector<int64_t> lengths = flat_lengths(most);
    EXPECT_EQ(lengths.back(), most);
    EXPECT_LE(lengths.size(), 56u);
    EXPECT_LE(lengths[0], std::max<int64_t>(16, most / 64 + most / 512 + 1));
    for (size_t i = 1; i < lengths.size(); ++i) {
      EXPECT_GT(lengths[i], lengths[i - 1]);
      EXPECT_LE(lengths[i] - lengths[i - 1], std::max<int64_t>(16, lengths[i - 1] / 8));
    }
  }
}

TEST(LabelledBatches, EpochsHaveOrdersOfTheirOwn) {
  const std::vector<EncodedRow> rows = some_rows(64, 20);
  for (const Sampling mode : {Sampling::kEpoch, Sampling::kGroupByLength}) {
    LoaderOptions options = row_options(mode, 8, 20);
    const LabelledBatches batches(rows, "rows", options, {});
    Batch a, b;
    batches.fill(1, a);
    batches.fill(1 + batches.batches_per_pass(), b);
    EXPECT_NE(a.ids("tokens"), b.ids("tokens"));
    EXPECT_TRUE(a.ids("types").empty());
    options.seed = 12;
    LabelledBatches(rows, "rows", options, {}).fill(1, b);
    EXPECT_NE(a.ids("tokens"), b.ids("tokens"));
  }
}

TEST(LabelledBatches, AStepHasTheSameRowsHoweverItIsCut) {
  const std::vector<EncodedRow> rows = some_rows(107, 30);
  for (const Sampling mode : kOrders) {
    const auto steps_of = [&](int64_t batch) {
      LoaderOptions options = row_options(mode, batch, 30);
      options.batches_per_step = 12 / batch;
      const LabelledBatches batches(rows, "rows", options, {});
      std::vector<size_t> order;
      EXPECT_EQ(batches.batches_per_pass(), 9 * options.batches_per_step);
      for (int64_t i = 0; i < 2 * batches.batches_per_pass(); ++i) {
        const auto held = batches.rows(i);
        order.insert(order.end(), held.begin(), held.end());
      }
      return order;
    };
    const auto whole = steps_of(12);
    for (const int64_t batch : {1, 2, 3, 6}) EXPECT_EQ(steps_of(batch), whole) << batch;
  }
}

TEST(LabelledBatches, ARestoredLoaderContinues) {
  const std::vector<EncodedRow> rows = some_rows(90, 24);
  for (const Sampling mode : kOrders) {
    LoaderOptions options = row_options(mode, 4, 24);
    const auto make = [&](int64_t workers) {
      options.workers = workers;
      return std::make_unique<Loader>(
          std::make_unique<LabelledBatches>(rows, "rows", options,
                                            LabelledBatchOptions{LabelKind::kValues, 0, true}),
          options);
    };
    const auto first = make(2);
    for (int i = 0; i < 31; ++i) first->next();
    const auto second = make(0);
    second->restore(LoaderState::from_json(first->state().to_json()));
    for (int i = 0; i < 40; ++i) {
      const Batch &a = first->next(), &b = second->next();
      ASSERT_EQ(a.ids("tokens"), b.ids("tokens"));
      ASSERT_EQ(a.values("values"), b.values("values"));
      ASSERT_EQ(a.ids("lengths"), b.ids("lengths"));
    }
  }
}

TEST(LabelledBatches, FingerprintsSeeIdsTypesAndLabels) {
  const std::vector<EncodedRow> rows = some_rows(10, 12);
  const LoaderOptions options = row_options(Sampling::kEpoch, 2, 12);
  const auto print = [&](auto change, LabelKind kind = LabelKind::kClasses) {
    std::vector<EncodedRow> changed = rows;
    change(changed[7]);
    return LabelledBatches(changed, "rows", options, {kind, 0, true}).fingerprint();
  };
  const auto nothing = [](EncodedRow&) {};
  const std::string original = print(nothing);
  EXPECT_EQ(original, print(nothing));
  EXPECT_NE(original, print([](EncodedRow& row) { row.ids[1] = 8; }));
  EXPECT_NE(original, print([](EncodedRow& row) { row.types[1] = 1; }));
  EXPECT_NE(original, print([](EncodedRow& row) { row.label = 2; }));
  EXPECT_NE(original, print([](EncodedRow& row) { row.values[0] += 1; }));
  EXPECT_NE(original, print([](EncodedRow& row) { row.tags[1] = 7; }));
  EXPECT_NE(original, print(nothing, LabelKind::kTags));
}

TEST(LabelledBatches, RowsThatDoNotFit) {
  std::vector<EncodedRow> rows = some_rows(5, 12);
  const auto make = [&](Sampling mode, int64_t context = 12) {
    LabelledBatches(rows, "f.tsv", row_options(mode, 2, context), {});
    return 0;
  };
  EXPECT_USER_ERROR(make(Sampling::kRandom), "sampling 'random' does not work with labelled texts");
  EXPECT_USER_ERROR(make(Sampling::kEpoch, 2), "f.tsv: row 1 has");
  rows[3].ids.clear();
  rows[3].types.clear();
  EXPECT_USER_ERROR(make(Sampling::kEpoch),
                    "f.tsv: row 4 has 0 tokens; expected 1 to 12, the context");
  rows[2].ids[0] = 100'000;
  EXPECT_USER_ERROR(make(Sampling::kEpoch),
                    "f.tsv: row 3 has the token 100000; the vocabulary has "
                    "100000, numbered from 0");
  rows.clear();
  EXPECT_USER_ERROR(make(Sampling::kEpoch), "f.tsv has no rows");
}

}  // namespace
}  // namespace brrr::io
