#include "cli/quantize/onnx_quantize.h"

#include <algorithm>
#include <optional>

#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
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

OnnxMeasurements measure(const QuantizeOptions& o, const io::QuantizedOnnx& made) {
  RunnableArguments how;
  how.model = o.model;
  how.inputs = o.inputs;
  how.sizes = o.sizes;
  how.device = "cpu";
  how.memory_limit = o.memory_limit;
  const NamedRunnable plain{onnx::open_module(fs::path(o.model)), std::nullopt};
  const NamedRunnable quantised{onnx::open_module(onnx::File::parse(made.bytes(), o.output)),
                                std::nullopt};
  const MadeInputs inputs = inputs_of(*plain.runnable, how);
  say_made_up(inputs);
  OnnxMeasurements m;
  std::vector<std::shared_ptr<infer::Runner>> runners;
  std::vector<PortValues> outputs;
  std::vector<std::function<void()>> functions;
  const auto file_bytes = static_cast<int64_t>(onnx::File::load(o.model)->bytes());
  const auto add = [&](const std::string& name, const NamedRunnable& runnable, Precision precision,
                       int64_t bytes) {
    how.precision = precision;
    runners.push_back(runner_of(runnable, how));
    outputs.push_back(runners.back()->run(inputs.values));
    m.rows.push_back({name, bytes});
    functions.push_back([runner = runners.back().get(), &inputs] { runner->run(inputs.values); });
  };
  add("fp32", plain, Precision::fp32, file_bytes);
  add("bf16", plain, Precision::bfloat16, file_bytes);
  const auto new_bytes = static_cast<int64_t>(made.bytes().size());
  add(fmt::format("int{}-weight-only", o.bits), quantised, Precision::fp32, new_bytes);
  m.outputs = compare_outputs(outputs[0], outputs[2]);
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
  std::optional<OnnxMeasurements> measurements;

  /// Percent: how far the least similarity of an output is below 1.
  double distance() const { return 100 * (1 - least_similarity(measurements->outputs)); }
  bool loses_too_much() const { return measurements && distance() > options.max_loss_increase; }
  std::vector<std::string> warnings() const {
    std::vector<std::string> lines;
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
                      "try --keep {}, whose errors are the largest",
                      distance(), options.max_loss_increase, fmt::join(worst, ",")));
    }
    return lines;
  }
};

std::string report_text(const OnnxReport& r) {
  const QuantizeOptions& o = r.options;
  const int64_t group = quantization_of(o).group;
  std::string text = fmt::format(
      "{}: {} of {} weights of MatMul and Gemm in {} bits, weight-only, {}\n", o.model,
      r.made.weights().size(), r.made.weights().size() + r.kept, o.bits,
      group == 0 ? std::string("a scale for each output") : fmt::format("groups of {}", group));
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
  if (o.method != "weight-only")
    usage_error(
        "--method dynamic: ONNX files are written with quantised weights alone; give --method "
        "weight-only, or quantise rows, too, while loading: `brrr run --precision int8`");
  if (!o.output.ends_with(".onnx"))
    usage_error("--output {}: expected a file that ends with .onnx", o.output);
  std::error_code ignored;
  if (fs::exists(o.output, ignored))
    user_error("--output: {} is there already; expected a new file", o.output);
  const std::shared_ptr<const onnx::File> file = onnx::File::load(o.model);
  const int64_t group = quantization_of(o).group;
  const std::vector<io::OnnxWeight> all = io::onnx_weights(*file, o.bits);
  const std::vector<io::OnnxWeight> chosen = io::chosen_onnx_weights(all, o.keep, group, o.model);
  const io::QuantizedOnnx made(o.model, o.bits, group, chosen);
  OnnxReport report{o, made, all.size() - chosen.size(), std::nullopt};
  if (o.measure) report.measurements = measure(o, made);
  const bool is_written = !report.loses_too_much() || o.force;
  publish_report(o, o.json ? report_json(report, is_written ? o.output : "") : report_text(report),
                 report.warnings(), is_written);
  write_file_atomically(o.output, made.bytes());
  tell("wrote {} ({:.1f} MB); try: {} run {}\n", o.output,
       1e-6 * static_cast<double>(made.bytes().size()), env::program(), shell_word(o.output));
  return 0;
}

}  // namespace brrr::cli
