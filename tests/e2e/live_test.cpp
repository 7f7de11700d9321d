// The live page of a run, in a real browser and for clients that are no browsers; health records;
// reports of what the runs leave behind.

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <thread>

#include "e2e/run.h"
#include "support/browser.h"
#include "support/http.h"
#include "support/long_proof.h"

namespace brrr::test {
namespace {

class Live : public EndToEnd {
 protected:
  static void pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  /// Starts a run with a page, and waits for its address.
  std::unique_ptr<Child> start(std::vector<std::string> args) {
    auto child = std::make_unique<Child>(folder_.path(), args);
    for (int i = 0; i < 600 && url_.empty(); ++i) {
      pause(50);
      const std::string err = child->err();
      const size_t at = err.find("live: http://127.0.0.1:");
      if (at == std::string::npos || err.find('\n', at) == std::string::npos) continue;
      url_ = err.substr(at + 6, err.find('\n', at) - at - 6);
      port_ = std::atoi(url_.c_str() + std::string("http://127.0.0.1:").size());
    }
    EXPECT_GT(port_, 0) << child->err();
    return child;
  }
  static bool wait_for(Browser& browser, const std::string& expression) {
    for (int i = 0; i < 2000; ++i) {
      if (browser.evaluate(expression) == true) return true;
      pause(50);
    }
    return false;
  }
  /// The messages of an event stream: the JSON of each line that begins with "data: ".
  static std::vector<nlohmann::json> messages(const std::string& text) {
    std::vector<nlohmann::json> all;
    for (size_t at = 0; (at = text.find("\ndata: ", at)) != std::string::npos;) {
      const size_t begin = at + 7, end = text.find("\n\n", begin);
      if (end == std::string::npos) break;
      all.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
      at = end;
    }
    return all;
  }
  std::string url_;
  int port_ = 0;
};

TEST_F(Live, ABrowserSeesTheRunUntilItsEnd) {
  const std::string program = find_chromium();
  if (program.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
  Browser browser(program, 1100, 1400, false);
  const auto child = start(small_run("run", {"--live", "--max-steps", "1500", "--logging-steps",
                                             "7", "--run-name", "<b>bold</b>"}));
  browser.open(url_);
  ASSERT_TRUE(wait_for(browser, "document.querySelectorAll('svg.plot path.line').length > 4"))
      << child->err();
  const std::string points = "runs[0].tables.steps.step.length";
  const int before = browser.evaluate(points);
  EXPECT_GT(before, 0);
  EXPECT_TRUE(wait_for(browser, points + " > " + std::to_string(before))) << "it stands still";
  EXPECT_EQ(browser.evaluate("runs[0].tables.steps.step[0]"), 1) << "history from the start";
  EXPECT_EQ(browser.evaluate("document.getElementById('tiles').children.length"), 10);
  EXPECT_EQ(browser.evaluate("document.querySelector('h1').textContent"), "<b>bold</b>");
  EXPECT_TRUE(wait_for(browser, "document.getElementById('status').dataset.state === 'finished'"));
  EXPECT_EQ(browser.evaluate("runs[0].tables.evaluations.val_loss.length >= 30"), true);
  EXPECT_EQ(browser.evaluate("runs[0].tables.regimes?.share_compute.length > 0"), true);
  EXPECT_EQ(browser.evaluate("runs[0].tables.host?.process_bytes.length > 0"), true);
  EXPECT_EQ(child->wait(), 0) << child->err();
  pause(500);
  browser.evaluate("1");  // what was asked for meanwhile is known now
  for (const std::string& request : browser.requests())
    EXPECT_TRUE(request.starts_with(url_)) << request;
  EXPECT_EQ(browser.requests().size(), 2u) << "the page and its events";
  EXPECT_TRUE(browser.complaints().empty()) << browser.complaints()[0];
}

TEST_F(Live, APageChangesNoBit) {
  ASSERT_EQ(run(small_run("plain")), 0) << err_;
  ASSERT_EQ(run(small_run("live", {"--live"})), 0) << err_;
  EXPECT_NE(err_.find("live: http://127.0.0.1:"), std::string::npos) << err_;
  EXPECT_EQ(loss_series("plain"), loss_series("live"));
  EXPECT_TRUE(read_file(path("plain") / "model.safetensors") ==
              read_file(path("live") / "model.safetensors"));
}

// What makes a page cheap for the run: a client that is connected to the end gets each step once.
TEST_F(Live, AStreamSendsEachStepOnce) {
  const auto child =
      start(small_run("run", {"--live", "--max-steps", "1500", "--logging-steps", "1"}));
  const Socket client(port_);
  client.send("GET /events HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port_) + "\r\n\r\n");
  const auto all = messages(client.receive());  // to the end of the run
  EXPECT_EQ(child->wait(), 0) << child->err();
  ASSERT_FALSE(all.empty());
  int64_t steps = 0;
  for (const nlohmann::json& message : all) {
    const nlohmann::json tables = message.at("news").value("tables", nlohmann::json::object());
    if (!tables.contains("steps")) continue;
    EXPECT_EQ(tables["steps"]["from"], steps);
    for (const nlohmann::json& step : tables["steps"]["columns"]["step"])
      EXPECT_EQ(step, ++steps) << "a step is missing or was sent again";
  }
  EXPECT_EQ(steps, 1500);
}

TEST_F(Live, ALateClientGetsTheHistoryBesideClientsThatReadNothing) {
  const auto child = start(small_run("run", {"--live", "--max-steps", "3000"}));
  std::vector<std::unique_ptr<Socket>> deaf;
  const std::string ask =
      "GET /events HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port_) + "\r\n\r\n";
  for (int i = 0; i < 3; ++i) {
    deaf.push_back(std::make_unique<Socket>(port_));
    deaf.back()->send(ask);
  }
  pause(300);
  const Socket late(port_);
  late.send(ask);
  const auto all = messages(late.receive());  // to the end of the run
  ASSERT_GT(all.size(), 1u);
  EXPECT_EQ(all[0]["news"]["tables"]["steps"]["from"], 0);
  EXPECT_EQ(all[0]["news"]["tables"]["steps"]["columns"]["step"][0], 1);
  EXPECT_EQ(all.back()["now"]["state"], "finished") << all.back()["now"];
  EXPECT_EQ(all.back()["now"]["step"], 3000);
  EXPECT_EQ(child->wait(), 0) << child->err();
}

TEST_F(Live, ABusyPortIsSaidAndTheRunGoesOn) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(run(small_run("run", {"--live-port", port, "--max-steps", "20"})), 0) << err_;
  const std::string line = "no live page: cannot listen on port " + port;
  EXPECT_NE(err_.find(line), std::string::npos) << err_;
  EXPECT_EQ(json()["steps"], 20);
  EXPECT_EQ(run({"report", path("run").string(), "--serve", "--port", port}), 1);
  EXPECT_TRUE(err_.starts_with("brrr: cannot listen on port " + port)) << err_;
  ::close(fd);
}

TEST_F(Live, ARunThatBreaksLeavesAHealthRecordWithItsLayer) {
  EXPECT_EQ(run(small_run(
                "run", {"--learning-rate", "1e30", "--warmup-steps", "0", "--max-grad-norm", "0"})),
            1);
  EXPECT_NE(err_.find("it began in "), std::string::npos) << err_;
  const auto records = io::read_jsonl(path("run") / "log.jsonl");
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().value("health", ""), "non_finite") << records.back();
  EXPECT_NE(records.back()["text"].get<std::string>().find(" at "), std::string::npos)
      << records.back();
  // What is left of it makes a report.
  ASSERT_EQ(run({"report", path("run").string()}), 0) << err_;
  EXPECT_EQ(err_, "report: " + (path("run") / "report.html").string() + "\n");
  EXPECT_GT(fs::file_size(path("run") / "report.html"), 10'000u);
}

// Short runs as people start them: nothing is unusual about their loss and their gradients.
TEST_F(Live, NoFalseAlarms) {
  const std::vector<std::vector<std::string>> runs = {
      {"--max-steps", "1500"},
      {"--batch-size", "1", "--max-steps", "1500"},
      {"--optim", "lion", "--max-steps", "800"},
      {"--precision", "fp16", "--max-steps", "800"},
      {"--warmup-steps", "300", "--learning-rate", "3e-3", "--max-steps", "800"}};
  for (const std::vector<std::string>& more : sampled(runs, 3, "false alarms")) {
    std::vector<std::string> args{"--overwrite"};
    put_options(args, more);
    ASSERT_EQ(run(small_run("run", args)), 0) << err_;
    for (const nlohmann::json& note : json()["health"])
      // Slow steps and late data depend on what else the machine does.
      EXPECT_TRUE(note["kind"] == "slow_steps" || note["kind"] == "data_stall")
          << fmt::format("{}", fmt::join(more, " ")) << ": " << note;
  }
}

TEST_F(Live, ReportsCompareAndLeaveOutWhatIsNoRun) {
  ASSERT_EQ(run(small_run("a", {"--max-steps", "30"})), 0) << err_;
  ASSERT_EQ(run(small_run("b", {"--max-steps", "20", "--optim", "lion"})), 0) << err_;
  const std::string a = path("a").string(), b = path("b").string();
  ASSERT_EQ(run({"report", a, b, path("absent").string(), "--json"}), 0) << err_;
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  EXPECT_NE(err_.find("absent: there is no such folder"), std::string::npos) << err_;
  const nlohmann::json j = json();
  ASSERT_EQ(j["runs"].size(), 2u);
  EXPECT_EQ(j["runs"][0]["status"], "finished");
  EXPECT_EQ(j["runs"][0]["curves"]["steps"]["loss"].size(), 30u);
  EXPECT_EQ(j["runs"][1]["steps"], 20);
  for (const nlohmann::json& r : j["runs"]) {
    EXPECT_GT(r["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(r["median_tokens_per_second"].get<double>(), 0);
  }
  const auto& differ = j["differing_options"];
  EXPECT_NE(std::find(differ.begin(), differ.end(), "optim"), differ.end()) << differ;
  const std::string page = path("page.html").string();
  ASSERT_EQ(run({"report", a, b, "--output", page}), 0) << err_;
  const std::string html = read_file(page);
  EXPECT_NE(html.find("2 runs"), std::string::npos);
  for (const char* outside : {"http://", "https://", "src=\"/"}) {
    // The name of SVG's namespace is no address that is asked for.
    for (size_t at = 0; (at = html.find(outside, at)) != std::string::npos; ++at)
      EXPECT_EQ(html.substr(at, 26), "http://www.w3.org/2000/svg");
  }
}

TEST_F(Live, AReportIsOfRunsEachOnce) {
  ASSERT_EQ(run(small_run("a", {"--max-steps", "10"})), 0) << err_;
  const double said = json()["tokens_per_second"].get<double>();
  const std::string a = path("a").string();
  ASSERT_EQ(run({"report", a, a + "/", path("absent/../a").string(), "--json"}), 0) << err_;
  ASSERT_EQ(json()["runs"].size(), 1u) << json()["runs"];
  EXPECT_EQ(json()["runs"][0]["tokens_per_second"].get<double>(), said) << "one figure of one run";
  const fs::path checkpoint = path("a") / "checkpoint-000009";
  ASSERT_TRUE(fs::exists(checkpoint));
  for (const std::string& name : {checkpoint.string(), checkpoint.string() + "/"}) {
    EXPECT_EQ(run({"report", name}), 1);
    EXPECT_NE(err_.find("is a checkpoint; expected the run folder"), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_FALSE(fs::exists(checkpoint / "report.html"));
  }
  EXPECT_EQ(run({"report", a, "--port", "9999"}), 2);
  EXPECT_EQ(err_.find("--port needs --serve"), std::string("brrr: ").size()) << err_;
  EXPECT_FALSE(fs::exists(path("a") / "report.html"));
}

TEST_F(Live, LogsHaveAllOfItForOtherTools) {
  const auto event_text = [&] {
    std::string all;
    for (const auto& entry : fs::directory_iterator(path("run") / "tensorboard"))
      all += read_file(entry.path());
    return all;
  };
  for (const char* where : {"tensorboard", "all"}) {
    ASSERT_EQ(run(small_run("run", {"--overwrite", "--report-to", where, "--live"})), 0) << err_;
    const std::string events = event_text();
    for (const char* tag :
         {"train/loss", "eval/loss", "train/learning_rate", "train/grad_norm",
          "train/tokens_per_second", "train/waiting_share", "memory/process_bytes",
          "memory/arena_bytes", "regime/compute", "regime/bandwidth", "regime/overhead"})
      EXPECT_NE(events.find(tag), std::string::npos) << where << " " << tag;
  }
  for (const char* where : {"jsonl", "none"}) {
    ASSERT_EQ(run(small_run("run", {"--overwrite", "--report-to", where})), 0) << err_;
    EXPECT_FALSE(fs::exists(path("run") / "tensorboard")) << where;
    std::set<std::string> keys;
    for (const nlohmann::json& record : io::read_jsonl(path("run") / "log.jsonl"))
      for (const auto& [key, value] : record.items()) keys.insert(key);
    for (const char* key : {"loss", "val_loss", "lr", "grad_norm", "tokens_per_second",
                            "waiting_share", "process_bytes", "arena_bytes", "finished"})
      EXPECT_TRUE(keys.contains(key)) << where << " " << key;
  }
}

TEST_F(Live, AReportIsServedAsItIsNow) {
  ASSERT_EQ(run(small_run("a", {"--max-steps", "30"})), 0) << err_;
  Child child(folder_.path(), {"report", path("a").string(), "--serve"});
  std::string err;
  for (int i = 0; i < 200 && err.find(" (") == std::string::npos; ++i) {
    pause(50);
    err = child.err();
  }
  ASSERT_TRUE(err.starts_with("report: http://127.0.0.1:")) << err;
  const int port = std::atoi(err.c_str() + std::string("report: http://127.0.0.1:").size());
  EXPECT_EQ(status_of(http_get(port, "/")), "200");
  EXPECT_EQ(status_of(http_get(port, "/", "", "GET", "evil.example")), "403");
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGTERM);
}

}  // namespace
}  // namespace brrr::test
