// A folder that another program quantised (GPTQ), through every verb that takes a model.

#include <algorithm>
#include <cmath>
#include <deque>

#include "e2e/encoder_runs.h"
#include "formats/json_file.h"
#include "formats/jsonl.h"
#include "formats/safetensors.h"

namespace brrr::test {
namespace {

/// The linear layers of a folder's model.safetensors as GPTQ of 4 bits in groups of 32, symmetric.
void write_gptq_folder(const fs::path& from, const fs::path& to) {
  constexpr int64_t kGroup = 32, kOfWord = 8;
  create_folder(to);
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().filename().string().starts_with("tokenizer"))
      fs::copy_file(entry.path(), to / entry.path().filename());
  io::Json config = io::parse_json(read_file(from / "config.json"), "config.json");
  config["quantization_config"] = {
      {"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}, {"sym", true}};
  write_file_atomically(to / "config.json", config.dump());

  const io::SafetensorsFile file(from / "model.safetensors");
  std::deque<std::vector<uint32_t>> words;
  std::deque<std::vector<uint16_t>> scales;
  std::vector<TensorView> tensors;
  for (const TensorView& t : file.tensors()) {
    if (t.name.find("_proj.weight") == std::string::npos) {
      tensors.push_back(t);
      continue;
    }
    const int64_t outputs = t.shape.size(0), inputs = t.shape.size(1);
    std::vector<float> values(static_cast<size_t>(outputs * inputs));
    io::copy_as_f32(t, values);
    auto& q = words.emplace_back(static_cast<size_t>(inputs / kOfWord * outputs));
    auto& zeros =
        words.emplace_back(static_cast<size_t>(inputs / kGroup * outputs / kOfWord), 0x77777777U);
    auto& s = scales.emplace_back(static_cast<size_t>(inputs / kGroup * outputs));
    for (int64_t n = 0; n < outputs; ++n)
      for (int64_t first = 0; first < inputs; first += kGroup) {
        const std::span<const float> group(values.data() + n * inputs + first, kGroup);
        float most = 0;
        for (const float x : group) most = std::max(most, std::fabs(x));
        uint16_t& scale = s[static_cast<size_t>(first / kGroup * outputs + n)];
        scale = f16_from_float(2 * most / 15);
        for (int64_t i = 0; i < kGroup; ++i) {
          const float whole =
              std::nearbyint(group[static_cast<size_t>(i)] / float_from_f16(scale)) + 8;
          const auto stored = static_cast<uint32_t>(std::clamp(whole, 0.0F, 15.0F));
          const int64_t k = first + i;
          q[static_cast<size_t>(k / kOfWord * outputs + n)] |= stored << (4 * (k % kOfWord));
        }
      }
    const std::string layer = t.name.substr(0, t.name.size() - std::string(".weight").size());
    tensors.push_back({layer + ".qweight", DType::i32, Shape({inputs / kOfWord, outputs}),
                       std::as_bytes(std::span(q))});
    tensors.push_back({layer + ".qzeros", DType::i32, Shape({inputs / kGroup, outputs / kOfWord}),
                       std::as_bytes(std::span(zeros))});
    tensors.push_back({layer + ".scales", DType::f16, Shape({inputs / kGroup, outputs}),
                       std::as_bytes(std::span(s))});
  }
  io::write_safetensors(to / "model.safetensors", tensors);
}

class QuantizedFolderRuns : public EncoderRuns {
 protected:
  double loss_of(const std::string& model, const std::string& precision = "") {
    Options options{"eval",   path(model), "--text", text_path().string(),
                    "--json", "--threads", "1"};
    if (!precision.empty()) put_options(options, {"--precision", precision});
    EXPECT_EQ(run(options), 0) << err_;
    return json()["loss"].get<double>();
  }
};

/// Trains adapters over models that are quantised already: the base keeps the integers of its
/// files, and the losses equal those over the same values as floats.
class AdaptersOverIntegers : public QuantizedFolderRuns {
 protected:
  Options tuning(const std::string& base, const std::string& name, const Options& more = {}) const {
    Options options{
        "train", "--init-from",    path(base), "--text",       text_path(), "--lora-r",
        "4",     "--context",      "32",       "--batch-size", "4",         "--max-steps",
        "20",    "--save-steps",   "9",        "--eval-steps", "10",        "--precision",
        "fp32",  "--eval-batches", "2",        "--threads",    "1",         "--dropout",
        "0",     "--output-dir",   path(name)};
    put_options(options, more);
    return options;
  }
  double arena_of() const {
    const size_t at = err_.find("memory: arena ");
    return at == std::string::npos ? 0.0 : std::stod(err_.substr(at + 14));
  }
  std::vector<double> losses_of(const std::string& name) const {
    std::vector<double> losses;
    for (const nlohmann::json& record : io::read_jsonl(path(name) / "log.jsonl"))
      for (const char* key : {"loss", "val_loss", "final_val_loss"})
        if (record.contains(key)) losses.push_back(record[key].get<double>());
    return losses;
  }
  /// Trains over `base` and over the same values as floats.
  void expect_losses_of_floats(const std::string& base) {
    SCOPED_TRACE(base);
    ASSERT_EQ(run({"export", path(base), "--format", "gguf", "--type", "F32", "--output",
                   path(base + "-floats.gguf")}),
              0)
        << err_;
    ASSERT_EQ(run(tuning(base + "-floats.gguf", base + "-floats")), 0) << err_;
    const double arena = arena_of();
    ASSERT_EQ(run(tuning(base, base + "-tuned")), 0) << err_;
    EXPECT_NE(err_.find("linear layers are held in these integers"), std::string::npos) << err_;
    EXPECT_GT(arena_of(), 0);
    EXPECT_LT(arena_of(), arena);
    const std::vector<double> wanted = losses_of(base + "-floats"),
                              got = losses_of(base + "-tuned");
    ASSERT_EQ(got.size(), wanted.size());
    ASSERT_GE(got.size(), 4u);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5 * wanted[i]) << i;
    const Json config = Json::parse(read_file(path(base + "-tuned") / "adapter_config.json"));
    EXPECT_EQ(config.at("base_model_name_or_path"), fs::weakly_canonical(path(base)).string());
  }
};

TEST_F(AdaptersOverIntegers, LearnWhatTheyLearnOverFloats) {
  ASSERT_EQ(
      run(small_run("llama", {"--preset", "llama-char", "--n-embd", "256", "--num-key-value-heads",
                              "2", "--intermediate-size", "160", "--max-steps", "40"})),
      0)
      << err_;
  write_gptq_folder(path("llama"), path("gptq"));
  expect_losses_of_floats("gptq");
  for (const char* bits : {"4", "8"}) {
    const std::string name = std::string("own") + bits;
    ASSERT_EQ(run({"quantize", path("llama"), "--output", path(name), "--method", "weight-only",
                   "--bits", bits, "--text", text_path().string()}),
              0)
        << err_;
    expect_losses_of_floats(name);
  }
  for (const char* type : {"Q8_0", "Q4_K_M"}) {
    const std::string name = std::string(type) + ".gguf";
    ASSERT_EQ(run({"export", path("llama"), "--type", type, "--output", path(name)}), 0) << err_;
    expect_losses_of_floats(name);
  }
  // A resumed run has the bits of an uninterrupted one.
  for (const char* base : {"gptq", "Q4_K_M.gguf"}) {
    const Options options{"--precision", "bf16"};
    ASSERT_EQ(run(tuning(base, "whole", options)), 0) << err_;
    ASSERT_EQ(run(tuning(base, "killed", options), {"BRRR_FAULT=checkpoint.prune=kill"}),
              128 + SIGKILL);
    ASSERT_EQ(run({"train", "--resume", path("killed")}), 0) << err_;
    EXPECT_EQ(loss_series("whole"), loss_series("killed"));
    EXPECT_TRUE(read_file(path("whole") / "adapter_model.safetensors") ==
                read_file(path("killed") / "adapter_model.safetensors"));
    fs::remove_all(path("whole"));
    fs::remove_all(path("killed"));
  }
  // An adapter with a trained copy of the embedding table, to which the base ties its head.
  ASSERT_EQ(run(tuning("own8", "table", {"--lora-modules-to-save", "embed_tokens"})), 0) << err_;
  const double loss = loss_of("table");
  EXPECT_NEAR(loss, losses_of("table").back(), 0.05 * loss);
  ASSERT_EQ(run({"train", "--init-from", path("table"), "--text", text_path(), "--max-steps", "2",
                 "--output-dir", path("further")}),
            0)
      << err_;
  // Another form is made from the values.
  ASSERT_EQ(run(tuning("own8", "fewer", {"--load-in-4bit", "--load-in-4bit-type", "nf4"})), 0)
      << err_;
  EXPECT_NE(err_.find("are quantised again"), std::string::npos) << err_;
}

TEST_F(QuantizedFolderRuns, EveryVerbTakesGptq) {
  ASSERT_EQ(
      run(small_run("llama", {"--preset", "llama-char", "--n-embd", "128", "--num-key-value-heads",
                              "2", "--intermediate-size", "160", "--max-steps", "40"})),
      0)
      << err_;
  write_gptq_folder(path("llama"), path("gptq"));
  EXPECT_EQ(run({"info", path("gptq")}), 0) << err_;
  EXPECT_NE(out_.find("7 linear layers in GPTQ, 4 bits, groups of 32, zero points of version 1; "
                      "products read the integers of the file; computed in int4-weight-only by "
                      "default"),
            std::string::npos)
      << out_;
  EXPECT_EQ(run({"info", path("gptq"), "--json"}), 0) << err_;
  EXPECT_EQ(json()["quantisation"]["format"], "gptq");
  EXPECT_EQ(json()["quantisation"]["layout"], "zero points of version 1");
  const double exact = loss_of("gptq", "fp32");
  EXPECT_NEAR(exact, loss_of("llama", "fp32"), 0.2);
  EXPECT_NEAR(loss_of("gptq"), exact, 0.01);
  EXPECT_NEAR(loss_of("gptq", "bf16"), exact, 0.01);
  EXPECT_EQ(run({"generate", path("gptq"), "--prompt", "line", "--max-new-tokens", "8", "--json"}),
            0)
      << err_;
  EXPECT_EQ(run({"plan", "--init-from", path("gptq"), "--json"}), 0) << err_;
  EXPECT_EQ(run({"export", path("gptq"), "--output", path("gptq.onnx")}), 0) << err_;
  EXPECT_EQ(run({"train", "--init-from", path("gptq"), "--text", text_path().string(),
                 "--output-dir", path("tuned"), "--max-steps", "2", "--eval-steps", "0",
                 "--batch-size", "2", "--context", "16", "--threads", "1"}),
            0)
      << err_;
  EXPECT_NE((out_ + err_).find("are trained as floats"), std::string::npos) << out_ << err_;
  EXPECT_EQ(
      io::parse_json(read_file(path("tuned") / "config.json"), "c").count("quantization_config"),
      0u);
  EXPECT_EQ(run({"quantize", path("gptq"), "--output", path("again")}), 1);
  EXPECT_NE(err_.find("is quantised already (GPTQ, 4 bits, groups of 32)"), std::string::npos);
}

}  // namespace
}  // namespace brrr::test
