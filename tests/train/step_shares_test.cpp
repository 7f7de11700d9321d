// How the micro-batches of a step are divided among ranks, and the batches that each of them reads.

#include "train/step_shares.h"

#include <gtest/gtest.h>

#include <set>

namespace brrr::train {
namespace {

/// Batches that say their number.
class Numbered final : public io::BatchSource {
 public:
  void fill(int64_t index, io::Batch& batch) const override { batch.count = index; }
  int64_t epoch_of(int64_t index) const override { return index / 16; }
  int64_t batches_per_pass() const override { return 16; }
  int64_t tokens() const override { return 16; }
  std::string fingerprint() const override { return "numbers"; }
};

TEST(StepShares, RanksDivideEveryStep) {
  for (const int64_t ranks : {1, 2, 4, 8})
    for (const int zero : {0, 1, 2, 3})
      for (const int64_t per_slot : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}, {} in a slot", ranks, zero, per_slot));
        const int64_t in_step = 8 * per_slot;
        std::set<int64_t> seen;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const StepShares shares{ranks, rank, zero, 8, in_step};
          const SharedBatches batches(std::make_unique<Numbered>(), shares);
          io::Batch batch;
          for (int64_t i = 0; i < 2 * shares.local(); ++i) {
            batches.fill(i, batch);
            EXPECT_TRUE(seen.insert(batch.count).second) << batch.count << " comes twice";
            EXPECT_EQ(batch.count / in_step, i / shares.local()) << "of another step";
          }
        }
        EXPECT_EQ(std::ssize(seen), 2 * in_step);
        EXPECT_EQ(*seen.rbegin(), 2 * in_step - 1);
      }
}

// A rank has subtrees of the one tree: up to stage 1 neighbouring slots, beyond it every n-th.
TEST(StepShares, SlotsOfARankAreASubtree) {
  const StepShares together{2, 1, 1, 8, 8}, apart{2, 1, 2, 8, 8};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together.number_of(i), 4 + i);
    EXPECT_EQ(apart.number_of(i), 2 * i + 1);
  }
  const int64_t merged[] = {0, 1, 0, 2};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together.sums_of(i).merged, merged[i]);
    EXPECT_EQ(together.sums_of(i).ends_step, i == 3);
    EXPECT_EQ(together.sums_of(i).updates_buffers, i == 0);
  }
}

}  // namespace
}  // namespace brrr::train
