#include "infer/runner.h"

#include <algorithm>
#include <utility>

#include "machine/memory_budget.h"

namespace brrr::infer {
namespace {

int64_t output_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const Output& out : graph.outputs()) bytes += graph.type(out.value).bytes();
  return bytes;
}

}  // namespace

Runner::Runner(const std::shared_ptr<const Runnable>& runnable, const Backend& backend,
               RunnableOptions options, Memory memory, int64_t beside, int64_t output_copies)
    : room_(backend, std::move(memory)),
      beside_(beside),
      output_copies_(output_copies),
      runnable_(runnable),
      options_(watched(std::move(options))),
      session_(std::make_unique<RunnableSession>(runnable, backend, options_)) {
  // Values that decide about the first program are computed before it is there.
  room_.measure(session_->engine(), beside_);
}

RunnableOptions Runner::watched(RunnableOptions options) {
  if (!room_.may_read_in_place()) options.together = 0;
  options.before_program = [this](Engine& engine, const Graph& next) {
    room_.set_limit(engine, next, tensor_bytes(&next) + session_->known_bytes() + beside_);
  };
  return options;
}

int64_t Runner::tensor_bytes(const Graph* next) const {
  std::vector<int64_t> bytes;
  for (const Graph* graph : session_->engine().graphs()) bytes.push_back(output_bytes(*graph));
  if (next != nullptr) bytes.push_back(output_bytes(*next));
  if (bytes.empty()) return 0;
  // What a program gives lies beside what the one before it gave.
  std::ranges::sort(bytes, std::greater<>());
  return output_copies_ * bytes[0] + (output_copies_ > 0 && bytes.size() > 1 ? bytes[1] : 0);
}

void Runner::prepare(std::span<const PortValues> inputs, const std::vector<std::string>& wanted) {
  prepare_by([&] {
    for (const PortValues& each : inputs) is_complete_ = session_->prepare(each, wanted);
  });
}

void Runner::prepare_by(const std::function<void()>& compile) {
  const auto compile_and_measure = [&] {
    compile();
    machine::trim_heap();
    room_.measure(session_->engine(), tensor_bytes() + beside_);
  };
  compile_and_measure();
  const auto lies_in_panels = [](const StateInfo& state) {
    return state.type.storage.layout != Layout::rows;
  };
  if (!room_.fits(session_->engine()) && room_.may_read_in_place() &&
      std::ranges::any_of(session_->engine().states(), lies_in_panels)) {
    options_.passes.disabled.emplace(kWeightPanels);
    const Backend backend = session_->engine().backend();
    session_.reset();
    session_ = std::make_unique<RunnableSession>(runnable_, backend, options_);
    room_.measure(session_->engine(), beside_);
    compile_and_measure();
  }
  room_.check(session_->engine());
  is_prepared_ = true;
}

PortValues Runner::run(const PortValues& inputs, const std::vector<std::string>& wanted,
                       Timeline* timeline) {
  if (!is_prepared_) prepare(inputs, wanted);
  return room_.run([&] { return session_->run(inputs, wanted, timeline); });
}

void Runner::run_into(PortValues& outputs, const PortValues& inputs,
                      const std::vector<std::string>& wanted, Timeline* timeline) {
  if (!is_prepared_) prepare(inputs, wanted);
  room_.run([&] { session_->run_into(outputs, inputs, wanted, timeline); });
}

void Runner::run_views(const TensorViews& inputs, const std::vector<std::string>& wanted,
                       const RunnableSession::SeeOutput& see) {
  if (!is_prepared_) prepare_by([&] { is_complete_ = session_->prepare(inputs, wanted); });
  room_.run([&] { session_->run_views(inputs, wanted, see); });
}

OutputView Runner::run_in_place(const PortValues& inputs, const std::vector<std::string>& wanted,
                                Timeline* timeline) {
  if (!is_prepared_) prepare(inputs, wanted);
  return room_.run([&] { return session_->run_in_place(inputs, wanted, timeline); });
}

machine::ProcessForecast Runner::forecast() const {
  const Engine& engine = session_->engine();
  const bool is_on_device = engine.backend().memory_bytes > 0;
  machine::ProcessForecast f = machine::forecast_running(
      engine.graphs(), machine::ProcessKind::inference, room_.now(), is_on_device);
  f.program = room_.now().needed();
  f.arena = is_on_device ? 0 : room_.most_at_once(engine);
  f.batches = tensor_bytes() + beside_;
  // Weights that are no longer read where they lie were read there once.
  f.mapped = std::max(room_.now().inputs, static_cast<int64_t>(runnable_->file_bytes()));
  return f;
}

}  // namespace brrr::infer
