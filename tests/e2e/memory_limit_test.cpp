// Inference knows before it takes memory whether there is enough: it keeps --memory-limit, or says
// what it would need and what to do.

#include <algorithm>
#include <string>

#include "base/memory.h"
#include "e2e/encoder_runs.h"

namespace brrr::test {
namespace {

class InferenceLimit : public EncoderRuns {
 protected:
  static constexpr int kNoMemory = 3;
  static constexpr int64_t kMiB = 1 << 20;

  /// Refused within a little; the limit that the refusal names does, and is kept.
  void expect_least_limit_does(Options command) {
    Options little = command;
    put_options(little, {"--memory-limit", "4MiB"});
    ASSERT_EQ(run(little), kNoMemory) << command[0] << "\n" << err_;
    EXPECT_EQ(out_, "");
    EXPECT_NE(err_.find("does not fit in memory: it needs "), std::string::npos) << err_;
    EXPECT_NE(err_.find("--memory-limit is 4.0 MiB"), std::string::npos) << err_;
    const std::string before = "or --memory-limit ";
    const size_t at = err_.find(before);
    ASSERT_NE(at, std::string::npos) << err_;
    const size_t begin = at + before.size();
    const std::string least = err_.substr(begin, err_.find_first_of(" \n", begin) - begin);
    // A batch of texts takes more than the one that is looked at first.
    const int64_t limit = parse_memory(least) + (command[0] == "generate" ? 0 : kMiB);
    put_options(command, {"--json", "--memory-limit", std::to_string(limit) + "B"});
    ASSERT_EQ(run(command), 0) << command[0] << " within " << limit << "\n" << err_;
    EXPECT_LE(json().at("process_peak_bytes").get<int64_t>(), limit) << command[0];
  }
};

TEST_F(InferenceLimit, OfModelsThatContinueText) {
  ASSERT_EQ(run(small_run("run", {"--n-layer", "4", "--n-embd", "256", "--max-steps", "1",
                                  "--eval-steps", "0"})),
            0)
      << err_;
  const std::string model = path("run").string();
  for (const std::string precision : {"fp32", "bf16"}) {
    expect_least_limit_does({"generate", "--model", model, "--max-new-tokens", "20", "--threads",
                             "2", "--precision", precision});
    expect_least_limit_does({"eval", "--model", model, "--text", text_path().string(), "--threads",
                             "2", "--precision", precision});
  }
  // A text is refused before it is read, which would say that it is binary.
  put("large.txt", "");
  fs::resize_file(path("large.txt"), uintmax_t{48} << 20);
  EXPECT_EQ(run({"eval", "--model", model, "--text", path("large.txt").string(), "--memory-limit",
                 "40MiB"}),
            kNoMemory)
      << err_;
  EXPECT_NE(err_.find("the text does not fit in memory: 48.0 MiB of it are read at once"),
            std::string::npos)
      << err_;
}

TEST_F(InferenceLimit, OfEncoders) {
  make_base();
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv", {"--max-steps", "1"})), 0)
      << err_;
  put("texts.txt", "line 4 of a small text\nline 9 of a small text with words that repeat\n");
  put("masked.txt", "line 4 of a [MASK] text\n");
  const std::string texts = path("texts.txt").string();
  expect_least_limit_does(
      {"embed", "--model", path("base").string(), "--text", texts, "--threads", "2"});
  expect_least_limit_does(
      {"classify", "--model", path("classes").string(), "--text", texts, "--threads", "2"});
  expect_least_limit_does({"fill-mask", "--model", path("base").string(), "--text",
                           path("masked.txt").string(), "--threads", "2"});
}

}  // namespace
}  // namespace brrr::test
