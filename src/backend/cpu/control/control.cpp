// if and loop: the regions are programs of their own on the node's scratch memory.

#include "ops/control.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/control/region_program.h"
#include "backend/cpu/kernel_list.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

bool is_true(const void* condition) { return *static_cast<const uint8_t*>(condition) != 0; }

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// A branch of `if`: behind its inputs stand states that take its outputs, the node's results.
Graph as_branch(const Graph& region) {
  Graph g = with_inputs_as_states(region);
  for (const Output& o : std::exchange(g.outputs(), {})) {
    const Type& t = g.type(o.value);
    const Value result = g.input("result " + o.name, t, Role::state);
    g.update(result, g.value(o.value));
  }
  return g;
}

class IfKernel final : public Kernel {
 public:
  explicit IfKernel(const NodeView& node)
      : then_(as_branch(node.attrs().get<Region>("then").graph())),
        else_(as_branch(node.attrs().get<Region>("else").graph())) {}

  int64_t scratch_bytes() const override {
    return std::max(then_.scratch_bytes(), else_.scratch_bytes());
  }
  void run(const KernelArgs& args) override {
    RegionProgram& chosen = is_true(args.in[0]) ? then_ : else_;
    std::vector<const void*> states(args.in.begin() + 1, args.in.end());
    states.insert(states.end(), args.out.begin(), args.out.end());
    chosen.place(std::move(states), args.scratch);
    chosen.run();
  }

 private:
  RegionProgram then_, else_;
};

/// The body of `loop`: carried values are states with their next values; the condition and the rows
/// that are stacked stay outputs.
Graph as_iteration(const LoopForm& form) {
  Graph g = with_inputs_as_states(form.body);
  const std::vector<NodeId> inputs = g.inputs();
  std::vector<Output> carried;
  std::vector<Output>& outputs = g.outputs();
  const auto first = outputs.begin() + 1, last = first + static_cast<int64_t>(form.carried);
  carried.assign(first, last);
  outputs.erase(first, last);
  for (size_t k = 0; k < form.carried; ++k)
    g.update(g.value(inputs[1 + k]), g.value(carried[k].value));
  return g;
}

class LoopKernel final : public Kernel {
 public:
  // The form refers to attributes of the node: a kernel keeps its own copy of them.
  explicit LoopKernel(const NodeView& node)
      : node_(node.node()), form_(node_), body_(as_iteration(form_)) {
    for (const Type& t : node_.results) result_bytes_.push_back(t.bytes());
    for (const Output& o : form_.body.outputs())
      output_bytes_.push_back(form_.body.type(o.value).bytes());
  }
  LoopKernel(const LoopKernel&) = delete;
  LoopKernel& operator=(const LoopKernel&) = delete;

  int64_t scratch_bytes() const override { return kCounterBytes + body_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    const size_t carried = form_.carried;
    std::vector<const void*> states{args.scratch};
    for (size_t k = 0; k < carried; ++k) {
      copy_bytes(args.out[k], args.in[1 + k], result_bytes_[k]);
      states.push_back(args.out[k]);
    }
    for (const void* captured : args.in.subspan(1 + carried)) states.push_back(captured);
    body_.place(std::move(states), args.scratch + kCounterBytes);
    bool condition = is_true(args.in[0]);
    int32_t i = 0;
    for (; condition && i < form_.end.bound; ++i) {
      std::memcpy(args.scratch, &i, sizeof(i));
      body_.run();
      condition = is_true(body_.output(0));
      for (size_t s = 0; s < form_.stacked; ++s) {
        const int64_t bytes = output_bytes_[1 + carried + s];
        copy_bytes(stack(args, s) + i * bytes, body_.output(1 + s), bytes);
      }
    }
    form_.check_end(condition);
    for (size_t s = 0; s < form_.stacked; ++s) {
      const int64_t filled = i * output_bytes_[1 + carried + s];
      std::fill(stack(args, s) + filled, stack(args, s) + result_bytes_[carried + s], std::byte{0});
    }
    std::memcpy(args.out.back(), &i, sizeof(i));
  }

 private:
  static constexpr int64_t kCounterBytes = 64;  // the number of the iteration

  std::byte* stack(const KernelArgs& args, size_t s) const {
    return static_cast<std::byte*>(args.out[form_.carried + s]);
  }

  Node node_;
  LoopForm form_;
  RegionProgram body_;
  std::vector<int64_t> result_bytes_, output_bytes_;
};

template <typename K>
KernelEntry entry_of(Op op, std::string_view name) {
  return {op, name, [](const NodeView&) { return std::string(); },
          [](const NodeView& node) { return std::make_unique<K>(node); }, kKnowsStorage};
}

}  // namespace

std::vector<KernelEntry> control_kernels() {
  return {entry_of<IfKernel>(Op::if_, "branch"), entry_of<LoopKernel>(Op::loop, "iterations")};
}

}  // namespace brrr::cpu
