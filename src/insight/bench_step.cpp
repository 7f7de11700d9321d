// The training step of a preset, timed as a whole and by class of operation.

#include <cctype>
#include <map>
#include <random>

#include "backend/cpu/peaks.h"
#include "backend/cpu/target.h"
#include "base/clock.h"
#include "insight/bench.h"
#include "nn/gpt2.h"
#include "nn/init.h"
#include "ops/fused.h"
#include "runtime/parameters.h"
#include "train/session.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

constexpr int64_t kCharacters =
    65;  // of tiny Shakespeare, for presets whose vocabulary is a text's

// A session with a batch of random tokens.
class Step {
 public:
  explicit Step(const StepOptions& o) : options_(resolved(o)) {
    config_ =
        train::model_config(options_, options_.vocab_size > 0 ? options_.vocab_size : kCharacters);
    const Graph g = nn::gpt2_loss_graph(config_, options_.batch_size, options_.context);
    session_.emplace(g, g, cpu::cpu_backend(), train::session_options(options_));
    session_->allocate();
    load_parameters(session_->engine(), [&](std::string_view name, std::span<float> out) {
      nn::initialise(name, config_, 1, out);
    });
    std::mt19937 random(7);
    std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(config_.vocab_size - 1));
    const auto n = static_cast<size_t>(options_.batch_size * options_.context);
    for (auto* ids : {&tokens_, &targets_})
      for (size_t i = 0; i < n; ++i) ids->push_back(id(random));
  }

  void run(Timeline* timeline = nullptr) {
    const train::TokenBatch batch{tokens_, targets_, static_cast<int64_t>(tokens_.size())};
    session_->step(done_++, std::span(&batch, 1), 1e-4, timeline);
  }

  StepRow row(const Timing& timing) {
    StepRow r;
    r.preset = options_.preset;
    r.precision = options_.precision;
    r.compiled = options_.compile;
    r.batch = options_.batch_size;
    r.context = options_.context;
    r.ms = timing;
    r.tokens_per_second = 1e3 * static_cast<double>(tokens_.size()) / timing.median;
    r.arena_bytes = session_->engine().arena_bytes();
    r.activation_bytes = activation_bytes(session_->step_program().graph());
    r.rematerialize = options_.rematerialize;
    if (!options_.activation_memory.empty()) r.rematerialize += " " + options_.activation_memory;
    r.compile_ms = 1e3 * session_->compile_seconds();
    r.classes = classes();
    return r;
  }

  double flops_per_token() const {
    const double n =
        static_cast<double>(config_.parameter_count() - config_.n_positions * config_.n_embd);
    return 6 * n + 6 * static_cast<double>(config_.n_layer * config_.n_embd * options_.context);
  }

 private:
  static train::TrainOptions resolved(const StepOptions& o) {
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

  std::vector<StepClass> classes() {
    Timeline timeline;
    run(&timeline);
    const Graph& g = session_->step_program().graph();
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

  train::TrainOptions options_;
  nn::Gpt2Config config_;
  std::optional<train::Session> session_;
  std::vector<int32_t> tokens_, targets_;
  int64_t done_ = 0;
};

}  // namespace

std::vector<StepRow> bench_step(const std::vector<StepOptions>& options) {
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<std::function<void()>> functions;
  double seconds = 0;
  for (const StepOptions& o : options) {
    steps.push_back(std::make_unique<Step>(o));
    functions.push_back([step = steps.back().get()] { step->run(); });
    seconds += o.seconds;
  }
  const auto peaks = cpu::measure_compute_peaks(0.2);
  const auto timings = interleave(functions, seconds);
  std::vector<StepRow> rows;
  for (size_t i = 0; i < steps.size(); ++i) {
    StepRow row = steps[i]->row(timings[i]);
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
