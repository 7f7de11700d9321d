// The run that one means: --resume without a name, the list of runs, and the commands that messages
// suggest.

#include <chrono>

#include "base/human.h"
#include "e2e/run.h"
#include "folders/folder_lock.h"

namespace brrr::test {
namespace {

class RunChoice : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    before_ = fs::current_path();
    fs::current_path(folder_.path());
  }
  void TearDown() override {
    if (!before_.empty()) fs::current_path(before_);
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  /// A run in runs/ that is killed once it has a checkpoint.
  void interrupted(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args{"--max-steps", "30", "--output-dir", "runs/" + name};
    put_options(args, more);
    EXPECT_EQ(run(small_run("", args), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL)
        << err_;
  }
  /// As if nothing had been written there for so long.
  static void age(const fs::path& run, std::chrono::minutes by) {
    const auto then = fs::file_time_type::clock::now() - by;
    for (const auto& entry : fs::recursive_directory_iterator(run))
      fs::last_write_time(entry.path(), then);
  }
  std::vector<std::string> states() {
    EXPECT_EQ(run({"runs", "--json"}), 0) << err_;
    std::vector<std::string> all;
    const nlohmann::json listed = json();
    for (const auto& r : listed["runs"])
      all.push_back(fs::path(r["folder"].get<std::string>()).filename().string() + " " +
                    r["state"].get<std::string>());
    return all;
  }
  fs::path before_;
};

TEST_F(RunChoice, ResumeTakesTheNewestInterruptedRunAndNamesIt) {
  interrupted("char-cpu-7");
  interrupted("zoo", {"--preset", "llama-char", "--num-key-value-heads", "1"});
  ASSERT_EQ(run(small_run("", {"--max-steps", "2", "--output-dir", "runs/done"})), 0) << err_;
  age("runs/char-cpu-7", std::chrono::minutes(50));
  age("runs/zoo", std::chrono::minutes(5));
  EXPECT_EQ(states(), (std::vector<std::string>{"done finished", "zoo interrupted",
                                                "char-cpu-7 interrupted"}));

  // Options of another run: the choice, and nothing is touched.
  EXPECT_EQ(run({"train", "--resume", "--preset", "char-cpu"}), 2);
  for (const char* part :
       {"runs/zoo", "--preset char-cpu", "--resume runs/char-cpu-7", "step 27 of 30",
        "interrupted 50 minutes ago", "--resume runs/zoo", "interrupted 5 minutes ago"})
    EXPECT_TRUE(says(part)) << part << "\n" << err_;
  EXPECT_FALSE(says("runs/done")) << err_;
  write_file_atomically("other.txt", "another text, which the run has never seen");
  EXPECT_EQ(run({"train", "--resume", "--text", "other.txt"}), 2);
  EXPECT_TRUE(says("--text other.txt")) << err_;

  // The same options by other names are its own.
  ASSERT_EQ(run({"train", "--resume", "--preset", "llama-char", "--text", "./text.txt"}), 0)
      << err_;
  EXPECT_TRUE(says("resuming runs/zoo, step 27 of 30, interrupted 5 minutes ago")) << err_;
  // What a resumed run may change is no sign of another run.
  ASSERT_EQ(run({"train", "--resume", "--json", "--weight-decay", "0.2"}), 0) << err_;
  EXPECT_TRUE(says("resuming runs/char-cpu-7")) << err_;
  EXPECT_EQ(json()["run_dir"], "runs/char-cpu-7");
  // Nothing is interrupted any more: the newest run is complete.
  ASSERT_EQ(run({"train", "--resume"}), 0) << err_;
  EXPECT_TRUE(says("runs/char-cpu-7") && says("already complete")) << err_;
}

TEST_F(RunChoice, OutputDirMayBeTheRunOrAFolderOfRuns) {
  EXPECT_EQ(run({"train", "--resume"}), 1);
  EXPECT_TRUE(says("no run in runs/")) << err_;
  interrupted("one");
  fs::rename("runs", "mine");
  ASSERT_EQ(run({"train", "--resume", "--output-dir", "mine"}), 0) << err_;
  EXPECT_TRUE(says("resuming mine/one, step 27")) << err_;
  ASSERT_EQ(run({"train", "--resume", "--output-dir", "mine/one", "--max-steps", "32"}), 0) << err_;
  EXPECT_TRUE(says("resumed at step 30")) << err_;
}

TEST_F(RunChoice, RunsAreListedWithWhatBecameOfThem) {
  ASSERT_EQ(run({"runs"}), 0);
  EXPECT_TRUE(says("start one: brrr train")) << err_;
  EXPECT_EQ(run({"runs", "absent"}), 1);
  interrupted("a");
  fs::create_directories("runs/b");
  write_file_atomically("runs/b/train_config.json", "{\"preset\": \"char\", \"max_steps\": 7}");
  fs::create_directories("runs/c");
  write_file_atomically("runs/c/train_config.json", "no JSON");
  fs::create_directories("runs/not-a-run");
  age("runs/a", std::chrono::minutes(3));
  age("runs/b", std::chrono::minutes(2));
  age("runs/c", std::chrono::minutes(1));
  EXPECT_EQ(states(), (std::vector<std::string>{"c broken", "b stopped before its first checkpoint",
                                                "a interrupted"}));
  const auto a = json()["runs"][2];
  EXPECT_EQ(a["architecture"], "gpt2");
  EXPECT_GT(a["parameters"], 10000);
  EXPECT_EQ(a["step"], 27);
  EXPECT_EQ(a["max_steps"], 30);
  EXPECT_GT(a["best_val_loss"], 0);
  {
    const io::FolderLock lock("runs/a", "testing");
    EXPECT_EQ(states()[2], "a running");
  }
  ASSERT_EQ(run({"runs", "runs/a"}), 0) << err_;
  EXPECT_NE(out_.find("interrupted"), std::string::npos) << out_;
  EXPECT_NE(out_.find("27 of 30"), std::string::npos) << out_;
}

/// The command after `mark`, up to the end of the line or three spaces.
std::string command_after(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, std::min(text.find('\n', begin), text.find("   ", begin)) - begin);
}

TEST_F(RunChoice, SuggestedCommandsRunAsPrinted) {
  fs::create_directory("bin");
  fs::create_symlink(BRRR_BINARY, "bin/brrr");
  const std::string by_path = "PATH=$PWD/bin:$PATH; ";
  {
    Child child(folder_.path(),
                small_run("", {"--max-steps", "1000000", "--output-dir", "runs/with space"}));
    ASSERT_TRUE(child.started());
    for (int i = 0; i < 1000 && !fs::exists("runs/with space/checkpoint-000009"); ++i)
      ::usleep(20'000);
    child.send(SIGINT);
    EXPECT_EQ(child.wait(), 128 + SIGINT);
    err_ = child.err();
  }
  const std::string go_on = command_after(err_, "go on with: ");
  EXPECT_EQ(go_on, "brrr train --resume 'runs/with space'");
  const std::string steps = command_after(err_, "after saving step ");
  EXPECT_EQ(std::system((by_path + go_on + " --max-steps " + steps.substr(0, steps.find(';')) +
                         " >/dev/null 2>&1")
                            .c_str()),
            0);
  ASSERT_EQ(
      run(small_run("", {"--max-steps", "2", "--output-dir", "runs/with space", "--overwrite"})), 0)
      << err_;
  const std::string next = command_after(err_, "next: ");
  EXPECT_EQ(next, "brrr generate --model 'runs/with space'");
  EXPECT_EQ(std::system((by_path + next + " --max-new-tokens 3 >/dev/null 2>&1").c_str()), 0);
  // Through the script its own name is in every hint.
  ASSERT_EQ(run({"train", "--resume", "--max-steps", "3"}, {"BRRR_COMMAND=./brrr"}), 0) << err_;
  EXPECT_EQ(command_after(err_, "next: "), "./brrr generate --model 'runs/with space'");
  EXPECT_EQ(run({"trian"}, {"BRRR_COMMAND=../brrr"}), 2);
  EXPECT_TRUE(says("did you mean '../brrr train'")) << err_;
}

}  // namespace
}  // namespace brrr::test
