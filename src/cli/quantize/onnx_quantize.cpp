#include "cli/quantize/onnx_quantize.h"

#include <algorithm>
#include <optional>

#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/quantize/onnx_calibration.h"
#include "cli/quantize/output_similarity.h"
#include "cli/quantize/report.h"
#include "cli/runnable_option.h"
#include "folders/quantized/quantized_onnx.h"
#include "formats/json_file.h"
#include "insight/bench/bench.h"
#include "modules/onnx/onnx_module.h"

namespace brrr::cli {
namespace {

constexpr double kSecondsOfRuns = 2;  // of all variants
constexpr size_t kMostShown = 10, kMostToKeep = 3;

struct OnnxMeasurements {
  struct Row {
    std::string name;
    int64_t bytes = 0;        // of the file
    insight::Timing ms = {};  // of a run
  };
  std::vector<Row> rows;  // fp32, bf16, quantised
  std::vector<OutputSimilarity> outputs;

  double speedup() const { return rows[1].ms.median / std::max(rows[2].ms.median, 1e-9); }
  /// Whether the middle half of the quantised file's runs is slower than that in bf16.
  bool is_slower() const { return rows[2].ms.low > rows[1].ms.high; }
};

/// What the quantised file is called.
std::string variant_of(const QuantizeOptions& o) {
  return is_static(o) ? "int8-static" : fmt::format("int{}-weight-only", o.bits);
}

/// Keeps the smaller similarity of each output of two runs.
std::vector<OutputSimilarity> worst_of(std::vector<OutputSimilarity> a,
                                       const std::vector<OutputSimilarity>& b) {
  if (a.size() != b.size()) return least_similarity(a) <= least_similarity(b) ? a : b;
  for (size_t i = 0; i < a.size(); ++i)
    if (b[i].value < a[i].value) a[i] = b[i];
  return a;
}

/// Times a run on the first inputs, and compares the outputs on all.
OnnxMeasurements measure(const QuantizeOptions& o, const std::shared_ptr<const Runnable>& original,
                         const std::vector<MadeInputs>& inputs, const io::QuantizedOnnx& made) {
  RunnableArguments how;
  how.model = o.model;
  how.device = "cpu";
  how.memory_limit = o.memory_limit;
  const NamedRunnable plain{original, std::nullopt};
  const NamedRunnable quantised{onnx::open_module(onnx::File::parse(made.bytes(), o.output)),
                                std::nullopt};
  OnnxMeasurements m;
  std::vector<std::shared_ptr<infer::Runner>> runners;
  std::vector<std::function<void()>> functions;
  const auto file_bytes = static_cast<int64_t>(onnx::File::load(o.model)->bytes());
  const auto add = [&](const std::string& name, const NamedRunnable& runnable, Precision precision,
                       int64_t bytes) {
    how.precision = precision;
    runners.push_back(runner_of(runnable, how));
    m.rows.push_back({name, bytes});
    functions.push_back(
        [runner = runners.back().get(), &inputs] { runner->run(inputs.front().values); });
  };
  add("fp32", plain, Precision::fp32, file_bytes);
  add("bf16", plain, Precision::bfloat16, file_bytes);
  add(variant_of(o), quantised, Precision::fp32, static_cast<int64_t>(made.bytes().size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto similar =
        compare_outputs(runners[0]->run(inputs[i].values), runners[2]->run(inputs[i].values));
    m.outputs = i == 0 ? std::move(similar) : worst_of(std::move(m.outputs), similar);
  }
  const auto timings = insight::interleave(functions, kSecondsOfRuns);
  for (size_t i = 0; i < timings.size(); ++i) m.rows[i].ms = timings[i];
  return m;
}

std::vector<const io::QuantizedOnnx::Weight*> by_error(const io::QuantizedOnnx& made) {
  std::vector<const io::QuantizedOnnx::Weight*> list;
  for (const auto& w : made.weights()) list.push_back(&w);
  std::ranges::stable_sort(list, [](const auto* a, const auto* b) { return a->error > b->error; });
  return list;
}

struct OnnxReport {
  const QuantizeOptions& options;
  const io::QuantizedOnnx& made;
  size_t kept = 0;
  std::vector<MadeInputs> inputs;    // of calibration and measurements
  io::ActivationRanges ranges = {};  // of static
  std::optional<OnnxMeasurements> measurements;

  /// Percent: how far the least similarity of an output is below 1.
  double distance() const { return 100 * (1 - least_similarity(measurements->outputs)); }
  bool loses_too_much() const { return measurements && distance() > options.max_loss_increase; }
  /// Returns the bytes of the quantised weights before and after quantising.
  std::pair<int64_t, int64_t> weight_bytes() const {
    std::pair<int64_t, int64_t> sum;
    for (const auto& w : made.weights()) {
      sum.first += w.plain_bytes;
      sum.second += w.bytes;
    }
    return sum;
  }
  std::vector<std::string> warnings() const {
    std::vector<std::string> lines;
    if (is_static(options) && !inputs.front().made.empty())
      lines.push_back(
          fmt::format("the ranges of activations come from made-up inputs ({}); give real ones "
                      "with --input NAME=FILE.npy, several times for several runs",
                      fmt::join(inputs.front().made, ", ")));
    if (!measurements) return lines;
    if (measurements->outputs.empty())
      lines.push_back(
          "the quality is not checked: no output has numbers to compare with those of the original "
          "file; give other inputs with --input");
    if (measurements->is_slower())
      lines.push_back(
          fmt::format("the quantised file is slower here than bf16: {:.2f}x its speed; it saves "
                      "disk space alone",
                      measurements->speedup()));
    if (loses_too_much()) {
      std::vector<std::string> worst;
      for (const auto* w : by_error(made))
        if (worst.size() < kMostToKeep) worst.push_back(w->weight.initializer);
      lines.push_back(
          fmt::format("the distance of an output (1 - similarity) is {:.2f}%, more than "
                      "--max-loss-increase {:g}%; "
                      "try --keep {}, whose errors are the largest{}",
                      distance(), options.max_loss_increase, fmt::join(worst, ","),
                      is_static(options) ? ", another --range, or --method weight-only" : ""));
    }
    return lines;
  }
};

std::string report_text(const OnnxReport& r) {
  const QuantizeOptions& o = r.options;
  const int64_t group = quantization_of(o).group;
  std::string text = fmt::format(
      "{}: {} of {} weights in {} bits, {}, {}\n", o.model, r.made.weights().size(),
      r.made.weights().size() + r.kept, o.bits, o.method,
      group == 0 ? std::string("a scale for each output") : fmt::format("groups of {}", group));
  if (is_static(o))
    text += fmt::format("{} in 8 bits, in {} ranges of {}\n",
                        counted(std::ssize(r.ranges), "activation"), o.range,
                        counted(std::ssize(r.inputs), "run"));
  const auto [plain_bytes, bytes] = r.weight_bytes();
  text += fmt::format("these weights: {:.2f} MB instead of {:.2f} MB, {:.2f}x smaller\n",
                      1e-6 * static_cast<double>(bytes), 1e-6 * static_cast<double>(plain_bytes),
                      static_cast<double>(plain_bytes) / static_cast<double>(bytes));
  if (r.measurements) {
    const OnnxMeasurements& m = *r.measurements;
    text += fmt::format("\n{:<16}  {:>12}  {:>10}\n", "", "on disk", "time a run");
    for (const auto& row : m.rows)
      text +=
          fmt::format("{:<16}  {:>9.1f} MB  {:>10}\n", row.name,
                      1e-6 * static_cast<double>(row.bytes), duration_text(1e-3 * row.ms.median));
    text += similarity_text(m.outputs);
  } else {
    text += fmt::format("on disk: {:.1f} MB\n", 1e-6 * static_cast<double>(r.made.bytes().size()));
  }
  const auto list = by_error(r.made);
  const size_t shown = std::min(list.size(), kMostShown);
  text += fmt::format("\nlargest relative errors of weights ({} of {}):\n", shown, list.size());
  size_t width = 0;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, list[i]->weight.initializer.size());
  for (size_t i = 0; i < shown; ++i)
    text += fmt::format("  {:<{}}  {:.5f}{}\n", list[i]->weight.initializer, width, list[i]->error,
                        list[i]->weight.node.empty() ? "" : "  " + list[i]->weight.node);
  return text;
}

std::string report_json(const OnnxReport& r, const std::string& written) {
  nlohmann::ordered_json j{
      {"model", r.options.model},       {"bits", r.options.bits},
      {"method", r.options.method},     {"group_size", quantization_of(r.options).group},
      {"bytes", r.made.bytes().size()}, {"kept", r.kept}};
  const auto [plain_bytes, bytes] = r.weight_bytes();
  j["weights"] = {{"bytes_before", plain_bytes}, {"bytes", bytes}};
  if (is_static(r.options)) {
    j["range"] = r.options.range;
    j["runs"] = r.inputs.size();
    j["activations"] = nlohmann::ordered_json::object();
    for (const auto& [name, range] : r.ranges) j["activations"][name] = {range.low, range.high};
  }
  if (r.measurements) {
    for (const auto& row : r.measurements->rows)
      j["precisions"].push_back({{"name", row.name}, {"bytes", row.bytes}, {"ms", row.ms.median}});
    j["outputs"] = nlohmann::ordered_json::array();
    for (const OutputSimilarity& s : r.measurements->outputs)
      j["outputs"].push_back({{"name", s.name}, {name_of(s.measure), s.value}});
    j["speed_over_bf16"] = r.measurements->speedup();
  }
  for (const auto* w : by_error(r.made))
    j["layers"].push_back(
        {{"name", w->weight.initializer}, {"node", w->weight.node}, {"error", w->error}});
  j["warnings"] = r.warnings();
  j["output"] = written.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(written);
  return io::json_line(j) + "\n";
}

}  // namespace

int quantize_onnx_file(const QuantizeOptions& o) {
  if (o.method == "dynamic")
    usage_error(
        "--method dynamic: ONNX files are written with --method weight-only, or static, which "
        "rounds activations in ranges of calibration inputs; or quantise rows while loading: "
        "`brrr run --precision int8`");
  if (!o.output.ends_with(".onnx"))
    usage_error("--output {}: expected a file that ends with .onnx", o.output);
  std::error_code ignored;
  if (fs::exists(o.output, ignored))
    user_error("--output: {} is there already; expected a new file", o.output);
  const std::shared_ptr<const onnx::File> file = onnx::File::load(o.model);
  const int64_t group = quantization_of(o).group;
  const std::vector<io::OnnxWeight> all = io::onnx_weights(*file, o.bits);
  const std::vector<io::OnnxWeight> chosen = io::chosen_onnx_weights(all, o.keep, group, o.model);
  const std::shared_ptr<const Runnable> original = onnx::open_module(file);
  std::vector<MadeInputs> inputs;
  if (o.measure || is_static(o)) inputs = onnx_inputs(*original, o);
  io::ActivationRanges ranges;
  if (is_static(o)) ranges = activation_ranges(original, chosen, inputs, o);
  const io::QuantizedOnnx made(o.model, o.bits, group, chosen, ranges);
  OnnxReport report{o, made, all.size() - chosen.size(), std::move(inputs), ranges, std::nullopt};
  if (o.measure) report.measurements = measure(o, original, report.inputs, made);
  const bool is_written = !report.loses_too_much() || o.force;
  publish_report(o, o.json ? report_json(report, is_written ? o.output : "") : report_text(report),
                 report.warnings(), is_written);
  write_file_atomically(o.output, made.bytes());
  tell("wrote {} ({:.1f} MB); try: {} run {}\n", o.output,
       1e-6 * static_cast<double>(made.bytes().size()), env::program(), shell_word(o.output));
  return 0;
}

}  // namespace brrr::cli
