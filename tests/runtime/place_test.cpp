// Ranks are found by what options and launchers say, in this order, and nonsense is refused.
#include "runtime/ranks/place.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "base/env.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using Variables = std::initializer_list<std::pair<const char*, const char*>>;

/// Sets the variables of launchers, which are unset before and after each test.
class Place : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const env::Variable& v : env::all()) {
      const std::string_view name = v.name;
      for (const char* start : {"RANK", "WORLD_", "LOCAL_", "MASTER_", "OMPI_", "PMI_", "PMIX_",
                                "MPI_", "SLURM_", "BRRR_RUN_ID"})
        if (name.starts_with(start)) ::unsetenv(v.name);
    }
  }
  static RankPlace find(Variables variables, std::optional<int64_t> rank = {},
                        std::optional<int64_t> ranks = {}) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    return find_place(rank, ranks);
  }
  static void expect(const RankPlace& place, const std::string& source, int rank, int ranks,
                     int local_rank, int local_ranks, const std::string& run_id) {
    EXPECT_EQ(place.source, source);
    EXPECT_EQ(place.rank, rank);
    EXPECT_EQ(place.ranks, ranks);
    EXPECT_EQ(place.local_rank, local_rank);
    EXPECT_EQ(place.local_ranks, local_ranks);
    EXPECT_EQ(place.run_id, run_id);
  }
};

TEST_F(Place, IsThatOfARunOfOneWithoutALauncher) {
  expect(find({}), "", 0, 1, 0, 1, "");
  expect(find({}, {}, 1), "", 0, 1, 0, 1, "");
  // Some clusters set these for every process.
  expect(find({{"WORLD_SIZE", "1"}}), "", 0, 1, 0, 1, "");
  expect(find({{"RANK", "3"}}), "", 0, 1, 0, 1, "");
}

TEST_F(Place, IsReadFromEachLauncher) {
  expect(find({{"RANK", "5"},
               {"WORLD_SIZE", "8"},
               {"LOCAL_RANK", "1"},
               {"LOCAL_WORLD_SIZE", "4"},
               {"MASTER_ADDR", "node7"},
               {"MASTER_PORT", "29500"}}),
         "torchrun", 5, 8, 1, 4, "node7:29500");
  expect(find({{"OMPI_COMM_WORLD_RANK", "3"},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
               {"PMIX_NAMESPACE", "prterun-17@1"},
               {"PMIX_RANK", "3"}}),
         "Open MPI", 3, 4, 3, 4, "prterun-17@1");
  expect(find({{"PMI_RANK", "1"},
               {"PMI_SIZE", "2"},
               {"MPI_LOCALRANKID", "1"},
               {"MPI_LOCALNRANKS", "2"},
               {"BRRR_RUN_ID", "seven"}}),
         "PMI", 1, 2, 1, 2, "seven");
  expect(find({{"SLURM_PROCID", "6"},
               {"SLURM_NTASKS", "7"},
               {"SLURM_LOCALID", "1"},
               {"SLURM_NODEID", "2"},
               {"SLURM_TASKS_PER_NODE", "1,4,2(x1)"},
               {"SLURM_JOB_ID", "99"},
               {"SLURM_STEP_ID", "0"}}),
         "Slurm", 6, 7, 1, 2, "slurm-99-0");
  expect(find({{"PMIX_RANK", "0"},
               {"SLURM_NTASKS", "16"},
               {"SLURM_STEP_NUM_TASKS", "4"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_NODEID", "0"},
               {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
               {"PMIX_NAMESPACE", "slurm.pmix.99.1"}}),
         "PMIx", 0, 4, 0, 2, "slurm.pmix.99.1");
}

// Kubernetes sets torchrun's variables without the local ones: a host for each rank.
TEST_F(Place, OfARankWithoutLocalNumbersIsAHostOfItsOwnUnlessTheAddressIsThisHost) {
  expect(find({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-0"}}), "torchrun", 2, 4, 0,
         1, "job-0:");
  expect(find({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}}), "torchrun", 2, 4,
         2, 4, "127.0.0.1:");
}

// sbatch sets SLURM_PROCID and SLURM_NTASKS in its script, too, which runs once.
TEST_F(Place, OfABatchScriptIsARunOfOne) {
  expect(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}}), "", 0, 1, 0,
         1, "");
}

TEST_F(Place, OfOptionsComesFirstAndThatOfTorchrunBeforeOthers) {
  const Variables all = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "1234"},
                         {"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"PMI_RANK", "5"},
                         {"PMI_SIZE", "6"}};
  expect(find(all, 2, 3), "--ranks", 2, 3, 2, 3, "localhost:1234");
  expect(find(all), "torchrun", 1, 2, 1, 2, "localhost:1234");
  expect(find(all, {}, 2), "torchrun", 1, 2, 1, 2, "localhost:1234");
}

TEST_F(Place, RefusesNonsense) {
  EXPECT_USER_ERROR(find({}, 1), "--rank 1 needs --ranks");
  EXPECT_USER_ERROR(find({}, {}, 4), "`brrr launch -n 4 ...`");
  EXPECT_USER_ERROR(find({}, 4, 4), "--rank is 4, but --ranks is 4; ranks are numbered from 0");
  EXPECT_USER_ERROR(find({}, 0, 0), "--ranks: expected 1 to");
  EXPECT_USER_ERROR(find({}, -1, 2), "--rank is -1");
  EXPECT_USER_ERROR(find({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {}, 4),
                    "--ranks is 4, but torchrun started 2");
  EXPECT_USER_ERROR(find({{"RANK", "two"}, {"WORLD_SIZE", "4"}}),
                    "environment variable RANK: expected a whole number");
  EXPECT_USER_ERROR(find({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "environment variable WORLD_SIZE");
  EXPECT_USER_ERROR(find({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "RANK is 4, but WORLD_SIZE is 4");
  EXPECT_USER_ERROR(find({{"WORLD_SIZE", "4"}}), "WORLD_SIZE is 4, but RANK is not set");
  EXPECT_USER_ERROR(find({{"PMIX_RANK", "0"}}), "PMIX_RANK is set, but not how many ranks");
  EXPECT_USER_ERROR(
      find({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      "LOCAL_RANK is 2, but this host has 2 of the ranks");
  EXPECT_USER_ERROR(find({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}),
                    "SLURM_PROCID is 5, but SLURM_NTASKS is 4");
  EXPECT_USER_ERROR(find({{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
                    "OMPI_COMM_WORLD_LOCAL_SIZE");
}

}  // namespace
}  // namespace brrr
