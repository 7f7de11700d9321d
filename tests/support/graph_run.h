#pragma once
// One run of a graph on a backend's kernels, node by node, without a memory plan: for backends that
// run on host memory. Kernels are prepared first, so that those of many graphs can be compiled
// together.

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "runtime/backend.h"
#include "support/tensors.h"

namespace brrr::test {

class GraphRun {
 public:
  GraphRun(Graph graph, const Backend& backend) : graph_(std::move(graph)) {
    kernels_.resize(graph_.size());
    for (NodeId id = 0; id < graph_.size(); ++id) {
      if (graph_.is_input(id) || view_offset(graph_, graph_.node(id))) continue;
      const NodeView view(graph_, id);
      const Backend::Choice choice = backend.choose(view);
      BRRR_CHECK(choice.entry != nullptr, "{} has no kernel: {}", graph_.node(id).op->name,
                 fmt::join(choice.refusals, "; "));
      kernels_[id] = choice.entry->prepare(view);
    }
  }

  /// Outputs and updates, as reference::evaluate gives them.
  reference::Tensors run(const reference::Tensors& in) {
    values_.assign(graph_.size(), {});
    storage_.clear();
    for (NodeId id = 0; id < graph_.size(); ++id) run_node(id, in);
    reference::Tensors out;
    for (const Output& o : graph_.outputs()) {
      const std::string name =
          o.updates == kNoNode ? o.name : "update:" + graph_.input_name(o.updates);
      out[name] = read_tensor(graph_.type(o.value), values_[o.value.node][o.value.port]);
    }
    return out;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::byte* allocate(int64_t bytes) {
    const size_t size = (static_cast<size_t>(bytes) + 256) / 256 * 256;
    storage_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(256, size)));
    std::fill_n(storage_.back().get(), size, std::byte{0xff});
    return storage_.back().get();
  }
  void run_node(NodeId id, const reference::Tensors& in) {
    const Node& node = graph_.node(id);
    if (const auto offset = view_offset(graph_, node)) {
      values_[id] = {values_[node.operands[0].node][node.operands[0].port] + *offset};
      return;
    }
    for (const Type& t : node.results) values_[id].push_back(allocate(t.bytes()));
    if (graph_.is_input(id)) {
      write_tensor(in.at(graph_.input_name(id)), values_[id][0]);
      return;
    }
    std::vector<const void*> operands;
    std::vector<void*> results;
    for (const ValueId& v : node.operands) operands.push_back(values_[v.node][v.port]);
    for (std::byte* p : values_[id]) results.push_back(p);
    kernels_[id]->run(KernelArgs{operands, results, allocate(kernels_[id]->scratch_bytes())});
  }

  Graph graph_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<std::vector<std::byte*>> values_;
  std::vector<std::unique_ptr<std::byte, Free>> storage_;
};

}  // namespace brrr::test
