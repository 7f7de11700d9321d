// Whatever ends one rank of a host ends all of them with the same sentence, and leaves nothing
// behind. Time limits here are far above what is needed, but for those under test.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "support/forked_ranks.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using test::ForkedRanks;
using test::local_place;

constexpr int kRanks = 4;

/// Exchanges without end; counts once all have come.
void work(Communicator& comm, ForkedRanks& ranks) {
  comm.barrier();
  ranks.count();
  for (;;) comm.barrier();
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\ngot: " << text;
}

class LostRanks : public ::testing::TestWithParam<int> {};

TEST_P(LostRanks, AKilledRankIsNamed) {
  ForkedRanks ranks;
  ranks.start_all(kRanks, {}, work);
  ASSERT_TRUE(ranks.await_count(kRanks));
  EXPECT_FALSE(test::segment_exists(ranks.run_id()));
  ranks.signal(GetParam(), SIGKILL);
  const std::string name = fmt::format("rank {} on ", GetParam());
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string said = ranks.wait(rank);
    if (rank == GetParam()) continue;
    expect_part(said, name);
    expect_part(said, fmt::format("(process {}) ended;", ranks.pid(GetParam())));
  }
}

INSTANTIATE_TEST_SUITE_P(EachRank, LostRanks, ::testing::Range(0, kRanks));

// A run for each rank that is stopped, at the same time, because each takes as long as the limit.
TEST(LostRank, AStoppedRankIsNamed) {
  const TransportOptions options{.timeout_seconds = 3};
  std::vector<ForkedRanks> runs(kRanks);
  for (ForkedRanks& run : runs) run.start_all(kRanks, options, work);
  for (int stopped = 0; stopped < kRanks; ++stopped) {
    ForkedRanks& run = runs[static_cast<size_t>(stopped)];
    ASSERT_TRUE(run.await_count(kRanks));
    run.signal(stopped, SIGSTOP);
  }
  for (int stopped = 0; stopped < kRanks; ++stopped) {
    ForkedRanks& run = runs[static_cast<size_t>(stopped)];
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == stopped) continue;
      const std::string said = run.wait(rank);
      expect_part(said, fmt::format("rank {} on ", stopped));
      expect_part(said, fmt::format("(process {}) has not answered for 3 s", run.pid(stopped)));
    }
    run.signal(stopped, SIGCONT);
    expect_part(run.wait(stopped), fmt::format("rank {} (this process)", stopped));
  }
}

// A stop of all, as by Ctrl-Z, is no fault: time in which a process did not run does not count.
TEST(LostRank, StoppingAllRanksForAWhileIsAllowed) {
  const TransportOptions options{.timeout_seconds = 2};
  ForkedRanks ranks;
  ranks.start_all(2, options, work);
  ASSERT_TRUE(ranks.await_count(2));
  for (const int rank : {0, 1}) ranks.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2600));
  for (const int rank : {0, 1}) ranks.signal(rank, SIGCONT);
  EXPECT_EQ(ranks.wait(0, 0.3), "the process did not end");
  ranks.signal(0, SIGKILL);
  expect_part(ranks.wait(1), "ended;");
}

// A rank that computes for longer than the limit is not silent.
TEST(LostRank, ARankThatComputesIsNotSilent) {
  const TransportOptions options{.timeout_seconds = 2};
  ForkedRanks ranks;
  ranks.start_all(2, options, [](Communicator& comm, ForkedRanks&) {
    if (comm.rank() == 1)
      for (const Stopwatch watch; watch.seconds() < 3;) {
      }
    comm.barrier();
  });
  EXPECT_EQ(ranks.wait(0), "");
  EXPECT_EQ(ranks.wait(1), "");
}

TEST(LostRank, ARankThatNeverComesIsNamed) {
  const TransportOptions options{.start_seconds = 1};
  ForkedRanks ranks;
  for (const int rank : {0, 3}) ranks.start(rank, 4, options, work);
  for (const int index : {0, 1})
    expect_part(ranks.wait(index), "ranks 1, 2 of 4 did not come within 1 s");
  EXPECT_FALSE(test::segment_exists(ranks.run_id()));
}

TEST(LostRank, ARankThatEndsBeforeAllHaveComeIsNamed) {
  ForkedRanks ranks;
  for (const int rank : {0, 1}) ranks.start(rank, 3, {}, work);
  test::await_attached(ranks.run_id(), 2);
  ranks.signal(1, SIGKILL);
  expect_part(ranks.wait(0), "ended;");
  EXPECT_FALSE(test::segment_exists(ranks.run_id()));
}

// What ranks leave behind that were all killed before the last one came is no hindrance to a run of
// the same name.
TEST(LostRank, WhatKilledRanksLeftBehindIsReplaced) {
  const std::string run_id = test::fresh_run_id();
  {
    ForkedRanks first(run_id);
    first.start(0, 3, {}, work);
    test::await_attached(run_id, 1);
    first.signal(0, SIGKILL);
    first.wait(0);
    EXPECT_TRUE(test::segment_exists(run_id));
    ForkedRanks second(run_id);
    second.start_all(2, {}, [](Communicator& comm, ForkedRanks&) { comm.barrier(); });
    EXPECT_EQ(second.wait(0), "");
    EXPECT_EQ(second.wait(1), "");
  }
  EXPECT_FALSE(test::segment_exists(run_id));
}

TEST(LostRank, ARankNumberThatIsTakenIsRefusedAndTheRunGoesOn) {
  ForkedRanks ranks;
  const auto body = [](Communicator& comm, ForkedRanks&) { comm.barrier(); };
  ranks.start(0, 2, {}, body);
  test::await_attached(ranks.run_id(), 1);
  ranks.start(0, 2, {}, body);
  expect_part(ranks.wait(1), fmt::format("rank 0 of 2 is taken by process {}", ranks.pid(0)));
  ranks.start(1, 2, {}, body);
  EXPECT_EQ(ranks.wait(0), "");
  EXPECT_EQ(ranks.wait(2), "");
}

TEST(LostRank, AnotherNumberOfRanksIsRefusedByAll) {
  ForkedRanks ranks;
  ranks.start(0, 2, {}, work);
  test::await_attached(ranks.run_id(), 1);
  ranks.start(2, 3, {}, work);
  const std::string part =
      "rank 2 was started as one of 3 ranks, those before it as one of 2; give all the same";
  expect_part(ranks.wait(0), part);
  expect_part(ranks.wait(1), "was started as one of 3 ranks, those before it as one of 2");
}

// The test puts another build's number where the ranks compare theirs.
TEST(LostRank, AnotherProgramIsRefusedByAll) {
  ForkedRanks ranks;
  ranks.start(0, 2, {}, work);
  test::await_attached(ranks.run_id(), 1);
  const std::string path = "/dev/shm" + ranks::segment_name(ranks.run_id());
  const int fd = ::open(path.c_str(), O_WRONLY);
  const uint64_t other = 12345;
  ASSERT_EQ(::pwrite(fd, &other, sizeof other, 32), 8);
  ::close(fd);
  ranks.start(1, 2, {}, work);
  expect_part(ranks.wait(0), "rank 1 runs another build of brrr");
  expect_part(ranks.wait(1), "runs another build of brrr");
}

TEST(LostRank, AbsentMpiIsRefusedNamingItsPackages) {
  for (const char* name : {"libmpi.so.40", "libmpich.so.12", "libmpi.so.12"})
    if (::dlopen(name, RTLD_LAZY | RTLD_LOCAL) != nullptr) GTEST_SKIP() << name << " is installed";
  const auto open = [] {
    return open_transport(local_place(0, 2, test::fresh_run_id()), {.kind = "mpi"});
  };
  EXPECT_USER_ERROR(open(), "in the packages openmpi-bin and mpich");
}

TEST(LostRank, KindsOfCommunicationAreRefusedByName) {
  const auto open = [](const std::string& kind, int local_ranks) {
    RankPlace place = local_place(0, 2, test::fresh_run_id());
    place.local_ranks = local_ranks;
    return open_transport(place, {.kind = kind});
  };
  EXPECT_USER_ERROR(open("shmm", 2), "did you mean shm?");
  EXPECT_USER_ERROR(open("nccl", 2), "NCCL connects GPUs");
  EXPECT_USER_ERROR(open("gloo", 2), "Gloo");
  EXPECT_USER_ERROR(open("shm", 1), "only 1 of 2 ranks are on this one");
  EXPECT_USER_ERROR(open_transport(local_place(0, 200, test::fresh_run_id()), {.kind = "shm"}),
                    "at most 128 ranks, got 200");
}

}  // namespace
}  // namespace brrr
