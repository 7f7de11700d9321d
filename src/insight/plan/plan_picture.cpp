// Memory over a step as stacked areas: self-contained SVG, light and dark by the viewer's
// preference, no script.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "formats/plot_axis.h"
#include "insight/pages/page.h"
#include "insight/plan/plan_parts.h"

namespace brrr::insight {
namespace {

constexpr double kWidth = 960, kHeight = 536, kLeft = 84, kRight = 932, kTop = 104, kBottom = 468;
constexpr size_t kMostPoints = 700;  // a step of more kernels is drawn by its maxima

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

}  // namespace

std::string memory_picture(const RunPlan& p) {
  const train::TrainOptions& o = p.plan.options;
  const auto n = static_cast<double>(p.moments.size());
  const double scale = p.peak.bytes >= (int64_t{1} << 30) ? 0x1p-30 : 0x1p-20;
  io::Range range;
  range.add(0);
  range.add(scale * static_cast<double>(std::max<int64_t>(1, p.peak.bytes)) * 1.08);
  const io::Axis y = io::linear_axis(range, 6, true);
  const auto px = [&](double t) { return kLeft + t / n * (kRight - kLeft); };
  const auto py = [&](double v) { return kBottom - y.place(v) * (kBottom - kTop); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\"><style>{2}</style><rect class=\"bg\" x=\".5\" y=\".5\" "
      "width=\"{3}\" height=\"{4}\" rx=\"12\"/>",
      kWidth, kHeight, style_sheet(), kWidth - 1, kHeight - 1);
  svg += fmt::format("<text class=\"t\" x=\"28\" y=\"36\">Memory over a training step</text>");
  svg += fmt::format(
      "<text class=\"m\" x=\"28\" y=\"58\">{}</text>",
      html_text(fmt::format("{}, {}, context {}, {}, {}: arena {}",
                            o.init_from == "scratch" ? o.preset : o.init_from, description(o),
                            o.context, o.precision, o.optim, memory_text(p.plan.arena.total()))));
  for (size_t i = 0; i < y.ticks.size(); ++i)
    svg += fmt::format(
        "<line class=\"g\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/><text class=\"m "
        "n\" "
        "x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5} {6}</text>",
        kLeft, kRight, py(y.ticks[i]), kLeft - 10, py(y.ticks[i]) + 4.5, y.labels[i],
        scale > 0x1p-25 ? "MiB" : "GiB");

  const std::vector<size_t> drawn = drawn_moments(p.moments);
  std::vector<double> floor(drawn.size(), 0);
  double legend = 28;
  for (size_t b = 0; b < bands().size(); ++b) {
    std::vector<double> top = floor;
    double most = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
      for (Holds h : bands()[b].holds)
        top[i] += scale * static_cast<double>(p.moments[drawn[i]].bytes[static_cast<size_t>(h)]);
      most = std::max(most, top[i] - floor[i]);
    }
    if (most <= 0) continue;
    // Each moment is a step of its width: memory does not change in between.
    std::string path;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const double from = n * static_cast<double>(i) / static_cast<double>(drawn.size());
      const double to = n * static_cast<double>(i + 1) / static_cast<double>(drawn.size());
      path += fmt::format("{}{:.1f} {:.1f}L{:.1f} {:.1f}", i == 0 ? "M" : "L", px(from), py(top[i]),
                          px(to), py(top[i]));
    }
    for (size_t i = drawn.size(); i-- > 0;) {
      const double from = n * static_cast<double>(i) / static_cast<double>(drawn.size());
      const double to = n * static_cast<double>(i + 1) / static_cast<double>(drawn.size());
      path +=
          fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}", px(to), py(floor[i]), px(from), py(floor[i]));
    }
    svg += fmt::format("<path class=\"b{}\" d=\"{}Z\"/>", b, path);
    const std::string name = bands()[b].name;
    svg += fmt::format(
        "<rect class=\"b{0}\" x=\"{1:.0f}\" y=\"74\" width=\"11\" height=\"11\" rx=\"3\"/><text "
        "x=\"{2:.0f}\" y=\"84\">{3}</text>",
        b, legend, legend + 17, name);
    legend += 40 + 7.2 * static_cast<double>(name.size());
    floor = std::move(top);
  }

  // Where the backward pass begins, and the peak.
  if (p.backward_begins > 0) {
    const double x = px(static_cast<double>(p.backward_begins));
    svg += fmt::format(
        "<line class=\"p\" opacity=\".45\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>",
        x, kTop, kBottom);
    svg += fmt::format(
        "<text class=\"m\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">forward</text><text "
        "class=\"m\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">backward, optimizer</text>",
        (kLeft + x) / 2, kBottom + 24, (x + kRight) / 2, kBottom + 24);
  }
  const double peak_x = px(static_cast<double>(p.peak.step) - 0.5);
  const double peak_y = py(scale * static_cast<double>(p.peak.bytes));
  const bool right = peak_x < (kLeft + kRight) / 2;
  svg += fmt::format(
      "<circle class=\"q\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
      "text-anchor=\"{}\">{}</text>",
      peak_x, peak_y, peak_x + (right ? 8 : -8), peak_y - 9, right ? "start" : "end",
      html_text(fmt::format("peak {}: {}{}", memory_text(p.peak.bytes), p.peak.op,
                            p.peak.scope.empty() ? "" : " at " + p.peak.scope)));
  svg += fmt::format(
      "<text class=\"m\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{} kernels of program '{}', in the "
      "order in which they run</text></svg>\n",
      kRight, kHeight - 18, p.moments.size(), p.peak.program);
  return svg;
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
  const nlohmann::json all = {{"left", kLeft},
                              {"right", kRight},
                              {"top", kTop},
                              {"bottom", kBottom},
                              {"width", kWidth},
                              {"count", p.moments.size()},
                              {"bands", std::move(names)},
                              {"moments", std::move(moments)}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace brrr::insight
