#pragma once
// Runs of the program for the end-to-end tests: a small text, a small model, and what a run leaves
// behind.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/jsonl.h"
#include "support/temp_folder.h"

extern char** environ;

namespace brrr::test {

/// Adds options to a command line, in the place of those of the same names that it has.
inline void put_options(std::vector<std::string>& args, const std::vector<std::string>& more) {
  const auto is_name = [](const std::string& word) {
    return word.size() > 2 && word[0] == '-' && word[1] == '-';
  };
  for (const std::string& name : more) {
    if (!is_name(name)) continue;
    const auto begin = std::find(args.begin(), args.end(), name);
    if (begin == args.end()) continue;
    args.erase(begin, std::find_if(begin + 1, args.end(), is_name));
  }
  args.insert(args.end(), more.begin(), more.end());
}

/// A child process of the program, its output in files.
class Child {
 public:
  /// `input`: the file that is its standard input. `before`: another program and its arguments,
  /// which start this one.
  Child(const fs::path& folder, const std::vector<std::string>& args,
        const std::vector<std::string>& environment = {}, const fs::path& input = "/dev/null",
        const std::vector<std::string>& before = {})
      : out_(folder / "child.out"), err_(folder / "child.err") {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, input.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    // Whoever started the tests in the background may ignore them: the child must not.
    sigset_t heard;
    sigemptyset(&heard);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) sigaddset(&heard, signal);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &heard);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    std::vector<std::string> words = before;
    words.emplace_back(BRRR_BINARY);
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv, envp;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    std::vector<std::string> extra = environment;
    for (std::string& e : extra) envp.push_back(e.data());
    for (char** e = environ; *e != nullptr; ++e) envp.push_back(*e);
    envp.push_back(nullptr);
    if (posix_spawnp(&pid_, words[0].c_str(), &actions, &attributes, argv.data(), envp.data()) != 0)
      pid_ = -1;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  bool started() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  bool is_running() const {
    siginfo_t info{};
    return pid_ > 0 &&
           ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  /// Exit code, or 128 + the signal that ended it.
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }

 private:
  fs::path out_, err_;
  pid_t pid_ = -1;
};

class EndToEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "line " + std::to_string(i * i % 97) + " of a small text, with words that repeat.\n";
    write_file_atomically(text_path(), text);
  }
  fs::path text_path() const { return folder_ / "text.txt"; }
  fs::path path(const std::string& name) const { return folder_ / name; }

  /// Options of a run that takes a second or two, `more` in the place of those of the same names.
  std::vector<std::string> small_run(const std::string& run,
                                     std::vector<std::string> more = {}) const {
    std::vector<std::string> args{"train",
                                  "--text",
                                  text_path().string(),
                                  "--n-layer",
                                  "1",
                                  "--n-head",
                                  "2",
                                  "--n-embd",
                                  "32",
                                  "--context",
                                  "32",
                                  "--batch-size",
                                  "4",
                                  "--max-steps",
                                  "300",
                                  "--save-steps",
                                  "9",
                                  "--eval-steps",
                                  "50",
                                  "--eval-batches",
                                  "2",
                                  "--samples",
                                  "0",
                                  "--dropout",
                                  "0.1",
                                  "--threads",
                                  "1",
                                  "--output-dir",
                                  path(run).string(),
                                  "--json"};
    put_options(args, more);
    return args;
  }
  /// The same on the pictures of write_picture_folder() in path("pictures").
  std::vector<std::string> small_picture_run(const std::string& name,
                                             std::vector<std::string> more = {}) const {
    std::vector<std::string> args{"train",
                                  "--task",
                                  "images",
                                  "--data",
                                  path("pictures").string(),
                                  "--depth",
                                  "8",
                                  "--stem",
                                  "cifar",
                                  "--image-size",
                                  "16",
                                  "--batch-size",
                                  "8",
                                  "--max-steps",
                                  "24",
                                  "--save-steps",
                                  "4",
                                  "--learning-rate",
                                  "0.05",
                                  "--threads",
                                  "1",
                                  "--output-dir",
                                  path(name).string(),
                                  "--json"};
    put_options(args, more);
    return args;
  }
  int run(const std::vector<std::string>& args, const std::vector<std::string>& environment = {},
          const fs::path& input = "/dev/null") {
    Child child(folder_.path(), args, environment, input);
    const int code = child.wait();
    out_ = child.out();
    err_ = child.err();
    return code;
  }
  nlohmann::json json() const { return nlohmann::json::parse(out_); }

  /// Every loss that the log of a run holds, as text with all digits.
  std::string loss_series(const std::string& run) const {
    std::string series;
    for (const nlohmann::json& record : io::read_jsonl(path(run) / "log.jsonl"))
      for (const char* key : {"loss", "val_loss", "final_val_loss", "grad_norm"})
        if (record.contains(key))
          series += fmt::format("{} {} {}\n", record["step"].dump(), key, record[key].dump());
    return series;
  }

  TempFolder folder_;
  std::string out_, err_;
};

}  // namespace brrr::test
