// Verbs whose work ranks divide: what one process prints and writes, bit for bit, for any number of
// ranks, and the same errors.

#include "e2e/encoder_runs.h"
#include "support/picture_folder.h"

namespace brrr::test {
namespace {

class DividedWork : public EncoderRuns {
 protected:
  static Options launched(int ranks, const Options& command) {
    Options args{"launch", "-n", std::to_string(ranks)};
    args.insert(args.end(), command.begin(), command.end());
    return args;
  }
  /// What a run says besides the time that it takes.
  static std::string timeless(std::string text) {
    for (const char* key : {"seconds", "sentences_per_second", "texts_per_second",
                            "pictures_per_second", "tokens_per_second", "process_peak_bytes"}) {
      const std::string name = fmt::format("\"{}\":", key);
      if (const size_t at = text.find(name); at != std::string::npos)
        text.erase(at, text.find_first_of(",}", at) - at);
    }
    return text;
  }
  /// The same output and exit code by 1, 2 and 5 ranks.
  void expect_same(const Options& command, int code = 0, const std::string& input = "") {
    const fs::path in = input.empty() ? fs::path("/dev/null") : path("stdin.txt");
    if (!input.empty()) put("stdin.txt", input);
    ASSERT_EQ(run(command, {}, in), code) << err_;
    const std::string out = timeless(out_), err = err_;
    for (const int ranks : {2, 5}) {
      SCOPED_TRACE(fmt::format("{} by {} ranks", command[0], ranks));
      EXPECT_EQ(run(launched(ranks, command), {}, in), code) << err_;
      EXPECT_EQ(timeless(out_), out);
      if (code != 0) {
        EXPECT_EQ(err_, err);
      }
    }
  }
  /// Starts a command as one of two ranks, in the way of mpirun.
  std::unique_ptr<Child> start_rank(int rank, const Options& command) const {
    const std::string number = std::to_string(rank), folder = "rank" + number;
    fs::create_directories(path(folder));
    return std::make_unique<Child>(
        path(folder), command,
        Options{"RANK=" + number, "WORLD_SIZE=2", "LOCAL_RANK=" + number, "LOCAL_WORLD_SIZE=2",
                "BRRR_RUN_ID=divided" + std::to_string(::getpid())});
  }
  std::string texts(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      lines += "line " + std::to_string(i * i % 97);
      for (int n = 0; n < i % 7; ++n) lines += " words of a small text";
      lines += "\n";
    }
    return lines;
  }
};

TEST_F(DividedWork, EmbedAndClassify) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "4", "--eval-steps", "0"})), 0) << err_;
  const std::string base = path("base").string(), file = path("texts.txt").string();
  put("texts.txt", texts(150));
  expect_same({"embed", base, file, "--json"});
  expect_same({"embed", base, "--json-lines"}, 0, texts(9));
  expect_same({"embed", base, file, "--similarity", "small text"});
  expect_same({"embed", base, "--max-length", "12", "--json"}, 0, "one text\n");  // more ranks
  put("nothing.txt", "");
  expect_same({"embed", base, path("nothing.txt"), "--json"});
  // A file is written once, with the bytes of one process.
  ASSERT_EQ(run({"embed", base, file, "--output", path("one.npy")}), 0) << err_;
  ASSERT_EQ(run(launched(3, {"embed", base, file, "--output", path("three.npy")})), 0) << err_;
  EXPECT_TRUE(read_file(path("one.npy")) == read_file(path("three.npy")));

  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv",
                            {"--num-train-epochs", "1", "--max-steps", "4"})),
            0)
      << err_;
  const std::string classes = path("classes").string();
  expect_same({"classify", classes, file, "--all-scores"});
  expect_same({"eval", classes, path("classes.tsv"), "--json"});
  expect_same({"eval", base, "--text", text_path(), "--context", "16", "--json"});

  // Errors are those of one process, said once; rank 0 alone says them.
  std::string lines, words;
  for (int i = 0; i < 60; ++i) words += " words";
  for (int i = 0; i < 70; ++i) lines += "line " + std::to_string(i) + (i == 60 ? words : "") + "\n";
  put("bad.txt", lines);
  expect_same({"embed", base, path("bad.txt"), "--no-truncate", "--json"}, 1);
  EXPECT_NE(err_.find("bad.txt, line 61: the text has"), std::string::npos) << err_;
  expect_same({"embed", base, "--text", path("absent.txt")}, 1);
  expect_same({"embed", base, file, "--truncate-dim", "100000"}, 2);
  put("bad.tsv", "label\ttext\ngood\tline\nother\twords\n");
  expect_same({"eval", classes, path("bad.tsv")}, 1);
}

TEST_F(DividedWork, EvalOfALanguageModel) {
  ASSERT_EQ(run(small_run("causal", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  const std::string model = path("causal").string();
  for (const char* batch : {"1", "3", "1000"})  // the last: fewer batches than ranks
    expect_same({"eval", model, "--text", text_path(), "--batch-size", batch, "--json"});
  expect_same({"eval", model, "--text", path("absent.txt")}, 1);
}

TEST_F(DividedWork, Pictures) {
  write_picture_folder(path("pictures"), 7);
  ASSERT_EQ(run(small_picture_run("model", {"--max-steps", "4", "--save-steps", "4"})), 0) << err_;
  const std::string model = path("model").string(), pictures = path("pictures").string();
  expect_same({"classify", model, "--images", pictures, "--batch-size", "2", "--json"});
  expect_same({"embed", model, "--images", pictures, "--batch-size", "4", "--json"});
  expect_same({"eval", model, "--data", pictures, "--batch-size", "2", "--json"});
  // The picture of a rank in the middle cannot be read.
  write_file_atomically(path("pictures") / "cat" / "103.ppm", "no picture");
  const Options eval{"eval", model, "--data", pictures, "--batch-size", "2", "--json"};
  const Options classify{"classify", model, "--images", pictures, "--batch-size", "2"};
  for (const Options& command : {eval, classify}) {
    expect_same(command, 1);
    EXPECT_NE(err_.find("103.ppm"), std::string::npos) << err_;
    Options skipping = command;
    put_options(skipping, {"--skip-bad-images", "1"});
    expect_same(skipping);
  }
}

// As mpirun starts them, rank 0 alone prints.
TEST_F(DividedWork, OtherRanksPrintNothing) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  put("texts.txt", texts(20));
  const Options embed{"embed", path("base"), path("texts.txt")};
  const auto first = start_rank(0, embed), second = start_rank(1, embed);
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(std::ranges::count(first->out(), '\n'), 20);
  EXPECT_EQ(second->out() + second->err(), "");
}

// Hosts may have other files at the same place; here the two ranks name other files.
TEST_F(DividedWork, RanksWithOtherFilesAreRefused) {
  const auto expect_refused = [&](const Options& first, const Options& second, const char* what) {
    SCOPED_TRACE(first[0]);
    const auto zero = start_rank(0, first), one = start_rank(1, second);
    EXPECT_EQ(zero->wait(), 2) << zero->err();
    EXPECT_EQ(one->wait(), 2) << one->err();
    EXPECT_NE(zero->err().find(fmt::format("rank 1 has other {} than rank 0", what)),
              std::string::npos)
        << zero->err();
    EXPECT_EQ(zero->out() + one->out() + one->err(), "");
  };
  const Options untrained{"--max-steps", "1", "--eval-steps", "0"};
  put("one.txt", texts(40));
  put("two.txt", texts(41));
  const std::string one = path("one.txt").string(), two = path("two.txt").string();
  for (const char* name : {"causal", "causal-2"}) {
    Options options = untrained;
    options.insert(options.end(), {"--seed", name == std::string("causal") ? "1" : "2"});
    ASSERT_EQ(run(small_run(name, options)), 0) << err_;
  }
  const std::string causal = path("causal").string(), other = path("causal-2").string();
  expect_refused({"eval", causal, "--text", one}, {"eval", other, "--text", one}, "weights");
  expect_refused({"eval", causal, "--text", one}, {"eval", causal, "--text", two}, "data");

  // A rate this small leaves the trunk as it is: the models differ in their heads alone.
  ASSERT_EQ(run(pretraining("base", untrained)), 0) << err_;
  for (const char* seed : {"1", "2"})
    ASSERT_EQ(run(fine_tuning(std::string("classes-") + seed, "classify", "classes.tsv",
                              {"--max-steps", "1", "--learning-rate", "1e-30", "--weight-decay",
                               "0", "--seed", seed})),
              0)
        << err_;
  const std::string first = path("classes-1").string(), second = path("classes-2").string();
  const std::string rows = path("classes.tsv").string();
  expect_refused({"eval", first, rows}, {"eval", second, rows}, "weights");
  expect_refused({"classify", first, one}, {"classify", second, one}, "weights");
  expect_refused({"embed", first, one}, {"embed", path("base"), one}, "weights");
}

}  // namespace
}  // namespace brrr::test
