// Files that the program did not write, or that are no longer what it wrote: what is wrong with
// them is an error at the start, never a number that looks right.

#include <cstring>
#include <limits>

#include "data/shard.h"
#include "e2e/run.h"

namespace brrr::test {
namespace {

TEST_F(EndToEnd, ALossThatIsNoNumberIsAnError) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  // A folder of its own, as somebody else would hand it on.
  fs::create_directory(path("copy"));
  for (const char* name : {"config.json", "tokenizer.json"})
    if (fs::exists(path("run") / name)) fs::copy(path("run") / name, path("copy") / name);
  std::string weights = read_file(path("run") / "model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights.data() + weights.size() - sizeof nan, &nan, sizeof nan);
  write_file_atomically(path("copy") / "model.safetensors", weights);
  const std::string model = path("copy").string();

  EXPECT_EQ(run({"eval", "--model", model, "--text", text_path().string(), "--json"}), 1);
  EXPECT_EQ(json()["loss"], nullptr) << out_;
  EXPECT_NE(json()["reason"].get<std::string>().find("contains NaN or infinity"), std::string::npos)
      << out_;
  EXPECT_NE(err_.find("the loss is not a number: "), std::string::npos) << err_;
  EXPECT_EQ(run({"eval", "--model", model, "--text", text_path().string()}), 1);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(run({"generate", "--model", model, "--prompt", "line"}), 1);
  EXPECT_NE(err_.find("NaN logits"), std::string::npos) << err_;
  EXPECT_EQ(run(small_run("more", {"--init-from", model})), 1);
  EXPECT_NE(err_.find("it began in the values of transformer.wte.weight"), std::string::npos)
      << err_;
}

TEST_F(EndToEnd, IdsBeyondTheVocabularyAreFoundAtTheStart) {
  std::vector<int32_t> ids(30'000, 65);
  io::write_shard(path("val.bin"), io::ShardFormat::kNanogpt, 65536, ids);
  ids[29'990] = 256;
  io::write_shard(path("train.bin"), io::ShardFormat::kNanogpt, 65536, ids);
  std::vector<std::string> args = small_run("run", {"--tokenizer", "byte"});
  args.erase(args.begin() + 1, args.begin() + 3);  // without --text
  for (const auto& [train, val] : {std::pair{"train.bin", "val.bin"}, {"val.bin", "train.bin"}}) {
    std::vector<std::string> with_data = args;
    put_options(with_data,
                {"--data", path(train).string(), "--val-data", path(val).string(), "--overwrite"});
    EXPECT_EQ(run(with_data), 1);
    EXPECT_NE(err_.find("train.bin, token 29990: id 256 is outside the vocabulary of 25"),
              std::string::npos)
        << err_;
    EXPECT_EQ(err_.find("step 1/"), std::string::npos) << err_;
  }
}

// A GGUF file stands for a folder, whatever the verb.
TEST_F(EndToEnd, VerbsOpenAGgufFile) {
  const std::string goldens = std::string(BRRR_SOURCE_DIR) + "/tests/golden/gguf/";
  const std::string model = goldens + "gemma3.gguf", text = text_path().string();
  ASSERT_EQ(run({"generate", "-m", model, "--prompt", "Hello", "--max-new-tokens", "4", "--json"}),
            0)
      << err_;
  EXPECT_EQ(run({"eval", "--model", model, "--text", text, "--json"}), 0) << err_;
  const double own_loss = json()["loss"];
  EXPECT_EQ(run({"eval", "--model", model, "--text", text, "--precision", "fp32", "--json"}), 0)
      << err_;
  const double loss = json()["loss"];
  EXPECT_NEAR(own_loss, loss, 0.02);
  ASSERT_EQ(run({"info", model}), 0) << err_;
  EXPECT_NE(out_.find("Gemma 3, 284,608 parameters"), std::string::npos) << out_;
  EXPECT_NE(out_.find("GGUF 3: 80 tensors, tokenizer llama"), std::string::npos) << out_;
  ASSERT_EQ(run({"info", model, "--json"}), 0) << err_;
  EXPECT_EQ(json()["gguf"]["types"]["Q5_0"]["tensors"], 12);
  EXPECT_EQ(run({"plan", model, "--no-measure"}), 0) << err_;
  EXPECT_EQ(run({"run", model}), 0) << err_;
  EXPECT_EQ(run({"embed", goldens + "bert.gguf", text}), 0) << err_;
  EXPECT_EQ(run({"generate", "-m", model, "--prompt", "Hello", "--chat"}), 1);
  EXPECT_NE(err_.find("has no chat template (tokenizer.chat_template)"), std::string::npos) << err_;

  // What is made of it needs the file no more.
  const std::string exported = path("m.brrr").string(), trained = path("trained").string();
  ASSERT_EQ(run({"export", model, "--generate", "16", "--output", exported}), 0) << err_;
  EXPECT_EQ(run({"generate", "-m", exported, "--prompt", "Hello", "--max-new-tokens", "4"}), 0)
      << err_;
  ASSERT_EQ(run({"train", text, "--init-from", model, "--max-steps", "1", "--context", "8",
                 "--learning-rate", "1e-9", "--output-dir", trained}),
            0)
      << err_;
  ASSERT_EQ(run({"eval", "--model", trained, "--text", text, "--json"}), 0) << err_;
  EXPECT_NEAR(json()["loss"].get<double>(), loss, 1e-3);
}

}  // namespace
}  // namespace brrr::test
