#pragma once
// A backend is a target and an ordered list of kernels. The first entry that accepts a node wins;
// each refusal keeps its reason. The reference interpreter stands last, so every graph runs
// everywhere.

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"
#include "passes/passes.h"

namespace brrr {

/// A node as a kernel sees it: static shapes, operands' types.
struct NodeView {
  const Graph& graph;
  NodeId id;
  std::vector<Type> in;

  NodeView(const Graph& g, NodeId node) : graph(g), id(node), in(operand_types(g, g.node(node))) {}
  const Node& node() const { return graph.node(id); }
  const Attrs& attrs() const { return node().attrs; }
  std::span<const Type> out() const { return node().results; }
  /// Whether every operand and result lies in rows.
  bool lies_in_rows() const;
};

/// Addresses in the memory of the device that the backend is for.
struct KernelArgs {
  std::span<const void* const> in;  // in their storage, in the order of the operands
  std::span<void* const> out;
  std::byte* scratch = nullptr;  // Kernel::scratch_bytes() bytes, aligned like every buffer
};

/// A prepared node: everything that depends on shapes and attributes is done. On the host run() is
/// called from one thread, uses the thread team inside, gives the same bits for any number of
/// threads and throws UserError only for bad data (an id outside a table). Another device knows the
/// kernels of its backend and what to do with them.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArgs& args) = 0;
  /// Bytes needed during run(); part of the memory plan.
  virtual int64_t scratch_bytes() const { return 0; }
  /// Whether the in-place pairs of the OpDef hold for this kernel.
  virtual bool in_place() const { return true; }
  /// Whether run() only begins the work, on the host: operands and results are in use until
  /// finish() has returned, which also waits for what such kernels began before.
  virtual bool is_asynchronous() const { return false; }
  virtual void finish() {}
  /// Whether it waits for the same kernel of other ranks, which all have to run it.
  virtual bool is_collective() const { return false; }
};

struct KernelEntry {
  Op op;
  std::string_view name;
  /// Empty: accepts. Otherwise the reason for the refusal.
  std::function<std::string(const NodeView&)> accepts;
  std::function<std::unique_ptr<Kernel>(const NodeView&)> prepare;
  /// Whether it is asked about nodes of which a tensor lies in another storage than rows.
  bool knows_storage = false;
  /// So many operands, from the first on, may lie at any address, as they do in a file. The address
  /// of the others is a multiple of the element's size.
  int unaligned_operands = 0;
  /// Why the kernel does not take the node; empty where it does.
  std::string refusal(const NodeView& node) const {
    if (!knows_storage && !node.lies_in_rows()) return "only tensors that lie in rows";
    return accepts(node);
  }
};

/// KernelEntry::knows_storage, for lists of entries.
inline constexpr bool kKnowsStorage = true;
/// KernelEntry::unaligned_operands.
inline constexpr int kFirstOperand = 1, kAllOperands = std::numeric_limits<int>::max();

/// Whether BRRR_DISABLE_KERNEL names a kernel.
bool is_disabled(std::string_view kernel);

class Device;

/// A function of nodes as kernels see them, as a Target asks it.
template <typename F>
auto by_views(F f) {
  return [f](const Graph& g, auto... nodes) { return f(NodeView(g, nodes)...); };
}

struct Backend : Target {
  std::vector<KernelEntry> kernels;
  /// Opens the device that the kernels run on; null: they run on the host. Programs are compiled
  /// and planned without it; UserError when there is no such device here.
  std::function<std::unique_ptr<Device>()> open_device;
  int64_t memory_bytes = 0;  // of that device; 0: the host's memory
  int64_t cache_bytes = 0;   // of that device, for all of it; 0: nobody says
  int64_t rank = 0;          // this process among those that run the same programs
  /// Whether the reference interpreter stands last in the list; it needs the host's memory.
  bool runs_reference = true;

  struct Choice {
    const KernelEntry* entry = nullptr;  // nullptr: only the reference interpreter runs it
    std::vector<std::string> refusals;   // "name: reason" of the entries before it
  };
  Choice choose(const NodeView& node) const;
  /// What passes know of this backend, which must live as long: what it runs is what its kernels
  /// accept.
  Target target() const;
};

/// A kernel from a function that is all there is to it.
template <typename F>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(F f) : f_(std::move(f)) {}
  void run(const KernelArgs& args) override { f_(args); }

 private:
  F f_;
};
template <typename F>
std::unique_ptr<Kernel> make_kernel(F f) {
  return std::make_unique<FunctionKernel<F>>(std::move(f));
}

}  // namespace brrr
