// A run whose every text is markup, as somebody else's run may be: every page about it, in a real
// browser, shows that as text. None of it runs, and nothing is asked of anybody. (Pages of profiles
// and ladders: tests/insight.)

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "e2e/run.h"
#include "support/browser.h"
#include "support/hostile_markup.h"

namespace brrr::test {
namespace {

class HostilePages : public EndToEnd {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    program_ = find_chromium();
    if (program_.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
    run_ = path("<img src=x onerror=hacked=1>").string();  // a slash would end the folder's name

    std::string rows = "label\ttext\n";
    for (int i = 0; i < 80; ++i)
      rows += (i % 3 == 0 ? kHostileMarkup : "plain") + "\ta text of " + std::to_string(i) + "\n";
    write_file_atomically(path("labels.tsv"), rows);
    const std::string base = path("base").string();
    ASSERT_EQ(run(small_run("base", {"--preset", "bert-mini", "--tokenizer", "wordpiece:120",
                                     "--max-steps", "2"})),
              0)
        << err_;
    ASSERT_EQ(run({"train",
                   "--task",
                   "classify",
                   "--data",
                   path("labels.tsv").string(),
                   "--init-from",
                   base,
                   "--context",
                   "32",
                   "--max-steps",
                   "20",
                   "--save-steps",
                   "10",
                   "--eval-steps",
                   "10",
                   "--threads",
                   "1",
                   "--run-name",
                   kHostileMarkup,
                   "--output-dir",
                   run_}),
              0)
        << err_;
    // What another program may have put into the run's files.
    std::string log = read_file(fs::path(run_) / "log.jsonl");
    for (const char* kind : {"loss_spike", kHostileMarkup.c_str()})
      log += Json({{"step", 12}, {"health", kind}, {"text", kHostileMarkup}}).dump() + "\n";
    log += Json({{"step", 13},
                 {"loss", kHostileMarkup},
                 {"lr", kHostileMarkup},
                 {kHostileMarkup, kHostileMarkup}})
               .dump() +
           "\n";
    log += Json({{"step", 14}, {"val_loss", kHostileMarkup}, {"accuracy", kHostileMarkup}}).dump() +
           "\n";
    write_file_atomically(fs::path(run_) / "log.jsonl", log);
  }
  void expect_harmless_file(const fs::path& file) {
    Browser browser(program_, 1100, 1400, false);
    const std::string url = "file://" + file.string();
    browser.open(url);
    expect_harmless(browser, url);
  }
  std::string program_, run_;
};

TEST_F(HostilePages, AreHarmless) {
  const fs::path page = path("page.html");
  // One run, and beside another whose options are markup, too.
  const fs::path other = path("other");
  fs::create_directory(other);
  fs::copy_file(fs::path(run_) / "log.jsonl", other / "log.jsonl");
  Json options = Json::parse(read_file(fs::path(run_) / "train_config.json"));
  options["optim"] = options["precision"] = options[kHostileMarkup] = kHostileMarkup;
  write_file_atomically(other / "train_config.json", options.dump());
  for (const auto& runs : {std::vector<std::string>{run_}, {run_, other.string()}}) {
    std::vector<std::string> args{"report", "--output", page.string()};
    args.insert(args.end(), runs.begin(), runs.end());
    ASSERT_EQ(run(args), 0) << err_;
    expect_harmless_file(page);
  }
  ASSERT_EQ(run({"plan", run_, "--html", page.string()}), 0) << err_;
  expect_harmless_file(page);
}

TEST_F(HostilePages, TheLivePageIsHarmless) {
  const Child child(path("."), {"train", "--resume", run_, "--max-steps", "4000", "--live"});
  std::string url;
  for (int i = 0; i < 600 && url.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::string err = child.err();
    const size_t at = err.find("live: http://127.0.0.1:");
    const size_t end = err.find('\n', at);
    if (at != std::string::npos && end != std::string::npos) url = err.substr(at + 6, end - at - 6);
  }
  ASSERT_NE(url, "") << child.err();
  Browser browser(program_, 1100, 1400, false);
  browser.open(url);
  for (int i = 0; i < 200 && browser.evaluate("runs[0].tables.steps?.step.length > 20") != true;
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(browser.evaluate("runs[0].tables.steps?.step.length > 20"), true);
  expect_harmless(browser, url, 2);
}

}  // namespace
}  // namespace brrr::test
