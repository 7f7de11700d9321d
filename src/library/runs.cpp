// Training by the C interface: a run of `brrr train` whose loop the caller writes, a run of the
// caller's own graph, and `brrr train` as a whole.

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/human.h"
#include "base/tell.h"
#include "base/threads/parallel.h"
#include "folders/checkpoint.h"
#include "formats/json_file.h"
#include "library/run.h"
#include "machine/speed.h"
#include "train/open_run.h"
#include "train/predict.h"
#include "train/ranks.h"
#include "train/run_watch.h"
#include "train/trainer.h"

using namespace brrr;
using namespace brrr::library;

namespace brrr::library {
namespace {

void say_note(const std::string& line) { tell("{}\n", line); }

/// The run that `brrr train` would do with these options.
class NamedRun final : public brrr_run {
 public:
  NamedRun(const train::TrainOptions& options, std::shared_ptr<Communicator> ranks)
      : run_(options, std::nullopt, say_note, ranks) {
    communicator = std::move(ranks);
    run_.compile();
    run_.initialise();
  }
  brrr_step step(const NamedTensors& tensors) override {
    if (!tensors.empty())
      usage_error("this run reads its own data; give tensors to a run of your own graph");
    const Stopwatch watch;
    const double rate = run_.scheduled_rate();
    const int64_t tokens = run_.state().tokens;
    const train::StepResult r = run_.step(next_timeline());
    brrr_step s = step_of(run_.state().step, r, rate, watch.seconds());
    s.tokens = run_.state().tokens - tokens;
    return s;
  }
  double evaluate(const NamedTensors& tensors) override {
    if (!tensors.empty())
      usage_error("this run reads its own data; give tensors to a run of your own graph");
    if (!run_.dataset().has_val)
      usage_error("this run has no validation data; see the option val-fraction");
    return run_.evaluate().loss;
  }
  std::vector<double> evaluate_graph(const brrr_graph*, const std::vector<std::string>&,
                                     const NamedTensors&) override {
    usage_error("this run reads its own data; brrr_run_evaluate() gives its loss");
  }
  void save(const fs::path& folder) override {
    fs::create_directories(folder);
    train::write_model(folder, run_.parts());
  }
  void save_state(const fs::path& folder) override {
    fs::create_directories(folder);
    run_.save_checkpoint_in(folder);
  }
  void load_state(const fs::path& checkpoint) override {
    const io::Checkpoint found = io::open_checkpoint(checkpoint);
    train::check_resumable(found);
    run_.load(found.folder);
  }
  train::Session& session() override { return run_.session(); }
  const train::TrainOptions& options() const override { return run_.options(); }
  int64_t steps_done() const override { return run_.state().step; }
  brrr_plan plan() const override {
    return plan_of(run_.session(), run_.process_forecast().resident(), run_.memory_limit());
  }

 private:
  train::OpenRun run_;
};

/// The kernels of a timeline by op, the slowest first: a line each.
std::string kernel_table(const Timeline& timeline, int64_t steps) {
  struct Row {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Row> rows;
  double all = 0;
  for (const TimelineRun& run : timeline.runs)
    for (size_t i = run.first; i < run.last; ++i) {
      const TimelineRecord& record = timeline.records[i];
      const Node& node = run.program->graph().node(record.node);
      Row& row = rows[fmt::format("{} {}", node.op->name,
                                  node.results.empty() ? "" : node.results[0].str())];
      ++row.calls;
      row.seconds += record.seconds;
      all += record.seconds;
    }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(
      sorted, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  const auto per_step = static_cast<double>(std::max<int64_t>(1, steps));
  std::string text = fmt::format("{} timed, {:.3f} ms of kernels in each\n", counted(steps, "step"),
                                 1e3 * all / per_step);
  for (const auto& [name, row] : sorted)
    text += fmt::format("{:9.3f} ms {:5.1f}% {:6.1f} calls  {}\n", 1e3 * row.seconds / per_step,
                        100 * row.seconds / std::max(all, 1e-12),
                        static_cast<double>(row.calls) / per_step, name);
  return text;
}

/// Tells steps to a callback of the caller.
class StepObserver final : public train::RunObserver {
 public:
  StepObserver(brrr_on_step on_step, void* context) : on_step_(on_step), context_(context) {}
  void step(const train::StepRecord& r) override {
    if (on_step_ == nullptr || stops_) return;
    const brrr_step s{.step = r.step,
                      .loss = r.loss,
                      .grad_norm = r.grad_norm,
                      .learning_rate = r.learning_rate,
                      .loss_scale = r.loss_scale,
                      .seconds = r.seconds,
                      .tokens = r.tokens};
    stops_ = on_step_(context_, &s) != 0;
  }
  bool wants_stop() const override { return stops_; }

 private:
  brrr_on_step on_step_;
  void* context_;
  bool stops_ = false;
};

/// The rows of all ranks, one rank after the other, at most so many.
std::unique_ptr<brrr_tensor> gathered_rows(Communicator* communicator, const brrr_tensor& own,
                                           int64_t most) {
  const std::span<const std::byte> own_bytes = brrr::library::bytes_of(own);
  std::vector<std::byte> bytes(own_bytes.begin(), own_bytes.end());
  std::vector<int64_t> sizes = own.sizes;
  if (communicator != nullptr) {
    const std::vector<int64_t> counts = communicator->gather_values(sizes[0]);
    const int64_t largest = std::max<int64_t>(1, *std::ranges::max_element(counts));
    const auto row = bytes.size() / static_cast<size_t>(std::max<int64_t>(1, sizes[0]));
    bytes.resize(row * static_cast<size_t>(largest));
    const auto gathered = communicator->gather(bytes);
    bytes.clear();
    sizes[0] = 0;
    for (size_t rank = 0; rank < gathered.size(); ++rank) {
      const auto used = static_cast<std::ptrdiff_t>(row * static_cast<size_t>(counts[rank]));
      bytes.insert(bytes.end(), gathered[rank].begin(), gathered[rank].begin() + used);
      sizes[0] += counts[rank];
    }
  }
  if (most >= 0) sizes[0] = std::min(sizes[0], most);
  std::vector<Dim> dims(sizes.begin(), sizes.end());
  const Type type{own.dtype, Shape(dims)};
  return tensor_of(type, std::span(bytes).first(static_cast<size_t>(type.bytes())));
}

}  // namespace
}  // namespace brrr::library

brrr_status brrr_run_create(const brrr_graph* graph, const char* loss, const brrr_option* options,
                            size_t count, brrr_run** run) {
  return guarded([&] {
    brrr_run*& out = checked(run, "run");
    train::TrainOptions o = train::resolve(key_values(options, count));
    if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
    std::shared_ptr<Communicator> ranks = train::join_ranks(o);
    if (graph == nullptr) {
      train::cut_into_slots(o);
      out = std::make_unique<NamedRun>(o, std::move(ranks)).release();
    } else {
      out = make_graph_run(*graph, text_of(loss, "loss"), o, std::move(ranks)).release();
    }
  });
}
void brrr_run_free(brrr_run* run) { delete run; }

brrr_status brrr_run_step(brrr_run* run, const char* const* names, brrr_tensor* const* tensors,
                          size_t count, brrr_step* step) {
  return guarded([&] {
    brrr_run& r = checked(run, "run");
    NamedTensors given;
    const auto portions = static_cast<size_t>(r.session().shares().local());
    for (size_t i = 0; i < portions && count > 0; ++i)
      for (auto& each : named(names, tensors + i * count, count)) given.push_back(std::move(each));
    const brrr_step done = r.step(given);
    r.timed_steps += r.is_timed ? 1 : 0;
    if (step != nullptr) *step = done;
  });
}

brrr_status brrr_run_evaluate(brrr_run* run, const char* const* names, brrr_tensor* const* tensors,
                              size_t count, double* loss) {
  return guarded([&] {
    double& out = checked(loss, "loss");
    out = checked(run, "run").evaluate(named(names, tensors, count));
  });
}

brrr_status brrr_run_evaluate_graph(brrr_run* run, const brrr_graph* graph,
                                    const char* const* outputs, size_t output_count,
                                    const char* const* names, brrr_tensor* const* tensors,
                                    size_t count, size_t batch_count, double* means,
                                    int64_t* rows) {
  return guarded([&] {
    checked(means, "means");
    brrr_run& r = checked(run, "run");
    const std::vector<std::string> wanted =
        texts_of(outputs, output_count, "the name of an output");
    if (wanted.empty()) usage_error("an evaluation names the outputs whose means it gives");
    if (batch_count == 0) usage_error("an evaluation takes batches; got none");
    std::vector<double> sums(wanted.size());
    int64_t all = 0;
    for (size_t i = 0; i < batch_count; ++i) {
      const NamedTensors batch = named(names, tensors + i * count, count);
      const std::vector<double> numbers = r.evaluate_graph(graph, wanted, batch);
      const int64_t size =
          batch.empty() || batch[0].second->sizes.empty() ? 1 : batch[0].second->sizes[0];
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += static_cast<double>(size) * numbers[k];
      all += size;
    }
    for (size_t k = 0; k < sums.size(); ++k)
      means[k] = sums[k] / static_cast<double>(std::max<int64_t>(all, 1));
    if (rows != nullptr) *rows = all;
  });
}

int64_t brrr_run_max_steps(const brrr_run* run) {
  return run == nullptr ? 0 : run->options().max_steps;
}
int64_t brrr_run_steps_done(const brrr_run* run) { return run == nullptr ? 0 : run->steps_done(); }
int64_t brrr_run_accumulation(const brrr_run* run) {
  return run == nullptr ? 0 : const_cast<brrr_run*>(run)->session().shares().local();
}
int64_t brrr_run_rank(const brrr_run* run) {
  return run == nullptr || !run->communicator ? 0 : run->communicator->rank();
}
int64_t brrr_run_ranks(const brrr_run* run) {
  return run == nullptr ? 0 : run->communicator ? run->communicator->ranks() : 1;
}

brrr_status brrr_run_gather(brrr_run* run, const brrr_tensor* rows, int64_t most_rows,
                            brrr_tensor** all) {
  return guarded([&] {
    brrr_tensor*& out = checked(all, "all");
    const brrr_run& r = checked(run, "run");
    const brrr_tensor& own = checked(rows, "rows");
    if (own.sizes.empty()) usage_error("what ranks gather needs a first axis, its rows; got f32[]");
    out = gathered_rows(r.communicator.get(), own, most_rows).release();
  });
}

brrr_status brrr_run_plan(const brrr_run* run, brrr_plan* plan) {
  return guarded([&] { checked(plan, "plan") = checked(run, "run").plan(); });
}

brrr_status brrr_run_forecast(const brrr_run* run, int measure, double* step_seconds) {
  return guarded([&] {
    double& out = checked(step_seconds, "step_seconds");
    const train::Session& session = const_cast<brrr_run&>(checked(run, "run")).session();
    out = 0;
    if (session.engine().backend().memory_bytes > 0) return;  // rates are the processor's
    const auto speed = machine::machine_speed(
        measure != 0 ? machine::Measure::once : machine::Measure::never, run->plan().limit_bytes);
    if (speed) out = 1e-3 * train::predict_step(session, *speed).total_ms();
  });
}

brrr_status brrr_run_parameter(brrr_run* run, const char* name, brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const Engine& engine = checked(run, "run").session().engine();
    const std::string wanted = text_of(name, "name");
    const StateInfo* state = engine.find_state(wanted);
    if (state == nullptr || state->kind() != InputKind::parameter) {
      std::vector<std::string> names;
      for (const StateInfo& s : engine.states())
        if (s.kind() == InputKind::parameter) names.push_back(s.name);
      const std::string near = nearest(wanted, names);
      usage_error("there is no parameter '{}'{}", wanted,
                  near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    }
    std::vector<std::byte> room;
    const auto size =
        static_cast<size_t>(state->type.shape.elements()) * brrr::bytes_of(state->type.dtype);
    out = tensor_of({state->type.dtype, state->type.shape},
                    engine.read_state(wanted, room).first(size))
              .release();
  });
}

brrr_status brrr_run_time_steps(brrr_run* run, int on) {
  return guarded([&] {
    brrr_run& r = checked(run, "run");
    r.is_timed = on != 0;
    if (!r.is_timed) return;
    r.timeline.clear();
    r.timed_steps = 0;
  });
}

brrr_status brrr_run_profile(brrr_run* run, char** text) {
  return guarded([&] {
    char*& out = checked(text, "text");
    const brrr_run& r = checked(run, "run");
    if (r.timed_steps == 0) usage_error("no step was timed; call brrr_run_time_steps() before it");
    out = copy_of(kernel_table(r.timeline, r.timed_steps));
  });
}

brrr_status brrr_run_save(brrr_run* run, const char* folder) {
  return guarded([&] { checked(run, "run").save(text_of(folder, "folder")); });
}
brrr_status brrr_run_save_state(brrr_run* run, const char* folder) {
  return guarded([&] { checked(run, "run").save_state(text_of(folder, "folder")); });
}
brrr_status brrr_run_load_state(brrr_run* run, const char* checkpoint) {
  return guarded([&] { checked(run, "run").load_state(text_of(checkpoint, "checkpoint")); });
}

brrr_status brrr_train(const brrr_option* options, size_t count, brrr_on_step on_step,
                       void* context, char** json) {
  return guarded([&] {
    StepObserver observer(on_step, context);
    train::TrainOptions o = train::resolve(key_values(options, count));
    std::shared_ptr<Communicator> ranks = train::join_ranks(o);
    const train::TrainResult result = train::train(o, &observer, std::move(ranks));
    if (json != nullptr) *json = copy_of(train::result_json(result));
    if (result.was_stopped || result.signal != 0) throw Stopped();
  });
}

int64_t brrr_run_copied_bytes(const brrr_run* run) {
  return run == nullptr ? 0 : const_cast<brrr_run*>(run)->session().engine().copied_input_bytes();
}
