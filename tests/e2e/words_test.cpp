// Folders and files may stand alone on the command line, and the defaults of every verb work with
// every preset.

#include "e2e/run.h"
#include "support/long_proof.h"
#include "train/options.h"

namespace brrr::test {
namespace {

class Words : public EndToEnd {
 protected:
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  std::string at(const std::string& name) const { return path(name).string(); }
};

TEST_F(Words, AModelMayStandAlone) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "3"})), 0) << err_;
  const std::string text = text_path().string(), model = at("run");
  ASSERT_EQ(run({"eval", model, text, "--json"}), 0) << err_;
  const auto by_words = json();
  ASSERT_EQ(run({"eval", "--model", model, "--text", text, "--json"}), 0) << err_;
  EXPECT_EQ(by_words["loss"], json()["loss"]);
  ASSERT_EQ(run({"generate", model, "--max-new-tokens", "4", "--json"}), 0) << err_;
  EXPECT_EQ(json()["model"], model);
  // A file of the model is the model, another one the prompt.
  write_file_atomically(path("prompt.txt"), "line");
  ASSERT_EQ(run({"generate", model + "/model.safetensors", at("prompt.txt"), "--max-new-tokens",
                 "1", "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["prompt"], "line");
  ASSERT_EQ(run({"generate", "--out_dir", model, "--start", "FILE:" + at("prompt.txt"),
                 "--max-new-tokens", "1", "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["prompt"], "line");
  ASSERT_EQ(run({"plan", model, "--json"}), 0) << err_;
  ASSERT_EQ(run({"report", model, "--json"}), 0) << err_;
  ASSERT_EQ(run({"bench", "decode", model, "--seconds", "0", "--precision", "fp32", "--json"}), 0)
      << err_;
  EXPECT_EQ(json()["results"][0]["preset"], model);
  ASSERT_EQ(run({"bench", "step", model, "--seconds", "0", "--precision", "fp32", "--no-peaks",
                 "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["results"][0]["context"], 32);

  EXPECT_EQ(run({"eval", model, model, text}), 2);
  EXPECT_TRUE(says("expected one model folder")) << err_;
  EXPECT_EQ(run({"generate", "--model", model, model}), 2);
  EXPECT_EQ(run({"generate", "Once upon a time"}), 2);
  EXPECT_TRUE(says("--prompt")) << err_;
  EXPECT_EQ(run({"bench", "matmul", model}), 2);
  EXPECT_EQ(run({"bench", "step", model, "--preset", "char"}), 2);
  for (const char* verb : {"embed", "classify", "fill-mask"})
    EXPECT_NE(run({verb, at("absent")}), 0);
  EXPECT_EQ(run({"rerank", at("absent"), text}), 1) << "a query, and no run that has a model";
}

// What `data prepare` wrote is measured on the part that was kept for that.
TEST_F(Words, EvalOfAPreparedFolderIsOfItsValidationShards) {
  ASSERT_EQ(run({"data", "prepare", "--text", text_path().string(), "--tokenizer", "byte",
                 "--output-dir", at("shards")}),
            0)
      << err_;
  ASSERT_EQ(
      run({"train", "--data", at("shards"), "--max-steps", "2", "--n-layer", "1", "--n-embd", "16",
           "--n-head", "1", "--context", "16", "--samples", "0", "--output-dir", at("run")}),
      0)
      << err_;
  ASSERT_EQ(run({"eval", at("run"), "--data", at("shards"), "--json"}), 0) << err_;
  const auto whole = json();
  ASSERT_EQ(run({"eval", at("run"), at("shards"), "--json"}), 0) << err_;
  EXPECT_EQ(json()["loss"], whole["loss"]);
  ASSERT_EQ(run({"eval", at("run"), "--data", at("shards") + "/*val*.bin", "--json"}), 0) << err_;
  EXPECT_EQ(json()["loss"], whole["loss"]);
  EXPECT_EQ(json()["tokens"], whole["tokens"]);
}

// A decoder and an encoder in every run; the presets that take gigabytes and minutes under --long.
TEST_F(Words, DefaultsOfEveryVerbWorkWithEveryPreset) {
  for (const models::Preset* preset : train::presets()) {
    const std::string name = preset->name;
    if (name == "fine-tune") {  // needs a model and a task, which it says
      EXPECT_EQ(run({"plan", "--preset", name}), 2);
      EXPECT_TRUE(says("--task")) << err_;
      continue;
    }
    if (!is_long() && name != "char-cpu" && name != "bert-mini") continue;
    const train::TrainOptions o = train::resolve({{"preset", name}});
    const bool generates =
        models::find_architecture(o.architecture).head == models::Head::next_token;
    EXPECT_EQ(run({"plan", "--preset", name, "--no-measure"}), 0) << name << ": " << err_;
    EXPECT_EQ(run({"bench", "step", "--preset", name, "--seconds", "0", "--no-peaks"}), 0)
        << name << ": " << err_;
    const int code = run({"bench", "decode", "--preset", name, "--seconds", "0"});
    EXPECT_EQ(code == 0, generates) << name << ": " << err_;
    EXPECT_TRUE(generates || says("does not generate text")) << err_;
    if (!is_long() || o.task == train::TrainTask::images) continue;  // pictures have no default
    EXPECT_EQ(run({"profile", "--preset", name, "--seconds", "0", "--no-advice"}), 0)
        << name << ": " << err_;
    EXPECT_EQ(run({"train", "--preset", name, "--max-steps", "1", "--eval-batches", "1",
                   "--samples", "0", "--output-dir", at("run-" + name)}),
              0)
        << name << ": " << err_;
  }
}

}  // namespace
}  // namespace brrr::test
