// Models by name, as a user meets them: every verb downloads what it needs, once, and a name that
// is none is told on one line.

#include <algorithm>
#include <cstdlib>

#include "e2e/run.h"
#include "support/fake_hub.h"

namespace brrr::test {
namespace {

class Hub : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(small_run("run", {"--max-steps", "2", "--n-embd", "16"})), 0) << err_;
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"})
      hub_.files[name] = {read_file(path("run") / name), std::string(name).ends_with("tensors")};
  }
  int run_with_hub(const std::vector<std::string>& args, std::vector<std::string> more = {}) {
    for (const std::string& variable :
         {"HF_HOME=" + path("hf").string(), "HF_ENDPOINT=" + hub_.url(),
          std::string("HF_HUB_OFFLINE=0"), std::string("HF_HUB_CACHE="), std::string("HF_TOKEN="),
          std::string("BRRR_OFFLINE="), std::string("NO_PROXY=127.0.0.1")})
      more.push_back(variable);
    return run(args, more);
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  bool is_one_line() const { return std::count(err_.begin(), err_.end(), '\n') == 1; }

  FakeHub hub_;
};

TEST_F(Hub, EveryVerbTakesAModelByItsName) {
  const std::vector<std::string> generate{"generate", "--model", hub_.id, "--max-new-tokens",
                                          "8",        "--seed",  "3",     "--prompt",
                                          "line",     "--json"};
  ASSERT_EQ(run({"generate", "--model", path("run").string(), "--max-new-tokens", "8", "--seed",
                 "3", "--prompt", "line", "--json"}),
            0)
      << err_;
  const std::string text = json()["completions"].dump();
  // A kill in the middle harms nothing.
  EXPECT_EQ(run_with_hub(generate, {"BRRR_FAULT=hub.write=kill"}), 128 + SIGKILL);
  ASSERT_EQ(run_with_hub(generate), 0) << err_;
  EXPECT_TRUE(says("downloading some-lab/tiny: 3 files")) << err_;
  EXPECT_EQ(json()["completions"].dump(), text);
  hub_.stop();
  ASSERT_EQ(run_with_hub(generate), 0) << err_;
  EXPECT_FALSE(says("downloading")) << err_;
  EXPECT_EQ(json()["completions"].dump(), text);
  ASSERT_EQ(run_with_hub({"eval", hub_.id, text_path().string(), "--json"}), 0) << err_;
  ASSERT_EQ(run_with_hub({"plan", hub_.id, "--no-measure", "--json"}), 0) << err_;
  ASSERT_EQ(
      run_with_hub({"train", "--init-from", hub_.id + "@main", "--text", text_path().string(),
                    "--max-steps", "1", "--samples", "0", "--output-dir", path("tuned").string()}),
      0)
      << err_;
}

TEST_F(Hub, TrainingBeginsFromANameThatIsNotHereYet) {
  ASSERT_EQ(
      run_with_hub({"train", "--init-from", hub_.id, "--text", text_path().string(), "--max-steps",
                    "1", "--samples", "0", "--output-dir", path("tuned").string()}),
      0)
      << err_;
  EXPECT_TRUE(says("downloading some-lab/tiny: 3 files")) << err_;
}

// With the Python of BRRR_PEER_PYTHON, or python3, where that has huggingface_hub.
TEST_F(Hub, PythonFindsWhatWasDownloaded) {
  const char* given = std::getenv("BRRR_PEER_PYTHON");
  const std::string python = given != nullptr ? given : "python3";
  const auto python_says = [&](const std::string& code) {
    return std::system(
        fmt::format("env -u HF_HUB_CACHE HF_HUB_OFFLINE=1 HF_HOME='{}' '{}' -c \"{}\" "
                    "> '{}' 2>&1",
                    path("hf").string(), python, code, path("said").string())
            .c_str());
  };
  if (python_says("import huggingface_hub") != 0)
    GTEST_SKIP() << python << " has no huggingface_hub; BRRR_PEER_PYTHON names one that has";
  ASSERT_EQ(run_with_hub({"plan", hub_.id, "--no-measure"}), 0) << err_;
  EXPECT_EQ(python_says("import huggingface_hub as h; folder = h.snapshot_download('" + hub_.id +
                        "', local_files_only=True); assert open(folder + '/model.safetensors', "
                        "'rb').read() == open('" +
                        path("run").string() + "/model.safetensors', 'rb').read()"),
            0)
      << read_file(path("said"));
}

TEST_F(Hub, FailuresAreOneLineEach) {
  EXPECT_EQ(run_with_hub({"generate", "some-lab/tinny"}), 1);
  EXPECT_TRUE(says("no folder some-lab/tinny, and no model of that name at http://127.0.0.1"))
      << err_;
  EXPECT_TRUE(is_one_line()) << err_;
  EXPECT_EQ(run_with_hub({"generate", "some-lab/tiny"}, {"HF_HUB_OFFLINE=1"}), 1);
  EXPECT_TRUE(says("HF_HUB_OFFLINE is set") && is_one_line()) << err_;
  EXPECT_EQ(run_with_hub({"generate", "some-lab/tiny"}, {"BRRR_FAULT=hub.write=enospc"}), 1);
  EXPECT_TRUE(says("No space left on device")) << err_;
  hub_.stop();
  // GPT-2's sizes need no owner.
  EXPECT_EQ(run_with_hub({"generate", "--model", "gpt2"}), 1);
  EXPECT_TRUE(says("cannot download openai-community/gpt2") && is_one_line()) << err_;
}

}  // namespace
}  // namespace brrr::test
