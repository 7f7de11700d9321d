// The advice on number formats for inference, and how the ladder shows what it measured.
#include "insight/ladder/inference_ladder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/hostile_markup.h"

namespace brrr::insight {
namespace {

/// A format with that speed over fp32, and a loss so many percent above fp32's, which is 2.
InferenceRung format(const std::string& name, double times, std::optional<double> percent,
                     double low = 0) {
  InferenceRung r;
  r.name = name;
  r.ms = {10 / times, 9 / times, 11 / times};
  r.rounds = 3;
  r.against_first = Against{times, low > 0 ? low : 0.99 * times, 1.01 * times, 1 / times};
  r.prompt_per_second = 100 * times;
  r.weight_bytes = 1000;
  r.bandwidth_fraction = 0.5;
  if (percent)
    r.cost = infer::TokenComparison{.loss = 2 + 0.02 * *percent,
                                    .loss_difference = 0.02 * *percent,
                                    .difference_error = 1e-4,
                                    .divergence = 0.01,
                                    .agreement = 0.9};
  return r;
}

InferenceRung failed(const std::string& name, const std::string& why) {
  InferenceRung r;
  r.name = name;
  r.failure = why;
  return r;
}

TEST(InferenceAdvice, TakesTheFastestWithinTheLoss) {
  const InferenceAdvice a = advise_inference({format("fp32", 1, 0), format("bf16", 1.8, 0.1),
                                              format("int8", 3, 0.9), format("int4", 4, 2)});
  EXPECT_EQ(a.use,
            "use --precision int8: the fastest with a loss at most 1% above fp32's, 3.00x of fp32");
  ASSERT_EQ(a.lines.size(), 3u);
  EXPECT_EQ(a.lines[2],
            "int4: faster than fp32 (4.00x) at decoding, 0.25x its weights' memory; loss +2.00%, "
            "KL divergence 0.01, 90.0% the same most likely token");
}

TEST(InferenceAdvice, KeepsFp32WhereNothingIsClearlyFaster) {
  const InferenceAdvice a =
      advise_inference({format("fp32", 1, 0), format("bf16", 0.7, 0), format("int8", 1.2, 0, 0.8)});
  EXPECT_TRUE(a.use.starts_with("use fp32: ")) << a.use;
  EXPECT_TRUE(a.lines[0].starts_with("bf16: slower than fp32 (0.70x)")) << a.lines[0];
  EXPECT_TRUE(a.lines[1].starts_with("int8: not clearly faster than fp32 (1.20x)")) << a.lines[1];
}

// Without a comparison the advice names a speed and recommends nothing.
TEST(InferenceAdvice, RecommendsNothingThatWasNotCompared) {
  std::vector<InferenceRung> rungs{format("fp32", 1, std::nullopt),
                                   format("int8", 2, std::nullopt)};
  EXPECT_EQ(advise_inference(rungs).use,
            "fastest: int8, 2.00x of fp32; --model FOLDER also measures what a format costs in "
            "quality");
  rungs[1].not_compared = "needs 3 GiB";
  EXPECT_NE(advise_inference(rungs).lines[0].find("not compared with fp32: needs 3 GiB"),
            std::string::npos);
  EXPECT_NE(advise_inference(rungs).use.find("was not measured"), std::string::npos);
  // A format that was not compared is not taken beside one that was.
  rungs.push_back(format("bf16", 1.5, 0));
  EXPECT_TRUE(advise_inference(rungs).use.starts_with("use --precision bf16"))
      << advise_inference(rungs).use;
}

TEST(InferenceFigures, ShowRungsThatFailed) {
  const InferenceFigures f{
      "a model", "a text", {failed("fp32", "needs 9.1 GiB"), format("bf16", 1.5, std::nullopt)}};
  EXPECT_NE(inference_table(f).find("needs 9.1 GiB"), std::string::npos) << inference_table(f);
  const auto json = nlohmann::json::parse(inference_json(f));
  EXPECT_EQ(json["rungs"][0]["failure"], "needs 9.1 GiB");
  EXPECT_FALSE(json["rungs"][1].contains("loss"));
  EXPECT_EQ(inference_table(f).find("KL"), std::string::npos) << "no column without figures";
}

TEST(InferenceFigures, MarkupOnThePageIsText) {
  const std::string hostile = test::kHostileMarkup;
  InferenceRung r = format(hostile, 2, 0.5);
  r.not_compared = hostile;
  const InferenceFigures f{hostile, hostile, {format("fp32", 1, 0), r, failed("int8", hostile)}};
  EXPECT_EQ(inference_section(f).find(hostile), std::string::npos);
}

}  // namespace
}  // namespace brrr::insight
