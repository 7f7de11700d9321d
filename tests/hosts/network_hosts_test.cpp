// Ranks on hosts of their own, which are network namespaces: the files of one process, the bytes
// that the network interface counts, and what happens when a host is cut off.

#include "support/network_hosts.h"

#include <csignal>

#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "support/long_proof.h"

namespace brrr::test {
namespace {

using Arguments = std::vector<std::string>;

/// Seconds after which a program counts as hung, even on a busy machine.
constexpr double kPatience = 60;
/// Value of --rank-timeout in seconds, long enough for a live rank to answer on a busy machine.
constexpr const char* kRankTimeout = "5";

class Hosts : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    if (const std::string why = NetworkHosts::missing(); !why.empty()) GTEST_SKIP() << why;
  }
  /// A rank sends about 0.8 MB in each of its steps.
  Arguments model(const std::string& name, const Arguments& more = {}) const {
    Arguments args = small_run(
        name, {"--n-embd", "128", "--batch-size", "8", "--max-steps", "24", "--eval-steps", "12",
               "--logging-steps", "1", "--deterministic-ranks", "4"});
    put_options(args, more);
    return args;
  }
  std::unique_ptr<Child> start_launch(const NetworkHosts& hosts, const Arguments& options,
                                      const Arguments& command) const {
    Arguments args{"launch"};
    args.insert(args.end(), options.begin(), options.end());
    args.insert(args.end(), command.begin(), command.end());
    return std::make_unique<Child>(folder_.path(), args, hosts.environment(), "/dev/null",
                                   hosts.on(0));
  }
  std::unique_ptr<Child> start(const NetworkHosts& hosts, const Arguments& command) const {
    return start_launch(hosts, {"-n", std::to_string(hosts.size()), "--hosts", hosts.addresses()},
                        command);
  }
  void await_checkpoint(const Child& program, const std::string& name) const {
    const auto saved = [&] {
      return fs::exists(path(name)) && !io::list_checkpoints(path(name)).empty();
    };
    for (int i = 0; i < 6000 && program.is_running() && !saved(); ++i) ::usleep(10000);
    ASSERT_TRUE(saved()) << program.err();
  }
  /// Seconds until the program prints `words` on standard error, at most kPatience.
  static double seconds_until_said(const Child& program, const std::string& words) {
    const Stopwatch watch;
    while (program.is_running() && watch.seconds() < kPatience &&
           program.err().find(words) == std::string::npos)
      ::usleep(10000);
    return watch.seconds();
  }
  /// The rank that runs on a host.
  static pid_t rank_on(const NetworkHosts& hosts, int host, const Child& launcher) {
    for (const pid_t process : hosts.processes(host))
      if (process != launcher.pid() && system_text::trimmed(system_text::read_or_empty(
                                           fmt::format("/proc/{}/comm", process))) == "brrr")
        return process;
    return 0;
  }
  static size_t count(const std::string& text, const std::string& words) {
    size_t found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++found;
    return found;
  }
  void expect_same_files(const std::string& a, const std::string& b, int64_t step) const {
    for (const std::string& name : {std::string("model.safetensors"),
                                    fmt::format("checkpoint-{:06}/optimizer.safetensors", step)})
      EXPECT_TRUE(read_file(path(a) / name) == read_file(path(b) / name)) << name << " differs";
    EXPECT_EQ(loss_series(a), loss_series(b));
  }
  double counted_bytes(const std::string& run) const {
    double bytes = 0;
    for (const nlohmann::json& record : io::read_jsonl(path(run) / "log.jsonl"))
      bytes += record.value("sent_bytes", 0.0);
    return bytes;
  }
  /// Runs it on all hosts; returns what the first one sent, by its network interface.
  double bytes_of_interface(const NetworkHosts& hosts, const Arguments& command) const {
    const int64_t before = hosts.bytes_sent(0);
    const auto program = start(hosts, command);
    EXPECT_EQ(program->wait(), 0) << program->err();
    EXPECT_LT(hosts.seconds_until_empty(kPatience), kPatience);
    EXPECT_FALSE(hosts.has_session_files());
    return static_cast<double>(hosts.bytes_sent(0) - before);
  }
};

TEST_F(Hosts, RanksWriteTheFilesOfOneProcess) {
  ASSERT_EQ(run(model("one")), 0) << err_;
  const auto expect_run_of_one = [&](int count, const std::string& rate, const Arguments& options) {
    SCOPED_TRACE(fmt::format("{} hosts at {}, {}", count, rate, fmt::join(options, " ")));
    const std::string name = fmt::format("{}-{}-{}", count, rate, fmt::join(options, ""));
    const NetworkHosts hosts(count, rate);
    bytes_of_interface(hosts, model(name, options));
    expect_same_files("one", name, 24);
  };
  if (!is_long()) return expect_run_of_one(2, "1gbit", {"--zero", "2"});
  for (const int count : {2, 4})
    for (const char* rate : {"1gbit", "200mbit"}) {
      for (const char* zero : {"0", "1", "2", "3"})
        expect_run_of_one(count, rate, {"--zero", zero});
      expect_run_of_one(count, rate, {"--no-overlap"});
    }
}

// The difference of two runs that differ in their number of steps alone leaves out what they send
// at the start and at the end.
TEST_F(Hosts, TheInterfaceCountsTheBytesOfSteps) {
  const auto expect_bytes = [&](int count, const char* zero) {
    SCOPED_TRACE(fmt::format("{} hosts, ZeRO {}", count, zero));
    const NetworkHosts hosts(count, "1gbit");
    double sent = 0, counted = 0;
    for (const int steps : {10, 40}) {
      const std::string name = fmt::format("{}-{}-{}", count, zero, steps);
      const double bytes = bytes_of_interface(
          hosts, model(name, {"--zero", zero, "--max-steps", std::to_string(steps), "--save-steps",
                              "1000", "--eval-steps", "1000"}));
      sent = bytes - sent;
      counted = counted_bytes(name) - counted;
    }
    EXPECT_GT(sent, counted);
    EXPECT_LT(sent, 1.06 * counted);
    RecordProperty(fmt::format("{}-{}", count, zero), fmt::format("{:.4f}", sent / counted));
  };
  expect_bytes(2, "0");
  if (!is_long()) return;
  for (const int count : {2, 4})
    for (const char* zero : {"1", "2", "3"}) expect_bytes(count, zero);
  expect_bytes(4, "0");
}

// Each side of the cut says which rank it has lost, and the daemons of mpirun end, too.
TEST_F(Hosts, ARunEndsOnAllHostsWhenOneIsCutOffAndIsResumedToTheSameBits) {
  const Arguments longer{"--max-steps", "120", "--save-steps", "10", "--eval-steps", "60"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  {
    const NetworkHosts hosts(2, "200mbit");
    Arguments options = longer;
    if (!is_long()) options.insert(options.end(), {"--rank-timeout", kRankTimeout});
    const auto program = start(hosts, model("cut", options));
    ASSERT_NO_FATAL_FAILURE(await_checkpoint(*program, "cut"));
    hosts.set_link(1, false);
    const double seconds = hosts.seconds_until_empty(kPatience);
    EXPECT_LT(seconds, kPatience);
    EXPECT_NE(program->wait(), 0);
    EXPECT_NE(program->err().find("brrr: rank 1 on host1 (process "), std::string::npos)
        << program->err();
    const auto files_are_gone = [&] {
      for (int i = 0; i < 500 && hosts.has_session_files(); ++i) ::usleep(10000);
      return !hosts.has_session_files();
    };
    EXPECT_TRUE(files_are_gone());
    RecordProperty("seconds", fmt::format("{:.2f}", seconds));
  }
  ASSERT_EQ(run({"train", "--resume", path("cut").string()}), 0) << err_;
  expect_same_files("whole", "cut", 120);
}

// Hosts with 2, 1 and 1 ranks: when the second host is cut off, 2 ranks go on, the most that divide
// 4 slots. Two hosts with a rank each: one rank goes on.
TEST_F(Hosts, AnElasticRunGoesOnWithoutAHostThatIsCutOff) {
  const Arguments longer{"--max-steps", "120", "--save-steps", "10", "--eval-steps", "60"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  const double limit = is_long() ? 12 : std::stod(kRankTimeout);
  Arguments options = longer;
  options.insert(options.end(), {"--rank-timeout", fmt::format("{:.0f}", limit)});
  struct Case {
    int hosts;
    const char *ranks_of_first, *lost, *left;
  };
  for (const Case& c : {Case{3, ":2", "rank 2", "2 ranks"}, Case{2, "", "rank 1", "1 rank"}}) {
    SCOPED_TRACE(fmt::format("{} hosts", c.hosts));
    const NetworkHosts hosts(c.hosts, "1gbit");
    const std::string name = fmt::format("cut{}", c.hosts), first = hosts.address(0);
    const std::string others = hosts.addresses().substr(first.size());
    const auto program = start_launch(
        hosts, {"--elastic", "--hosts", first + c.ranks_of_first + others}, model(name, options));
    ASSERT_NO_FATAL_FAILURE(await_checkpoint(*program, name));
    hosts.set_link(1, false);
    const double seconds = seconds_until_said(*program, "resumed at step ");
    EXPECT_LT(seconds, kPatience);
    EXPECT_EQ(program->wait(), 0) << program->err();
    const std::string err = program->err();
    EXPECT_NE(err.find("brrr: after step "), std::string::npos) << err;
    EXPECT_NE(err.find(fmt::format(", {} on host1 (process ", c.lost)), std::string::npos) << err;
    EXPECT_NE(err.find(fmt::format("; {} does not answer and is left out; starting {} again from "
                                   "the checkpoint of step ",
                                   hosts.address(1), c.left)),
              std::string::npos)
        << err;
    EXPECT_EQ(count(err, " again from "), 1u) << err;
    EXPECT_LT(hosts.seconds_until_empty(kPatience), kPatience);
    RecordProperty(fmt::format("seconds-{}", c.hosts), fmt::format("{:.2f}", seconds));
    expect_same_files("whole", name, 120);
  }
}

TEST_F(Hosts, AnElasticRunStartsALostRankOfAnyHostAgain) {
  const Arguments longer{"--max-steps", "120", "--save-steps", "10", "--eval-steps", "60"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  const NetworkHosts hosts(2, "1gbit");
  struct Case {
    int host, signal;
    const char *name, *what;
  };
  for (const Case& c : {Case{1, SIGKILL, "rank 1 on 10.77.0.2", "was ended by signal 9"},
                        {0, SIGKILL, "rank 0 on host0", "was ended by signal 9"},
                        {1, SIGSTOP, "rank 1 on host1", "has not answered for 5 s"}}) {
    SCOPED_TRACE(fmt::format("host {}, signal {}", c.host, c.signal));
    const std::string name = fmt::format("host{}-{}", c.host, c.signal);
    Arguments options = longer;
    options.insert(options.end(), {"--rank-timeout", kRankTimeout});
    const auto program =
        start_launch(hosts, {"--elastic", "--hosts", hosts.addresses()}, model(name, options));
    ASSERT_NO_FATAL_FAILURE(await_checkpoint(*program, name));
    const pid_t rank = rank_on(hosts, c.host, *program);
    ASSERT_GT(rank, 0);
    ::kill(rank, c.signal);
    const double seconds = seconds_until_said(*program, "resumed at step ");
    EXPECT_LT(seconds, kPatience);
    EXPECT_EQ(program->wait(), 0) << program->err();
    const std::string err = program->err();
    EXPECT_NE(err.find(fmt::format(", {} (process {}) {}", c.name, rank, c.what)),
              std::string::npos)
        << err;
    EXPECT_NE(err.find("; starting 2 ranks again from the checkpoint of step "), std::string::npos)
        << err;
    EXPECT_EQ(count(err, " again from "), 1u) << err;
    EXPECT_LT(hosts.seconds_until_empty(kPatience), kPatience);
    RecordProperty(name, fmt::format("{:.2f}", seconds));
    expect_same_files("whole", name, 120);
  }
}

TEST_F(Hosts, WhatIsNoLossEndsAnElasticRun) {
  const NetworkHosts hosts(2, "1gbit");
  const Arguments elastic{"--elastic", "--hosts", hosts.addresses()};
  {
    const auto program = start_launch(hosts, elastic, model("wrong", {"--n-embd", "33"}));
    EXPECT_EQ(program->wait(), 2) << program->err();
    EXPECT_EQ(count(program->err(), " again from "), 0u) << program->err();
  }
  for (const int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(fmt::format("signal {}", signal));
    const std::string name = fmt::format("ended{}", signal);
    const auto program = start_launch(hosts, elastic, model(name, {"--max-steps", "100000"}));
    ASSERT_NO_FATAL_FAILURE(await_checkpoint(*program, name));
    program->send(signal);
    EXPECT_EQ(program->wait(), 128 + signal) << program->err();
    EXPECT_EQ(count(program->err(), " again from "), 0u) << program->err();
    EXPECT_LT(hosts.seconds_until_empty(kPatience), kPatience);
  }
}

// MPICH's MPI_Finalize and its daemons wait without a limit for a host that was cut off.
TEST_F(Hosts, MpichEndsWhenAHostIsCutOffAtTheEndOfARun) {
  if (!NetworkHosts::has_mpich()) GTEST_SKIP() << "mpirun.mpich (package mpich) is not installed";
  const NetworkHosts hosts(2, "1gbit");
  Arguments args{"launch", "--hosts", hosts.addresses()};
  const Arguments command = model("cut", {"--rank-timeout", kRankTimeout});
  args.insert(args.end(), command.begin(), command.end());
  Arguments before = hosts.on(0);  // a second PATH beside that of the test would not do
  before.emplace_back("env");
  for (const std::string& variable : hosts.environment_of_mpich()) before.push_back(variable);
  const Child program(folder_.path(), args, {}, "/dev/null", before);
  for (int i = 0; i < 6000 && program.is_running() && !fs::exists(path("cut") / "checksums.json");
       ++i)
    ::usleep(1000);
  ASSERT_TRUE(fs::exists(path("cut") / "checksums.json")) << program.err();
  hosts.set_link(1, false);
  const double seconds = hosts.seconds_until_empty(kPatience);
  EXPECT_LT(seconds, kPatience) << program.err();
  RecordProperty("seconds", fmt::format("{:.2f}", seconds));
}

// The exit code is that of a run of one process, whatever mpirun makes of the signal.
TEST_F(Hosts, ASignalEndsARunWithItsExitCode) {
  const NetworkHosts hosts(2, "1gbit");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(fmt::format("signal {}", signal));
    const std::string name = fmt::format("ended{}", signal);
    const auto program = start(hosts, model(name, {"--max-steps", "100000"}));
    ASSERT_NO_FATAL_FAILURE(await_checkpoint(*program, name));
    program->send(signal);
    EXPECT_EQ(program->wait(), 128 + signal) << program->err();
    EXPECT_LT(hosts.seconds_until_empty(kPatience), kPatience);
  }
}

}  // namespace
}  // namespace brrr::test
