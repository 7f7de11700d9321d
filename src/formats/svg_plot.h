#pragma once
// Line plots as self-contained SVG: no script, no outside font, light and dark by the viewer's
// preference. The same plot gives the same bytes. Values that are not finite (and, on a logarithmic
// axis, not positive) are gaps.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace brrr::io {

enum class LineStyle { line, faint, markers };

struct Series {
  std::string label;  // empty: not in the legend
  std::vector<double> x, y;
  LineStyle style = LineStyle::line;
  int colour = 0;  // index into the palette of six; a raw and a smoothed curve share one
};

struct Plot {
  std::string title, subtitle, x_label, y_label;
  bool log_y = false;
  std::vector<Series> series;
  int width = 880, height = 480;
};

std::string svg_plot(const Plot& plot);

struct LossCurve {
  std::vector<double> train_step, train_loss;
  std::vector<double> val_step, val_loss;  // a NaN where the line has a gap
  std::string val_set = {};                // that the last validation loss was measured on

  /// A training loss. Of a long run every second, every fourth ... is kept: fewer than kMost.
  void add_train(double step, double loss);
  /// A validation loss; the line is not drawn from one set of tokens to another.
  void add_val(double step, double loss, const std::string& set);
  static constexpr size_t kMost = 1 << 16;

  size_t seen = 0, stride = 1;  // of training losses: all that came, and every which is kept
};

/// The picture of a run: the training loss of each step and smoothed, the validation loss as
/// markers on a line.
Plot loss_plot(const LossCurve& curve, const std::string& title, const std::string& subtitle);

/// Centred average with triangular weights over 2 * `half_width` neighbours to each side; narrower
/// near the start, where a loss falls fast and a wide window would lag. What is not finite stays a
/// gap.
std::vector<double> smoothed(std::span<const double> values, int half_width);

}  // namespace brrr::io
