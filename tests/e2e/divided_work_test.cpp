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
  const std::string id = "divided" + std::to_string(::getpid());
  const auto rank = [&](const std::string& number) {
    fs::create_directories(path("rank" + number));
    return std::make_unique<Child>(path("rank" + number),
                                   Options{"embed", path("base"), path("texts.txt")},
                                   Options{"RANK=" + number, "WORLD_SIZE=2", "LOCAL_RANK=" + number,
                                           "LOCAL_WORLD_SIZE=2", "BRRR_RUN_ID=" + id});
  };
  const auto first = rank("0"), second = rank("1");
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(std::ranges::count(first->out(), '\n'), 20);
  EXPECT_EQ(second->out() + second->err(), "");
}

}  // namespace
}  // namespace brrr::test
