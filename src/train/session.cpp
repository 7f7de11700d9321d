#include "train/session.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/integers.h"

namespace brrr::train {

// What programs of Session::evaluate() may take for themselves: this share of the arena, or this.
constexpr int64_t kArenaShare = 8, kLeastForEvaluations = int64_t{16} << 20;

Session::Session(const Graph& loss_graph, const Graph& eval_graph, const Backend& backend,
                 const SessionOptions& options)
    : options_(options),
      engine_(backend),
      bindings_(engine_, {.reuse_memory = options.reuse_memory}),
      evals_(engine_, {.reuse_memory = options.reuse_memory}),
      evaluations_(engine_, {.reuse_memory = options.reuse_memory}) {
  BRRR_CHECK(options.accumulation >= 1, "accumulation {}", options.accumulation);
  engine_.expect_calls(options.accumulation);
  has_dropout_ = loss_graph.find_input("rng_key") != kNoNode;
  if (scales_gradients()) options_.optimizer.scaler = options.scaler;
  pipeline_.precision = options.precision;
  pipeline_.fp8 = options.fp8;
  pipeline_.parameter_dtype = options.parameter_dtype;
  pipeline_.matmul_precision = options.matmul_precision;
  pipeline_.fake_quantization = options.fake_quantization;
  pipeline_.rematerialize = options.rematerialize;
  pipeline_.refresher = Refresher::update;
  pipeline_.disabled = options.disabled_passes;
  pipeline_.dump_folder = options.dump_folder;
  usual_ = shape_of(loss_graph);
  add_step(loss_graph, "");
  usual_eval_ = shape_of(eval_graph);
  add_eval(eval_graph);
}

void Session::add_eval(const Graph& eval_graph) {
  const Stopwatch watch;
  const BatchShape shape = shape_of(eval_graph);
  PipelineOptions p = pipeline_;
  p.dump_prefix = shape == usual_eval_ ? "eval_" : fmt::format("eval_length{}_", shape.length);
  evals_.get(shape.key(), "evaluation", [&] {
    return std::vector{run_pipeline(eval_graph, engine_.backend().target(), p, &report_)};
  });
  compile_seconds_ += watch.seconds();
}

void Session::add_decode(const Graph& decode_graph) {
  const Stopwatch watch;
  PipelineOptions p = pipeline_;
  p.dump_prefix = "decode_";
  decode_ = engine_.add(run_pipeline(decode_graph, engine_.backend().target(), p, &report_),
                        {.reuse_memory = options_.reuse_memory});
  compile_seconds_ += watch.seconds();
}

std::string Session::BatchShape::key() const { return fmt::format("{:12}{:12}", rows, length); }

Session::BatchShape Session::shape_of(const Graph& loss_graph) const {
  const NodeId first = loss_graph.inputs(InputKind::data).front();  // as io::Batch::positions()
  const Shape& shape = loss_graph.type({first, 0}).shape;
  const int64_t rows = shape.rank() > 1 ? shape.size(0) : 1;
  return {rows, shape.elements() / std::max<int64_t>(rows, 1)};
}

void Session::add_step(const Graph& loss_graph, const std::string& prefix) {
  const Stopwatch watch;
  Graph graph = loss_graph;
  if (scales_gradients()) loss_ = optim::attach_scaled_loss(graph, "loss");
  const auto build = [&](optim::Accumulation accumulation, const char* name) {
    PipelineOptions p = pipeline_;
    p.loss = loss_;
    p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, options_.optimizer, accumulation); };
    p.dump_prefix = prefix + name + "_";
    return run_pipeline(graph, engine_.backend().target(), p, &report_);
  };
  bindings_.get(shape_of(loss_graph).key(), "a step", [&] {
    std::vector<Graph> graphs;
    if (options_.accumulation > 1) graphs.push_back(build(optim::Accumulation::first, "first"));
    if (options_.accumulation > 2) graphs.push_back(build(optim::Accumulation::middle, "middle"));
    graphs.push_back(options_.accumulation > 1 ? build(optim::Accumulation::last, "last")
                                               : build(optim::Accumulation::none, "step"));
    return graphs;
  });
  compile_seconds_ += watch.seconds();
}

void Session::add_shorter(const Graph& loss_graph) {
  const NodeId first = loss_graph.inputs(InputKind::data).front();
  add_step(loss_graph, fmt::format("positions{}_", loss_graph.type({first, 0}).shape.elements()));
}

std::vector<Session::ProgramUse> Session::programs() const {
  std::vector<ProgramUse> list;
  const StepPrograms ids = usual();
  const auto program = [&](size_t i) { return &engine_.program(ids[i]); };
  if (ids.size() > 1) list.push_back({"first", program(0), 1});
  if (ids.size() > 2) list.push_back({"middle", program(1), options_.accumulation - 2});
  list.push_back({ids.size() > 1 ? "last" : "step", program(ids.size() - 1), 1});
  list.push_back({"eval", &engine_.program(evals_.find(usual_eval_.key())[0]), 0});
  if (decode_) list.push_back({"decode", &engine_.program(*decode_), 0});
  return list;
}

std::vector<const Program*> Session::all_programs() const {
  std::vector<const Program*> list;
  for (const size_t id : evals_.programs()) list.push_back(&engine_.program(id));
  for (const size_t id : bindings_.programs()) list.push_back(&engine_.program(id));
  if (decode_) list.push_back(&engine_.program(*decode_));
  return list;
}

Session::StepPrograms Session::programs_for(const io::Batch& batch) const {
  const auto positions = static_cast<int64_t>(batch.positions());
  const StepPrograms found = bindings_.find(BatchShape{usual_.rows, positions / usual_.rows}.key());
  return found.empty() ? usual() : found;
}

int64_t Session::bytes_of(Role role) const {
  const int64_t align = engine_.backend().alignment;
  int64_t bytes = 0;
  for (const StateInfo& s : engine_.states())
    if (s.role == role) bytes += round_up(std::max<int64_t>(s.type.bytes(), 1), align);
  return bytes;
}

bool Session::has_panels() const {
  return std::ranges::any_of(engine_.states(), [](const StateInfo& s) {
    return s.role == Role::derived && !s.type.storage.is_plain();
  });
}

void Session::allocate() {
  engine_.allocate();
  evaluations_.set_budget(std::max(kLeastForEvaluations, engine_.arena_bytes() / kArenaShare));
  if (scales_gradients())
    engine_.write_scalar(optim::kScaleState, static_cast<float>(options_.scaler.initial));
}

Session::Scalars Session::scalars_of(int64_t step, double loss_scale, double learning_rate) const {
  Scalars s;
  const auto seed = static_cast<int32_t>(options_.seed);
  s.loss_scale = static_cast<float>(loss_scale);
  s.learning_rate = static_cast<float>(learning_rate);
  s.optimizer_step = static_cast<int32_t>(step + 1);
  s.rounding_key[0] = seed;
  s.rounding_key[1] = static_cast<int32_t>(step);
  for (int64_t i = 0; i < options_.accumulation; ++i)
    s.rng_keys.push_back({seed, static_cast<int32_t>(step * options_.accumulation + i)});
  return s;
}

std::vector<Call::Input> Session::tensors_for(size_t program, const io::Batch& batch) const {
  std::vector<Call::Input> inputs;
  const Graph& graph = engine_.program(program).graph();
  for (const io::Batch::Tensor& t : batch.tensors)
    if (graph.find_input(t.name) != kNoNode) inputs.push_back({t.name, t.bytes(), t.is_borrowed()});
  return inputs;
}

Call Session::call_with(size_t program, const io::Batch& batch, const float& loss_scale) const {
  Call call{program, tensors_for(program, batch), {"loss"}};
  call.set("loss_scale", std::span(&loss_scale, 1));
  return call;
}

Call Session::call_of(size_t program, const io::Batch& batch, const Scalars& scalars,
                      size_t micro_batch) const {
  Call call = call_with(program, batch, scalars.loss_scale);
  if (has_dropout_) call.set("rng_key", std::span<const int32_t>(scalars.rng_keys[micro_batch]));
  return call;
}

void Session::add_optimizer(Call& call, const Scalars& scalars) const {
  call.scalars.push_back("grad_norm");
  call.set("learning_rate", std::span(&scalars.learning_rate, 1));
  call.set("optimizer_step", std::span(&scalars.optimizer_step, 1));
  if (engine_.program(call.program).graph().find_input("rounding_key") != kNoNode)
    call.set("rounding_key", std::span<const int32_t>(scalars.rounding_key));
}

std::vector<Call> Session::calls_of(std::span<const io::Batch> micro_batches,
                                    const Scalars& scalars) const {
  std::vector<Call> calls;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool is_last = i + 1 == micro_batches.size();
    const StepPrograms programs = programs_for(micro_batches[i]);
    const size_t program = is_last ? programs.back() : programs[i == 0 ? 0 : 1];
    calls.push_back(call_of(program, micro_batches[i], scalars, i));
    if (is_last) add_optimizer(calls.back(), scalars);
  }
  return calls;
}

StepResult Session::step(int64_t step, std::span<const io::Batch> micro_batches,
                         double learning_rate, Timeline* timeline) {
  BRRR_CHECK(static_cast<int64_t>(micro_batches.size()) == options_.accumulation,
             "{} micro-batches for accumulation {}", micro_batches.size(), options_.accumulation);
  int64_t count = 0;
  for (const io::Batch& b : micro_batches) count += b.count;
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, count));
  StepResult result;
  if (scales_gradients()) result.loss_scale = engine_.read_scalar(optim::kScaleState);
  const Scalars scalars = scalars_of(step, scale, learning_rate);
  const std::vector<Call> calls = calls_of(micro_batches, scalars);
  const auto read = engine_.run(calls, timeline);
  for (const std::vector<float>& of_call : read) result.loss += of_call[0];
  result.grad_norm = read.back()[1];
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    bad_step_ = {{}, scale, learning_rate, step};
    for (const io::Batch& batch : micro_batches) bad_step_->micro_batches.push_back(batch.owned());
  }
  return result;
}

std::optional<std::string> Session::first_non_finite() {
  if (!bad_step_) return std::nullopt;
  const Scalars scalars =
      scalars_of(bad_step_->step, bad_step_->loss_scale, bad_step_->learning_rate);
  const std::vector<Call> calls = calls_of(bad_step_->micro_batches, scalars);
  // In order, from sums of nothing: those that are bad now are no cause.
  for (const StateInfo& s : engine_.states())
    if (s.role == Role::gradient_sum)
      engine_.write_state(s.name, std::vector<std::byte>(static_cast<size_t>(s.type.bytes())));
  for (const Call& call : calls)
    if (std::optional<std::string> origin = engine_.first_non_finite(call)) return origin;
  return std::nullopt;
}

void Session::look_at_step(int64_t step, const io::Batch& batch, double learning_rate,
                           const Program::Look& look) {
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.count));
  const Scalars scalars = scalars_of(step, scale, learning_rate);
  Call call = call_of(programs_for(batch).back(), batch, scalars,
                      static_cast<size_t>(options_.accumulation - 1));
  add_optimizer(call, scalars);
  engine_.run_and_look(call, look);
}

double Session::loss_sum(const io::Batch& batch, std::vector<float>* logits) {
  const float one = 1;
  const auto positions = static_cast<int64_t>(batch.positions());
  auto programs = evals_.find(BatchShape{usual_eval_.rows, positions / usual_eval_.rows}.key());
  if (programs.empty()) programs = evals_.find(usual_eval_.key());
  const Call call = call_with(programs[0], batch, one);
  const double loss = engine_.run(std::span(&call, 1))[0][0];
  if (logits != nullptr) {
    const auto bytes = engine_.read_output(programs[0], "logits", room_);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    logits->assign(first, first + bytes.size() / sizeof(float));
  }
  return loss;
}

std::vector<float> Session::evaluate(const std::string& key, const std::function<Graph()>& graph,
                                     const io::Batch& batch, std::span<const std::string> outputs) {
  const size_t program = evaluations_.get(key, "the evaluation graph", [&] {
    PipelineOptions p = pipeline_;
    p.dump_prefix = "own_eval_";
    return std::vector{run_pipeline(graph(), engine_.backend().target(), p, &report_)};
  })[0];
  const std::array<int32_t, 2> rng_key = {static_cast<int32_t>(options_.seed), 0};
  Call call{program, tensors_for(program, batch), {outputs.begin(), outputs.end()}};
  if (engine_.program(program).graph().find_input("rng_key") != kNoNode)
    call.set("rng_key", std::span<const int32_t>(rng_key));
  return engine_.run(std::span(&call, 1))[0];
}

std::span<const float> Session::decode(int32_t token, int64_t position) {
  BRRR_CHECK(decode_.has_value(), "the session was given no graph that decodes");
  const auto at = static_cast<int32_t>(position);
  Call call{*decode_, {}, {}};
  call.set("tokens", std::span<const int32_t>(&token, 1));
  call.set("position", std::span<const int32_t>(&at, 1));
  engine_.run(std::span(&call, 1));
  const auto bytes = engine_.read_output(*decode_, "logits", room_);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace brrr::train
