#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "data/permutation.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

/// Ids that tell their own place: 0, 1, 2, ...
TokenSource counting(int64_t tokens) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return TokenSource::from_ids(std::move(ids));
}

LoaderOptions loader_options(Sampling mode, int64_t batch, int64_t context) {
  LoaderOptions options;
  options.mode = mode;
  options.batch = batch;
  options.context = context;
  options.vocab = 1'000'000;
  options.seed = 42;
  return options;
}

bool same(const Batch& a, const Batch& b) {
  return a.ids("tokens") == b.ids("tokens") && a.ids("targets") == b.ids("targets") &&
         a.count == b.count;
}

/// Over a counting source: every scored target is its input plus one; returns how often each was
/// scored.
void count_targets(const Batch& batch, std::map<int32_t, int>& seen) {
  int64_t real = 0;
  for (size_t i = 0; i < batch.ids("tokens").size(); ++i) {
    if (batch.ids("targets")[i] == kIgnoreId) continue;
    ASSERT_EQ(batch.ids("targets")[i], batch.ids("tokens")[i] + 1);
    ++seen[batch.ids("targets")[i]];
    ++real;
  }
  ASSERT_EQ(batch.count, real);
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (uint64_t n = 1; n <= 300; ++n) {
    const Permutation order(n, {static_cast<uint32_t>(n), 3});
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t image = order(i);
      ASSERT_LT(image, n);
      images.insert(image);
    }
    ASSERT_EQ(images.size(), n);
  }
  for (const uint64_t n : {uint64_t{65536}, uint64_t{65537}, uint64_t{100'003}}) {
    const Permutation order(n, {1, 2});
    std::vector<char> hit(n, 0);
    for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(hit[order(i)]++, 0);
  }
}

TEST(Permutation, KeysGiveOrdersThatLookUnrelated) {
  const uint64_t n = 10'000;
  const Permutation a(n, {1, 0}), b(n, {1, 1}), c(n, {2, 0});
  int fixed = 0, ab = 0, ac = 0, neighbours = 0;
  double correlation = 0;
  for (uint64_t i = 0; i < n; ++i) {
    fixed += a(i) == i;
    ab += a(i) == b(i);
    ac += a(i) == c(i);
    if (i > 0) neighbours += a(i) == a(i - 1) + 1;
    correlation += (static_cast<double>(a(i)) / n - 0.5) * (static_cast<double>(i) / n - 0.5);
  }
  // Each count is Poisson with mean 1; the correlation has a standard deviation of 1/100.
  EXPECT_LT(fixed, 10);
  EXPECT_LT(ab, 10);
  EXPECT_LT(ac, 10);
  EXPECT_LT(neighbours, 10);
  EXPECT_LT(std::abs(correlation * 12 / n), 0.05);
  // Position 0 goes everywhere over the epochs.
  std::set<uint64_t> images;
  for (uint32_t epoch = 0; epoch < 1000; ++epoch) images.insert(Permutation(100, {7, epoch})(0));
  EXPECT_GT(images.size(), 95u);
}

TEST(Permutation, LargeDomainsStayInside) {
  const uint64_t n = (uint64_t{1} << 62) - 5;
  const Permutation order(n, {1, 0});
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(order(n - 1 - i), n);
}

TEST(Loader, RandomRowsAreWindowsFromEverywhere) {
  const TokenSource source = counting(50);
  Loader loader(source, loader_options(Sampling::kRandom, 4, 8));
  std::map<int32_t, int> starts;
  for (int i = 0; i < 500; ++i) {
    const Batch& batch = loader.next();
    ASSERT_EQ(batch.count, 32);
    for (size_t row = 0; row < 4; ++row) {
      ++starts[batch.ids("tokens")[row * 8]];
      for (size_t t = 0; t < 8; ++t) {
        ASSERT_EQ(batch.ids("tokens")[row * 8 + t],
                  batch.ids("tokens")[row * 8] + static_cast<int32_t>(t));
        ASSERT_EQ(batch.ids("targets")[row * 8 + t], batch.ids("tokens")[row * 8 + t] + 1);
      }
    }
  }
  // 2000 draws over the 42 offsets that leave room for T + 1 tokens: about 48 each.
  ASSERT_EQ(starts.size(), 42u);
  EXPECT_EQ(starts.begin()->first, 0);
  EXPECT_EQ(starts.rbegin()->first, 41);
  for (const auto& [start, count] : starts)
    EXPECT_TRUE(count > 15 && count < 100) << start << " " << count;
}

TEST(Loader, AnEpochSeesEveryTargetOnce) {
  for (const int64_t tokens : {9, 17, 101, 128, 129}) {
    for (const int64_t batch : {1, 3, 7}) {
      const TokenSource source = counting(tokens);
      Loader loader(source, loader_options(Sampling::kEpoch, batch, 8));
      const int64_t windows = (tokens - 1 + 7) / 8;
      std::map<int32_t, int> seen;
      for (int64_t i = 0; i < windows; ++i)
        count_targets(loader.next(), seen);  // `batch` whole epochs
      ASSERT_EQ(static_cast<int64_t>(seen.size()), tokens - 1);
      for (const auto& [target, count] : seen) ASSERT_EQ(count, batch) << target;
    }
  }
}

TEST(Loader, EpochsDifferAndSeedsDiffer) {
  const TokenSource source = counting(1000);
  const auto epoch_of = [&](uint32_t seed, int which) {
    LoaderOptions options = loader_options(Sampling::kEpoch, 1, 9);
    options.seed = seed;
    Loader loader(source, options);
    std::vector<int32_t> starts;
    for (int i = 0; i < 111 * (which + 1); ++i)
      if (const Batch& batch = loader.next(); i >= 111 * which)
        starts.push_back(batch.ids("tokens")[0]);
    return starts;
  };
  EXPECT_EQ(epoch_of(1, 0), epoch_of(1, 0));
  EXPECT_NE(epoch_of(1, 0), epoch_of(1, 1));
  EXPECT_NE(epoch_of(1, 0), epoch_of(2, 0));
}

TEST(Loader, SequentialScoresEveryTargetOncePerPass) {
  for (const int64_t tokens : {2, 5, 9, 10, 64, 65, 66, 200}) {
    for (const int64_t batch : {1, 3, 40}) {
      const TokenSource source = counting(tokens);
      Loader loader(source, loader_options(Sampling::kSequential, batch, 8));
      for (int pass = 0; pass < 2; ++pass) {
        std::map<int32_t, int> seen;
        int32_t last = 0;
        for (int64_t i = 0; i < loader.batches_per_pass(); ++i) {
          const Batch& current = loader.next();
          for (const int32_t target : current.ids("targets")) {
            if (target == kIgnoreId) continue;
            ASSERT_EQ(target, last + 1);  // in order
            last = target;
          }
          count_targets(current, seen);
        }
        ASSERT_EQ(static_cast<int64_t>(seen.size()), tokens - 1);
        ASSERT_EQ(last, tokens - 1);
      }
    }
  }
}

TEST(Loader, PrefetchingChangesNothing) {
  const TokenSource source = counting(500);
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch, Sampling::kSequential}) {
    LoaderOptions options = loader_options(mode, 3, 7);
    options.workers = 0;
    Loader direct(source, options);
    for (const int64_t workers : {1, 2, 7}) {
      options.workers = workers;
      options.prefetch_factor = 1 + workers % 3;
      Loader ahead(source, options);
      direct.restore(ahead.state());
      for (int i = 0; i < 100; ++i) ASSERT_TRUE(same(direct.next(), ahead.next())) << i;
    }
  }
}

TEST(Loader, RestoreContinuesExactly) {
  const TokenSource source = counting(333);
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch, Sampling::kSequential}) {
    for (const int at : {0, 1, 5, 23, 60}) {  // within and beyond the first epoch of 14 batches
      Loader loader(source, loader_options(mode, 3, 8));
      for (int i = 0; i < at; ++i) loader.next();
      if (at % 2 == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // let it read ahead
      const std::string saved = loader.state().to_json();
      std::vector<Batch> expected;
      for (int i = 0; i < 40; ++i) expected.push_back(loader.next());

      Loader fresh(source, loader_options(mode, 3, 8));
      for (int i = 0; i < at % 3; ++i) fresh.next();  // a loader that was already running
      fresh.restore(LoaderState::from_json(saved));
      EXPECT_EQ(fresh.state().to_json(), saved);
      for (const Batch& batch : expected) ASSERT_TRUE(same(fresh.next(), batch));
      loader.restore(LoaderState::from_json(saved));  // and back in time
      for (const Batch& batch : expected) ASSERT_TRUE(same(loader.next(), batch));
    }
  }
}

TEST(Loader, RestoringWhileThePrefetcherWorks) {
  const TokenSource source = counting(5000);
  LoaderOptions options = loader_options(Sampling::kEpoch, 8, 64);
  options.workers = 3;
  Loader loader(source, options);
  options.workers = 0;
  Loader direct(source, options);
  LoaderState state = loader.state();
  for (int round = 0; round < 300; ++round) {
    const int64_t windows = (5000 - 1 + 63) / 64;
    state.position = round * 7 % 50;
    state.epoch = state.position * 8 / windows;
    loader.restore(state);
    direct.restore(state);
    for (int i = 0; i < round % 4; ++i) ASSERT_TRUE(same(loader.next(), direct.next())) << round;
  }
}

TEST(Loader, StateCountsEpochs) {
  const TokenSource source = counting(81);  // 10 rows of 8
  Loader loader(source, loader_options(Sampling::kEpoch, 4, 8));
  std::vector<int64_t> epochs;
  for (int i = 0; i < 6; ++i) {
    epochs.push_back(loader.state().epoch);
    EXPECT_EQ(loader.state().position, i);
    loader.next();
  }
  EXPECT_EQ(epochs, (std::vector<int64_t>{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(loader.batches_per_pass(), 3);
}

TEST(Loader, StatesOfOtherRunsAreRefusedByField) {
  const TokenSource source = counting(100),
                    other = TokenSource::from_ids(std::vector<int32_t>(100, 5));
  const LoaderOptions options = loader_options(Sampling::kRandom, 2, 8);
  Loader loader(source, options);
  const LoaderState good = loader.state();
  const auto with = [&](auto change) {
    LoaderState state = good;
    change(state);
    return state;
  };
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.mode = Sampling::kEpoch; })),
                    "had sampling epoch, now it is random");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.batch = 3; })),
                    "batch size 3, now it is 2");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.context = 9; })), "context 9, now it is 8");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.seed = 1; })), "data seed 1, now it is 42");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.tokens = 99; })),
                    "token count 99, now it is 100");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.epoch = 1; })), "damaged");
  EXPECT_USER_ERROR(loader.restore(with([](auto& s) { s.position = int64_t{1} << 62; })),
                    "damaged");
  EXPECT_USER_ERROR(loader.restore(Loader(other, options).state()), "text fingerprint");
  EXPECT_EQ(loader.state(), good);  // a refused state changes nothing
}

TEST(Loader, DamagedStatesAreRefused) {
  const TokenSource source = counting(100);
  const std::string good =
      Loader(source, loader_options(Sampling::kRandom, 2, 8)).state().to_json();
  EXPECT_EQ(LoaderState::from_json(good).to_json(), good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_USER_ERROR(LoaderState::from_json(""), "loader's state");
  EXPECT_USER_ERROR(LoaderState::from_json("[1]"), "has no 'mode'");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"batch\":2", "\"batch\":0")), "'batch' is");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"batch\":2", "\"batch\":\"2\"")), "'batch' is");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"position\":0", "\"position\":-1")),
                    "'position' is");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"position\":0", "\"position\":1e99")),
                    "'position' is");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"seed\":42", "\"seed\":4294967296")),
                    "'seed' is");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"random\"", "\"rondom\"")), "unknown sampling");
  EXPECT_USER_ERROR(LoaderState::from_json(with("\"context\"", "\"word\"")), "has no 'context'");
}

TEST(Loader, ImpossibleGeometry) {
  const TokenSource source = counting(100);
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch}) {
    EXPECT_USER_ERROR(
        Loader(source, loader_options(mode, 1, 100)),
        "the context of 100 tokens is longer than the text: the text has 100, at least 101");
    EXPECT_EQ(Loader(source, loader_options(mode, 1, 99)).next().ids("tokens")[0],
              0);  // exactly fits
  }
  EXPECT_EQ(Loader(source, loader_options(Sampling::kSequential, 1, 1000)).next().count, 99);
  const TokenSource one = counting(1);
  EXPECT_USER_ERROR(Loader(one, loader_options(Sampling::kSequential, 1, 8)), "has 1 token;");
  EXPECT_USER_ERROR(Loader(source, loader_options(Sampling::kRandom, 0, 8)), "batch size is 0");
  EXPECT_USER_ERROR(Loader(source, loader_options(Sampling::kRandom, 1, 0)), "context is 0");
  EXPECT_USER_ERROR(Loader(source, loader_options(Sampling::kRandom, int64_t{1} << 40, 8)),
                    "any memory");
  EXPECT_USER_ERROR(sampling_from_name("shuffled"),
                    "random, epoch, sequential, documents or group_by_length");
}

TEST(Loader, AnIdBeyondTheVocabularyComesWithItsPlaceAndTurn) {
  std::vector<int32_t> ids(100, 1);
  ids[50] = 7;
  const TokenSource source = TokenSource::from_ids(ids);
  for (const int64_t workers : {0, 1, 3}) {
    LoaderOptions options = loader_options(Sampling::kSequential, 1, 10);
    options.vocab = 7;
    options.workers = workers;
    Loader loader(source, options);
    for (int i = 0; i < 4; ++i) loader.next();  // the batches before it are good
    const LoaderState before = loader.state();
    // Row 4 reads [40, 50] as inputs and targets.
    EXPECT_USER_ERROR(loader.next(), "the text, token 50: id 7 is outside the vocabulary of 7");
    EXPECT_USER_ERROR(loader.next(), "token 50");
    EXPECT_EQ(loader.state(), before);
    LoaderState start = before;
    start.position = 0;
    loader.restore(start);
    EXPECT_EQ(loader.next().count, 10);
  }
}

/// Batch i holds i; computing it takes longer the smaller i modulo 4 is. `bad` ones fail.
class Numbers final : public BatchSource {
 public:
  explicit Numbers(std::set<int64_t> bad = {}) : bad_(std::move(bad)) {}
  void fill(int64_t index, Batch& batch) const override {
    highest_ = std::max(highest_.load(), index);
    std::this_thread::sleep_for(std::chrono::microseconds(400 - 100 * (index % 4)));
    if (bad_.contains(index)) user_error("batch {} is bad", index);
    batch.make("tokens", 1, static_cast<int32_t>(index));
  }
  int64_t epoch_of(int64_t) const override { return 0; }
  int64_t batches_per_pass() const override { return 1000; }
  int64_t tokens() const override { return 1000; }
  std::string fingerprint() const override { return "numbers"; }
  int64_t highest() const { return highest_; }

 private:
  std::set<int64_t> bad_;
  mutable std::atomic<int64_t> highest_ = -1;
};

TEST(Prefetcher, HandsOutInOrderAndStaysInItsWindow) {
  for (const int workers : {1, 2, 5}) {
    const Numbers source;
    Prefetcher prefetcher(source, workers, 6);
    for (int32_t i = 0; i < 60; ++i) {
      ASSERT_EQ(prefetcher.next().ids("tokens")[0], i);
      ASSERT_LE(source.highest(), i + 6);
    }
    prefetcher.seek(20);
    ASSERT_EQ(prefetcher.next().ids("tokens")[0], 20);
  }
  const Numbers fresh;
  Prefetcher idle(fresh, 3, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_LE(fresh.highest(), 3);  // nobody asked for anything yet
}

TEST(Prefetcher, AnErrorComesInItsTurnWhoeverMadeIt) {
  for (const int workers : {0, 1, 2, 5}) {
    const Numbers source({7, 9});
    Prefetcher prefetcher(source, workers, 8);
    for (int32_t i = 0; i < 7; ++i) ASSERT_EQ(prefetcher.next().ids("tokens")[0], i);
    EXPECT_USER_ERROR(prefetcher.next(), "batch 7 is bad");
    EXPECT_USER_ERROR(prefetcher.next(), "batch 7 is bad");
    EXPECT_EQ(prefetcher.position(), 7);
    prefetcher.seek(8);
    EXPECT_EQ(prefetcher.next().ids("tokens")[0], 8);
    EXPECT_USER_ERROR(prefetcher.next(), "batch 9 is bad");
  }
}

TEST(Loader, AbsurdWorkersAndPrefetching) {
  const TokenSource source = counting(100'000);
  const auto with = [&](int64_t workers, int64_t factor) {
    LoaderOptions options = loader_options(Sampling::kRandom, 16, 1024);
    options.workers = workers;
    options.prefetch_factor = factor;
    Loader loader(source, options);
  };
  with(256, 1);
  EXPECT_USER_ERROR(with(-1, 2), "-1 data loader workers; expected 0 to 256");
  EXPECT_USER_ERROR(with(257, 2), "257 data loader workers");
  EXPECT_USER_ERROR(with(1, 0), "prefetch factor of 0; expected at least 1");
  EXPECT_USER_ERROR(with(4, -3), "prefetch factor of -3");
  EXPECT_USER_ERROR(with(4, int64_t{1} << 60), "prefetched batches would take");
}

TEST(Loader, StopsAtAnyMoment) {
  const TokenSource source = counting(100'000);
  for (int i = 0; i < 200; ++i) {
    LoaderOptions options = loader_options(Sampling::kEpoch, 16, 128);
    options.workers = i % 4;
    options.prefetch_factor = 1 + i % 3;
    Loader loader(source, options);
    for (int n = 0; n < i % 3; ++n) loader.next();
    EXPECT_GE(loader.seconds_waited(), 0);
  }
}

}  // namespace
}  // namespace brrr::io
