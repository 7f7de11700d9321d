// --elastic: ranks that are lost at any moment are started again and give the files of a run that
// nothing disturbed; what is no loss of a rank ends the run.

#include <csignal>
#include <random>
#include <sstream>

#include "base/clock.h"
#include "base/env.h"
#include "base/system_text.h"
#include "e2e/run.h"
#include "folders/checkpoint.h"

namespace brrr::test {
namespace {

using Arguments = std::vector<std::string>;

class Elastic : public EndToEnd {
 protected:
  Arguments model(const std::string& name, const Arguments& more = {}) const {
    Arguments args = small_run(
        name, {"--batch-size", "8", "--max-steps", "400", "--save-steps", "10000", "--eval-steps",
               "200", "--deterministic-ranks", "4", "--peer-checkpoint-steps", "20"});
    put_options(args, more);
    return args;
  }
  static Arguments elastic(int ranks, const Arguments& command, const Arguments& more = {}) {
    Arguments args{"launch", "-n", std::to_string(ranks), "--elastic"};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), command.begin(), command.end());
    return args;
  }
  void make_undisturbed(const Arguments& more = {}) {
    Arguments args = model("whole", more);
    const auto at = std::ranges::find(args, "--peer-checkpoint-steps");
    args.erase(at, at + 2);
    ASSERT_EQ(run(args), 0) << err_;
  }
  void expect_undisturbed_files(const std::string& name, int64_t step = 400) const {
    for (const std::string& file : {std::string("model.safetensors"),
                                    fmt::format("checkpoint-{:06}/optimizer.safetensors", step)})
      EXPECT_TRUE(read_file(path("whole") / file) == read_file(path(name) / file)) << file;
    EXPECT_EQ(loss_series("whole"), loss_series(name));
  }
  /// Waits until the run has logged a step after `step`.
  void wait_for_step(const Child& child, const std::string& name, int64_t step) const {
    const std::string record = fmt::format("\"step\":{},", step);
    for (int i = 0; i < 3000 && child.is_running(); ++i, ::usleep(10000))
      if (fs::exists(path(name) / "log.jsonl") &&
          read_file(path(name) / "log.jsonl").find(record) != std::string::npos)
        return;
    FAIL() << "step " << step << " did not come: " << child.err();
  }
  static std::vector<pid_t> ranks_of(const Child& child) {
    std::istringstream text(system_text::read_or_empty(
        fmt::format("/proc/{}/task/{}/children", child.pid(), child.pid())));
    std::vector<pid_t> ranks;
    for (pid_t pid = 0; text >> pid;) ranks.push_back(pid);
    return ranks;
  }
  static void expect_nothing_left(pid_t launcher) {
    for (const auto& entry : fs::directory_iterator("/dev/shm"))
      EXPECT_EQ(entry.path().string().find(fmt::format("launch-{}-", launcher)), std::string::npos)
          << entry.path();
  }
  static size_t count(const std::string& text, const std::string& words) {
    size_t found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++found;
    return found;
  }
  /// A run of which a rank gets a signal after a step; it has to end well.
  void disturb(const std::string& name, int ranks, size_t victim, int signal,
               const Arguments& more) {
    Child child(folder_.path(), elastic(ranks, model(name, more)), {"BRRR_RANK_TIMEOUT=3"});
    wait_for_step(child, name, 60);
    const std::vector<pid_t> pids = ranks_of(child);
    ASSERT_EQ(std::ssize(pids), ranks) << child.err();
    const pid_t launcher = child.pid();
    ::kill(pids[victim], signal);
    const Stopwatch watch;
    EXPECT_EQ(child.wait(), 0) << child.err();
    EXPECT_LT(watch.seconds(), 60);
    err_ = child.err();
    EXPECT_EQ(count(err_, "brrr: after step "), 1u) << err_;
    EXPECT_NE(err_.find(fmt::format(", rank {} on ", victim)), std::string::npos) << err_;
    EXPECT_NE(err_.find(fmt::format("(process {}) was ", pids[victim])), std::string::npos) << err_;
    EXPECT_NE(err_.find(fmt::format("; starting {} ranks again from ", ranks)), std::string::npos)
        << err_;
    for (const pid_t pid : pids) EXPECT_NE(::kill(pid, 0), 0) << "rank " << pid << " is left";
    expect_nothing_left(launcher);
    expect_undisturbed_files(name);
  }
};

TEST_F(Elastic, ALostRankIsStartedAgainToTheSameBits) {
  make_undisturbed();
  disturb("killed", 2, 1, SIGKILL, {});
  EXPECT_NE(err_.find("signal 9"), std::string::npos) << err_;
  EXPECT_NE(err_.find(" in memory\n"), std::string::npos) << err_;
  disturb("first", 4, 0, SIGKILL, {"--zero", "3", "--peer-checkpoint-steps", "auto"});
  EXPECT_NE(err_.find(" in memory\n"), std::string::npos) << err_;
  disturb("stopped", 2, 1, SIGSTOP, {"--zero", "2"});
  EXPECT_NE(err_.find("was stopped for"), std::string::npos) << err_;
  disturb("unsaved", 2, 0, SIGKILL, {"--peer-checkpoint-steps", "0"});
  EXPECT_NE(err_.find("again from the beginning\n"), std::string::npos) << err_;
  disturb("saved", 2, 0, SIGKILL, {"--peer-checkpoint-steps", "0", "--save-steps", "20"});
  EXPECT_NE(err_.find("again from the checkpoint of step "), std::string::npos) << err_;
}

// The third peer checkpoint is half written when rank 1 ends: the second one is there.
TEST_F(Elastic, AnUnfinishedPeerCheckpointIsNotRead) {
  make_undisturbed({"--max-steps", "110"});
  const Arguments command = model("killed", {"--max-steps", "110"});
  ASSERT_EQ(run(elastic(2, command), {"BRRR_FAULT=peer_checkpoint.write@1=kill:4"}), 0) << err_;
  EXPECT_NE(err_.find("again from step 60 in memory\n"), std::string::npos) << err_;
  EXPECT_EQ(count(err_, " again from "), 1u) << err_;
  expect_undisturbed_files("killed", 110);
}

TEST_F(Elastic, RestartsHaveALimit) {
  const Arguments command = model("run");
  const Arguments again = model("run", {"--overwrite"});
  EXPECT_EQ(run(elastic(2, command, {"--max-restarts", "1"}),
                {"BRRR_FAULT=peer_checkpoint.write@1=kill:2"}),
            128 + SIGKILL);
  EXPECT_EQ(count(err_, " again from "), 1u) << err_;
  EXPECT_NE(err_.find("after step 60, rank 1 on "), std::string::npos) << err_;
  EXPECT_NE(err_.find("all 1 restart were used"), std::string::npos) << err_;
  EXPECT_EQ(run(elastic(2, again, {"--max-restarts", "0"}),
                {"BRRR_FAULT=peer_checkpoint.write@1=kill:2"}),
            128 + SIGKILL);
  EXPECT_NE(err_.find("no restart is allowed"), std::string::npos) << err_;
  // Always before the same step is done.
  EXPECT_EQ(run(elastic(2, again), {"BRRR_FAULT=peer_checkpoint.write@1=kill"}), 128 + SIGKILL);
  EXPECT_EQ(count(err_, " again from "), 3u) << err_;
  EXPECT_NE(err_.find("3 starts in a row made no new step"), std::string::npos) << err_;
}

TEST_F(Elastic, WhatIsNoLossEndsTheRun) {
  {
    Child child(folder_.path(), elastic(2, model("interrupted", {"--max-steps", "100000"})));
    wait_for_step(child, "interrupted", 60);
    child.send(SIGINT);
    EXPECT_EQ(child.wait(), 128 + SIGINT) << child.err();
    EXPECT_EQ(count(child.err(), "again from"), 0u) << child.err();
    EXPECT_EQ(io::list_checkpoints(path("interrupted")).size(), 1u);
  }
  EXPECT_EQ(run(elastic(2, model("run", {"--n-embd", "33"}))), 2) << err_;
  EXPECT_EQ(count(err_, "again from"), 0u) << err_;
  struct Case {
    Arguments command, environment;
    const char* words;
  };
  Arguments many = elastic(2, model("run"), {"--hosts", "a,b"});
  for (const Case& c :
       {Case{many, {}, "peer checkpoints are for ranks of one host"},
        Case{elastic(2, {"eval"}), {}, "has no step to go on from"},
        Case{elastic(2, model("run"), {"--max-restarts", "-1"}), {}, "--max-restarts"},
        Case{model("run"), {}, "add --elastic"},
        Case{model("run", {"--peer-checkpoint-steps", "-2", "--elastic"}),
             {},
             "peer-checkpoint-steps"},
        Case{model("run"), {"BRRR_LAUNCHER_MEMORY=0,1,2"}, "unset it"}}) {
    EXPECT_EQ(run(c.command, c.environment), 2) << err_;
    EXPECT_NE(err_.find(c.words), std::string::npos) << err_;
  }
}

// The launcher has the time limit of the run that it starts.
TEST_F(Elastic, ARankThatIsStoppedBeforeItComesIsEndedAfterTheRunsTimeLimit) {
  Child child(folder_.path(),
              elastic(2, model("run", {"--rank-timeout", "2"}), {"--max-restarts", "0"}),
              {"BRRR_FAULT=start@1=pause:60000"});
  std::vector<pid_t> pids;
  for (const Stopwatch watch; pids.size() < 2 && watch.seconds() < 60; ::usleep(1000))
    pids = ranks_of(child);
  ASSERT_EQ(pids.size(), 2u) << child.err();
  ::kill(pids[1], SIGSTOP);
  const Stopwatch watch;
  EXPECT_EQ(child.wait(), 128 + SIGKILL) << child.err();
  EXPECT_LT(watch.seconds(), 30);
  EXPECT_NE(child.err().find("rank 1 on "), std::string::npos) << child.err();
  EXPECT_NE(child.err().find("was stopped for 2 s"), std::string::npos) << child.err();
}

// Faults at any moment of a run that is not elastic: it ends soon and names the rank, and another
// number of ranks goes on.
TEST_F(Elastic, FaultsHaveANameAndLeaveAGoodCheckpoint) {
  const auto wanted = env::get("BRRR_TEST_LONG");
  if (!wanted) GTEST_SKIP() << "100 faults take minutes";
  const int faults = *wanted == "1" ? 100 : std::stoi(*wanted);
  const Arguments options{"--max-steps",  "20000", "--save-steps",        "50",
                          "--eval-steps", "5000",  "--lr-scheduler-type", "constant"};
  const auto command = [&](const std::string& name) {
    Arguments args = model(name, options);
    const auto at = std::ranges::find(args, "--peer-checkpoint-steps");
    args.erase(at, at + 2);
    return args;
  };
  std::mt19937 draw(53);
  double slowest = 0;
  int64_t resumed = 0;
  constexpr int kRanks[] = {1, 2, 4};
  for (int fault = 0; fault < faults; ++fault) {
    const int ranks = kRanks[draw() % 3];
    const bool goes_on = fs::exists(path("run")) && !io::list_checkpoints(path("run")).empty();
    Arguments args{"launch", "-n", std::to_string(ranks)};
    const Arguments what =
        goes_on ? Arguments{"train", "--resume", path("run").string()} : command("run");
    args.insert(args.end(), what.begin(), what.end());
    if (!goes_on) args.emplace_back("--overwrite");
    resumed += goes_on ? 1 : 0;
    const size_t victim = draw() % static_cast<size_t>(ranks);
    const int signal = draw() % 2 == 0 ? SIGKILL : SIGSTOP;
    SCOPED_TRACE(fmt::format("fault {}: signal {}, rank {} of {}", fault, signal, victim, ranks));
    Child child(folder_.path(), args, {"BRRR_RANK_TIMEOUT=3"});
    ::usleep(50000 + static_cast<useconds_t>(draw() % 2000000));
    const std::vector<pid_t> pids = ranks_of(child);
    ASSERT_EQ(std::ssize(pids), ranks) << child.err();
    const pid_t launcher = child.pid();
    const Stopwatch watch;
    ::kill(pids[victim], signal);
    EXPECT_NE(child.wait(), 0) << child.err();
    slowest = std::max(slowest, watch.seconds());
    EXPECT_LT(watch.seconds(), 15);
    EXPECT_NE(child.err().find(fmt::format("rank {}", victim)), std::string::npos) << child.err();
    for (const pid_t pid : pids) EXPECT_NE(::kill(pid, 0), 0) << "rank " << pid << " is left";
    expect_nothing_left(launcher);
  }
  const auto left = io::list_checkpoints(path("run"));
  ASSERT_FALSE(left.empty());
  const int64_t end = left.back().step + 100;
  ASSERT_EQ(run({"train", "--resume", path("run").string(), "--max-steps", std::to_string(end)}), 0)
      << err_;
  Arguments whole = command("whole");
  put_options(whole, {"--max-steps", std::to_string(end)});
  ASSERT_EQ(run(whole), 0) << err_;
  std::printf("%d faults, %ld resumed, the slowest end %.1f s, %ld steps\n", faults, resumed,
              slowest, end);
  expect_undisturbed_files("run", end);
}

}  // namespace
}  // namespace brrr::test
