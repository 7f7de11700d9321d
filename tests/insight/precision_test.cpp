// The advice on number formats: safe and fast are told apart, and magnitudes are counted right.
#include "insight/ladder/precision.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "insight/ladder/precision_training.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

Against speed(double x) { return {x, 0.99 * x, 1.01 * x, 1}; }

/// fp32, and one format with that loss and speed; fp32's seeds end at 2.00, 2.02 and 1.99.
PrecisionAdvice advice(double loss, double times, bool unit = true) {
  return advise_format({{"fp32", 2.0, 0, ""}, {"bf16", loss, 0, "h.1.mlp"}}, {2.0, 2.02, 1.99},
                       {speed(1), speed(times)}, [&](const std::string&) { return unit; });
}

TEST(PrecisionAdvice, TakesTheFastestThatIsSafe) {
  const PrecisionAdvice a = advice(2.01, 3);
  EXPECT_NEAR(a.spread, 0.03, 1e-12);
  EXPECT_TRUE(a.formats[1].safe);
  EXPECT_EQ(a.use, "use bf16: the fastest that is safe here, 3.00x of fp32");
}

TEST(PrecisionAdvice, SafeButSlowerIsNotTaken) {
  const PrecisionAdvice a = advice(2.01, 0.8, false);
  EXPECT_TRUE(a.formats[1].safe);
  EXPECT_EQ(a.formats[1].line, "bf16: safe here but slower (0.80x, no hardware for it)");
  EXPECT_TRUE(a.use.starts_with("use fp32")) << a.use;
  EXPECT_TRUE(advice(2.01, 1.01).use.starts_with("use fp32")) << "a gain within the noise";
}

// The reason is the spread where it is the spread, and no line recommends what the last does not.
TEST(PrecisionAdvice, FasterOnlyAtTheMedianIsNotTaken) {
  const PrecisionAdvice a =
      advise_format({{"fp32", 2.0, 0, ""}, {"bf16", 2.0, 0, ""}, {"bf16, weights too", 2.0, 0, ""}},
                    {2.0, 2.02, 1.99}, {speed(1), speed(1.4), {1.47, 0.83, 2.12, 1}},
                    [](const std::string&) { return true; });
  EXPECT_EQ(a.formats[2].line,
            "bf16, weights too: safe here but not clearly faster: 1.47x, quartiles 0.83-2.12");
  EXPECT_EQ(a.use, "use bf16: the fastest that is safe here, 1.40x of fp32");
  for (const FormatVerdict& v : a.formats) EXPECT_EQ(v.line.find("use "), std::string::npos);
}

TEST(PrecisionAdvice, FastButUnsafeIsNotTaken) {
  const PrecisionAdvice a = advice(2.04, 3);
  EXPECT_FALSE(a.formats[1].safe);
  EXPECT_NE(a.formats[1].line.find("0.0400 above"), std::string::npos) << a.formats[1].line;
  EXPECT_TRUE(a.use.starts_with("use fp32"));
  EXPECT_TRUE(advice(1.5, 3).formats[1].safe) << "a lower loss is no harm";
}

TEST(PrecisionAdvice, NamesTheLayerWhereNumbersEnd) {
  const PrecisionAdvice a = advice(NAN, 3);
  EXPECT_FALSE(a.formats[1].safe);
  EXPECT_NE(a.formats[1].line.find("first in h.1.mlp"), std::string::npos) << a.formats[1].line;
}

TEST(Magnitudes, CountsWhatAFormatLoses) {
  Magnitudes m;
  for (const double x :
       {0.0, 1.0, -65536.0, 65535.0, 0x1p-24, -0x1p-26, double(INFINITY), double(NAN)})
    m.add(x);
  // Six numbers; fp16 is finite below 2^16 and rounds to zero below 2^-25.
  EXPECT_NEAR(m.overflow(16), 1.0 / 6, 1e-12);
  EXPECT_NEAR(m.underflow(-25), 1.0 / 6, 1e-12);
  EXPECT_EQ(m.overflow(128), 0);
  EXPECT_EQ(m.underflow(-134), 0);
  EXPECT_NEAR(m.overflow(16, 16), 3.0 / 6, 1e-12) << "1 times 2^16 is too large, too";
  EXPECT_EQ(m.underflow(-25, 16), 0);
  EXPECT_NEAR(Magnitudes(m.counts()).overflow(16), 1.0 / 6, 1e-12);
}

TEST(FormatTraining, LearnsFromTheTextAndSeesItsNumbers) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "abcdefgh \n"[i * i % 10];
  write_file_atomically(folder / "text.txt", text);
  LadderOptions o;
  o.quick = true;
  o.options = {{"text", (folder / "text.txt").string()}, {"n-layer", "40"}};
  FormatTraining training(o);
  RungResult fp32, again, other, low;
  training.run({}, 0, fp32);
  training.run({}, 0, again);
  training.run({}, 5, other);
  training.run({{"precision", "bf16"}}, 0, low);
  EXPECT_EQ(fp32.figures.at("loss"), again.figures.at("loss"));
  EXPECT_NE(fp32.figures.at("loss"), other.figures.at("loss"));
  EXPECT_NE(fp32.figures.at("loss"), low.figures.at("loss"));
  EXPECT_LT(fp32.figures.at("loss")[0], 1.5) << "ten characters at random would be 2.3";
  EXPECT_EQ(fp32.figures.at("skipped")[0], 0);
  ASSERT_TRUE(fp32.figures.contains("gradients"));
  EXPECT_FALSE(low.figures.contains("gradients"));
  // Activations of a working model lie around one; its gradients are far smaller.
  const Magnitudes activations(fp32.figures.at("activations")),
      gradients(fp32.figures.at("gradients"));
  EXPECT_EQ(activations.overflow(16), 0);
  EXPECT_GT(activations.overflow(-10), 0.5);
  EXPECT_LT(gradients.overflow(-10), 0.2);
}

}  // namespace
}  // namespace brrr::insight
