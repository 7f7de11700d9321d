// What newcomers type in their first hour, and what the program then says: it does what was meant,
// or says which command does.

#include "e2e/encoder_runs.h"
#include "train/options.h"

namespace brrr::test {
namespace {

class FirstHour : public EncoderRuns {
 protected:
  void SetUp() override {
    EncoderRuns::SetUp();
    before_ = fs::current_path();
    fs::current_path(folder_.path());
  }
  void TearDown() override { fs::current_path(before_); }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  static Options tiny(Options more) {
    Options options{"train", "--n-layer", "1",  "--n-head",    "1", "--n-embd",
                    "16",    "--context", "16", "--samples",   "0", "--eval-batches",
                    "1",     "--threads", "1",  "--max-steps", "3"};
    put_options(options, more);
    return options;
  }
  fs::path before_;
};

TEST_F(FirstHour, ATextStandsAloneAndARunIsAnsweredWithItsCommand) {
  Options text = tiny({"--output-dir", "runs/a", "--json"});
  text.insert(text.begin() + 1, "text.txt");
  ASSERT_EQ(run(text), 0) << err_;
  EXPECT_TRUE(says("data: text.txt")) << err_;
  EXPECT_EQ(run({"train", "runs/a"}, {"BRRR_COMMAND=./brrr"}), 2);
  EXPECT_TRUE(says("go on with it: `./brrr train --resume runs/a`")) << err_;
  EXPECT_EQ(run({"train", "runs/a/checkpoint-000003"}), 2);
  EXPECT_TRUE(says("--resume runs/a/checkpoint-000003")) << err_;
  EXPECT_EQ(run({"train", "runs"}), 2);
  EXPECT_TRUE(says("`brrr train --resume runs`")) << err_;
  EXPECT_EQ(run({"train", "absent.txt"}), 2);
  EXPECT_TRUE(says("no such file")) << err_;
  fs::create_directory("model");
  fs::copy("runs/a/config.json", "model/config.json");
  EXPECT_EQ(run({"train", "model"}), 2);
  EXPECT_TRUE(says("--init-from model --text FILE")) << err_;
  Options task{"train", "--task", "classify", "--init-from", "runs/a", "--", "classes.tsv"};
  EXPECT_EQ(run(task), 0) << err_;  // the file is read as --data
  EXPECT_TRUE(says("classes.tsv")) << err_;
}

TEST_F(FirstHour, ResumeOfAFolderOfRunsIsOfTheNewestAndFewerStepsAreRefused) {
  ASSERT_EQ(run(tiny({"--text", "text.txt", "--output-dir", "mine/a", "--json"})), 0) << err_;
  EXPECT_EQ(run({"train", "--resume", "mine/a", "--max-steps", "2"}), 2);
  EXPECT_TRUE(says("--max-steps 2: mine/a has done 3 steps already; leave --max-steps out"))
      << err_;
  ASSERT_EQ(run({"train", "--resume", "mine", "--max-steps", "4"}), 0) << err_;
  EXPECT_TRUE(says("resuming mine/a")) << err_;
  fs::create_directory("empty");
  EXPECT_EQ(run({"train", "--resume", "empty"}), 1);
  EXPECT_TRUE(says("holds no run")) << err_;
}

// The command that is printed gives the run that was begun, whatever its options were.
TEST_F(FirstHour, ARunWithoutACheckpointIsBegunAgainByThePrintedCommand) {
  const std::vector<Options> ways{
      {},
      {"--preset", "llama-char", "--num-key-value-heads", "1", "--tokenizer", "byte"},
      {"--lr", "3e-4", "--optim", "lion", "--no-compile", "--disable-pass", "fuse,simplify",
       "--warmup-steps", "0.2", "--activation-memory", "1GiB", "--num-train-epochs", "0.1"}};
  for (const Options& way : ways) {
    fs::remove_all("runs/it is");
    Options options = tiny(way);
    put_options(options, {"--text", "text.txt", "--save-steps", "2", "--output-dir", "runs/it is"});
    if (!way.empty() && way.back() == "0.1") {
      const auto at = std::find(options.begin(), options.end(), "--max-steps");
      options.erase(at, at + 2);
    }
    EXPECT_EQ(run(options, {"BRRR_FAULT=checkpoint.write=kill"}), 128 + SIGKILL) << err_;
    ASSERT_EQ(run({"runs", "--json"}), 0) << err_;
    EXPECT_EQ(json()["runs"][0]["state"], "stopped before its first checkpoint");
    EXPECT_EQ(json()["runs"][0]["fault"], "");
    ASSERT_EQ(run({"runs"}), 0);
    EXPECT_TRUE(says("brrr train --resume 'runs/it is'")) << err_;
    const std::string record = read_file("runs/it is/train_config.json");
    EXPECT_EQ(run({"train", "--resume", "runs/it is"}), 1);
    EXPECT_TRUE(says("runs/it is stopped before its first checkpoint; begin it again: `brrr train"))
        << err_;
    const size_t begin = err_.find("`brrr ") + 6, end = err_.find('`', begin);
    const std::string command = err_.substr(begin, end - begin);
    ASSERT_EQ(
        std::system(fmt::format("'{}' {} > /dev/null 2> again.err", BRRR_BINARY, command).c_str()),
        0)
        << command << "\n"
        << read_file("again.err");
    std::string again = read_file("runs/it is/train_config.json");
    const std::string replaced = "\"overwrite\": true";
    again.replace(again.find(replaced), replaced.size(), "\"overwrite\": false");
    EXPECT_EQ(again, record) << command;
    EXPECT_EQ(command.find("--learning-rate") != std::string::npos, way.size() > 8) << command;
  }
}

TEST_F(FirstHour, APresetThatChangesFineTuningIsSaid) {
  ASSERT_EQ(run(tiny({"--text", "text.txt", "--output-dir", "base", "--dropout", "0.1"})), 0)
      << err_;
  const auto begun = [&](Options more) {
    Options options{"train",       "--init-from", "base",         "--text", "text.txt",
                    "--max-steps", "1",           "--samples",    "0",      "--eval-batches",
                    "1",           "--overwrite", "--output-dir", "run"};
    put_options(options, more);
    EXPECT_EQ(run(options), 0) << err_;
  };
  begun({"--preset", "char"});
  EXPECT_TRUE(says("note: --preset char brings --learning-rate 0.001 (fine-tuning: 5e-05)"))
      << err_;
  EXPECT_TRUE(says("dropout 0.1 and the sizes come from base")) << err_;
  EXPECT_FALSE(says("--context")) << err_;  // the model's either way
  for (const Options& quiet : {Options{},
                               {"--preset", "fine-tune-text"},
                               {"--preset", "char", "--learning-rate", "1e-4"}}) {
    begun(quiet);
    EXPECT_FALSE(says("brings")) << err_;
  }
}

TEST_F(FirstHour, ShardsSayWhichTokenizerMadeThem) {
  for (const char* tokenizer : {"byte", "char", "bpe:300"})
    ASSERT_EQ(run({"data", "prepare", "--text", "text.txt", "--tokenizer", tokenizer,
                   "--output-dir", std::string("sh-") + tokenizer}),
              0)
        << err_;
  const auto asked = [&](const char* shards, const char* tokenizer) {
    return run(tiny({"--data", shards, "--tokenizer", tokenizer, "--output-dir", "run"}));
  };
  EXPECT_EQ(asked("sh-bpe:300", "byte"), 1);
  EXPECT_TRUE(says("sh-bpe:300/ was prepared with bpe of 300 tokens; you asked for byte")) << err_;
  EXPECT_TRUE(says("--tokenizer byte --output-dir FOLDER`")) << err_;
  EXPECT_EQ(asked("sh-byte", "char"), 1);
  EXPECT_TRUE(says("sh-byte/ was prepared with byte; you asked for char")) << err_;
  EXPECT_EQ(asked("sh-char", "char"), 0) << err_;
  EXPECT_EQ(run({"train", "--init-from", "run", "--data", "sh-byte"}), 1);
  EXPECT_TRUE(says("sh-byte/ was prepared with byte; the model in run has char of ")) << err_;
}

TEST_F(FirstHour, AFullDiskBehindStandardOutputIsOneLine) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  ASSERT_EQ(run(tiny({"--text", "text.txt", "--output-dir", "runs/a"})), 0) << err_;
  for (const char* command : {"train --print-config", "generate runs/a --max-new-tokens 4", "runs",
                              "help", "plan runs/a --no-measure", "report runs/a --json",
                              "completion bash", "eval runs/a text.txt --json", "data --help"}) {
    const int status =
        std::system(fmt::format("'{}' {} > /dev/full 2> full.err", BRRR_BINARY, command).c_str());
    const std::string said = read_file("full.err");
    EXPECT_EQ(WEXITSTATUS(status), 1) << command << "\n" << said;
    EXPECT_TRUE(said.ends_with("brrr: cannot write to standard output: No space left on device\n"))
        << command << "\n"
        << said;
  }
}

TEST_F(FirstHour, ManyNumbersAsClassesAreAnsweredWithRegress) {
  make_base();
  std::string ratings = "label\ttext\n";
  for (int i = 0; i < 900; ++i) ratings += fmt::format("{}.{}\tline {}\n", i / 10, i % 10, i % 97);
  put("ratings.tsv", ratings);
  const Options one_step{"--max-steps", "1", "--eval-steps", "0", "--eval-batches", "1"};
  Options training = fine_tuning("run", "classify", "ratings.tsv", one_step);
  EXPECT_EQ(run(training), 1);
  EXPECT_TRUE(says("--task regress") && says("--any-labels")) << err_;
  training.push_back("--any-labels");
  ASSERT_EQ(run(training), 0) << err_;
  EXPECT_TRUE(says("and 880 more")) << err_;
  EXPECT_LT(err_.size(), 6000u) << err_;
}

}  // namespace
}  // namespace brrr::test
