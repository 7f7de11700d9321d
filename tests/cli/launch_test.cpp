// brrr launch as users run it: what is printed, what is refused, and that nothing is left behind
// whatever ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/system_text.h"
#include "cli/run_program.h"

namespace brrr {
namespace {

class Launch : public CommandLine {
 protected:
  void TearDown() override {
    for (const char* name : {"BRRR_FAULT", "BRRR_RANK_TIMEOUT"}) ::unsetenv(name);
  }
};

TEST_F(Launch, RankZeroPrintsAsItWouldAlone) {
  const Outcome o = run("launch -n 3 bench ranks --seconds 0 --json");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const nlohmann::json rows = nlohmann::json::parse(o.out).at("results");
  EXPECT_EQ(rows.size(), 6u);
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_EQ(row.at("transport"), "shared memory");
  }
  EXPECT_EQ(rows[5].at("bytes"), 16 << 20);
  // What ranks other than 0 print stays out of sight.
  const Outcome version = run("launch --processes=2 info --env");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.err, "");
  const size_t first = version.out.find("BRRR_RUN_ID");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(version.out.find("  BRRR_RUN_ID", first + 1), std::string::npos);
}

TEST_F(Launch, WrongUsageIsOneLine) {
  expect_one_line(run("launch -n 0 train"), 2, "--processes: expected a whole number from 1");
  expect_one_line(run("launch -n 200 train"), 2, "at most 128 ranks on one host; got 200");
  expect_one_line(run("launch -n 2"), 2, "expected a verb to start");
  expect_one_line(run("launch train"), 2, "expected the number of ranks to start");
  expect_one_line(run("launch -n 2 trian"), 2, "did you mean 'brrr train'?");
  expect_one_line(run("launch -n 2 merge x"), 2, "merge is the work of one process");
  expect_one_line(run("launch -n 2 launch -n 2 train"), 2, "launch cannot start itself");
  expect_one_line(run("launch -n 2 --host a train"), 2, "--hosts");
  expect_one_line(run("launch -n 3 --hosts a,b train"), 2, "cannot be dealt evenly to 2 hosts");
  expect_one_line(run("launch -n 3 --hosts a:2,b:2 train"), 2, "--hosts names 4");
  expect_one_line(run("launch --hosts a,a train"), 2, "a is named twice");
  expect_one_line(run("launch --hosts a,-b train"), 2, "expected names of hosts");
  expect_one_line(run("launch --hosts a:x train"), 2, "whole number");
  expect_one_line(run("launch -n 2 train", "", "env RANK=0 WORLD_SIZE=2"), 2,
                  "torchrun started; leave `brrr launch` out");
  expect_one_line(run("bench ranks", "", "env RANK=0 WORLD_SIZE=2 BRRR_RANK_TIMEOUT=x"), 2,
                  "BRRR_RANK_TIMEOUT: expected a");
  expect_one_line(run("bench ranks"), 2, "launch -n 2 bench ranks");
}

// The line of the rank that failed is shown once, and its code is the code.
TEST_F(Launch, AWrongOptionOfTheVerbIsShownAndItsCodeReturned) {
  const Outcome o = run("launch -n 3 bench ranks --seconds x");
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_NE(o.err.find("brrr: --seconds: expected a number"), std::string::npos) << o.err;
}

TEST_F(Launch, TheRankThatFailedIsShownNotThoseThatLostIt) {
  ::setenv("BRRR_FAULT", "ranks.exchange@2=enospc", 1);
  const Outcome o = run("launch -n 3 bench ranks --seconds 30");
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_NE(o.err.find("brrr: rank 2 on "), std::string::npos) << o.err;  // rank 0 says so itself
  EXPECT_NE(o.err.find("[rank 2] brrr: "), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("[rank 1]"), std::string::npos) << o.err;
}

TEST_F(Launch, AKilledRankEndsAllWithItsName) {
  for (const int rank : {0, 2}) {
    ::setenv("BRRR_FAULT", fmt::format("ranks.exchange@{}=kill:20", rank).c_str(), 1);
    const Stopwatch watch;
    const Outcome o = run("launch -n 3 bench ranks --seconds 60");
    EXPECT_EQ(o.code, 128 + SIGKILL) << o.err;
    EXPECT_NE(o.err.find(fmt::format("rank {} (process ", rank)), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("was ended by signal 9"), std::string::npos) << o.err;
    EXPECT_LT(watch.seconds(), 40);
  }
}

// The others still wait for it to come: they are ended.
TEST_F(Launch, ARankThatIsKilledAtItsStartEndsAllWithItsName) {
  ::setenv("BRRR_FAULT", "start@1=kill", 1);
  const Outcome o = run("launch -n 3 bench ranks --seconds 60");
  EXPECT_EQ(o.code, 128 + SIGKILL) << o.err;
  EXPECT_NE(o.err.find("brrr: rank 1 (process "), std::string::npos) << o.err;
}

/// The program in the background, and its ranks as the system lists them.
class Running {
 public:
  explicit Running(const std::vector<std::string>& words) {
    pid_ = ::fork();
    if (pid_ == 0) {
      // Whoever started the tests in the background may ignore them.
      for (const int number : {SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
      std::vector<std::string> all{BRRR_BINARY};
      all.insert(all.end(), words.begin(), words.end());
      std::vector<char*> arguments;
      for (std::string& word : all) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      const int nothing = ::open("/dev/null", O_RDWR);
      for (const int fd : {1, 2}) ::dup2(nothing, fd);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  pid_t pid() const { return pid_; }
  std::vector<pid_t> await_ranks(size_t count) const {
    const std::string path = fmt::format("/proc/{0}/task/{0}/children", pid_);
    std::vector<pid_t> ranks;
    for (const Stopwatch watch; ranks.size() < count && watch.seconds() < 60;) {
      ranks.clear();
      std::istringstream text(system_text::read_or_empty(path));
      for (pid_t pid = 0; text >> pid;) ranks.push_back(pid);
    }
    return ranks;
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = 0;
};

/// Whether all are gone, within a minute.
bool are_gone(const std::vector<pid_t>& processes) {
  for (const Stopwatch watch; watch.seconds() < 60; ::usleep(1000))
    if (std::ranges::all_of(processes, [](pid_t pid) { return ::kill(pid, 0) != 0; })) return true;
  return false;
}

const std::vector<std::string> kLong{"launch", "-n", "3", "bench", "ranks", "--seconds", "300"};

TEST_F(Launch, SignalsArePassedOnAndAllEnd) {
  for (const int number : {SIGTERM, SIGINT}) {
    Running program(kLong);
    const std::vector<pid_t> ranks = program.await_ranks(3);
    ASSERT_EQ(ranks.size(), 3u);
    ::kill(program.pid(), number);
    EXPECT_EQ(program.wait(), 128 + number);
    EXPECT_TRUE(are_gone(ranks));
  }
}

TEST_F(Launch, RanksEndWithTheProgramThatStartedThem) {
  Running program(kLong);
  const std::vector<pid_t> ranks = program.await_ranks(3);
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(program.pid(), SIGKILL);
  program.wait();
  EXPECT_TRUE(are_gone(ranks));
}

// A stopped rank is noticed after its time limit, and killed.
TEST_F(Launch, AStoppedRankEndsAll) {
  ::setenv("BRRR_RANK_TIMEOUT", "2", 1);
  Running program(kLong);
  const std::vector<pid_t> ranks = program.await_ranks(3);
  ASSERT_EQ(ranks.size(), 3u);
  ::usleep(500'000);
  ::kill(ranks[1], SIGSTOP);
  EXPECT_NE(program.wait(), 0);
  EXPECT_TRUE(are_gone(ranks));
}

bool has_mpirun() { return std::system("mpirun --version >/dev/null 2>&1") == 0; }

TEST_F(Launch, RunsByMpirunWithTheSameCommandLine) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
  const char* root = ::geteuid() == 0 ? "mpirun --allow-run-as-root --oversubscribe -n 2"
                                      : "mpirun --oversubscribe -n 2";
  for (const auto& [comm, name] : {std::pair{"auto", "shared memory"}, {"mpi", "MPI (Open MPI"}}) {
    const Outcome o = run(fmt::format("bench ranks --seconds 0 --json --comm {}", comm), "", root);
    ASSERT_EQ(o.code, 0) << o.err;
    const nlohmann::json rows = nlohmann::json::parse(o.out).at("results");
    EXPECT_EQ(rows.size(), 6u);
    EXPECT_TRUE(rows[0].at("transport").get<std::string>().starts_with(name)) << o.out;
  }
}

}  // namespace
}  // namespace brrr
