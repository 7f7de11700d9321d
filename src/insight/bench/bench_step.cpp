// The training step of a preset, timed as a whole and by class of operation.

#include <algorithm>
#include <cctype>
#include <map>
#include <random>

#include "backend/cpu/peaks.h"
#include "folders/model_folder.h"
#include "insight/bench/bench.h"
#include "insight/bench/number_check.h"
#include "insight/profile/timed_step.h"
#include "insight/profile/verdict.h"
#include "machine/device.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/memory/rematerialize.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

KeyValues options_of(const StepOptions& o) {
  const bool tf32 = o.precision == "tf32";  // f32 products as fast as they may be
  KeyValues given{{o.model.empty() ? "preset" : "init-from", o.model.empty() ? o.preset : o.model},
                  {"precision", tf32 ? "fp32" : o.precision}};
  if (tf32) given.emplace_back("float32-matmul-precision", "high");
  given.emplace_back("compile", o.compile ? "true" : "false");
  if (o.batch > 0) given.emplace_back("batch-size", std::to_string(o.batch));
  if (o.context > 0) given.emplace_back("context", std::to_string(o.context));
  if (o.dropout >= 0) given.emplace_back("dropout", fmt::format("{}", o.dropout));
  given.emplace_back("gradient-accumulation-steps", "1");
  given.emplace_back("device", o.device);
  for (const auto& [name, size] :
       {std::pair{"n-layer", o.layers}, std::pair{"n-head", o.heads}, std::pair{"n-embd", o.width}})
    if (size > 0) given.emplace_back(name, std::to_string(size));
  const bool budget = std::isdigit(static_cast<unsigned char>(o.rematerialize[0])) != 0;
  given.emplace_back(budget ? "activation-memory" : "rematerialize", o.rematerialize);
  return given;
}

std::unique_ptr<TimedStep> timed_step(const StepOptions& o) {
  train::TrainOptions options = train::resolve(options_of(o));
  if (o.model.empty()) return std::make_unique<TimedStep>(options);
  const fs::path folder = io::find_model(o.model);
  const models::ModelPtr model = io::read_definition(folder);
  if (o.context == 0) options.context = model->sizes().context;
  train::adopt_definition(options, *model, folder.string());
  options.preset = o.model;
  return std::make_unique<TimedStep>(options, std::numeric_limits<int64_t>::max(), model);
}

// By class of operation.
std::vector<StepClass> classes_of(const TimedStep& step, const Timeline& timeline) {
  const Graph& g = step.session().step_program().graph();
  std::map<OpClass, StepClass> by_class;
  double total = 0;
  for (const TimelineRecord& record : timeline.records) {
    const Node& node = g.node(record.node);
    StepClass& c = by_class[class_of(node)];
    c.name = name_of(class_of(node));
    c.ms += 1e3 * record.seconds;
    c.flops += cost_of(g, record.node).flops;
    total += 1e3 * record.seconds;
  }
  std::vector<StepClass> list;
  for (auto& [op_class, c] : by_class) {
    c.share = c.ms / total;
    list.push_back(c);
  }
  return list;
}

std::vector<StepKernel> kernels_of(const TimedStep& step, const Timeline& timeline) {
  const Program& program = step.session().step_program();
  const Graph& g = program.graph();
  std::map<NodeId, std::string> kernel_of;
  for (const Dispatch& d : program.dispatch()) kernel_of[d.node] = d.kernel;
  std::map<std::pair<std::string, std::string>, StepKernel> by_kernel;
  for (const TimelineRecord& record : timeline.records) {
    const OpDef& op = *g.node(record.node).op;
    StepKernel& k = by_kernel[{op.name, kernel_of[record.node]}];
    k.op = op.name;
    k.kernel = kernel_of[record.node];
    ++k.nodes;
    k.ms += 1e3 * record.seconds;
    const Cost cost = cost_of(g, record.node);
    k.flops += cost.flops;
    k.bytes += cost.bytes_read + cost.bytes_written;
  }
  std::vector<StepKernel> list;
  for (auto& [name, k] : by_kernel) list.push_back(k);
  std::sort(list.begin(), list.end(),
            [](const StepKernel& a, const StepKernel& b) { return a.ms > b.ms; });
  return list;
}

StepRow row_of(TimedStep& step, const Timing& timing) {
  const train::TrainOptions& o = step.options();
  StepRow r;
  r.preset = o.preset;
  r.is_tf32 = o.float32_matmul_precision == "high";
  r.dtype = dtype_of_precision(o.precision);
  r.precision = r.is_tf32 ? "tf32" : name_of(o.precision);
  r.compiled = o.compile;
  r.batch = o.batch_size;
  r.context = o.context;
  r.ms = timing;
  r.tokens_per_second = 1e3 * static_cast<double>(step.tokens()) / timing.median;
  r.arena_bytes = step.session().engine().arena_bytes();
  r.activation_bytes = activation_bytes(step.session().step_program().graph());
  r.rematerialize = o.rematerialize;
  if (!o.activation_memory.empty()) r.rematerialize += " " + o.activation_memory;
  r.compile_ms = 1e3 * step.session().compile_seconds();
  Timeline timeline;  // of one more step
  step.run(&timeline);
  r.classes = classes_of(step, timeline);
  r.kernels = kernels_of(step, timeline);
  return r;
}

}  // namespace

std::vector<StepRow> bench_step(const std::vector<StepOptions>& options) {
  std::vector<std::unique_ptr<TimedStep>> steps;
  std::vector<std::function<void()>> functions;
  std::vector<std::vector<double>> losses(options.size());
  double seconds = 0;
  int64_t least_steps = 1;
  for (const StepOptions& o : options) {
    steps.push_back(timed_step(o));
    functions.push_back([step = steps.back().get(), of_step = &losses[steps.size() - 1]] {
      of_step->push_back(step->run());
    });
    seconds += o.seconds;
    least_steps = std::max(least_steps, o.least_steps);
  }
  const Backend backend = machine::backend_for(options.at(0).device);
  const bool is_on_gpu = backend.memory_bytes > 0;
  std::vector<cpu::ComputePeak> peaks;
  const bool measures_peaks = options.at(0).measures_peaks;
  if (!is_on_gpu && measures_peaks) peaks = cpu::measure_compute_peaks(0.2);
  const auto timings = interleave(functions, seconds, static_cast<size_t>(least_steps - 1));
  for (const std::vector<double>& of_step : losses)
    check_numbers("step: the losses", DType::f64, std::as_bytes(std::span(of_step)));
  std::vector<StepRow> rows;
  std::vector<double> flops;
  for (size_t i = 0; i < steps.size(); ++i) {
    rows.push_back(row_of(*steps[i], timings[i]));
    rows.back().losses = std::move(losses[i]);
    flops.push_back(steps[i]->flops_per_token());
  }
  steps.clear();  // their memory is for the peaks
  if (!measures_peaks) return rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    StepRow& row = rows[i];
    const std::string wanted(name_of(row.dtype));
    if (is_on_gpu) {
      row.peak_tflops = 1e-12 * product_peak(backend, row.dtype, row.is_tf32);
      row.peak_type = fmt::format("a product of {0} x {0} matrices", kLargeProduct);
    }
    // Without a unit for the type, products run in f32 and that is the ceiling.
    for (const std::string& type : {wanted, std::string("f32")})
      if (const cpu::ComputePeak* peak = cpu::fastest(peaks, type);
          peak != nullptr && peak->ops_per_second * 1e-12 > row.peak_tflops) {
        row.peak_tflops = peak->ops_per_second * 1e-12;
        row.peak_type = peak->instruction;
      }
    row.mfu = row.tokens_per_second * flops[i] / (row.peak_tflops * 1e12);
  }
  return rows;
}

}  // namespace brrr::insight
