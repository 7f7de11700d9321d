// Ranges of values inside ONNX models, and how histograms choose them.
#include "calibration/value_ranges.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "modules/onnx/onnx_module.h"
#include "support/onnx_writer.h"

namespace brrr::calibration {
namespace {

using namespace test::onnx_file;  // NOLINT(google-build-using-namespace)

HostTensor vector_of(const std::vector<float>& numbers) {
  return HostTensor::of<float>({std::ssize(numbers)}, numbers);
}

class ValueRanges : public ::testing::Test {
 protected:
  std::shared_ptr<const Runnable> open(const std::string& graph_bytes) {
    bytes_ = model(graph_bytes);
    return onnx::open_module(onnx::File::parse(bytes_, "m.onnx"));
  }
  /// n = -x, r = relu(n), y = r + r
  std::shared_ptr<const Runnable> negated() {
    return open(graph(
        {value("x", kFloat, {-1})}, {value("y")},
        {node("Neg", {"x"}, {"n"}), node("Relu", {"n"}, {"r"}), node("Add", {"r", "r"}, {"y"})}));
  }
  std::string bytes_;
};

TEST_F(ValueRanges, CoverAllRunsAndZero) {
  const CalibrationRuns runs{{{"x", vector_of({1, -2, 3})}}, {{"x", vector_of({-5, -1})}}};
  const auto ranges = gather_ranges(negated(), {"x", "n", "r"}, runs);
  EXPECT_EQ(ranges.at("x").low, -5);
  EXPECT_EQ(ranges.at("x").high, 3);
  EXPECT_EQ(ranges.at("n").low, -3);
  EXPECT_EQ(ranges.at("n").high, 5);
  EXPECT_EQ(ranges.at("r").low, 0);
  EXPECT_EQ(ranges.at("r").high, 5);
  const CalibrationRuns above{{{"x", vector_of({-7, -6})}}};
  EXPECT_EQ(gather_ranges(negated(), {"n"}, above).at("n").low, 0);
}

TEST_F(ValueRanges, LeaveOutliersOut) {
  std::vector<float> numbers;
  for (int i = 0; i < 20'000; ++i) numbers.push_back(-static_cast<float>(i % 100) / 100);
  numbers[0] = -400;
  const CalibrationRuns runs{{{"x", vector_of(numbers)}}};
  RangeOptions options;
  EXPECT_EQ(gather_ranges(negated(), {"r"}, runs, options).at("r").high, 400);
  options.method = RangeMethod::percentile;
  options.percentile = 99.9;
  EXPECT_NEAR(gather_ranges(negated(), {"r"}, runs, options).at("r").high, 1, 0.06);
  EXPECT_EQ(gather_ranges(negated(), {"r"}, runs, options).at("r").low, 0);
  options.percentile = 100;
  EXPECT_EQ(gather_ranges(negated(), {"r"}, runs, options).at("r").high, 400);
}

TEST_F(ValueRanges, FollowValuesPastSizesThatDependOnData) {
  // NonZero ends a graph: h is before it, g after it.
  const auto model =
      open(graph({value("x", kFloat, {-1})}, {value("y")},
                 {node("Neg", {"x"}, {"h"}), node("NonZero", {"h"}, {"at"}),
                  node("Squeeze", {"at", "zero"}, {"flat"}), node("Gather", {"h", "flat"}, {"g"}),
                  node("Add", {"g", "g"}, {"y"})},
                 {integers("zero", {1}, {0})}));
  for (const RangeMethod method : {RangeMethod::minmax, RangeMethod::percentile}) {
    RangeOptions options;
    options.method = method;
    options.percentile = 100;
    const auto ranges =
        gather_ranges(model, {"h", "g"},
                      {{{"x", vector_of({0, 4, 0, -2})}}, {{"x", vector_of({0, 0})}}}, options);
    for (const char* name : {"h", "g"}) {
      EXPECT_EQ(ranges.at(name).low, -4) << name;
      EXPECT_EQ(ranges.at(name).high, 2) << name;
    }
  }
}

TEST_F(ValueRanges, RefuseWhatIsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    EXPECT_THROW(gather_ranges(negated(), {"n"}, {{{"x", vector_of({1, bad, 2})}}}), UserError);
}

TEST(RangeHistogram, ThePercentileCutsBothSides) {
  Histogram h(-10, 10, 1000);
  std::vector<float> numbers(10'000, 0.5f);
  numbers[0] = -10;
  numbers[1] = 10;
  numbers[2] = 9;
  h.add(numbers);
  const ValueRange all = percentile_range(h, 100);
  EXPECT_EQ(all.low, -10);
  EXPECT_EQ(all.high, 10);
  const ValueRange most = percentile_range(h, 99.96);
  EXPECT_NEAR(most.low, 0.5, 0.03);
  EXPECT_NEAR(most.high, 0.5, 0.03);
}

TEST(RangeHistogram, TheEntropyKeepsUniformNumbersAndCutsOutliers) {
  Histogram uniform(0, 8, 2048), tailed(0, 100, 2048);
  std::vector<float> numbers;
  for (int i = 0; i < 2048 * 8; ++i) numbers.push_back(static_cast<float>(i) / 2048);
  uniform.add_magnitudes(numbers);
  EXPECT_GT(entropy_threshold(uniform, 128), 7.5f);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  numbers.assign(200'000, 0);
  for (float& x : numbers) x = normal(random);
  numbers[0] = 100;
  tailed.add_magnitudes(numbers);
  const float cut = entropy_threshold(tailed, 128);
  EXPECT_LT(cut, 20);
  EXPECT_GT(cut, 2);
}

}  // namespace
}  // namespace brrr::calibration
