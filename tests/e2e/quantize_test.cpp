// brrr quantize from end to end: a folder is written, other verbs take it, and what cannot be done
// is refused before anything is written.

#include "e2e/encoder_runs.h"

namespace brrr::test {
namespace {

class QuantizeRuns : public EncoderRuns {
 protected:
  /// A Llama whose layers are large enough to be quantised.
  void make_llama() {
    ASSERT_EQ(run(small_run("llama",
                            {"--preset", "llama-char", "--n-embd", "128", "--num-key-value-heads",
                             "2", "--intermediate-size", "160", "--max-steps", "40"})),
              0)
        << err_;
  }
  Options quantizing(const std::string& model, const std::string& to, Options more = {}) const {
    Options options{"quantize", path(model),          "--output",  path(to),
                    "--text",   text_path().string(), "--threads", "1"};
    put_options(options, more);
    return options;
  }
  double loss_of(const std::string& model, const Options& more = {}) {
    Options options{"eval",   path(model), "--text", text_path().string(),
                    "--json", "--threads", "1"};
    put_options(options, more);
    EXPECT_EQ(run(options), 0) << err_;
    return json()["loss"].get<double>();
  }
};

TEST_F(QuantizeRuns, ALanguageModelKeepsItsLoss) {
  make_llama();
  const double fp32 = loss_of("llama");
  const std::vector<std::pair<Options, double>> methods = {
      {{}, 0.02},
      {{"--method", "weight-only"}, 0.01},
      {{"--method", "weight-only", "--bits", "4", "--max-loss-increase", "50%"}, 0.2}};
  for (size_t i = 0; i < methods.size(); ++i) {
    const std::string to = "quantised" + std::to_string(i);
    Options options = quantizing("llama", to, methods[i].first);
    options.emplace_back("--json");
    ASSERT_EQ(run(options), 0) << err_;
    const Json report = json();
    ASSERT_EQ(report["precisions"].size(), 3u);
    EXPECT_EQ(report["layers"].size(), 7u);
    EXPECT_NEAR(report["precisions"][0]["loss"].get<double>(),
                report["precisions"][2]["loss"].get<double>(), methods[i].second);
    EXPECT_LT(report["bytes"].get<int64_t>(), report["precisions"][0]["bytes"].get<int64_t>() / 2);
    EXPECT_EQ(report["precisions"][0]["kl_divergence"], 0);
    EXPECT_GT(report["precisions"][2]["kl_divergence"].get<double>(), 0);
    EXPECT_LT(report["precisions"][2]["kl_divergence"].get<double>(), methods[i].second);
    EXPECT_GT(report["precisions"][2]["same_token"].get<double>(), i < 2 ? 0.95 : 0.7);
    EXPECT_NEAR(static_cast<double>(fs::file_size(path(to) / "model.safetensors")),
                report["bytes"].get<double>(), 8192);
    // The folder's own precision, and the same weights in fp32.
    EXPECT_NEAR(loss_of(to), fp32, methods[i].second) << to;
    EXPECT_NEAR(loss_of(to, {"--precision", "fp32"}), fp32, methods[i].second) << to;
    EXPECT_EQ(run({"generate", path(to), "--prompt", "line", "--max-new-tokens", "8", "--json"}), 0)
        << err_;
  }
  // Quantising again would add up errors. Training starts from the values of the integers.
  EXPECT_EQ(run(quantizing("quantised0", "again")), 1);
  EXPECT_NE(err_.find("is quantised already (8 bits, dynamic"), std::string::npos) << err_;
  EXPECT_EQ(run({"train", "--init-from", path("quantised0"), "--text", text_path().string(),
                 "--output-dir", path("tuned"), "--max-steps", "2", "--eval-steps", "0",
                 "--batch-size", "2", "--context", "16", "--threads", "1"}),
            0)
      << err_;
  EXPECT_NE((out_ + err_)
                .find("are quantised (8 bits, dynamic, a scale for each output): they are "
                      "trained as floats"),
            std::string::npos)
      << out_ << err_;
  EXPECT_FALSE(fs::exists(path("again")));
}

TEST_F(QuantizeRuns, AQuantisedFolderComputesInItsOwnForm) {
  make_llama();
  ASSERT_EQ(run(quantizing("llama", "own", {"--no-measure", "--keep", "down_proj"})), 0) << err_;
  const auto expect_part = [&](const Options& options, const std::string& part) {
    ASSERT_EQ(run(options), 0) << err_;
    EXPECT_NE((out_ + err_).find(part), std::string::npos) << part << "\n" << out_ << err_;
  };
  const std::string own = path("own"), plain = path("llama");
  expect_part({"run", own, "--random", "--explain"}, "weights in 8 bits, rows in 8 bits");
  expect_part({"plan", "--inference", own}, ", int8; ");
  expect_part({"plan", "--inference", own, "--precision", "fp32"}, ", fp32; ");
  expect_part({"plan", "--inference", plain, "--precision", "int8"}, ", int8; ");
  expect_part({"profile", "--inference", own, "--seconds", "0", "--no-advice"}, "tokens, int8");
  expect_part({"profile", "--generate", own, "--seconds", "0", "--no-advice"}, "cache, int8");
  expect_part(
      {"profile", "--inference", own, "--precision", "bf16", "--seconds", "0", "--no-advice"},
      "tokens, bf16");
  expect_part(
      {"profile", "--generate", plain, "--precision", "w4a16", "--seconds", "0", "--no-advice"},
      "cache, int4-weight-only");
  expect_part({"bench", "decode", "--model", own, "--prompt", "2", "--seconds", "0.01"}, " int8,");
  expect_part({"info", own}, "with linear layers in int8");
  // A training has no such precision.
  for (const char* verb : {"profile", "plan"}) {
    EXPECT_EQ(run({verb, plain, "--precision", "int8"}), 2) << err_;
    EXPECT_NE(err_.find("take it with --inference"), std::string::npos) << err_;
  }
}

TEST_F(QuantizeRuns, WhatLosesTooMuchIsNotWritten) {
  make_llama();
  const Options strict = quantizing(
      "llama", "four", {"--method", "weight-only", "--bits", "4", "--max-loss-increase", "0"});
  // Four bits may also happen to have a smaller loss.
  if (run(strict) != 0) {
    EXPECT_NE(err_.find("more than --max-loss-increase 0%; try --keep model.layers.0."),
              std::string::npos)
        << err_;
    EXPECT_NE(err_.find("is not written; --force writes it"), std::string::npos) << err_;
    EXPECT_NE(out_.find("largest relative errors of weights"), std::string::npos) << out_;
    EXPECT_FALSE(fs::exists(path("four")));
    Options forced = strict;
    forced.emplace_back("--force");
    EXPECT_EQ(run(forced), 0) << err_;
    EXPECT_TRUE(fs::exists(path("four") / "config.json"));
  }
  const auto refuses = [&](const Options& options, int code, const std::string& message) {
    EXPECT_EQ(run(options), code) << err_;
    EXPECT_NE(err_.find(message), std::string::npos) << err_;
    EXPECT_FALSE(fs::exists(path("no")));
  };
  write_file_atomically(path("short.txt"), "line of words\n");
  refuses(quantizing("llama", "no", {"--text", path("short.txt")}), 1, "at least 64 to measure");
  write_file_atomically(path("other.txt"), "\xe6\xbc\xa2\xe5\xad\x97\n");
  refuses(quantizing("llama", "no", {"--text", path("other.txt")}), 1, "--text: ");
  refuses(quantizing("llama", "no", {"--keep", "model.layers.9"}), 2, "has no such layer");
  refuses(quantizing("llama", "no", {"--bits", "4"}), 2, "--method weight-only");
  refuses(quantizing("llama", "no", {"--bits", "6"}), 2, "--bits 6: expected 8 or 4");
  refuses(
      quantizing("llama", "no", {"--group-size", "64", "--bits", "4", "--method", "weight-only"}),
      1, "expected --group-size 32");
  refuses({"quantize", path("llama")}, 2, "expected --output FOLDER");
  refuses({"quantize", path("absent"), "--output", path("no")}, 1, "there is no folder");
  refuses({"quantize", path("llama"), "--output", path("llama")}, 1, "holds files already");
  refuses({"quantize", path("model.brrr"), "--output", path("no")}, 2, "--precision int8");
  refuses({"quantize", path("model.onnx"), "--output", path("no"), "--method", "dynamic"}, 2,
          "ONNX files are written with");
  refuses({"quantize", path("model.onnx"), "--output", path("no")}, 2,
          "expected a file that ends with .onnx");
  refuses(quantizing("llama", "no", {"--no-measure", "--text", path("absent.txt")}), 1,
          "absent.txt");
}

TEST_F(QuantizeRuns, AnOnnxFileKeepsItsOutputs) {
  make_llama();
  ASSERT_EQ(run({"export", path("llama"), "--format", "onnx", "--output", path("llama.onnx")}), 0)
      << err_;
  const Options options{"quantize", path("llama.onnx"), "--method", "weight-only",
                        "--output", path("int8.onnx"),  "--json",   "--threads",
                        "1",        "--keep",           "up_proj"};
  ASSERT_EQ(run(options), 0) << err_;
  const Json report = json();
  EXPECT_GT(report["outputs"][0]["cosine"].get<double>(), 0.999);
  EXPECT_LT(fs::file_size(path("int8.onnx")), fs::file_size(path("llama.onnx")) * 2 / 3);
  EXPECT_EQ(run({"run", path("int8.onnx"), "--random"}), 0) << err_;
  Options again = options;
  again[1] = path("int8.onnx");
  again[5] = path("twice.onnx");
  EXPECT_EQ(run(again), 1);
  EXPECT_NE(err_.find("is quantised already (it has DequantizeLinear)"), std::string::npos) << err_;
}

TEST_F(QuantizeRuns, AnEncoderKeepsItsVectors) {
  ASSERT_EQ(run(pretraining("base", {"--n-embd", "128", "--max-steps", "20", "--eval-steps", "0"})),
            0)
      << err_;
  Options options = quantizing("base", "small", {"--no-measure", "--keep", "query"});
  ASSERT_EQ(run(options), 0) << err_;
  EXPECT_NE(out_.find("5 of 6 linear layers"), std::string::npos) << out_;
  options = quantizing("base", "measured", {"--json", "--max-loss-increase", "20"});
  ASSERT_EQ(run(options), 0) << err_;
  const Json report = json();
  EXPECT_GT(report["precisions"][2]["mean_cosine"].get<double>(), 0.98);
  EXPECT_EQ(report["texts"], 64);
  put("masked.txt", "line [MASK] of a small text\n");
  EXPECT_EQ(run({"fill-mask", path("small"), path("masked.txt")}), 0) << err_;
  EXPECT_EQ(run({"info", path("small")}), 0) << err_;
  EXPECT_NE(out_.find("quantised: 5 linear layers in 8 bits, dynamic, a scale for each output; "
                      "computed in int8 by default"),
            std::string::npos)
      << out_;
  EXPECT_NE(out_.find("self\\.query$"), std::string::npos) << out_;
  // A classifier: as many texts as before get the same class.
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv", {"--num-train-epochs", "1"})), 0)
      << err_;
  options = quantizing("classes", "labels", {"--json", "--max-loss-increase", "20"});
  ASSERT_EQ(run(options), 0) << err_;
  EXPECT_GE(json()["precisions"][2]["same_class"].get<double>(), 0.9);
  EXPECT_EQ(run({"eval", path("labels"), "--data", path("classes.tsv"), "--json"}), 0) << err_;
  EXPECT_EQ(run({"embed", path("measured"), text_path().string(), "--output", path("v.npy")}), 0)
      << err_;
}

}  // namespace
}  // namespace brrr::test
