#include "base/threads/thread_team.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/parallel.h"

namespace brrr {
namespace {

/// Gives the team back its usual size.
class ThreadTeam : public ::testing::Test {
 protected:
  void TearDown() override { set_thread_count(usable_processors()); }
};

TEST_F(ThreadTeam, RunsEveryPieceOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    set_thread_count(threads);
    for (const int64_t pieces : {0, 1, 2, 3, 7, 64, 65, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(pieces));
      for (int round = 0; round < 20; ++round)
        parallel_pieces(pieces, threads, [&](int64_t piece, int slot) {
          EXPECT_TRUE(slot >= 0 && slot < threads);
          ++runs[static_cast<size_t>(piece)];
        });
      for (const auto& count : runs) EXPECT_EQ(count, 20);
    }
  }
}

// Kernels index scratch memory by the slot.
TEST_F(ThreadTeam, ASlotIsOneThreadsAtATime) {
  set_thread_count(5);
  std::array<std::atomic<int>, 5> inside{};
  std::atomic<bool> shared = false;
  for (int round = 0; round < 500; ++round)
    parallel_pieces(40, 5, [&](int64_t, int slot) {
      if (inside[static_cast<size_t>(slot)]++ != 0) shared = true;
      EXPECT_EQ(slot, thread_team::slot());
      --inside[static_cast<size_t>(slot)];
    });
  EXPECT_FALSE(shared);
}

TEST_F(ThreadTeam, AMemberDoesNotLead) {
  set_thread_count(3);
  EXPECT_FALSE(thread_team::is_at_work());
  std::atomic<int> outer = 0, inner = 0;
  parallel_pieces(6, 3, [&](int64_t, int) {
    ++outer;
    EXPECT_TRUE(thread_team::is_at_work());
    const auto me = std::this_thread::get_id();
    parallel_pieces(10, 3, [&](int64_t, int slot) {
      ++inner;
      EXPECT_EQ(slot, 0);
      EXPECT_EQ(me, std::this_thread::get_id());
    });
  });
  EXPECT_EQ(outer, 6);
  EXPECT_EQ(inner, 60);
  EXPECT_FALSE(thread_team::is_at_work());
}

TEST_F(ThreadTeam, ThreadsThatLeadAtTheSameTimeFinish) {
  set_thread_count(3);
  std::atomic<int64_t> sum = 0;
  {
    std::vector<std::jthread> leaders;
    for (int leader = 0; leader < 4; ++leader)
      leaders.emplace_back([&] {
        for (int round = 0; round < 300; ++round)
          parallel_pieces(9, 3, [&](int64_t piece, int) { sum += piece; });
      });
  }
  EXPECT_EQ(sum, 4 * 300 * 36);
}

TEST_F(ThreadTeam, RethrowsTheFirstException) {
  set_thread_count(3);
  for (const int64_t bad : {0, 5, 99}) {
    const auto run = [&] {
      parallel_pieces(100, 3, [&](int64_t piece, int) {
        if (piece == bad) throw std::runtime_error("piece " + std::to_string(piece));
      });
    };
    EXPECT_THROW(run(), std::runtime_error);
  }
  int64_t pieces = 0;  // the team still works
  std::mutex mutex;
  parallel_pieces(100, 3, [&](int64_t, int) {
    const std::lock_guard lock(mutex);
    ++pieces;
  });
  EXPECT_EQ(pieces, 100);
}

TEST_F(ThreadTeam, WakesWorkersThatSleep) {
  set_thread_count(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> runs = 0;
    parallel_pieces(2, 2, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 2);
  }
}

TEST(ParallelParts, CoverTheRangeInOrder) {
  set_thread_count(4);
  for (const int64_t n : {1, 3, 4, 10, 1001}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    std::array<std::atomic<int64_t>, 4> begins{-1, -1, -1, -1};
    parallel_parts(n, 4, [&](int64_t part, int64_t begin, int64_t end) {
      begins[static_cast<size_t>(part)] = begin;
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& count : seen) EXPECT_EQ(count, 1);
    int64_t last = -1;
    for (const auto& begin : begins)
      if (begin >= 0) {
        EXPECT_GT(begin, last);
        last = begin;
      }
  }
  set_thread_count(usable_processors());
}

}  // namespace
}  // namespace brrr
