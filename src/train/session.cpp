#include "train/session.h"

#include <cmath>

#include "base/clock.h"

namespace brrr::train {

Session::Session(const Graph& loss_graph, const Graph& eval_graph, const Backend& backend,
                 const SessionOptions& options)
    : options_(options), engine_(backend) {
  BRRR_CHECK(options.accumulation >= 1, "accumulation {}", options.accumulation);
  const Stopwatch watch;
  has_dropout_ = loss_graph.find_input("rng_key") != kNoNode;
  const Target target = engine_.backend().target();
  ProgramOptions program_options;
  program_options.reuse_memory = options.reuse_memory;
  Graph to_differentiate = loss_graph;
  std::string loss = "loss";
  if (scales_gradients()) {
    options_.optimizer.scaler = options.scaler;
    loss = optim::attach_scaled_loss(to_differentiate, loss);
  }
  PipelineOptions common;
  common.precision = options.precision;
  common.parameter_dtype = options.parameter_dtype;
  common.matmul_precision = options.matmul_precision;
  common.rematerialize = options.rematerialize;
  common.disabled = options.disabled_passes;
  common.dump_folder = options.dump_folder;
  build_ = [=, this](const Graph& graph, optim::Accumulation accumulation,
                     const std::string& name) {
    PipelineOptions p = common;
    p.loss = loss;
    p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, options_.optimizer, accumulation); };
    p.dump_prefix = name + "_";
    return engine_.add(run_pipeline(graph, target, p, &report_), program_options);
  };
  const auto build = [&](optim::Accumulation accumulation, const char* name) {
    return build_(to_differentiate, accumulation, name);
  };
  if (options.accumulation == 1) {
    last_ = build(optim::Accumulation::none, "step");
  } else {
    first_ = build(optim::Accumulation::first, "first");
    if (options.accumulation > 2) middle_ = build(optim::Accumulation::middle, "middle");
    last_ = build(optim::Accumulation::last, "last");
  }
  PipelineOptions p = common;
  p.dump_prefix = "eval_";
  eval_ = engine_.add(run_pipeline(eval_graph, target, p, &report_), program_options);
  compile_seconds_ = watch.seconds();
}

std::vector<Session::ProgramUse> Session::programs() const {
  std::vector<ProgramUse> list;
  if (first_) list.push_back({"first", &engine_.program(*first_), 1});
  if (middle_) list.push_back({"middle", &engine_.program(*middle_), options_.accumulation - 2});
  list.push_back({first_ ? "last" : "step", &engine_.program(last_), 1});
  list.push_back({"eval", &engine_.program(eval_), 0});
  return list;
}

void Session::add_shorter(const Graph& loss_graph) {
  const Stopwatch watch;
  Graph graph = loss_graph;
  if (scales_gradients()) optim::attach_scaled_loss(graph, "loss");
  Shorter s;
  const NodeId tokens = loss_graph.find_input("tokens");
  s.positions = static_cast<size_t>(loss_graph.type({tokens, 0}).shape.elements());
  const std::string prefix = fmt::format("positions{}_", s.positions);
  if (first_) s.first = build_(graph, optim::Accumulation::first, prefix + "first");
  if (middle_) s.middle = build_(graph, optim::Accumulation::middle, prefix + "middle");
  s.last = build_(graph, first_ ? optim::Accumulation::last : optim::Accumulation::none,
                  prefix + (first_ ? "last" : "step"));
  shorter_.push_back(s);
  compile_seconds_ += watch.seconds();
}

const Session::Shorter* Session::shorter_for(const TokenBatch& batch) const {
  for (const Shorter& s : shorter_)
    if (s.positions == batch.inputs.size()) return &s;
  return nullptr;
}

size_t Session::last_for(const TokenBatch& batch) const {
  const Shorter* s = shorter_for(batch);
  return s != nullptr ? s->last : last_;
}

void Session::allocate() {
  engine_.allocate();
  if (scales_gradients())
    engine_.state_f32(optim::kScaleState)[0] = static_cast<float>(options_.scaler.initial);
}

void Session::fill(size_t program, const TokenBatch& batch, double loss_scale, int64_t draw) {
  engine_.set_input<int32_t>(program, "tokens", batch.inputs);
  engine_.set_input<int32_t>(program, "targets", batch.targets);
  engine_.set_scalar(program, "loss_scale", static_cast<float>(loss_scale));
  if (has_dropout_) {
    const int32_t key[] = {static_cast<int32_t>(options_.seed), static_cast<int32_t>(draw)};
    engine_.set_input<int32_t>(program, "rng_key", key);
  }
}

StepResult Session::step(int64_t step, std::span<const TokenBatch> micro_batches,
                         double learning_rate, Timeline* timeline) {
  BRRR_CHECK(static_cast<int64_t>(micro_batches.size()) == options_.accumulation,
             "{} micro-batches for accumulation {}", micro_batches.size(), options_.accumulation);
  int64_t tokens = 0;
  for (const TokenBatch& b : micro_batches) tokens += b.real_tokens;
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, tokens));
  StepResult result;
  if (scales_gradients()) result.loss_scale = engine_.state_f32(optim::kScaleState)[0];
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool is_last = i + 1 == micro_batches.size();
    const Shorter* s = shorter_for(micro_batches[i]);
    const size_t program = is_last  ? last_for(micro_batches[i])
                           : i == 0 ? (s != nullptr ? *s->first : *first_)
                                    : (s != nullptr ? *s->middle : *middle_);
    fill(program, micro_batches[i], scale, step * options_.accumulation + static_cast<int64_t>(i));
    if (is_last) fill_optimizer(program, step, learning_rate);
    engine_.run(program, timeline);
    result.loss += engine_.output_scalar(program, "loss");
    if (is_last) result.grad_norm = engine_.output_scalar(program, "grad_norm");
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    const TokenBatch& b = micro_batches.back();
    bad_step_ = {{b.inputs.begin(), b.inputs.end()},
                 {b.targets.begin(), b.targets.end()},
                 scale,
                 learning_rate,
                 step,
                 (step + 1) * options_.accumulation - 1};
  }
  return result;
}

std::optional<std::string> Session::first_non_finite() {
  if (!bad_step_) return std::nullopt;
  const TokenBatch batch{bad_step_->inputs, bad_step_->targets, 0};
  const size_t program = last_for(batch);
  fill(program, batch, bad_step_->loss_scale, bad_step_->draw);
  fill_optimizer(program, bad_step_->step, bad_step_->learning_rate);
  return engine_.first_non_finite(program);
}

void Session::fill_optimizer(size_t program, int64_t step, double learning_rate) {
  engine_.set_scalar(program, "learning_rate", static_cast<float>(learning_rate));
  engine_.set_scalar(program, "optimizer_step", static_cast<int32_t>(step + 1));
  if (engine_.program(program).graph().find_input("rounding_key") == kNoNode) return;
  const int32_t key[] = {static_cast<int32_t>(options_.seed), static_cast<int32_t>(step)};
  engine_.set_input<int32_t>(program, "rounding_key", key);
}

double Session::loss_sum(const TokenBatch& batch) {
  engine_.set_input<int32_t>(eval_, "tokens", batch.inputs);
  engine_.set_input<int32_t>(eval_, "targets", batch.targets);
  engine_.set_scalar(eval_, "loss_scale", 1.0f);
  engine_.run(eval_);
  return engine_.output_scalar(eval_, "loss");
}

}  // namespace brrr::train
