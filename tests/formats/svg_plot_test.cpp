#include "formats/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/rng.h"
#include "formats/plot_axis.h"

namespace brrr::io {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Well-formed enough for a viewer: tags closed in order, no stray & or <, no inf or nan in it.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t i = svg.find('<'); i != std::string::npos; i = svg.find('<', i + 1)) {
    const size_t end = svg.find('>', i);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(i + 1, end - i - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), name);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  for (size_t i = svg.find('&'); i != std::string::npos; i = svg.find('&', i + 1)) {
    const std::string entity = svg.substr(i + 1, svg.find(';', i) - i - 1);
    EXPECT_TRUE(entity == "amp" || entity == "lt" || entity == "gt" || entity == "quot") << entity;
  }
  for (const char* number : {"nan", "inf"})
    for (const char* before : {"\"", "-", "M", "L", "H", " "})
      EXPECT_EQ(svg.find(std::string(before) + number), std::string::npos) << before << number;
}

std::vector<std::string> paths(const std::string& svg, const std::string& classes) {
  // By hand: std::regex recurses per character.
  std::vector<std::string> out;
  const std::string head = "<path class=\"" + classes + "\" d=\"";
  for (size_t i = svg.find(head); i != std::string::npos; i = svg.find(head, i + 1)) {
    const size_t begin = i + head.size();
    out.push_back(svg.substr(begin, svg.find('"', begin) - begin));
  }
  return out;
}

Plot one_line(std::vector<double> x, std::vector<double> y) {
  Plot plot;
  plot.title = "t";
  plot.series.push_back({"a", std::move(x), std::move(y), LineStyle::line, 0});
  return plot;
}

TEST(SvgPlot, PointsLandWhereTheAxesSay) {
  // x from 0 to 10 over 84..848, y from 0 to 4 over bottom 412..top 68.
  const std::string svg = svg_plot(one_line({0, 5, 10}, {0, 4, 2}));
  expect_well_formed(svg);
  const auto lines = paths(svg, "l c0");
  ASSERT_EQ(lines.size(), 2u);  // the curve and its swatch in the legend
  EXPECT_EQ(lines[0], "M84 412L466 68L848 240");
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(svg, svg_plot(one_line({0, 5, 10}, {0, 4, 2})));
}

TEST(SvgPlot, GapsWhereValuesAreNotFinite) {
  const std::string svg = svg_plot(one_line({0, 1, 2, 3, 4, 5}, {1, 2, kNan, 3, kInf, 1}));
  expect_well_formed(svg);
  const std::string line = paths(svg, "l c0").at(0);
  EXPECT_EQ(std::count(line.begin(), line.end(), 'M'), 3);
  EXPECT_EQ(std::count(line.begin(), line.end(), 'L'), 1);
}

TEST(SvgPlot, NothingToDraw) {
  for (const bool log_y : {false, true}) {
    Plot plot = one_line({0, 1}, {kNan, kInf});
    plot.log_y = log_y;
    EXPECT_NE(svg_plot(plot).find("no data yet"), std::string::npos);
    expect_well_formed(svg_plot(plot));
    plot.series.clear();
    expect_well_formed(svg_plot(plot));
  }
  Plot plot = one_line({1, 2}, {-1, 0});
  plot.log_y = true;
  EXPECT_NE(svg_plot(plot).find("no data yet"), std::string::npos);
}

TEST(SvgPlot, DegenerateAndExtremeRanges) {
  for (const double v : {0.0, 3.0, -1e-300, 1e-12, 1e150, -1e150, 1e300})
    for (const bool log_y : {false, true}) {
      Plot plot = one_line({7, 7}, {v, v});
      plot.log_y = log_y;
      expect_well_formed(svg_plot(plot));
      plot = one_line({7, 8, 9}, {1e-8, v, 1});
      plot.log_y = log_y;
      expect_well_formed(svg_plot(plot));
    }
  const std::string svg = svg_plot(one_line({7}, {3}));
  EXPECT_NE(svg.find("<circle"), std::string::npos) << "a single point needs a marker";
}

TEST(SvgPlot, TextIsEscapedAndAlwaysUtf8) {
  Plot plot = one_line({0, 1}, {0, 1});
  plot.title = "a<b> & \"c\" \x01\xff gr\xc3\xbc\xc3\x9f";
  plot.series[0].label = "</svg><script>";
  const std::string svg = svg_plot(plot);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a&lt;b&gt; &amp; &quot;c&quot;  \xef\xbf\xbd gr\xc3\xbc\xc3\x9f"),
            std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(SvgPlot, LogAxisPutsDecadesAtEqualDistances) {
  Plot plot = one_line({0, 1, 2}, {1, 10, 100});
  plot.log_y = true;
  const std::string svg = svg_plot(plot);
  EXPECT_EQ(paths(svg, "l c0").at(0), "M84 412L466 240L848 68");
  for (const char* tick : {">1<", ">2<", ">5<", ">10<", ">20<", ">50<", ">100<"})
    EXPECT_NE(svg.find(tick), std::string::npos) << tick;
}

TEST(SvgPlot, ManyPointsKeepTheirExtremesAndStaySmall) {
  std::vector<double> x, y;
  for (int i = 0; i < 200'000; ++i)
    x.push_back(i), y.push_back(i == 77'777 ? 10 : 1 + 0.1 * (i % 7));
  const std::string svg = svg_plot(one_line(x, y));
  EXPECT_LT(svg.size(), 120'000u);
  EXPECT_NE(paths(svg, "l c0").at(0).find(" 68L"), std::string::npos) << "the spike is lost";
}

TEST(SvgPlot, ManySeriesMoveTheLegendBelowTheTitle) {
  Plot plot;
  plot.title = "many";
  for (int i = 0; i < 14; ++i)
    plot.series.push_back(
        {"a long name " + std::to_string(i), {0, 1}, {0.0, 1.0 * i}, LineStyle::markers, i});
  const std::string svg = svg_plot(plot);
  expect_well_formed(svg);
  // The row of an entry is the y of its text.
  const size_t name = svg.find(">a long name 0");
  ASSERT_NE(name, std::string::npos);
  const size_t row = svg.rfind("y=\"", name) + 3;
  const double first_row = std::stod(svg.substr(row));
  EXPECT_GT(first_row, 50);
  const std::string top_curve = paths(svg, "l k c1").at(0);
  EXPECT_GT(std::stod(top_curve.substr(top_curve.rfind(' ') + 1)), first_row);
}

TEST(LossPlot, RawIsFaintAndValidationIsMarked) {
  LossCurve curve;
  RngStream rng({.seed = 3}, 0);
  for (int i = 1; i <= 2000; ++i) {
    curve.train_step.push_back(i);
    curve.train_loss.push_back(1.5 + 3 * std::exp(-i / 100.0) + 0.1 * rng.next_uniform());
  }
  curve.val_step = {1000, 2000};
  curve.val_loss = {1.7, 1.6543};
  const Plot plot = loss_plot(curve, "run", "sub");
  EXPECT_TRUE(plot.log_y);
  const std::string svg = svg_plot(plot);
  expect_well_formed(svg);
  EXPECT_EQ(paths(svg, "f c0").size(), 2u) << "the curve, and its sign in the legend";
  EXPECT_NE(svg.find("1.6543"), std::string::npos);
  for (const char* name : {">train, each step</text>", ">train, smoothed ", ">validation "})
    EXPECT_NE(svg.find(name), std::string::npos) << name;
  EXPECT_FALSE(loss_plot({{1, 2}, {2.0, 1.9}, {}, {}}, "r", "").log_y);
  expect_well_formed(svg_plot(loss_plot({}, "r", "")));
}

// Losses on other tokens are not joined with those before.
TEST(LossPlot, TheValidationLineHasAGapWhereItsTokensChange) {
  LossCurve curve;
  curve.add_val(10, 3, "a");
  curve.add_val(20, 2, "a");
  const auto strokes = [&] {
    const std::string path = paths(svg_plot(loss_plot(curve, "run", "")), "l k c1").at(0);
    return std::ranges::count(path, 'M');
  };
  EXPECT_EQ(strokes(), 1);
  curve.add_val(30, 2.5, "b");
  curve.add_val(40, 2.4, "b");
  EXPECT_EQ(strokes(), 2);
}

TEST(Smoothed, KeepsConstantsAndLinesAndGaps) {
  const std::vector<double> constant(100, 2.5);
  EXPECT_EQ(smoothed(constant, 10), constant);
  std::vector<double> line(200);
  for (size_t i = 0; i < line.size(); ++i) line[i] = static_cast<double>(i);
  const auto out = smoothed(line, 5);
  for (size_t i = 0; i + 10 < line.size(); ++i) EXPECT_NEAR(out[i], line[i], 1e-9) << i;
  line[50] = kNan;
  const auto gap = smoothed(line, 5);
  EXPECT_TRUE(std::isnan(gap[50]));
  EXPECT_NEAR(gap[49], 49, 2);
  EXPECT_TRUE(smoothed({}, 3).empty());
  std::vector<double> noise;
  RngStream rng({.seed = 4}, 0);
  for (int i = 0; i < 1000; ++i) noise.push_back(rng.next_uniform());
  const auto calm = smoothed(noise, 20);
  for (size_t i = 200; i < 1000; ++i) EXPECT_NEAR(calm[i], 0.5, 0.25);
}

TEST(NiceTicks, RoundCoveringAndFew) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(1.4, 4.9, 6), (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ(nice_ticks(-3, 3, 3), (std::vector<double>{-4, -2, 0, 2, 4}));
  RngStream rng({.seed = 9}, 0);
  for (int trial = 0; trial < 2000; ++trial) {
    const double scale = std::pow(10.0, static_cast<double>(rng.next_below(30)) - 15);
    const double low = (rng.next_uniform() - 0.5) * scale;
    const double high = low + (rng.next_uniform() + 1e-3) * scale;
    const auto ticks = nice_ticks(low, high, 6);
    ASSERT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 9u);
    const double slack = 1e-6 * (high - low);
    EXPECT_LE(ticks.front(), low + slack);
    EXPECT_GE(ticks.back(), high - slack);
  }
  EXPECT_THROW(nice_ticks(1, 1, 5), InternalError);
}

TEST(PlotAxis, LabelsHaveTheDecimalsTheyNeed) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(linear_axis({0, 2000}, 4, false).labels,
            (Labels{"0", "500", "1,000", "1,500", "2,000"}));
  EXPECT_EQ(linear_axis({1.5, 1.7}, 4, true).labels,
            (Labels{"1.50", "1.55", "1.60", "1.65", "1.70"}));
  EXPECT_EQ(linear_axis({0, 4e6}, 4, true).labels, (Labels{"0", "1M", "2M", "3M", "4M"}));
  EXPECT_EQ(linear_axis({-1, 1}, 4, true).labels, (Labels{"-1.0", "-0.5", "0.0", "0.5", "1.0"}));
  EXPECT_EQ(log_axis({1e-3, 1}).labels,
            (Labels{"0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"}));
}

TEST(LossCurve, KeepsEveryNthOfALongRun) {
  LossCurve curve;
  const auto n = static_cast<int64_t>(5 * LossCurve::kMost);
  for (int64_t i = 0; i < n; ++i)
    curve.add_train(static_cast<double>(i), 1.0 / (1.0 + static_cast<double>(i)));
  ASSERT_LT(curve.train_step.size(), LossCurve::kMost);
  ASSERT_GT(curve.train_step.size(), LossCurve::kMost / 4);
  ASSERT_EQ(curve.train_step.size(), curve.train_loss.size());
  const double stride = curve.train_step[1] - curve.train_step[0];
  for (size_t i = 0; i < curve.train_step.size(); ++i) {
    ASSERT_EQ(curve.train_step[i], stride * static_cast<double>(i));
    ASSERT_EQ(curve.train_loss[i], 1.0 / (1.0 + curve.train_step[i]));
  }
  EXPECT_GT(curve.train_step.back(), static_cast<double>(n) - 2 * stride);
}

}  // namespace
}  // namespace brrr::io
