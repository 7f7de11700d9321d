#pragma once
// A compiled graph: scheduled, every node with its kernel, every value with its place. Program
// knows what memory it needs; Engine gives it the memory.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "passes/memory/memory_plan.h"
#include "runtime/backend.h"
#include "runtime/device.h"
#include "runtime/timeline.h"

namespace brrr {

struct ProgramOptions {
  bool reuse_memory = true;    // off: every value in its own place, to judge the plan
  bool verify_memory = false;  // check that no two live buffers overlap
};

/// Dispatch::kernel of a node that no kernel accepts.
inline constexpr std::string_view kReferenceLoops = "reference";

/// How a node is run, for --explain-dispatch.
struct Dispatch {
  NodeId node;
  std::string kernel;
  std::vector<std::string> refusals;
};

/// The dispatch as lines for people: ops of one name that one kernel runs for the same reasons are
/// one line with their number.
std::vector<std::string> summary(const Graph& graph, const std::vector<Dispatch>& dispatch);

class Program {
 public:
  /// `graph` must be static, and hold only what the backend runs or, where its backend has it, the
  /// reference evaluates: else UserError with the ops that remain.
  Program(const Graph& graph, const Backend& backend, const ProgramOptions& options = {});

  const Graph& graph() const { return graph_; }
  const MemoryPlan& plan() const { return plan_; }
  const std::vector<Dispatch>& dispatch() const { return dispatch_; }
  /// A kernel in the order of a run, and the asynchronous kernel that has to be done before it.
  struct Queued {
    NodeId node;
    bool is_asynchronous = false;
    NodeId awaited = kNoNode;
  };
  /// The kernels of a run.
  std::vector<Queued> order() const;
  /// Whether no kernel accepts the node, so that the reference interpreter computes it.
  bool is_interpreted(NodeId node) const;
  /// Host memory of a node of a compiled program, in bytes: an estimate, for budgets alone.
  static constexpr int64_t kNodeBytes = int64_t{2} << 10;
  /// What the program takes for itself: its constants, its graph and its kernels.
  int64_t own_bytes() const {
    return plan_.constant_bytes + kNodeBytes * static_cast<int64_t>(graph_.size());
  }

  /// Fixes where everything lies, in the memory of `device`, which outlives it: `state` gives the
  /// address of each parameter and state input.
  void bind(Device& device, std::byte* temporary, std::byte* constant,
            const std::function<std::byte*(NodeId)>& state);
  /// Where the content of a value stands: of inputs before the run, of outputs after it.
  std::byte* address(ValueId v) const;
  /// Makes the program read a data input at `lent`, on the host, until it is bound again or the
  /// input is placed again; null: at its own place, from which it was read before. `lent` must have
  /// the alignment of an element, and the program never writes there.
  void place_input(NodeId input, const std::byte* lent);
  bool is_lent(NodeId input) const { return lent_.contains(input); }

  /// Computes the constants, once; a run does it by itself.
  void prepare();
  /// Somebody else used the memory of the constants: the next run computes them again.
  void forget_constants() { constants_ready_ = false; }
  /// Queues one run; with a timeline, waits for it, and for each kernel where the device has no
  /// marks.
  void run(Timeline* timeline = nullptr);

  /// Where a number came from that is none.
  struct Origin {
    std::string text;  // what it was, and where it stands in the model
    size_t step = 0;   // in the order of kernels
  };
  /// One run that stops at the first kernel that makes a NaN, or an infinity out of finite numbers;
  /// states keep their old values then, but for those that kernels update in place. Nothing when
  /// there is none. With collectives the run goes on to its end, as that of the other ranks.
  std::optional<Origin> first_non_finite();

  /// What a run that is looked at shows: a result of a node, as soon as it is there, on the host.
  using Look = std::function<void(ValueId value, const std::byte* content)>;
  /// One run, slow, that shows every result.
  void run_and_look(const Look& look);

 private:
  struct Step {
    NodeId node;
    std::unique_ptr<Kernel> kernel;
    std::vector<const void*> in;
    std::vector<void*> out;
    Task task = {};
    size_t awaited = kNone;  // of steps_: an asynchronous one that has to be done before
    static constexpr size_t kNone = static_cast<size_t>(-1);
  };
  void find_awaited();
  /// An operand of a step that lies in the buffer of a data input.
  struct InputRead {
    size_t step, operand;
    int64_t offset;
  };
  const std::vector<InputRead>& reads_of(NodeId input);
  /// Queues a run; `queued` is told each node, as soon as its kernel or copy is queued, and that of
  /// an asynchronous kernel again, as soon as it was awaited.
  void queue(const std::function<void(NodeId)>& queued);
  void run_marked(Timeline& timeline);
  std::string missing_kernels(const Backend& backend) const;
  void copy_states(const std::function<void(NodeId)>& queued);
  const std::byte* on_host(ValueId v, std::vector<std::byte>& room) const;
  std::string describe(NodeId id) const;

  Graph graph_;
  MemoryPlan plan_;
  std::vector<Dispatch> dispatch_;
  std::vector<Step> constant_steps_, steps_;
  Device* device_ = nullptr;
  std::vector<std::byte*> buffers_;
  std::map<NodeId, std::byte*> lent_;  // data inputs that lie elsewhere, with their own places
  std::map<NodeId, std::vector<InputRead>> input_reads_;
  bool constants_ready_ = false;
  bool has_run_ = false;               // since it was bound
  std::unique_ptr<Marks> marks_;       // between the kernels of a run, once one was timed
  std::unique_ptr<Recording> marked_;  // such a run
};

}  // namespace brrr
