// The training step of a preset, timed as a whole and by class of operation.

#include <cctype>
#include <map>

#include "backend/cpu/peaks.h"
#include "insight/bench.h"
#include "insight/timed_step.h"
#include "ops/fused.h"
#include "passes/rematerialize.h"

namespace brrr::insight {
namespace {

train::TrainOptions resolved(const StepOptions& o) {
  KeyValues given{{"preset", o.preset}, {"precision", o.precision}};
  given.emplace_back("compile", o.compile ? "true" : "false");
  if (o.batch > 0) given.emplace_back("batch-size", std::to_string(o.batch));
  if (o.context > 0) given.emplace_back("context", std::to_string(o.context));
  if (o.dropout >= 0) given.emplace_back("dropout", fmt::format("{}", o.dropout));
  given.emplace_back("gradient-accumulation-steps", "1");
  const bool budget = std::isdigit(static_cast<unsigned char>(o.rematerialize[0])) != 0;
  given.emplace_back(budget ? "activation-memory" : "rematerialize", o.rematerialize);
  return train::resolve(given);
}

// One more step, by class of operation.
std::vector<StepClass> classes_of(TimedStep& step) {
  Timeline timeline;
  step.run(&timeline);
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

StepRow row_of(TimedStep& step, const Timing& timing) {
  const train::TrainOptions& o = step.options();
  StepRow r;
  r.preset = o.preset;
  r.precision = o.precision;
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
  r.classes = classes_of(step);
  return r;
}

}  // namespace

std::vector<StepRow> bench_step(const std::vector<StepOptions>& options) {
  std::vector<std::unique_ptr<TimedStep>> steps;
  std::vector<std::function<void()>> functions;
  double seconds = 0;
  for (const StepOptions& o : options) {
    steps.push_back(std::make_unique<TimedStep>(resolved(o)));
    functions.push_back([step = steps.back().get()] { step->run(); });
    seconds += o.seconds;
  }
  const auto peaks = cpu::measure_compute_peaks(0.2);
  const auto timings = interleave(functions, seconds);
  std::vector<StepRow> rows;
  for (size_t i = 0; i < steps.size(); ++i) {
    StepRow row = row_of(*steps[i], timings[i]);
    const std::string wanted = row.precision == "bf16"   ? "bf16"
                               : row.precision == "fp16" ? "f16"
                                                         : "f32";
    // Without a unit for the type, products run in f32 and that is the ceiling.
    for (const std::string& type : {wanted, std::string("f32")})
      for (const cpu::ComputePeak& p : peaks)
        if (p.type == type && p.ops_per_second * 1e-12 > row.peak_tflops) {
          row.peak_tflops = p.ops_per_second * 1e-12;
          row.peak_type = p.instruction;
        }
    row.mfu = row.tokens_per_second * steps[i]->flops_per_token() / (row.peak_tflops * 1e12);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace brrr::insight
