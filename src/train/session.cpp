#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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
  const StepShares& shares = options.shares;
  BRRR_CHECK(shares.local() >= 1 && shares.micro_batches % shares.slots == 0 &&
                 shares.slots % shares.ranks == 0,
             "{} micro-batches in {} slots on {} ranks", shares.micro_batches, shares.slots,
             shares.ranks);
  for (int64_t i = 0; i < shares.local(); ++i) {
    const optim::GradientSums sums = shares.sums_of(i);
    const auto at = std::ranges::find(parts_, sums);
    part_of_.push_back(static_cast<size_t>(at - parts_.begin()));
    if (at == parts_.end()) parts_.push_back(sums);
  }
  engine_.expect_calls(shares.local());
  has_dropout_ = loss_graph.find_input("rng_key") != kNoNode;
  if (scales_gradients()) options_.optimizer.scaler = options.scaler;
  pipeline_.precision = options.precision;
  pipeline_.fp8 = options.fp8;
  pipeline_.parameter_dtype = options.parameter_dtype;
  pipeline_.base_dtype = options.base_dtype;
  pipeline_.base_quantization = options.base_quantization;
  pipeline_.matmul_precision = options.matmul_precision;
  pipeline_.fake_quantization = options.fake_quantization;
  pipeline_.rematerialize = options.rematerialize;
  pipeline_.sharding = {shares.ranks, shares.zero};
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
  if (buffers_.empty())
    for (const Output& o : graph.outputs())
      if (o.updates != kNoNode) buffers_.push_back(graph.input_name(o.updates));
  if (scales_gradients()) loss_ = optim::attach_scaled_loss(graph, "loss");
  bindings_.get(shape_of(loss_graph).key(), "a step", [&] {
    std::vector<Graph> graphs;
    for (size_t i = 0; i < parts_.size(); ++i) {
      PipelineOptions p = pipeline_;
      p.loss = loss_;
      p.optimizer = [&](Graph& g) { optim::attach_optimizer(g, options_.optimizer, parts_[i]); };
      p.dump_prefix = prefix + part_name(i) + "_";
      graphs.push_back(run_pipeline(graph, engine_.backend().target(), p, &report_));
    }
    return graphs;
  });
  compile_seconds_ += watch.seconds();
}

void Session::add_shorter(const Graph& loss_graph) {
  const NodeId first = loss_graph.inputs(InputKind::data).front();
  add_step(loss_graph, fmt::format("positions{}_", loss_graph.type({first, 0}).shape.elements()));
}

std::string Session::part_name(size_t part) const {
  const optim::GradientSums& sums = parts_[part];
  if (sums.ends_step) return parts_.size() > 1 ? "last" : "step";
  if (!sums.ends_slot) return sums.continues_slot ? "middle" : "first";
  return fmt::format("slot_{}{}", sums.merged, sums.continues_slot ? "_last" : "");
}

std::vector<Session::ProgramUse> Session::programs() const {
  std::vector<ProgramUse> list;
  const StepPrograms ids = usual();
  for (size_t i = 0; i < parts_.size(); ++i)
    list.push_back({part_name(i), &engine_.program(ids[i]), std::ranges::count(part_of_, i)});
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
    if (s.role == role && engine_.stands_for_parameters(s) == nullptr)
      bytes += round_up(std::max<int64_t>(s.type.bytes(), 1), align);
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
  const StepShares& shares = options_.shares;
  for (int64_t i = 0; i < shares.local(); ++i)
    s.rng_keys.push_back(
        {seed, static_cast<int32_t>(step * shares.micro_batches + shares.number_of(i))});
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
  call.scalars.insert(call.scalars.end(), options_.figures.begin(), options_.figures.end());
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
    calls.push_back(
        call_of(programs_for(micro_batches[i])[part_of_[i]], micro_batches[i], scalars, i));
    if (i + 1 == micro_batches.size()) add_optimizer(calls.back(), scalars);
  }
  return calls;
}

int64_t Session::sum_of_ranks(int64_t count) const {
  if (options_.communicator == nullptr) return count;
  int64_t sum = 0;
  for (const int64_t theirs : options_.communicator->gather_values(count)) sum += theirs;
  return sum;
}

// A scalar of all micro-batches, added in their order whichever rank had them.
double Session::sum_over_ranks(const std::vector<std::vector<float>>& scalars,
                               size_t scalar) const {
  const StepShares& shares = options_.shares;
  std::vector<float> values;
  for (const std::vector<float>& of_call : scalars) values.push_back(of_call[scalar]);
  double sum = 0;
  if (options_.communicator == nullptr) {
    for (const float value : values) sum += value;
    return sum;
  }
  const auto gathered = options_.communicator->gather(std::as_bytes(std::span(values)));
  std::vector<float> in_order(static_cast<size_t>(shares.micro_batches));
  for (int64_t rank = 0; rank < shares.ranks; ++rank) {
    const auto* theirs = reinterpret_cast<const float*>(gathered[static_cast<size_t>(rank)].data());
    for (int64_t i = 0; i < shares.local(); ++i)
      in_order[static_cast<size_t>(shares.number_of(i, rank))] = theirs[i];
  }
  for (const float value : in_order) sum += value;
  return sum;
}

StepResult Session::step(int64_t step, std::span<const io::Batch> micro_batches,
                         double learning_rate, Timeline* timeline) {
  BRRR_CHECK(std::ssize(micro_batches) == options_.shares.local(), "{} micro-batches of {}",
             micro_batches.size(), options_.shares.local());
  int64_t count = 0;
  for (const io::Batch& b : micro_batches) count += b.count;
  count = sum_of_ranks(count);
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, count));
  StepResult result;
  if (scales_gradients()) result.loss_scale = engine_.read_scalar(optim::kScaleState);
  const Scalars scalars = scalars_of(step, scale, learning_rate);
  const std::vector<Call> calls = calls_of(micro_batches, scalars);
  const auto read = engine_.run(calls, timeline);
  result.loss = sum_over_ranks(read, 0);
  for (size_t i = 0; i < options_.figures.size(); ++i)
    result.figures.push_back(sum_over_ranks(read, 1 + i));
  result.grad_norm = read.back().back();
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    bad_step_ = {{}, scale, learning_rate, step};
    for (const io::Batch& batch : micro_batches) bad_step_->micro_batches.push_back(batch.owned());
  }
  return result;
}

void Session::share_buffers() {
  if (options_.communicator == nullptr) return;
  for (const std::string& name : buffers_)
    engine_.fill_state(name, [&](std::span<std::byte> bytes) {
      std::vector<std::byte> room;
      const std::span<const std::byte> own = engine_.read_state(name, room);
      if (own.data() != bytes.data()) std::ranges::copy(own, bytes.begin());
      options_.communicator->broadcast(bytes, 0);
    });
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
  std::optional<Program::Origin> first;
  size_t of_call = 0;
  for (size_t i = 0; i < calls.size() && (!first || options_.communicator != nullptr); ++i)
    if (auto origin = engine_.first_non_finite(calls[i]); origin && !first) {
      first = std::move(origin);
      of_call = i;
    }
  if (options_.communicator != nullptr) return first_of_ranks(first, of_call);
  return first ? std::optional(first->text) : std::nullopt;
}

// The earliest of all ranks: later ones may have got their numbers from it.
std::optional<std::string> Session::first_of_ranks(const std::optional<Program::Origin>& own,
                                                   size_t of_call) const {
  struct Found {
    bool any = false;
    size_t call = 0, step = 0;
    char text[256] = {};
  } found{own.has_value(), of_call, own ? own->step : 0};
  if (own) own->text.copy(found.text, sizeof found.text - 1);
  const std::vector<Found> all = options_.communicator->gather_values(found);
  size_t first = all.size();
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].any && (first == all.size() || std::tuple(all[rank].call, all[rank].step) <
                                                     std::tuple(all[first].call, all[first].step)))
      first = rank;
  if (first == all.size()) return std::nullopt;
  return fmt::format("{} on rank {}", all[first].text, first);
}

void Session::look_at_step(int64_t step, const io::Batch& batch, double learning_rate,
                           const Program::Look& look) {
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.count));
  const Scalars scalars = scalars_of(step, scale, learning_rate);
  Call call = call_of(programs_for(batch).back(), batch, scalars,
                      static_cast<size_t>(options_.shares.local() - 1));
  add_optimizer(call, scalars);
  engine_.run_and_look(call, look);
}

double Session::loss_sum(const io::Batch& batch, std::vector<float>* logits) {
  return sums(batch, "logits", logits)[0];
}

std::vector<double> Session::sums(const io::Batch& batch, const std::string& output,
                                  std::vector<float>* values) {
  const float one = 1;
  const auto positions = static_cast<int64_t>(batch.positions());
  auto programs = evals_.find(BatchShape{usual_eval_.rows, positions / usual_eval_.rows}.key());
  if (programs.empty()) programs = evals_.find(usual_eval_.key());
  const Call call = call_with(programs[0], batch, one);
  const std::vector<float> scalars = engine_.run(std::span(&call, 1))[0];
  if (values != nullptr) {
    const auto bytes = engine_.read_output(programs[0], output, room_);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    values->assign(first, first + bytes.size() / sizeof(float));
  }
  return {scalars.begin(), scalars.end()};
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
