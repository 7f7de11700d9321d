// Quantisation that a model is prepared for: training with rounded weights, and integers chosen on
// a calibration text.

#include "e2e/run.h"

namespace brrr::test {
namespace {

class CalibrationRuns : public EndToEnd {
 protected:
  /// A Llama whose layers are large enough to be quantised.
  std::vector<std::string> llama(const std::string& name,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{
        "--preset",    "llama-char", "--n-embd",     "128", "--intermediate-size", "160",
        "--max-steps", "40",         "--eval-steps", "20",  "--save-steps",        "20"};
    put_options(all, more);
    return small_run(name, all);
  }
  nlohmann::json report_of(const std::string& model, const std::string& to,
                           const std::vector<std::string>& more) {
    std::vector<std::string> all{"quantize", path(model).string(), "--output", path(to).string(),
                                 "--text",   text_path().string(), "--json",   "--force"};
    put_options(all, more);
    EXPECT_EQ(run(all), 0) << err_;
    return nlohmann::json::parse(out_);
  }
  double loss_of(const std::string& model) {
    EXPECT_EQ(run({"eval", path(model).string(), "--text", text_path().string(), "--json"}), 0)
        << err_;
    return nlohmann::json::parse(out_)["loss"].get<double>();
  }
};

TEST_F(CalibrationRuns, TrainingForIntegersResumesAndFolds) {
  ASSERT_EQ(run(llama("whole", {"--qat", "int8"})), 0) << err_;
  EXPECT_NE(err_.find("quantize " + path("whole").string() + " --output"), std::string::npos)
      << err_;
  ASSERT_EQ(run(llama("half", {"--qat", "int8"})), 0) << err_;
  fs::remove_all(path("half") / "checkpoint-000040");
  ASSERT_EQ(run({"train", "--resume", (path("half") / "checkpoint-000020").string()}), 0) << err_;
  EXPECT_EQ(read_file(path("whole") / "model.safetensors"),
            read_file(path("half") / "model.safetensors"));
  // The folder that quantize makes has the loss that the training saw, of rounded weights and rows.
  ASSERT_EQ(run(llama("plain")), 0) << err_;
  EXPECT_NE(read_file(path("whole") / "model.safetensors"),
            read_file(path("plain") / "model.safetensors"));
  report_of("whole", "folded", {"--no-measure"});
  EXPECT_NEAR(loss_of("folded"), loss_of("whole"), 5e-3);
}

TEST_F(CalibrationRuns, WhatCannotBeTrainedForIntegersIsRefused) {
  EXPECT_EQ(run(small_run("small", {"--qat", "int8"})), 2);
  EXPECT_NE(err_.find("no linear layer of a block has 16,384 elements"), std::string::npos) << err_;
  EXPECT_EQ(run(llama("fp8", {"--qat", "int8", "--precision", "fp8"})), 2);
  EXPECT_NE(err_.find("use bf16 or fp32"), std::string::npos) << err_;
  EXPECT_EQ(run(llama("group", {"--qat", "int8", "--qat-group-size", "64"})), 2);
  EXPECT_NE(err_.find("applies to --qat int4"), std::string::npos) << err_;
  EXPECT_NE(run(llama("odd", {"--qat", "int4", "--qat-group-size", "64"})), 0);
  EXPECT_NE(err_.find("groups of 64 do not divide the 160 inputs"), std::string::npos) << err_;
}

TEST_F(CalibrationRuns, ChosenIntegersChangeOutputsLess) {
  ASSERT_EQ(run(llama("llama")), 0) << err_;
  const std::vector<std::string> calibrating{"--calibration", text_path().string(),
                                             "--calibration-tokens", "2048", "--no-measure"};
  const std::vector<std::pair<std::vector<std::string>, double>> methods = {
      {{"--method", "gptq"}, 0.7},
      {{"--method", "gptq", "--no-act-order"}, 0.75},
      {{"--method", "awq"}, 1},
      {{"--method", "dynamic", "--smoothing", "0.5"}, 1.5}};
  for (size_t i = 0; i < methods.size(); ++i) {
    std::vector<std::string> options = methods[i].first;
    options.insert(options.end(), calibrating.begin(), calibrating.end());
    const std::string to = "chosen" + std::to_string(i);
    const nlohmann::json report = report_of("llama", to, options);
    const double chosen = report["calibration"]["output_error"],
                 nearest = report["calibration"]["output_error_of_nearest"];
    EXPECT_LT(chosen, methods[i].second * nearest) << i;
    EXPECT_NEAR(loss_of(to), loss_of("llama"), 0.05) << i;
  }
}

TEST_F(CalibrationRuns, CalibrationThatCannotBeDoneIsRefused) {
  ASSERT_EQ(run(llama("llama")), 0) << err_;
  const auto expect = [&](const std::vector<std::string>& more, int code, const std::string& part) {
    std::vector<std::string> all{"quantize", path("llama").string(), "--output",
                                 path("none").string()};
    put_options(all, more);
    EXPECT_EQ(run(all), code) << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
    EXPECT_FALSE(fs::exists(path("none")));
  };
  write_file_atomically(path("short.txt"), "line one\n");
  write_file_atomically(path("empty.txt"), "");
  expect({"--method", "gptq", "--calibration", path("short.txt").string()}, 1,
         "expected at least 256 to calibrate on");
  expect({"--method", "gptq", "--calibration", path("empty.txt").string()}, 1, "empty.txt");
  expect({"--calibration", text_path().string()}, 2, "--calibration is for --method gptq");
  expect({"--method", "awq", "--smoothing", "0.5"}, 2, "use one of the two");
  expect({"--method", "gptq", "--damping", "0"}, 2, "damping");
}

}  // namespace
}  // namespace brrr::test
