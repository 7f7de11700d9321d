// Memory over a step as stacked areas: self-contained SVG, light and dark by the viewer's
// preference, no script.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "formats/plot_axis.h"
#include "insight/pages/page.h"
#include "insight/plan/plan_parts.h"

namespace brrr::insight {
namespace {

constexpr size_t kMostPoints = 700;  // a step of more kernels is drawn by its maxima

/// Where the parts of a picture stand.
struct PictureFrame {
  double width, margin, left, right, plot_height;
  size_t characters;  // in a line of text; 0: it is not broken
};
PictureFrame frame_of(PictureWidth width) {
  if (width == PictureWidth::phone) return {332, 4, 66, 324, 230, 47};
  return {960, 28, 84, 932, 364, 0};
}

struct Band {
  const char *name, *light, *dark;
  std::vector<Holds> holds;
};
// From the ground up: what is always there first.
const std::vector<Band>& bands() {
  static const std::vector<Band> all = {
      {"weights", "#1d4ed8", "#3b82f6", {Holds::weights}},
      {"optimizer", "#6d28d9", "#8b5cf6", {Holds::optimizer}},
      {"low-precision copies", "#0e7490", "#22d3ee", {Holds::copies}},
      {"cache of samples", "#9a3412", "#fb923c", {Holds::sample_cache}},
      {"gradients", "#be185d", "#ec4899", {Holds::gradient_sums, Holds::gradients}},
      {"saved activations", "#15803d", "#4ade80", {Holds::activations}},
      {"recomputed", "#ca8a04", "#facc15", {Holds::recomputed}},
      {"temporaries", "#64748b", "#94a3b8", {Holds::temporaries, Holds::inputs, Holds::constants}}};
  return all;
}

std::string style_sheet() {
  std::string css =
      "svg{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;"
      "font-size:13px}.t{font-size:18px;font-weight:650}.n{font-variant-numeric:tabular-nums}"
      ".g{stroke-width:1}.p{stroke-width:1.5;stroke-dasharray:4 4;fill:none}";
  const auto theme = [](bool dark) {
    std::string s =
        dark
            ? ".bg{fill:#0f1420;stroke:#232c3d}text{fill:#e8edf6}.m{fill:#93a1b8}.g{stroke:#202a3b}"
              ".p{stroke:#e8edf6}.q{fill:#e8edf6}"
            : ".bg{fill:#fff;stroke:#e2e8f0}text{fill:#0f172a}.m{fill:#64748b}.g{stroke:#e9eef5}"
              ".p{stroke:#0f172a}.q{fill:#0f172a}";
    for (size_t i = 0; i < bands().size(); ++i)
      s += fmt::format(".b{}{{fill:{}}}", i, dark ? bands()[i].dark : bands()[i].light);
    return s;
  };
  return css + theme(false) + "@media(prefers-color-scheme:dark){" + theme(true) + "}";
}

/// The moments that are drawn: the fullest of each stretch, and the peak among them.
std::vector<size_t> drawn_moments(const std::vector<Moment>& moments) {
  std::vector<size_t> list;
  const size_t n = moments.size(), points = std::min(n, kMostPoints);
  for (size_t i = 0; i < points; ++i) {
    const size_t begin = n * i / points, end = n * (i + 1) / points;
    size_t best = begin;
    for (size_t t = begin; t < end; ++t)
      if (moments[t].total() > moments[best].total()) best = t;
    list.push_back(best);
  }
  return list;
}

/// A text as lines of at most `width` characters; as one where that is 0.
std::vector<std::string> lines_of(const std::string& text, size_t width) {
  std::vector<std::string> lines{""};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (width > 0 && !lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return lines;
}

/// A band that holds something, from its floor to its top at each drawn moment, in `scale`.
struct DrawnBand {
  size_t band;
  std::vector<double> floor, top;
};
std::vector<DrawnBand> drawn_bands(const RunPlan& p, const std::vector<size_t>& drawn,
                                   double scale) {
  std::vector<DrawnBand> list;
  std::vector<double> floor(drawn.size(), 0);
  for (size_t b = 0; b < bands().size(); ++b) {
    std::vector<double> top = floor;
    double most = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
      for (Holds h : bands()[b].holds)
        top[i] += scale * static_cast<double>(p.moments[drawn[i]].bytes[static_cast<size_t>(h)]);
      most = std::max(most, top[i] - floor[i]);
    }
    if (most <= 0) continue;
    list.push_back({b, floor, top});
    floor = std::move(top);
  }
  return list;
}

class MemoryPicture {
 public:
  MemoryPicture(const RunPlan& p, PictureWidth width) : p_(p), f_(frame_of(width)) {}

  std::string svg() {
    const auto n = static_cast<double>(p_.moments.size());
    const double scale = p_.peak.bytes >= (int64_t{1} << 30) ? 0x1p-30 : 0x1p-20;
    const std::vector<size_t> drawn = drawn_moments(p_.moments);
    const std::vector<DrawnBand> list = drawn_bands(p_, drawn, scale);
    const bool narrow = f_.characters > 0;
    const std::string peak = fmt::format("peak {}: {}{}", memory_text(p_.peak.bytes), p_.peak.op,
                                         p_.peak.scope.empty() ? "" : " at " + p_.peak.scope);
    head(narrow ? peak : "");
    legend(list);
    const double top = y_ + 20, bottom = top + f_.plot_height;

    io::Range range;
    range.add(0);
    range.add(scale * static_cast<double>(std::max<int64_t>(1, p_.peak.bytes)) * 1.08);
    const io::Axis y = io::linear_axis(range, 6, true);
    const auto px = [&](double t) { return f_.left + t / n * (f_.right - f_.left); };
    const auto py = [&](double v) { return bottom - y.place(v) * (bottom - top); };
    for (size_t i = 0; i < y.ticks.size(); ++i) {
      body_ +=
          fmt::format("<line class=\"g\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/>",
                      f_.left, f_.right, py(y.ticks[i]));
      text(f_.left - 8, py(y.ticks[i]) + 4.5, "end", "m n",
           y.labels[i] + (scale > 0x1p-25 ? " MiB" : " GiB"));
    }
    for (const DrawnBand& band : list) {
      // Each moment is a step of its width: memory does not change in between.
      const auto count = static_cast<double>(drawn.size());
      std::string path;
      for (size_t i = 0; i < drawn.size(); ++i)
        path += fmt::format("{0}{1:.1f} {2:.1f}L{3:.1f} {2:.1f}", i == 0 ? "M" : "L",
                            px(n * static_cast<double>(i) / count), py(band.top[i]),
                            px(n * static_cast<double>(i + 1) / count));
      for (size_t i = drawn.size(); i-- > 0;)
        path += fmt::format("L{0:.1f} {1:.1f}L{2:.1f} {1:.1f}",
                            px(n * static_cast<double>(i + 1) / count), py(band.floor[i]),
                            px(n * static_cast<double>(i) / count));
      body_ += fmt::format("<path class=\"b{}\" d=\"{}Z\"/>", band.band, path);
    }
    // Where the backward pass begins, and the peak.
    if (p_.backward_begins > 0) {
      const double x = px(static_cast<double>(p_.backward_begins));
      body_ += fmt::format(
          "<line class=\"p\" opacity=\".45\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" "
          "y2=\"{2}\"/>",
          x, top, bottom);
      text((f_.left + x) / 2, bottom + 24, "middle", "m", "forward");
      text((x + f_.right) / 2, bottom + 24, "middle", "m", "backward, optimizer");
    }
    const double peak_x = px(static_cast<double>(p_.peak.step) - 0.5);
    const double peak_y = py(scale * static_cast<double>(p_.peak.bytes));
    const bool right = peak_x < (f_.left + f_.right) / 2;
    body_ +=
        fmt::format("<circle class=\"q\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", peak_x, peak_y);
    if (!narrow) text(peak_x + (right ? 8 : -8), peak_y - 9, right ? "start" : "end", "", peak);
    y_ = bottom + 32;
    for (const std::string& line :
         lines_of(fmt::format("{} of program '{}', in the order in which they run",
                              counted(std::ssize(p_.moments), "kernel"), p_.peak.program),
                  f_.characters))
      text(f_.right, y_ += 18, "end", "m", line);
    const double height = y_ + 18;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
               "height=\"{1}\" data-left=\"{2}\" data-right=\"{3}\" data-top=\"{4}\" "
               "data-bottom=\"{5}\" role=\"img\"><style>{6}</style><rect class=\"bg\" x=\".5\" "
               "y=\".5\" width=\"{7}\" height=\"{8}\" rx=\"12\"/>",
               f_.width, height, f_.left, f_.right, top, bottom, style_sheet(), f_.width - 1,
               height - 1) +
           body_ + "</svg>\n";
  }

 private:
  void text(double x, double y, const char* anchor, const char* type, const std::string& words) {
    body_ +=
        fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                    type, x, y, anchor, html_text(words));
  }

  /// The title, what is drawn, and `more` where there is any.
  void head(const std::string& more) {
    const train::TrainOptions& o = p_.plan.options;
    text(f_.margin, y_ = 36, "start", "t", "Memory over a training step");
    y_ += 4;
    for (const std::string& part :
         {fmt::format("{}, {}, context {}, {}, {}: arena {}",
                      o.init_from == "scratch" ? o.preset : o.init_from, description(o), o.context,
                      o.precision, o.optim, memory_text(p_.plan.arena.total())),
          more})
      for (const std::string& line : lines_of(part, f_.characters))
        if (!line.empty()) text(f_.margin, y_ += 18, "start", "m", line);
  }

  /// In rows that the width holds.
  void legend(const std::vector<DrawnBand>& list) {
    double x = f_.margin;
    y_ += 26;
    for (const DrawnBand& drawn : list) {
      const std::string name = bands()[drawn.band].name;
      const double width = 40 + 7.2 * static_cast<double>(name.size());
      if (x > f_.margin && x + width - 20 > f_.right) x = f_.margin, y_ += 20;
      body_ += fmt::format(
          "<rect class=\"b{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"11\" height=\"11\" rx=\"3\"/>",
          drawn.band, x, y_ - 10);
      text(x + 17, y_, "start", "", name);
      x += width;
    }
  }

  const RunPlan& p_;
  const PictureFrame f_;
  double y_ = 0;  // of the last line above the plot
  std::string body_;
};

}  // namespace

std::string memory_picture(const RunPlan& plan, PictureWidth width) {
  return MemoryPicture(plan, width).svg();
}

std::string picture_moments(const RunPlan& p) {
  nlohmann::json names = nlohmann::json::array(), moments = nlohmann::json::array();
  for (const Band& b : bands()) names.push_back(b.name);
  for (const size_t at : drawn_moments(p.moments)) {
    const Moment& m = p.moments[at];
    nlohmann::json bytes = nlohmann::json::array();
    for (const Band& b : bands()) {
      int64_t sum = 0;
      for (Holds h : b.holds) sum += m.bytes[static_cast<size_t>(h)];
      bytes.push_back(memory_text(sum));
    }
    moments.push_back({{"kernel", at + 1},
                       {"what", fmt::format("{}: {}", m.phase, m.op)},
                       {"scope", m.scope},
                       {"all", memory_text(m.total())},
                       {"bytes", std::move(bytes)}});
  }
  const nlohmann::json all = {
      {"count", p.moments.size()}, {"bands", std::move(names)}, {"moments", std::move(moments)}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace brrr::insight
