#include "insight/ladder/micro_ladders.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/cpu/isa.h"
#include "backend/cpu/peaks.h"
#include "base/human.h"
#include "insight/bench/bench.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Both experiments are the processor's, whatever --device says.
std::string key_here(const std::string& ladder, const KeyValues& changes) {
  return key_on(fmt::format("cpu:{}", cpu::isa_name(cpu::current_isa())), ladder, changes);
}

// -- fusion ---------------------------------------------------------------------------------------

constexpr int64_t kCounts[] = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr const char* kFusionSource =
    "on an A100 16 fused multiplications take as long as one, and only past 64 does arithmetic "
    "show (He, 2022)";

int64_t fusion_elements(const LadderOptions& o) { return o.quick ? 1 << 22 : 1 << 24; }

/// A chain of `n` as it was measured.
struct FusionFigures {
  int64_t n;
  Timing fused, unfused;
  double ns_per_element, gbytes, tflops, gain;
  double unfused_gbytes;
  double to_one;  // the time over that of one multiplication
  size_t rounds;
  bool computes = false;  // past the crossing
};

struct Fusion {
  int64_t elements = 0;
  std::vector<FusionFigures> rows;
  std::optional<double> crossing;
};

Fusion fusion_of(int64_t elements, const std::vector<RungResult>& results) {
  Fusion f;
  f.elements = elements;
  const auto size = static_cast<double>(elements);
  std::vector<double> ms;
  for (size_t i = 0; i < results.size(); ++i) {
    const RungResult& r = results[i];
    FusionFigures row{.n = kCounts[i],
                      .fused = timing_of(r),
                      .unfused = timing_of(figure_of(r, "unfused")),
                      .ns_per_element = 0,
                      .gbytes = 0,
                      .tflops = 0,
                      .gain = 0,
                      .unfused_gbytes = 0,
                      .to_one = 0,
                      .rounds = r.ms.size()};
    const double pass = 8e-6 * size;  // MB that one pass reads and writes, so GB/s of ms
    row.ns_per_element = 1e6 * row.fused.median / size;
    row.gbytes = pass / row.fused.median;
    row.tflops = 1e-9 * size * static_cast<double>(row.n) / row.fused.median;
    row.unfused_gbytes = pass * static_cast<double>(row.n) / row.unfused.median;
    row.gain = row.unfused.median / row.fused.median;
    row.to_one = row.fused.median / timing_of(results[0]).median;
    ms.push_back(row.fused.median);
    f.rows.push_back(row);
  }
  f.crossing = crossing(kCounts, ms);
  for (FusionFigures& row : f.rows)
    row.computes = f.crossing && static_cast<double>(row.n) >= *f.crossing;
  return f;
}

std::string crossing_text(const Fusion& f) {
  if (!f.crossing)
    return fmt::format("bandwidth-bound up to {} multiplications: they take as long as one",
                       f.rows.back().n);
  return fmt::format(
      "compute-bound from about {:.0f} multiplications, which take as long as one pass over memory",
      std::max(1.0, *f.crossing));
}

const char* bound_of(const FusionFigures& row) { return row.computes ? "compute" : "bandwidth"; }

std::string fusion_title(const Fusion& f) {
  return fmt::format(
      "x * a, repeated, over {} f32 values: one fused kernel against one kernel each",
      with_commas(f.elements));
}

std::string fusion_table(const Fusion& f) {
  std::string out =
      fmt::format("{}\n{:>6} {:>10} {:>17} {:>7} {:>9} {:>8} {:>8} {:>10} {:>8} {:>7}  {}\n",
                  fusion_title(f), "n", "fused ms", "quartiles", "to one", "ns/elem.", "GB/s",
                  "TFLOP/s", "one each", "GB/s", "gain", "bound by");
  for (const FusionFigures& r : f.rows)
    out += fmt::format(
        "{:>6} {:>10.3f} {:>17} {:>6.2f}x {:>9.3f} {:>8.1f} {:>8.4f} {:>10.3f} {:>8.1f} {:>6.1f}x  "
        "{}\n",
        r.n, r.fused.median, quartiles_text(r.fused, r.rounds, 3), r.to_one, r.ns_per_element,
        r.gbytes, r.tflops, r.unfused.median, r.unfused_gbytes, r.gain, bound_of(r));
  return out + crossing_text(f) + "\npublished: " + kFusionSource + "\n";
}

std::string fusion_json(const Fusion& f) {
  OrderedJson rows = OrderedJson::array();
  for (const FusionFigures& r : f.rows)
    rows.push_back({{"n", r.n},
                    {"fused_ms", r.fused.median},
                    {"fused_ms_quartiles", {r.fused.low, r.fused.high}},
                    {"unfused_ms", r.unfused.median},
                    {"unfused_ms_quartiles", {r.unfused.low, r.unfused.high}},
                    {"rounds", r.rounds},
                    {"to_one", r.to_one},
                    {"gain", r.gain},
                    {"ns_per_element", r.ns_per_element},
                    {"gigabytes_per_second", r.gbytes},
                    {"tflops", r.tflops},
                    {"bound", bound_of(r)}});
  OrderedJson j{{"ladder", "fusion"}, {"title", fusion_title(f)}, {"elements", f.elements}};
  j["compute_bound_from"] = f.crossing ? OrderedJson(*f.crossing) : OrderedJson(nullptr);
  j["rungs"] = rows;
  return j.dump();
}

std::string fusion_section(const Fusion& f) {
  std::string rows;
  std::vector<FusionRow> plotted;
  for (const FusionFigures& r : f.rows) {
    plotted.push_back({"x*a", r.n, r.fused, r.unfused, {}});
    rows += "<tr>" + cell(static_cast<double>(r.n), std::to_string(r.n)) +
            cell(r.fused.median, fmt::format("{:.3f}", r.fused.median)) +
            cell(r.fused.low, quartiles_text(r.fused, r.rounds, 3)) +
            cell(r.to_one, fmt::format("{:.2f}x", r.to_one)) +
            cell(r.ns_per_element, fmt::format("{:.3f}", r.ns_per_element)) +
            cell(r.gbytes, fmt::format("{:.1f}", r.gbytes)) +
            cell(r.tflops, fmt::format("{:.4f}", r.tflops)) +
            cell(r.unfused.median, fmt::format("{:.3f}", r.unfused.median)) +
            cell(r.gain, fmt::format("{:.1f}x", r.gain)) +
            fmt::format("<td class=\"v-{0}\">{0}</td></tr>\n", bound_of(r));
  }
  io::Plot plot = fusion_plot(plotted);
  plot.x_label = "multiplications: 2 to the power of";
  for (io::Series& series : plot.series)
    for (double& n : series.x) n = std::log2(n);
  return card(fusion_title(f),
              "<p>" + html_text(crossing_text(f)) + "</p>" +
                  picture(io::svg_plot(plot),
                          "time over the number of multiplications, fused and one kernel each") +
                  sorting_table({"n", "fused ms", "quartiles", "to one", "ns/element", "GB/s",
                                 "TFLOP/s", "one each, ms", "gain", "bound by"},
                                rows) +
                  "<p class=\"faint\">Published: " + html_text(kFusionSource) + "</p>");
}

Climbed climb_fusion(const LadderOptions& o) {
  const int64_t elements = fusion_elements(o);
  const double seconds = o.quick ? 0.05 : 0.3;
  std::vector<std::string> names;
  for (const int64_t n : kCounts) names.push_back(std::to_string(n));
  const std::string key = key_here("fusion", {{"elements", std::to_string(elements)},
                                              {"seconds", show_real(seconds)},
                                              {"values", "close to 1"}});
  const auto visit = [&](size_t i, RungResult& r) {
    const FusionRow row = bench_multiplications(elements, kCounts[i], seconds);
    r.ms.push_back(row.fused.median);
    r.figures["unfused"].push_back(row.unfused.median);
  };
  const auto results = climb("fusion", key, names, o, visit,
                             [](const RungResult& r) { return has_positive(r, "unfused"); });
  const Fusion f = fusion_of(elements, results);
  return {fusion_table(f), fusion_json(f), fusion_section(f), false,
          disturbance_text("fusion", results)};
}

// -- overhead -------------------------------------------------------------------------------------

// Small additions a second by PyTorch, FLOP/s of Python's loop and of an A100 (He, 2022).
constexpr double kPyTorchOps = 280e3, kPythonFlops = 32e6, kA100Flops = 312e12;

struct OverheadRow {
  std::string name;
  Timing us;             // of an op
  bool measured = true;  // here
  double ops() const { return 1e6 / us.median; }
};

struct OverheadFigures {
  std::vector<OverheadRow> rows;
  double peak = 0;  // FLOP/s of this processor
  size_t rounds = 0;
};

OverheadFigures overhead_of(const RungResult& r) {
  const auto us = [&](const char* name) { return timing_of(figure_of(r, name)); };
  const auto published = [](double per_second) {
    return Timing{1e6 / per_second, 1e6 / per_second, 1e6 / per_second};
  };
  OverheadFigures f;
  f.rows = {{"a program of one addition, called for each", us("program")},
            {"node by node: each a kernel of a program", us("node")},
            {"compiled: a thousand in one kernel", us("compiled")},
            {"published: PyTorch, one small addition", published(kPyTorchOps), false},
            {"published: Python, one floating-point addition", published(kPythonFlops), false}};
  f.peak = timing_of(figure_of(r, "peak")).median;
  f.rounds = r.ms.size();
  return f;
}

std::string peak_text(const OverheadFigures& f) {
  return fmt::format(
      "while one node is started, this processor's arithmetic ({:.3f} TFLOP/s in f32) could do {} "
      "operations; published: an A100 (312 TFLOP/s) in the time of one of PyTorch's, {}",
      1e-12 * f.peak, with_commas(std::llround(f.peak / f.rows[1].ops())),
      with_commas(std::llround(kA100Flops / kPyTorchOps)));
}

std::string overhead_title() {
  return fmt::format("overhead: additions of {} f32 values per second", kSmallOp);
}

std::string overhead_table(const OverheadFigures& f) {
  std::string out = fmt::format("{}\n{:<48} {:>10} {:>17} {:>14} {:>10}\n", overhead_title(), "",
                                "us each", "quartiles", "ops/s", "PyTorch's");
  for (const OverheadRow& r : f.rows)
    out += fmt::format("{:<48} {:>10.4f} {:>17} {:>14} {:>9.1f}x\n", r.name, r.us.median,
                       quartiles_text(r.us, r.measured ? f.rounds : 0, 4),
                       with_commas(std::llround(r.ops())), r.ops() / kPyTorchOps);
  return out + peak_text(f) + "\n";
}

std::string overhead_json(const OverheadFigures& f) {
  OrderedJson rows = OrderedJson::array();
  for (const OverheadRow& r : f.rows) {
    rows.push_back({{"name", r.name},
                    {"us", r.us.median},
                    {"ops_per_second", r.ops()},
                    {"published", !r.measured}});
    if (!r.measured) continue;
    rows.back()["us_quartiles"] = {r.us.low, r.us.high};
    rows.back()["rounds"] = f.rounds;
  }
  return OrderedJson{{"ladder", "overhead"},
                     {"title", overhead_title()},
                     {"flops_per_second", f.peak},
                     {"rungs", rows}}
      .dump();
}

/// Bars by the logarithm: from a thousand a second to ten billions.
std::string overhead_section(const OverheadFigures& f) {
  std::string bars, rows;
  for (const OverheadRow& r : f.rows) {
    const double percent = std::clamp((std::log10(r.ops()) - 3) / 7 * 100, 0.5, 100.0);
    bars += fmt::format(
        "<span>{}</span><div><div class=\"track {}\"><i style=\"width:{:.2f}%\"></i></div></div>"
        "<span class=\"value\">{:.3g} M/s</span>\n",
        html_text(r.name), r.measured ? "speed" : "published", percent, 1e-6 * r.ops());
    rows += "<tr><td>" + html_text(r.name) + "</td>" +
            cell(r.us.median, fmt::format("{:.4f}", r.us.median)) +
            cell(r.us.low, quartiles_text(r.us, r.measured ? f.rounds : 0, 4)) +
            cell(r.ops(), with_commas(std::llround(r.ops()))) +
            cell(r.ops() / kPyTorchOps, fmt::format("{:.1f}x", r.ops() / kPyTorchOps)) + "</tr>\n";
  }
  return card(overhead_title(),
              "<p class=\"faint\">Bars are logarithmic.</p><div class=\"rungs\">" + bars +
                  "</div>" +
                  sorting_table({"", "us each", "quartiles", "ops/s", "against PyTorch"}, rows) +
                  "<p>" + html_text(peak_text(f)) + "</p>");
}

Climbed climb_overhead(const LadderOptions& o) {
  const double seconds = o.quick ? 0.1 : 1;
  const std::string key = key_here("overhead", {{"seconds", show_real(seconds)}});
  const auto visit = [&](size_t, RungResult& r) {
    const Overhead overhead = bench_overhead(seconds);
    r.ms.push_back(1e-3 * overhead.node_us);
    r.figures["program"].push_back(overhead.program_us);
    r.figures["node"].push_back(overhead.node_us);
    r.figures["compiled"].push_back(overhead.compiled_us);
    r.figures["peak"].push_back(cpu::fastest_rate(cpu::measure_compute_peaks(0.02), "f32"));
  };
  const auto is_sound = [](const RungResult& r) {
    return has_positive(r, "program") && has_positive(r, "node") && has_positive(r, "compiled") &&
           has_positive(r, "peak");
  };
  const auto results = climb("overhead", key, {"small additions"}, o, visit, is_sound);
  const OverheadFigures f = overhead_of(results[0]);
  return {overhead_table(f), overhead_json(f), overhead_section(f), false,
          disturbance_text("overhead", results)};
}

}  // namespace

std::optional<double> crossing(std::span<const int64_t> counts, std::span<const double> ms) {
  const size_t n = ms.size();
  if (n < 2) return std::nullopt;
  // One more operation costs this much where there is nothing else to wait for.
  const double each = (ms[n - 1] - ms[n - 2]) / static_cast<double>(counts[n - 1] - counts[n - 2]);
  if (each <= 0) return std::nullopt;
  const double at = ms[0] / each;
  if (at > static_cast<double>(counts[n - 1])) return std::nullopt;
  return at;
}

NamedLadder fusion_ladder() {
  return {
      "fusion",
      "1 to 128 multiplications, fused and one kernel each",
      true,
      nullptr,
      [](const LadderOptions& o) { return o.rounds * static_cast<int64_t>(std::size(kCounts)); },
      climb_fusion};
}

NamedLadder overhead_ladder() {
  return {"overhead", "small operations a second: called, node by node, compiled", true,
          nullptr,    [](const LadderOptions& o) { return int64_t{o.rounds}; },    climb_overhead};
}

}  // namespace brrr::insight
