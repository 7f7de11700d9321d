#include "formats/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/human.h"
#include "formats/plot_axis.h"

namespace brrr::io {
namespace {

constexpr double kLargest = 1e200;  // beyond it differences of values could overflow
constexpr int kPalette = 6;
constexpr double kMargin = 28, kTitleLine = 38, kSubtitleLine = 60;
// Distinguishable with the common colour-vision deficiencies, and of similar weight on their
// ground.
constexpr const char* kLight[kPalette] = {"#2563eb", "#ea580c", "#059669",
                                          "#9333ea", "#db2777", "#64748b"};
constexpr const char* kDark[kPalette] = {"#60a5fa", "#fb923c", "#34d399",
                                         "#c084fc", "#f472b6", "#94a3b8"};

/// Text safe inside XML, whatever bytes came.
std::string escaped(const std::string& text) {
  std::string out;
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const auto* end = p + text.size();
  while (p < end) {
    const io::DecodedChar c = io::decode_utf8(p, end);
    if (c.code == io::kInvalidByte || c.code == 0xfffe || c.code == 0xffff)
      out += "\xef\xbf\xbd";
    else if (c.code < 0x20 || c.code == 0x7f)
      out += ' ';
    else if (c.code == '&')
      out += "&amp;";
    else if (c.code == '<')
      out += "&lt;";
    else if (c.code == '>')
      out += "&gt;";
    else if (c.code == '"')
      out += "&quot;";
    else
      out.append(reinterpret_cast<const char*>(p), c.bytes);
    p += c.bytes;
  }
  return out;
}

/// A coordinate: two decimals at most, no trailing zeros.
std::string at(double pixels) {
  std::string out = fmt::format("{:.2f}", pixels);
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string style_sheet() {
  std::string out =
      "svg{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica "
      "Neue',Arial,"
      "sans-serif;font-size:13px}"
      ".n{font-variant-numeric:tabular-nums}.l{fill:none;"
      "stroke-width:2.25;stroke-linejoin:round;"
      "stroke-linecap:round}.f{fill:none;stroke-width:1;stroke-opacity:.32;stroke-linejoin:round}"
      ".k{stroke-width:1.5;stroke-opacity:.55}.t{font-size:18px;font-weight:650}.b{font-weight:"
      "600}";
  const auto theme = [](const char* ground, const char* edge, const char* ink, const char* muted,
                        const char* grid, const char* axis, const char* const* colours) {
    std::string css = fmt::format(
        ".bg{{fill:{0};stroke:{1}}}text{{fill:{2}}}.m{{fill:{3}}}.i{{fill:{2}}}.g{{stroke:{4}}}"
        ".a{{stroke:{5}}}",
        ground, edge, ink, muted, grid, axis);
    for (int i = 0; i < kPalette; ++i)
      css += fmt::format(".c{0}{{stroke:{1}}}.d{0}{{fill:{1};stroke:{2}}}", i, colours[i], ground);
    return css;
  };
  out += theme("#ffffff", "#e2e8f0", "#0f172a", "#64748b", "#e9eef5", "#94a3b8", kLight);
  out += "@media(prefers-color-scheme:dark){" +
         theme("#0f1420", "#232c3d", "#e8edf6", "#93a1b8", "#202a3b", "#5b6a82", kDark) + "}";
  return out;
}

struct Frame {
  double left, right, top, bottom;
  Axis x, y;
  double px(double v) const { return left + x.place(v) * (right - left); }
  double py(double v) const { return bottom - y.place(v) * (bottom - top); }
};

int palette_index(const Series& s) { return ((s.colour % kPalette) + kPalette) % kPalette; }

const char* line_class(const Series& s) {
  return s.style == LineStyle::faint ? "f" : s.style == LineStyle::markers ? "l k" : "l";
}

bool drawable(double x, double y, bool log_y) {
  return std::fabs(x) <= kLargest && std::fabs(y) <= kLargest && (!log_y || y > 0);
}

/// The path of a curve. Where many points share a pixel column only the first, lowest, highest and
/// last are drawn: the picture is the same and the file stays small.
std::string path_of(const Series& s, const Frame& frame, bool log_y) {
  std::string out;
  bool pen_down = false;
  const size_t n = std::min(s.x.size(), s.y.size());
  const auto draw = [&](size_t i) {
    out += fmt::format("{}{} {}", pen_down ? "L" : "M", at(frame.px(s.x[i])), at(frame.py(s.y[i])));
    pen_down = true;
  };
  const auto column = [&](size_t i) { return std::floor(2 * frame.px(s.x[i])); };
  for (size_t i = 0; i < n;) {
    if (!drawable(s.x[i], s.y[i], log_y)) {
      pen_down = false;
      ++i;
      continue;
    }
    size_t end = i + 1, low = i, high = i;
    for (; end < n && drawable(s.x[end], s.y[end], log_y) && column(end) == column(i); ++end) {
      if (s.y[end] < s.y[low]) low = end;
      if (s.y[end] > s.y[high]) high = end;
    }
    size_t picked[] = {i, std::min(low, high), std::max(low, high), end - 1};
    size_t before = n;
    for (const size_t p : picked) {
      if (p != before) draw(p);
      before = p;
    }
    i = end;
  }
  return out;
}

std::string value_text(double v) {
  const double size = std::fabs(v);
  if (size >= 1e3 && size < 1e9) return with_commas(std::llround(v));
  if (size >= 10 && size < 1e3) return fmt::format("{:.2f}", v);
  return size >= 1e-3 && size < 10 ? fmt::format("{:.4f}", v) : fmt::format("{:.3g}", v);
}

/// Width of a text at 13 px. Fonts differ: this is on the wide side, so that nothing collides.
double text_width(const std::string& text) {
  double w = 0;
  for (const char c : text)
    if ((static_cast<unsigned char>(c) & 0xc0) != 0x80)
      w += c == 'm' || c == 'w' || c == 'M' ? 11.5 : 7.6;
  return w;
}

std::string text_at(double x, double y, const char* classes, const char* anchor,
                    const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\"{}>{}</text>\n", at(x), at(y), classes,
                     *anchor ? fmt::format(" text-anchor=\"{}\"", anchor) : "", escaped(text));
}

std::string draw_axes(const Plot& plot, const Frame& f) {
  std::string out;
  for (size_t i = 0; i < f.y.ticks.size(); ++i) {
    const double y = f.py(f.y.ticks[i]);
    out += fmt::format("<path class=\"g\" d=\"M{} {}H{}\"/>\n", at(f.left), at(y), at(f.right));
    out += text_at(f.left - 10, y + 4.5, "m n", "end", f.y.labels[i]);
  }
  out +=
      fmt::format("<path class=\"a\" d=\"M{} {}H{}\"/>\n", at(f.left), at(f.bottom), at(f.right));
  for (size_t i = 0; i < f.x.ticks.size(); ++i) {
    const double x = f.px(f.x.ticks[i]);
    out += fmt::format("<path class=\"a\" d=\"M{} {}v5\"/>\n", at(x), at(f.bottom));
    out += text_at(x, f.bottom + 21, "m n", "middle", f.x.labels[i]);
  }
  if (!plot.x_label.empty())
    out += text_at((f.left + f.right) / 2, f.bottom + 43, "m", "middle", plot.x_label);
  if (!plot.y_label.empty()) {
    const double y = (f.top + f.bottom) / 2;
    out += fmt::format(
        "<text x=\"24\" y=\"{0}\" class=\"m\" text-anchor=\"middle\" "
        "transform=\"rotate(-90 24 {0})\">{1}</text>\n",
        at(y), escaped(plot.y_label + (plot.log_y ? " (log)" : "")));
  }
  return out;
}

std::string draw_series(const Series& s, const Frame& frame, bool log_y) {
  const int colour = palette_index(s);
  std::string out;
  const std::string path = path_of(s, frame, log_y);
  if (path.empty()) return out;
  out += fmt::format("<path class=\"{} c{}\" d=\"{}\"/>\n", line_class(s), colour, path);
  size_t points = 0, last = 0;
  const size_t n = std::min(s.x.size(), s.y.size());
  for (size_t i = 0; i < n; ++i)
    if (drawable(s.x[i], s.y[i], log_y)) ++points, last = i;
  for (size_t i = 0; i < n; ++i) {
    if (!drawable(s.x[i], s.y[i], log_y)) continue;
    // A line alone would hide a single point; many markers would hide each other.
    const bool marked = s.style == LineStyle::markers ? points <= 150 || i == last
                                                      : s.style == LineStyle::line && points == 1;
    if (marked)
      out +=
          fmt::format("<circle class=\"d{}\" cx=\"{}\" cy=\"{}\" r=\"{}\" stroke-width=\"1.5\"/>\n",
                      colour, at(frame.px(s.x[i])), at(frame.py(s.y[i])), points <= 60 ? "4" : "3");
  }
  return out;
}

struct LegendEntry {
  const Series* series;
  std::string value;  // the last one
  double width;
};

constexpr double kSwatch = 18, kLegendGap = 26, kLegendRow = 22;

std::vector<LegendEntry> legend_of(const Plot& plot) {
  std::vector<LegendEntry> out;
  for (const Series& s : plot.series) {
    if (s.label.empty()) continue;
    std::string value;
    for (size_t i = 0; i < s.x.size(); ++i)
      if (s.style != LineStyle::faint && drawable(s.x[i], s.y[i], plot.log_y))
        value = value_text(s.y[i]);
    out.push_back({&s, value, kSwatch + 8 + text_width(s.label + " " + value)});
  }
  return out;
}

/// Swatch, label and last value, beginning at (x, y). Label and value are one text, so no font can
/// make them collide.
std::string draw_legend_entry(const LegendEntry& entry, double x, double y) {
  const Series& s = *entry.series;
  const int colour = palette_index(s);
  std::string out = fmt::format("<path class=\"{} c{}\" d=\"M{} {}h{}\"/>\n", line_class(s), colour,
                                at(x), at(y - 4.5), at(kSwatch));
  if (s.style == LineStyle::markers)
    out += fmt::format("<circle class=\"d{}\" cx=\"{}\" cy=\"{}\" r=\"4\" stroke-width=\"1.5\"/>\n",
                       colour, at(x + kSwatch / 2), at(y - 4.5));
  out += fmt::format("<text x=\"{}\" y=\"{}\" class=\"m\">{}", at(x + kSwatch + 8), at(y),
                     escaped(s.label));
  if (!entry.value.empty())
    out += fmt::format(" <tspan class=\"i b n\">{}</tspan>", escaped(entry.value));
  return out + "</text>\n";
}

/// Beside the title where there is room for it, else in rows below the subtitle, from `top` on.
/// Returns where the legend ends.
double draw_legend(const Plot& plot, double right, double top, std::string& out) {
  const std::vector<LegendEntry> entries = legend_of(plot);
  double total = 0;
  for (const LegendEntry& e : entries) total += e.width + kLegendGap;
  const bool beside_title = kMargin + 1.5 * text_width(plot.title) + total < right;
  double x = beside_title ? right - total + kLegendGap : kMargin;
  double y = beside_title ? kTitleLine : top + kLegendRow;
  for (const LegendEntry& e : entries) {
    if (!beside_title && x > kMargin && x + e.width > right) x = kMargin, y += kLegendRow;
    out += draw_legend_entry(e, x, y);
    x += e.width + kLegendGap;
  }
  return beside_title || entries.empty() ? top : y;
}

}  // namespace

std::vector<double> smoothed(std::span<const double> values, int half_width) {
  BRRR_CHECK(half_width >= 0, "half width {}", half_width);
  std::vector<double> current(values.begin(), values.end());
  const size_t n = values.size();
  std::vector<double> sum(n + 1);
  std::vector<size_t> count(n + 1);
  // Two box averages make a triangle: no corner where a spike enters or leaves the window.
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < n; ++i) {
      const bool finite = std::isfinite(current[i]);
      sum[i + 1] = sum[i] + (finite ? current[i] : 0);
      count[i + 1] = count[i] + (finite ? 1 : 0);
    }
    for (size_t i = 0; i < n; ++i) {
      const size_t half = std::min<size_t>(static_cast<size_t>(half_width), i / 4);
      const size_t begin = i - half, end = std::min(n, i + half + 1);
      if (std::isfinite(current[i]))
        current[i] = (sum[end] - sum[begin]) / static_cast<double>(count[end] - count[begin]);
    }
  }
  return current;
}

std::string svg_plot(const Plot& plot) {
  Range x, y;
  for (const Series& s : plot.series) {
    BRRR_CHECK(s.x.size() == s.y.size(), "series '{}': {} x, {} y", s.label, s.x.size(),
               s.y.size());
    for (size_t i = 0; i < s.x.size(); ++i)
      if (drawable(s.x[i], s.y[i], plot.log_y)) x.add(s.x[i]), y.add(s.y[i]);
  }
  const bool empty = x.empty();
  if (empty) x = {0, 1}, y = plot.log_y ? Range{0.1, 1} : Range{0, 1};
  if (x.low > 0 && x.low < 0.05 * x.high)
    x.low = 0;  // a run that starts at step 1 starts at the axis

  std::string legend;
  const double header = plot.subtitle.empty() ? kTitleLine : kSubtitleLine;
  const double below = draw_legend(plot, plot.width - 32.0, header, legend);
  Frame frame{.left = 84,
              .right = plot.width - 32.0,
              .top = below + 30,
              .bottom = plot.height - 68.0,
              .x = linear_axis(x, 8, false),
              .y = plot.log_y ? log_axis(y) : linear_axis(y, 6, true)};

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"bg\" x=\".5\" y=\".5\" width=\"{4}\" height=\"{5}\" rx=\"12\"/>\n",
      plot.width, plot.height, escaped(plot.title), style_sheet(), plot.width - 1, plot.height - 1);
  out += text_at(kMargin, kTitleLine, "t", "", plot.title);
  if (!plot.subtitle.empty()) out += text_at(kMargin, kSubtitleLine, "m", "", plot.subtitle);
  if (empty) frame.x.ticks.clear(), frame.y.ticks.clear();
  out += draw_axes(plot, frame);
  if (empty)
    out += text_at((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "m", "middle",
                   "no data yet");
  for (const Series& s : plot.series) out += draw_series(s, frame, plot.log_y);
  return out + legend + "</svg>\n";
}

void LossCurve::add_train(double step, double loss) {
  if (seen++ % stride != 0) return;
  train_step.push_back(step);
  train_loss.push_back(loss);
  if (train_step.size() < kMost) return;
  stride *= 2;
  for (auto* values : {&train_step, &train_loss}) {
    for (size_t i = 0; i < kMost / 2; ++i) (*values)[i] = (*values)[2 * i];
    values->resize(kMost / 2);
  }
}

void LossCurve::add_val(double step, double loss, const std::string& set) {
  if (!val_loss.empty() && set != val_set) {
    val_step.push_back(step);
    val_loss.push_back(std::numeric_limits<double>::quiet_NaN());
  }
  val_set = set;
  val_step.push_back(step);
  val_loss.push_back(loss);
}

Plot loss_plot(const LossCurve& curve, const std::string& title, const std::string& subtitle) {
  Plot plot;
  plot.title = title;
  plot.subtitle = subtitle;
  plot.x_label = "step";
  plot.y_label = "loss";
  // About a fortieth of the run is averaged: enough to see the trend, little enough to see the
  // turns.
  const std::vector<double> trend =
      smoothed(curve.train_loss, static_cast<int>(curve.train_loss.size() / 80));
  Range range;
  for (const double v : trend)
    if (v > 0 && v <= kLargest) range.add(v);
  // The first steps would press the rest of the run into a flat line.
  plot.log_y = !range.empty() && range.high > 2 * range.low;
  plot.series.push_back(
      {"train, each step", curve.train_step, curve.train_loss, LineStyle::faint, 0});
  plot.series.push_back({"train, smoothed", curve.train_step, trend, LineStyle::line, 0});
  if (!curve.val_loss.empty())
    plot.series.push_back({"validation", curve.val_step, curve.val_loss, LineStyle::markers, 1});
  return plot;
}

}  // namespace brrr::io
