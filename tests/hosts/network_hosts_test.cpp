// Ranks on hosts of their own, which are network namespaces: the files of one process, the bytes
// that the network interface counts, and what happens when a host is cut off.

#include "support/network_hosts.h"

#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "support/long_proof.h"

namespace brrr::test {
namespace {

using Arguments = std::vector<std::string>;

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
  static Arguments launched(const NetworkHosts& hosts, const Arguments& command) {
    Arguments args{"launch", "-n", std::to_string(hosts.size()), "--hosts", hosts.addresses()};
    args.insert(args.end(), command.begin(), command.end());
    return args;
  }
  std::unique_ptr<Child> start(const NetworkHosts& hosts, const Arguments& command) const {
    return std::make_unique<Child>(folder_.path(), launched(hosts, command), hosts.environment(),
                                   "/dev/null", hosts.on(0));
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
  /// The same files as one process, and the bytes of the first rank's interface within 6%.
  void expect_run_of_one(int count, const std::string& rate, const Arguments& options) {
    SCOPED_TRACE(fmt::format("{} hosts at {}, {}", count, rate, fmt::join(options, " ")));
    const std::string name = fmt::format("{}-{}-{}", count, rate, fmt::join(options, ""));
    const NetworkHosts hosts(count, rate);
    const int64_t before = hosts.bytes_sent(0);
    const auto program = start(hosts, model(name, options));
    ASSERT_EQ(program->wait(), 0) << program->err();
    const auto sent = static_cast<double>(hosts.bytes_sent(0) - before);
    expect_same_files("one", name, 24);
    EXPECT_GT(sent, counted_bytes(name));
    EXPECT_LT(sent, 1.06 * counted_bytes(name));
    RecordProperty(name, fmt::format("{:.4f}", sent / counted_bytes(name)));
    EXPECT_LT(hosts.seconds_until_empty(5), 5);
    EXPECT_FALSE(hosts.has_session_files());
  }
};

TEST_F(Hosts, RanksWriteTheFilesOfOneProcessAndSendTheBytesThatTheyCount) {
  ASSERT_EQ(run(model("one")), 0) << err_;
  expect_run_of_one(2, "1gbit", {});
  if (!is_long()) return;
  for (const int count : {2, 4})
    for (const char* rate : {"1gbit", "200mbit"})
      for (const char* zero : {"1", "2", "3"}) expect_run_of_one(count, rate, {"--zero", zero});
  expect_run_of_one(4, "200mbit", {"--no-overlap"});
}

// Each side of the cut says which rank it has lost, and the daemons of mpirun end, too.
TEST_F(Hosts, ARunEndsOnAllHostsWhenOneIsCutOffAndIsResumedToTheSameBits) {
  const Arguments longer{"--max-steps", "200", "--save-steps", "10", "--eval-steps", "100"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  {
    const NetworkHosts hosts(2, "200mbit");
    Arguments options = longer;
    if (!is_long()) options.insert(options.end(), {"--rank-timeout", "2"});
    const auto program = start(hosts, model("cut", options));
    const auto saved = [&] {
      return fs::exists(path("cut")) && !io::list_checkpoints(path("cut")).empty();
    };
    for (int i = 0; i < 6000 && program->is_running() && !saved(); ++i) ::usleep(10000);
    ASSERT_TRUE(saved()) << program->err();
    hosts.set_link(1, false);
    const double seconds = hosts.seconds_until_empty(40);
    EXPECT_LT(seconds, 15);
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
  expect_same_files("whole", "cut", 200);
}

}  // namespace
}  // namespace brrr::test
