// The roofline (Williams et al., 2009): operations per second over operations per byte, both
// logarithmic; slopes are bandwidths, plateaus are arithmetic.
#include <algorithm>
#include <cmath>

#include "base/human.h"
#include "insight/pages/page.h"
#include "insight/profile/profile_page.h"

namespace brrr::insight {
namespace {

/// Where the parts of a picture stand, and how large kernels are drawn.
struct RoofFrame {
  double width, height, left, right, top, bottom, largest;
};
RoofFrame roof_frame(PictureWidth width) {
  if (width == PictureWidth::phone) return {332, 400, 54, 314, 20, 344, 14};
  return {960, 520, 76, 936, 24, 452, 25.5};
}

struct Point {
  const KernelProfile* kernel;
  double x, y;  // FLOPs per byte, GFLOP/s
};

class Picture {
 public:
  Picture(const Profile& p, PictureWidth width) : p_(p), f_(roof_frame(width)) {
    // Kernels that only move data have no place on a logarithmic axis: they stand at its left end,
    // under the slopes, where their bytes per second put them.
    double low = 1, high = 10;
    for (const KernelProfile& k : p.kernels)
      if (k.flops > 0 && k.bytes > 0) {
        low = std::min(low, k.flops / k.bytes);
        high = std::max(high, k.flops / k.bytes);
      }
    x_low_ = std::pow(10, std::max(-4.0, std::floor(std::log10(low))));
    x_high_ = std::pow(10, std::min(6.0, std::ceil(std::log10(high) + 0.2)));
    double peak = 0;
    for (const auto& [name, rate] : p.ceilings.peaks()) peak = std::max(peak, 1e-9 * rate);
    y_high_ = std::pow(10, std::ceil(std::log10(std::max(peak, 1.0)) + 0.05));
    double slowest = y_high_ / 1e3;
    for (const KernelProfile& k : p.kernels)
      if (k.ms > 0) {
        points_.push_back({&k, intensity(k), 0});
        Point& q = points_.back();
        q.y = k.flops > 0 ? 1e-6 * k.flops / k.ms : 1e-6 * k.bytes * q.x / k.ms;
        if (q.y > 0) slowest = std::min(slowest, q.y);
      }
    y_low_ = std::pow(10, std::max(-6.0, std::floor(std::log10(slowest))));
    std::stable_sort(points_.begin(), points_.end(), [](const Point& a, const Point& b) {
      return a.kernel->ms > b.kernel->ms;  // small ones above large ones
    });
  }

  std::string svg() {
    out_ = fmt::format(
        "<svg class=\"roof\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"roofline of every "
        "kernel\">",
        f_.width, f_.height);
    axes();
    ceilings();
    for (const Point& q : points_) point(q);
    out_ += "</svg>";
    return std::move(out_);
  }

 private:
  double intensity(const KernelProfile& k) const {
    if (k.flops <= 0) return x_low_;
    return std::clamp(k.flops / std::max(k.bytes, 1.0), x_low_, x_high_);
  }
  double px(double x) const {
    return f_.left + (f_.right - f_.left) * std::log10(x / x_low_) / std::log10(x_high_ / x_low_);
  }
  double py(double y) const {
    y = std::clamp(y, y_low_, y_high_);
    return f_.bottom - (f_.bottom - f_.top) * std::log10(y / y_low_) / std::log10(y_high_ / y_low_);
  }
  static std::string power(double v) {
    return v >= 0.001 && v < 1e6 ? fmt::format("{:g}", v) : fmt::format("{:.0e}", v);
  }
  void text(double x, double y, const char* anchor, const std::string& s, const char* more = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y,
                        anchor, more, html_text(s));
  }
  void line(const char* type, double x1, double y1, double x2, double y2) {
    out_ +=
        fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>",
                    type, x1, y1, x2, y2);
  }

  void axes() {
    constexpr double kLabelWidth = 44;
    double labelled = -kLabelWidth;  // where the last label stands
    for (double x = x_low_; x <= x_high_ * 1.01; x *= 10) {
      line("grid", px(x), f_.top, px(x), f_.bottom);
      if (px(x) < labelled + kLabelWidth) continue;
      text(px(x), f_.bottom + 20, "middle", power(x));
      labelled = px(x);
    }
    for (double y = y_low_; y <= y_high_ * 1.01; y *= 10) {
      line("grid", f_.left, py(y), f_.right, py(y));
      text(f_.left - 8, py(y) + 4, "end", power(y));
    }
    text((f_.left + f_.right) / 2, f_.bottom + 44, "middle", "FLOPs per byte");
    const double middle = (f_.top + f_.bottom) / 2;
    text(14, middle, "middle", "GFLOP/s",
         fmt::format(" transform=\"rotate(-90 14 {:.0f})\"", middle).c_str());
  }

  void ceilings() {
    double most = 0;
    std::vector<double> drawn;
    for (const auto& [name, flops] : p_.ceilings.peaks()) {
      const double rate = 1e-9 * flops;
      most = std::max(most, rate);
      // Where two lie on each other the first stands for both.
      const bool apart = std::none_of(drawn.begin(), drawn.end(), [&](double other) {
        return rate < 1.05 * other && other < 1.05 * rate;
      });
      if (rate <= 0 || !apart) continue;
      drawn.push_back(rate);
      line("ceiling", f_.left, py(rate), f_.right, py(rate));
      text(f_.right - 6, py(rate) - 6, "end", fmt::format("{} {:.0f} GFLOP/s", name, rate));
    }
    double share = 0.08;  // of the line before its label, so that labels step along the lines
    for (const MemoryLevel& level : p_.ceilings.levels) {
      // From the left edge, or where it enters the picture, to the plateau.
      const double rate = 1e-9 * level.read;
      const double from = std::max(x_low_, y_low_ / rate), to = std::min(x_high_, most / rate);
      if (from >= to) continue;
      line("ceiling", px(from), py(from * rate), px(to), py(to * rate));
      place_label(fmt::format("{} {:.0f} GB/s", level.name, rate), share, [&](double part) {
        const double at = from * std::pow(to / from, part);
        return std::pair{px(at) + 6, py(at * rate) + 14};
      });
      share += 0.3;
    }
  }

  /// Writes the label of a line. `position(part)` is the point of the line at the fraction `part`
  /// of its length; the label stands at the fraction nearest to `preferred` where it does not
  /// overlap an earlier label.
  template <typename Position>
  void place_label(const std::string& label, double preferred, const Position& position) {
    constexpr double kCharacter = 8, kLine = 16, kStep = 0.02;
    const double width = kCharacter * static_cast<double>(label.size());
    const auto is_free = [&](double part) {
      const auto at = position(part);
      const double x = at.first, y = at.second;
      return part >= 0 && part < 1 && x + width <= f_.right + 6 &&
             std::none_of(labels_.begin(), labels_.end(), [&](const LabelBox& l) {
               return x < l.x + l.width && l.x < x + width && std::abs(y - l.y) < kLine;
             });
    };
    double part = preferred;
    for (double away = 0; away <= 1; away += kStep) {
      if (!is_free(part = preferred + away) && !is_free(part = preferred - away)) continue;
      const auto [x, y] = position(part);
      text(x, y, "start", label);
      labels_.push_back({x, y, width});
      return;
    }
    const auto [x, y] = position(preferred);
    text(x, y, "start", label);
  }

  void point(const Point& q) {
    const KernelProfile& k = *q.kernel;
    const double share = p_.kernels_ms > 0 ? k.ms / p_.kernels_ms : 0;
    const std::string verdict(name_of(k.verdict.bound)), phrase = phrase_of(k.verdict.bound);
    out_ += fmt::format(
        "<circle class=\"k {}\" tabindex=\"0\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" "
        "data-name=\"{}\" data-shape=\"{}\" data-scope=\"{}\" data-figures=\"{} a step, {:.1f}% "
        "of the kernels; {} GFLOP/s, {} GB/s\" data-verdict=\"{}, at {:.0f}% of its "
        "ceiling\"><title>{} {}: {}</title></circle>",
        verdict, px(q.x), py(q.y), 3.5 + (f_.largest - 3.5) * std::sqrt(share), html_text(k.name),
        html_text(k.shape), html_text(k.scope.empty() ? k.phase : k.phase + ", " + k.scope),
        duration_text(1e-3 * k.ms), 100 * share, number_text(1e-6 * k.flops / k.ms),
        number_text(1e-6 * k.bytes / k.ms), phrase, 100 * k.ceiling(), html_text(k.name),
        html_text(k.shape), phrase);
  }

  const Profile& p_;
  const RoofFrame f_;
  std::vector<Point> points_;
  /// Estimated boxes of the memory levels' labels: left end, baseline and width in pixels.
  struct LabelBox {
    double x, y, width;
  };
  std::vector<LabelBox> labels_;
  double x_low_ = 0, x_high_ = 0, y_low_ = 0, y_high_ = 0;
  std::string out_;
};

}  // namespace

std::string roofline_picture(const Profile& p, PictureWidth width) {
  return Picture(p, width).svg();
}

}  // namespace brrr::insight
