// Rows of whole documents: every token a target once per epoch, nothing across documents, batches
// of similar length, resumable.

#include "data/document_batches.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "data/loader.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

/// Documents of the given lengths; ids are places, so that a target is its input plus one.
struct Counting {
  explicit Counting(const std::vector<int64_t>& lengths) : source(TokenSource::from_ids({})) {
    std::vector<int32_t> ids;
    for (const int64_t length : lengths) {
      documents.push_back(
          {static_cast<int64_t>(ids.size()), static_cast<int64_t>(ids.size()) + length});
      for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(ids.size()));
    }
    source = TokenSource::from_ids(std::move(ids));
  }
  TokenSource source;
  std::vector<Document> documents;
};

std::vector<int64_t> mixed_lengths(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i)
    lengths.push_back(random() % 8 == 0 ? 40 + random() % 60 : random() % 16);  // some 0 and 1
  return lengths;
}

LoaderOptions options_of(Sampling mode, int64_t batch, int64_t context) {
  LoaderOptions o;
  o.mode = mode;
  o.batch = batch;
  o.context = context;
  o.vocab = 1 << 30;
  o.seed = 42;
  o.lengths = quarter_lengths(context);
  return o;
}

TEST(DocumentBatches, QuartersAreMultiplesOfEightUpToTheContext) {
  EXPECT_EQ(quarter_lengths(64), (std::vector<int64_t>{16, 32, 48, 64}));
  EXPECT_EQ(quarter_lengths(1024), (std::vector<int64_t>{256, 512, 768, 1024}));
  EXPECT_EQ(quarter_lengths(50), (std::vector<int64_t>{16, 32, 40, 50}));
  EXPECT_EQ(quarter_lengths(5), (std::vector<int64_t>{5}));
  EXPECT_EQ(quarter_lengths(1), (std::vector<int64_t>{1}));
}

TEST(DocumentBatches, FindsDocumentsByTheirLastToken) {
  const auto ends = [](const std::vector<int32_t>& ids) {
    std::vector<int64_t> list;
    const TokenSource source = TokenSource::from_ids(ids);
    for (const Document& d : find_documents(source, 9)) {
      EXPECT_EQ(d.begin, list.empty() ? 0 : list.back());
      list.push_back(d.end);
    }
    return list;
  };
  EXPECT_EQ(ends({1, 2, 9, 3, 9, 9, 4}), (std::vector<int64_t>{3, 5, 6, 7}));
  EXPECT_EQ(ends({1, 9}), (std::vector<int64_t>{2}));
  EXPECT_EQ(ends({1, 2}), (std::vector<int64_t>{2}));
  std::vector<int32_t> long_one(200'000, 1);
  long_one[70'000] = 9;
  EXPECT_EQ(ends(long_one), (std::vector<int64_t>{70'001, 200'000}));
}

TEST(DocumentBatches, AnEpochSeesEveryTargetOnceAndNoBorder) {
  for (const Sampling mode : {Sampling::kDocuments, Sampling::kGroupByLength}) {
    for (const int64_t batch : {1, 3, 16}) {
      const Counting data(mixed_lengths(300, 1));
      std::set<int32_t> expected;
      for (const Document& d : data.documents)
        for (int64_t at = d.begin + 1; at < d.end; ++at) expected.insert(static_cast<int32_t>(at));
      const DocumentBatches batches(data.source, data.documents, options_of(mode, batch, 32));
      EXPECT_EQ(batches.tokens(), static_cast<int64_t>(expected.size()));
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        std::map<int32_t, int> seen;
        Batch b;
        for (int64_t i = 0; i < batches.batches_per_pass(); ++i) {
          batches.fill(epoch * batches.batches_per_pass() + i, b);
          int64_t real = 0;
          for (size_t k = 0; k < b.ids("targets").size(); ++k) {
            if (b.ids("targets")[k] == kIgnoreId) {
              ASSERT_EQ(b.ids("tokens")[k], 0);
              continue;
            }
            ASSERT_EQ(b.ids("targets")[k], b.ids("tokens")[k] + 1);
            ++seen[b.ids("targets")[k]], ++real;
          }
          ASSERT_EQ(b.count, real);
        }
        ASSERT_EQ(seen.size(), expected.size());
        for (const auto& [target, count] : seen) {
          ASSERT_EQ(count, 1) << target;
          ASSERT_TRUE(expected.contains(target)) << target;
        }
      }
    }
  }
}

TEST(PackRows, EverySequenceOnceAndNoTwoRowsThatFitIntoOne) {
  std::mt19937 random(4);
  for (const int64_t most : {3, 100})
    for (const size_t count : {1u, 2u, 500u}) {
      std::vector<int64_t> lengths;
      for (size_t i = 0; i < count; ++i) lengths.push_back(1 + random() % 40);
      const PackedRows packed = pack_rows(lengths, 40, most, 7);
      std::set<uint32_t> seen;
      std::vector<int64_t> small;  // tokens of rows that had room for another sequence
      for (size_t r = 0; r < packed.rows(); ++r) {
        int64_t tokens = 0;
        for (const uint32_t i : packed.row(r)) {
          EXPECT_TRUE(seen.insert(i).second);
          tokens += lengths[i];
        }
        EXPECT_LE(tokens, 40);
        EXPECT_LE(std::ssize(packed.row(r)), most);
        EXPECT_FALSE(packed.row(r).empty());
        if (std::ssize(packed.row(r)) < most) small.push_back(tokens);
      }
      EXPECT_EQ(seen.size(), count);
      std::ranges::sort(small);
      if (most == 100 && small.size() > 1) {
        EXPECT_GT(small[0] + small[1], 40);
      }
      EXPECT_EQ(packed.order, pack_rows(lengths, 40, most, 7).order);
      if (count == 500) {
        EXPECT_NE(packed.order, pack_rows(lengths, 40, most, 8).order);
      }
    }
}

LoaderOptions packed_options(int64_t batch, int64_t context) {
  LoaderOptions o = options_of(Sampling::kDocuments, batch, context);
  o.flat = true;
  o.sequences_per_row = context / 4;
  o.lengths = flat_lengths(batch * context);
  return o;
}

TEST(DocumentBatches, PackedRowsHaveEveryTargetOnceAndFewUnusedTokens) {
  const Counting data(mixed_lengths(700, 6));
  const LoaderOptions options = packed_options(4, 32);
  const DocumentBatches batches(data.source, data.documents, options);
  std::set<int32_t> expected;
  for (const Document& d : data.documents)
    for (int64_t at = d.begin + 1; at < d.end; ++at) expected.insert(static_cast<int32_t>(at));
  Batch b;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<int32_t> seen;
    int64_t all = 0, real = 0;
    for (int64_t i = 0; i < batches.batches_per_pass(); ++i) {
      batches.fill(epoch * batches.batches_per_pass() + i, b);
      ASSERT_EQ(b.ids("starts").size(), 4u * 8 + 1);
      int64_t in_sequences = 0;
      for (const auto& [begin, tokens] : b.rows(1)) {
        ASSERT_LE(tokens, 32u);
        for (size_t k = 0; k < tokens; ++k) {
          ASSERT_EQ(b.ids("positions")[begin + k], static_cast<int32_t>(k));
          ASSERT_EQ(b.ids("tokens")[begin + k], b.ids("tokens")[begin] + static_cast<int32_t>(k));
          ASSERT_EQ(b.ids("targets")[begin + k], b.ids("tokens")[begin + k] + 1);
          ASSERT_TRUE(seen.insert(b.ids("targets")[begin + k]).second);
        }
        in_sequences += static_cast<int64_t>(tokens);
      }
      ASSERT_EQ(b.count, in_sequences);
      ASSERT_EQ(std::ranges::count_if(b.ids("targets"), [](int32_t t) { return t != kIgnoreId; }),
                b.count);
      if (i + 1 == batches.batches_per_pass()) continue;
      all += static_cast<int64_t>(b.positions()), real += b.count;
    }
    EXPECT_EQ(seen, expected);
    EXPECT_GT(static_cast<double>(real), 0.93 * static_cast<double>(all));
  }
}

TEST(DocumentBatches, AStepHasTheSamePackedDocumentsHoweverItIsCut) {
  const Counting data(mixed_lengths(300, 8));
  const auto steps = [&](int64_t batch) {
    LoaderOptions o = packed_options(batch, 32);
    o.batches_per_step = 6 / batch;
    const DocumentBatches batches(data.source, data.documents, o);
    std::vector<std::multiset<int32_t>> list;
    Batch b;
    for (int64_t i = 0; i < batches.batches_per_pass(); ++i) {
      batches.fill(i, b);
      if (i % o.batches_per_step == 0) list.emplace_back();
      for (const int32_t t : b.ids("targets"))
        if (t != kIgnoreId) list.back().insert(t);
    }
    return list;
  };
  EXPECT_EQ(steps(6), steps(2));
  EXPECT_EQ(steps(6), steps(1));
}

TEST(DocumentBatches, APackedLoaderContinuesWhereItStood) {
  const Counting data(mixed_lengths(300, 9));
  const LoaderOptions options = packed_options(3, 32);
  const auto loader = [&] {
    return Loader(std::make_unique<DocumentBatches>(data.source, data.documents, options), options);
  };
  Loader whole = loader(), first = loader(), resumed = loader();
  for (int i = 0; i < 7; ++i) whole.next(), first.next();
  resumed.restore(LoaderState::from_json(first.state().to_json()));
  for (int i = 0; i < 40; ++i) {
    const Batch a = whole.next();
    const Batch& b = resumed.next();
    ASSERT_EQ(a.ids("tokens"), b.ids("tokens"));
    ASSERT_EQ(a.ids("starts"), b.ids("starts"));
  }
}

TEST(DocumentBatches, CountsDocumentsThatAreSplit) {
  const Counting data({2, 33, 34, 100, 0, 1});
  EXPECT_EQ(split_documents(data.documents, 32), 2);  // 33 tokens have 32 targets
  EXPECT_EQ(split_documents(data.documents, 99), 0);
}

TEST(DocumentBatches, GroupingLeavesLittlePadding) {
  const Counting data(mixed_lengths(4000, 2));
  const auto positions_of = [&](Sampling mode) {
    const DocumentBatches batches(data.source, data.documents, options_of(mode, 8, 96));
    int64_t positions = 0;
    Batch b;
    for (int64_t i = 0; i < batches.batches_per_pass(); ++i) {
      batches.fill(i, b);
      positions += static_cast<int64_t>(b.ids("tokens").size());
      const auto lengths = quarter_lengths(96);
      EXPECT_EQ(std::count(lengths.begin(), lengths.end(),
                           static_cast<int64_t>(b.ids("tokens").size()) / 8),
                1);
    }
    return positions;
  };
  const int64_t mixed = positions_of(Sampling::kDocuments);
  const int64_t grouped = positions_of(Sampling::kGroupByLength);
  EXPECT_LT(grouped, mixed * 6 / 10);
}

TEST(DocumentBatches, TheLongestComesFirstInEveryEpoch) {
  std::vector<int64_t> lengths = mixed_lengths(3000, 3);
  lengths[1234] = 120;  // fits a row of its own, and is the longest
  const Counting data(lengths);
  const DocumentBatches batches(data.source, data.documents,
                                options_of(Sampling::kGroupByLength, 4, 128));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    Batch b;
    batches.fill(epoch * batches.batches_per_pass(), b);
    EXPECT_EQ(b.ids("tokens")[0], data.documents[1234].begin);
    EXPECT_EQ(std::count(b.ids("targets").begin(), b.ids("targets").begin() + 128, kIgnoreId),
              128 - 119);
  }
}

TEST(DocumentBatches, ALongDocumentIsCutIntoRows) {
  const Counting data({5, 100, 0, 1});
  const DocumentBatches batches(data.source, data.documents,
                                options_of(Sampling::kDocuments, 1, 32));
  EXPECT_EQ(batches.batches_per_pass(), 1 + 4);
  EXPECT_EQ(batches.tokens(), 4 + 99);
}

// The rows of a step are the same however it is cut into batches, to the end of an epoch and on.
TEST(DocumentBatches, AStepHasTheSameRowsHoweverItIsCut) {
  const Counting data(mixed_lengths(307, 6));
  for (const Sampling mode : {Sampling::kDocuments, Sampling::kGroupByLength}) {
    const auto steps_of = [&](int64_t batch) {
      LoaderOptions o = options_of(mode, batch, 32);
      o.batches_per_step = 12 / batch;
      const DocumentBatches batches(data.source, data.documents, o);
      EXPECT_EQ(batches.batches_per_pass() % o.batches_per_step, 0);
      const int64_t steps = batches.batches_per_pass() / o.batches_per_step;
      std::vector<std::vector<int32_t>> targets;
      Batch b;
      for (int64_t i = 0; i < 2 * batches.batches_per_pass(); ++i) {
        batches.fill(i, b);
        EXPECT_EQ(batches.epoch_of(i), i / o.batches_per_step / steps);
        if (i % o.batches_per_step == 0) targets.emplace_back();
        for (const int32_t target : b.ids("targets"))
          if (target != kIgnoreId) targets.back().push_back(target);
      }
      return targets;
    };
    const auto whole = steps_of(12);
    for (const int64_t batch : {1, 2, 3, 4, 6}) EXPECT_EQ(steps_of(batch), whole) << batch;
  }
}

TEST(DocumentBatches, RowsAreCountedBeforeTheyAreMade) {
  const Counting data(mixed_lengths(200, 7));
  for (const int64_t context : {1, 2, 3, 16, 200})
    EXPECT_EQ(
        document_rows(data.documents, context),
        DocumentBatches(data.source, data.documents, options_of(Sampling::kDocuments, 1, context))
            .batches_per_pass())
        << context;
}

// Epochs ended with a batch, not with a step, when states did not say how many make one.
TEST(DocumentBatches, AStateOfBeforeStepsWereRecordedIsResumed) {
  const Counting data(mixed_lengths(100, 8));
  LoaderOptions o = options_of(Sampling::kDocuments, 4, 32);
  o.batches_per_step = 16;
  Loader loader(std::make_unique<DocumentBatches>(data.source, data.documents, o), o);
  for (int i = 0; i < 48; ++i) loader.next();
  LoaderState state = loader.state();
  EXPECT_EQ(LoaderState::from_json(state.to_json()), state);
  ++state.epoch;
  EXPECT_USER_ERROR(loader.restore(state), "is damaged");
  state.batches_per_step = 1;
  loader.restore(state);
  EXPECT_EQ(loader.state().position, 48);
}

TEST(DocumentBatches, RestoreContinuesExactly) {
  const Counting data(mixed_lengths(400, 5));
  for (const Sampling mode : {Sampling::kDocuments, Sampling::kGroupByLength}) {
    LoaderOptions o = options_of(mode, 4, 32);
    const auto loader = [&](int64_t workers) {
      o.workers = workers;
      return std::make_unique<Loader>(
          std::make_unique<DocumentBatches>(data.source, data.documents, o), o);
    };
    const auto first = loader(3);
    for (int i = 0; i < 133; ++i) first->next();
    const auto second = loader(0);
    second->restore(LoaderState::from_json(first->state().to_json()));
    for (int i = 0; i < 200; ++i) {
      const Batch &a = first->next(), &b = second->next();
      ASSERT_EQ(a.ids("tokens"), b.ids("tokens")) << i;
      ASSERT_EQ(a.ids("targets"), b.ids("targets")) << i;
    }
  }
}

TEST(DocumentBatches, NothingToLearn) {
  const Counting data({0, 1, 1, 0});
  EXPECT_USER_ERROR(
      DocumentBatches(data.source, data.documents, options_of(Sampling::kDocuments, 1, 8)),
      "no document of two tokens or more");
}

}  // namespace
}  // namespace brrr::io
