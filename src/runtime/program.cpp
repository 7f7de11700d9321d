#include "runtime/program.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace brrr {
namespace {

/// Gives the whole pages inside [data, data + bytes), whose content is lost, back to the system.
void give_pages_back(std::byte* data, int64_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page,
             to = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

/// Last in every list: the op's own loops over converted copies, which lie on the heap. The scratch
/// memory stands for them in the plan: as much of it is not resident while they are.
class ReferenceKernel final : public Kernel {
 public:
  explicit ReferenceKernel(const NodeView& view) : node_(view.node()), in_types_(view.in) {
    for (const Type& t : in_types_) copies_ += t.shape.elements() * kElementBytes;
    // Reductions of integers compute into a copy.
    for (const Type& t : node_.results) copies_ += 2 * t.shape.elements() * kElementBytes;
    // An op with several results may order indices of its elements, as sort does, whose algorithm
    // takes half as much again.
    if (node_.results.size() > 1 && !in_types_.empty())
      copies_ += in_types_[0].shape.elements() * kElementBytes * 3 / 2;
  }
  int64_t scratch_bytes() const override { return copies_ < kFewBytes ? 0 : copies_; }
  bool in_place() const override {
    return true;
  }  // results are written after every operand is read
  void run(const KernelArgs& args) override {
    if (args.scratch != nullptr) give_pages_back(args.scratch, copies_);
    std::vector<RefTensor> in, out;
    std::vector<const RefTensor*> pointers;
    for (size_t i = 0; i < in_types_.size(); ++i)
      in.push_back(read_tensor(in_types_[i], args.in[i]));
    for (const RefTensor& t : in) pointers.push_back(&t);
    for (const Type& t : node_.results) out.emplace_back(t);
    node_.op->evaluate(EvalContext{node_, pointers, out});
    for (size_t i = 0; i < out.size(); ++i) write_tensor(out[i], args.out[i]);
  }

 private:
  static constexpr int64_t kElementBytes = 8;              // of a RefTensor
  static constexpr int64_t kFewBytes = int64_t{64} << 10;  // within what a forecast allows the heap
  Node node_;
  std::vector<Type> in_types_;
  int64_t copies_ = 0;
};

// How bad the worst element of a tensor is.
enum class Finiteness { finite, infinite, nan };

Finiteness finiteness(const Type& type, const std::byte* data) {
  if (!is_float(type.dtype)) return Finiteness::finite;
  Finiteness worst = Finiteness::finite;
  const auto look = [&](double x) {
    if (std::isnan(x))
      worst = Finiteness::nan;
    else if (std::isinf(x))
      worst = Finiteness::infinite;
    return worst != Finiteness::nan;
  };
  if (type.storage.is_plain()) {
    for (int64_t i = 0; i < type.shape.elements(); ++i)
      if (!look(load_as_double(type.dtype, data, i))) break;
  } else {
    const RefTensor tensor = read_tensor(type, data);
    for (const double x : tensor.data)
      if (!look(x)) break;
  }
  return worst;
}

// Masks are written with -inf on purpose.
bool is_mask(const Node& node) {
  if (node.op->makes_masks) return true;
  return std::ranges::any_of(regions_of(node), [](const Graph* region) {
    return std::ranges::any_of(region->nodes(), is_mask);
  });
}

/// Until which node each asynchronous kernel may be at work: the first reader of a result, or the
/// next but one asynchronous kernel, so that few operands wait for their transfer.
std::vector<NodeId> busy_until(const Graph& g,
                               const std::vector<std::unique_ptr<Kernel>>& kernels) {
  std::vector<NodeId> until(g.size()), first_reader(g.size(), static_cast<NodeId>(g.size()));
  std::vector<NodeId> asynchronous;
  for (NodeId id = 0; id < g.size(); ++id) {
    until[id] = id;
    if (kernels[id] && kernels[id]->is_asynchronous()) asynchronous.push_back(id);
    for (const ValueId& v : g.node(id).operands) {
      NodeId of = v.node;
      while (view_offset(g, g.node(of))) of = g.node(of).operands[0].node;
      first_reader[of] = std::min(first_reader[of], id);
    }
  }
  const auto last = static_cast<NodeId>(g.size()) - 1;
  for (size_t i = 0; i < asynchronous.size(); ++i) {
    const NodeId next = i + 2 < asynchronous.size() ? asynchronous[i + 2] - 1 : last;
    until[asynchronous[i]] = std::min({next, last, first_reader[asynchronous[i]]});
  }
  return until;
}

/// Bytes of one region of memory; of states, each is a region.
struct MemoryRange {
  MemoryRegion region = MemoryRegion::temporary;
  NodeId state = kNoNode;
  int64_t offset = 0, bytes = 0;
  bool overlaps(const MemoryRange& o) const {
    return region == o.region && state == o.state && offset < o.offset + o.bytes &&
           o.offset < offset + bytes;
  }
};

MemoryRange range_of(const Buffer& b, int64_t offset, int64_t bytes) {
  const bool is_state = b.region == MemoryRegion::state;
  return {b.region, is_state ? b.state : kNoNode, (is_state ? 0 : b.offset) + offset, bytes};
}

}  // namespace

Program::Program(const Graph& graph, const Backend& backend, const ProgramOptions& options)
    : graph_(save_old_states(graph)) {
  std::vector<std::unique_ptr<Kernel>> kernels(graph_.size());
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    if (graph_.is_input(id) || view_offset(graph_, node)) continue;
    const NodeView view(graph_, id);
    Backend::Choice choice = backend.choose(view);
    if (choice.entry != nullptr) {
      kernels[id] = choice.entry->prepare(view);
    } else if (backend.runs_reference) {
      BRRR_CHECK(node.op->is_primitive(), "{} has no kernel on {} and was not decomposed",
                 node.op->name, backend.name);
      kernels[id] = std::make_unique<ReferenceKernel>(view);
    }
    const std::string_view without = backend.runs_reference ? kReferenceLoops : "none";
    dispatch_.push_back(
        {id, std::string(choice.entry ? choice.entry->name : without), std::move(choice.refusals)});
  }
  if (const std::string missing = missing_kernels(backend); !missing.empty())
    user_error("{} has no kernel for {}", backend.name, missing);
  PlanOptions plan_options;
  plan_options.alignment = backend.alignment;
  plan_options.reuse = options.reuse_memory;
  plan_options.scratch_bytes = [&](NodeId id) {
    return kernels[id] ? kernels[id]->scratch_bytes() : 0;
  };
  plan_options.in_place = [&](NodeId id) { return kernels[id] && kernels[id]->in_place(); };
  const std::vector<NodeId> busy = busy_until(graph_, kernels);
  plan_options.busy_until = [&](NodeId id) { return busy[id]; };
  plan_ = memory_plan(graph_, plan_options);
  if (options.verify_memory) verify(plan_);
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (!kernels[id]) continue;
    Step step;
    step.node = id;
    step.kernel = std::move(kernels[id]);
    (plan_.constant[id] ? constant_steps_ : steps_).push_back(std::move(step));
  }
  find_awaited();
}

// "sin f32[8] (at h.0.mlp; 2 more), ...": what neither the backend nor the reference runs.
std::string Program::missing_kernels(const Backend& backend) const {
  std::map<std::string, int> more;
  std::vector<std::pair<std::string, std::string>> first;  // op, where
  if (backend.runs_reference) return "";
  for (const Dispatch& d : dispatch_) {
    if (d.kernel != "none") continue;
    const Node& node = graph_.node(d.node);
    if (more[node.op->name]++ > 0) continue;
    std::string where = graph_.scope_of(d.node);
    for (const std::string& refusal : d.refusals) where += (where.empty() ? "" : "; ") + refusal;
    first.emplace_back(node.op->name, where);
  }
  std::string text;
  for (const auto& [op, where] : first)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", op,
                        more[op] > 1 ? fmt::format(" ({} times)", more[op]) : "",
                        where.empty() ? "" : fmt::format(" (at {})", where));
  return text;
}

void Program::bind(Device& device, std::byte* temporary, std::byte* constant,
                   const std::function<std::byte*(NodeId)>& state) {
  device_ = &device;
  buffers_.clear();
  lent_.clear();
  for (const Buffer& b : plan_.buffers) {
    if (b.region == MemoryRegion::state)
      buffers_.push_back(state(b.state));
    else
      buffers_.push_back((b.region == MemoryRegion::constant ? constant : temporary) + b.offset);
  }
  for (auto* steps : {&constant_steps_, &steps_})
    for (Step& step : *steps) {
      const Node& node = graph_.node(step.node);
      step.in.clear();
      step.out.clear();
      for (const ValueId& v : node.operands) step.in.push_back(address(v));
      for (uint32_t port = 0; port < node.results.size(); ++port)
        step.out.push_back(address({step.node, port}));
      const int32_t scratch = plan_.scratch_of[step.node];
      step.task = {
          step.kernel.get(),
          {step.in, step.out, scratch < 0 ? nullptr : buffers_[static_cast<size_t>(scratch)]},
          graph_.scope_of(step.node)};
    }
  std::vector<Task> tasks;
  for (const auto* steps : {&constant_steps_, &steps_})
    for (const Step& step : *steps) tasks.push_back(step.task);
  device.prepare(tasks);
  constants_ready_ = false;
  marked_.reset();
  marks_.reset();
  has_run_ = false;
}

// An asynchronous kernel must be done before another step reads its results, or writes its operands
// or results. Those that began earlier are done then, too.
void Program::find_awaited() {
  struct Begun {
    size_t step;
    std::vector<MemoryRange> reads, writes;
  };
  std::vector<Begun> begun;  // in order; those in front of the last awaited one are done
  const auto any_overlap = [](const std::vector<MemoryRange>& a,
                              const std::vector<MemoryRange>& b) {
    return std::ranges::any_of(a, [&](const MemoryRange& x) {
      return std::ranges::any_of(b, [&](const MemoryRange& y) { return x.overlaps(y); });
    });
  };
  const auto range = [&](ValueId v) {
    return range_of(plan_.buffers[plan_.buffer(v)], plan_.offset_in[v.node][v.port],
                    graph_.type(v).bytes());
  };
  for (size_t at = 0; at < steps_.size(); ++at) {
    const NodeId id = steps_[at].node;
    const Node& node = graph_.node(id);
    Begun now{at, {}, {}};
    for (const ValueId& v : node.operands) now.reads.push_back(range(v));
    for (uint32_t port = 0; port < node.results.size(); ++port)
      now.writes.push_back(range({id, port}));
    if (const int32_t scratch = plan_.scratch_of[id]; scratch >= 0) {
      const Buffer& b = plan_.buffers[static_cast<size_t>(scratch)];
      now.writes.push_back(range_of(b, 0, b.bytes));
    }
    for (size_t i = begun.size(); i-- > 0;) {
      const Begun& earlier = begun[i];
      if (!any_overlap(now.reads, earlier.writes) && !any_overlap(now.writes, earlier.writes) &&
          !any_overlap(now.writes, earlier.reads))
        continue;
      steps_[at].awaited = earlier.step;
      begun.erase(begun.begin(), begun.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      break;
    }
    if (steps_[at].kernel->is_asynchronous()) begun.push_back(std::move(now));
  }
}

std::vector<Program::Queued> Program::order() const {
  std::vector<Queued> list;
  for (const Step& step : steps_)
    list.push_back({step.node, step.kernel->is_asynchronous(),
                    step.awaited == Step::kNone ? kNoNode : steps_[step.awaited].node});
  return list;
}

std::byte* Program::address(ValueId v) const {
  return buffers_[plan_.buffer(v)] + plan_.offset_in[v.node][v.port];
}

const std::vector<Program::InputRead>& Program::reads_of(NodeId input) {
  const auto [at, is_new] = input_reads_.try_emplace(input);
  if (!is_new) return at->second;
  const uint32_t buffer = plan_.buffer({input, 0});
  for (size_t s = 0; s < steps_.size(); ++s) {
    const auto& operands = graph_.node(steps_[s].node).operands;
    for (size_t i = 0; i < operands.size(); ++i)
      if (plan_.buffer(operands[i]) == buffer)
        at->second.push_back({s, i, plan_.offset_in[operands[i].node][operands[i].port]});
  }
  return at->second;
}

void Program::place_input(NodeId input, const std::byte* lent) {
  BRRR_CHECK(device_ != nullptr && device_->is_host(), "only the host reads inputs where they lie");
  BRRR_CHECK(graph_.input_kind(input) == InputKind::data, "only data inputs are lent");
  std::byte*& place = buffers_[plan_.buffer({input, 0})];
  if (lent == nullptr) {
    const auto at = lent_.find(input);
    if (at == lent_.end()) return;
    place = at->second;
    lent_.erase(at);
  } else {
    lent_.try_emplace(input, place);
    place = const_cast<std::byte*>(lent);  // kernels never write to a data input
  }
  for (const InputRead& read : reads_of(input))
    steps_[read.step].in[read.operand] = place + read.offset;
}

void Program::prepare() {
  BRRR_CHECK(device_ != nullptr, "the program has no memory yet");
  if (constants_ready_) return;
  for (const Step& step : constant_steps_) device_->run(step.task);
  constants_ready_ = true;
}

void Program::run(Timeline* timeline) {
  prepare();
  if (timeline == nullptr) return queue([](NodeId) {});
  if (!marks_) marks_ = device_->marks(steps_.size() + plan_.copies.size() + 1);
  if (marks_) return run_marked(*timeline);
  TimelineWriter times(*timeline, *this);
  queue([&](NodeId id) {
    device_->synchronise();
    times.ended(id);
  });
  times.finish();
}

void Program::queue(const std::function<void(NodeId)>& queued) {
  // What a run waits for an asynchronous kernel counts to that kernel.
  const auto await = [&](const Step& step) {
    step.kernel->finish();
    queued(step.node);
  };
  for (const Step& step : steps_) {
    if (step.awaited != Step::kNone) await(steps_[step.awaited]);
    device_->run(step.task);
    queued(step.node);
  }
  const auto last = std::find_if(steps_.rbegin(), steps_.rend(),
                                 [](const Step& step) { return step.kernel->is_asynchronous(); });
  if (last != steps_.rend()) await(*last);
  copy_states(queued);
  has_run_ = true;
}

void Program::copy_states(const std::function<void(NodeId)>& queued) {
  for (const StateCopy& copy : plan_.copies) {
    device_->copy(address({copy.to, 0}), address(copy.from), graph_.type({copy.to, 0}).bytes());
    queued(copy.to);
  }
}

void Program::run_marked(Timeline& timeline) {
  std::vector<NodeId> nodes;
  const auto work = [&] {
    marks_->set(0);
    queue([&, i = size_t{0}](NodeId) mutable { marks_->set(++i); });
  };
  for (const Step& step : steps_) nodes.push_back(step.node);
  for (const StateCopy& copy : plan_.copies) nodes.push_back(copy.to);
  // As a recording kernels wait for nothing but each other, however short they are. Libraries may
  // load and allocate when they run for the first time, which a recording must not.
  if (has_run_ && !marked_) marked_ = device_->record(work);
  device_->synchronise();
  TimelineWriter times(timeline, *this);
  if (marked_)
    device_->replay(*marked_);
  else
    work();
  times.finish(nodes, marks_->seconds());
}

std::string Program::describe(NodeId id) const {
  if (graph_.is_input(id)) return fmt::format("the values of {}", graph_.input_name(id));
  const std::string& scope = graph_.scope_of(id);
  return graph_.node(id).op->name + (scope.empty() ? "" : " at " + scope);
}

/// The content of a value, copied to `room` where it lies elsewhere.
const std::byte* Program::on_host(ValueId v, std::vector<std::byte>& room) const {
  if (device_->is_host()) return address(v);
  room.resize(static_cast<size_t>(graph_.type(v).bytes()));
  device_->copy_out(room.data(), address(v), graph_.type(v).bytes());
  return room.data();
}

void Program::run_and_look(const Look& look) {
  prepare();
  std::vector<std::byte> room;
  for (const Step& step : steps_) {
    device_->run(step.task);
    if (step.kernel->is_asynchronous()) step.kernel->finish();
    device_->synchronise();
    for (uint32_t port = 0; port < graph_.node(step.node).results.size(); ++port)
      look({step.node, port}, on_host({step.node, port}, room));
  }
  copy_states([](NodeId) {});
}

std::optional<Program::Origin> Program::first_non_finite() {
  std::vector<std::byte> room;
  const auto worst = [&](ValueId v) { return finiteness(graph_.type(v), on_host(v, room)); };
  const bool goes_on =
      std::ranges::any_of(steps_, [](const Step& step) { return step.kernel->is_collective(); });
  std::optional<Origin> origin;
  for (NodeId id : graph_.inputs())
    if (!origin && worst({id, 0}) != Finiteness::finite) origin = {describe(id), 0};
  for (size_t i = 0; i < steps_.size() && (goes_on || !origin); ++i) {
    Step& step = steps_[i];
    Finiteness before = Finiteness::finite;
    if (!origin)
      for (const ValueId& v : graph_.node(step.node).operands) before = std::max(before, worst(v));
    device_->run(step.task);
    if (step.kernel->is_asynchronous()) step.kernel->finish();
    for (uint32_t port = 0; !origin && port < graph_.node(step.node).results.size(); ++port)
      if (const Finiteness after = worst({step.node, port});
          after == Finiteness::nan || (after > before && !is_mask(graph_.node(step.node))))
        origin = {describe(step.node), i + 1};
  }
  if (!origin || goes_on) copy_states([](NodeId) {});
  return origin;
}

bool Program::is_interpreted(NodeId node) const {
  const auto at = std::ranges::find(dispatch_, node, &Dispatch::node);
  return at != dispatch_.end() && at->kernel == kReferenceLoops;
}

std::vector<std::string> summary(const Graph& graph, const std::vector<Dispatch>& dispatch) {
  std::map<std::string, int> counts;
  std::vector<std::string> order;
  for (const Dispatch& d : dispatch) {
    std::string line = fmt::format("{} by {}", graph.node(d.node).op->name, d.kernel);
    for (const std::string& refusal : d.refusals) line += fmt::format("; not {}", refusal);
    if (counts[line]++ == 0) order.push_back(line);
  }
  std::vector<std::string> lines;
  for (const std::string& line : order) lines.push_back(fmt::format("{:4} {}", counts[line], line));
  return lines;
}

}  // namespace brrr
