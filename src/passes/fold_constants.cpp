#include "passes/fold_constants.h"

#include <algorithm>
#include <bit>
#include <map>

#include "ir/evaluate.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

// Elements of a constant that stands in the graph. Larger ones are computed in each run, which
// costs less than to carry them in the program's text.
constexpr int64_t kMost = 256;

class Folder {
 public:
  explicit Folder(const Graph& in) : in_(in) {}

  Graph run(Notes* notes) {
    for (NodeId id = 0; id < in_.size(); ++id) know(id);
    size_t folded = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const auto at = known_.find(id);
      if (at == known_.end() || in_.node(id).operands.empty()) return false;
      r.enter_scope_of(id);
      for (uint32_t port = 0; port < at->second.size(); ++port)
        r.bind({id, port}, constant_in(r.out(), at->second[port]));
      ++folded;
      return true;
    });
    if (folded == 0) return in_;
    if (notes) notes->push_back(fmt::format("{} nodes are known before the run", folded));
    return drop_dead(std::move(out));
  }

 private:
  void know(NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id) || node.op->draws_random || node.op->runs_regions || node.op->stores)
      return;
    for (const Type& type : node.results)
      if (!type.shape.is_static() || type.shape.elements() > kMost || !type.storage.is_plain())
        return;
    std::vector<const RefTensor*> operands;
    for (const ValueId& v : node.operands) {
      const auto at = known_.find(v.node);
      if (at == known_.end()) return;
      operands.push_back(&at->second[v.port]);
    }
    std::vector<RefTensor> results = evaluate_node(in_, id, operands);
    for (RefTensor& t : results)
      if (is_float(t.type.dtype) && t.type.dtype != DType::f64)
        for (double& x : t.data) x = rounded_to(t.type.dtype, x);
    known_.emplace(id, std::move(results));
  }

  const Graph& in_;
  std::map<NodeId, std::vector<RefTensor>> known_;
};

}  // namespace

Value constant_in(Graph& g, const RefTensor& t) {
  const DType dtype = t.type.dtype;
  const size_t n = t.size();
  std::vector<Number> values;
  values.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    if (is_signed_integer(dtype))
      values.emplace_back(t.integer<int64_t>(i));
    else if (is_unsigned_integer(dtype))
      values.emplace_back(t.integer<uint64_t>(i));
    else
      values.emplace_back(t.data[i]);
  }
  const auto same = [&](size_t i) {
    return is_float(dtype)
               ? std::bit_cast<uint64_t>(t.data[i]) == std::bit_cast<uint64_t>(t.data[0])
               : t.bits(i) == t.bits(0);
  };
  bool all_same = n > 0;
  for (size_t i = 1; i < n && all_same; ++i) all_same = same(i);
  return all_same ? full(g, t.type.shape, values[0], dtype)
                  : literal(g, t.type.shape, values, dtype);
}

Graph fold_constants(const Graph& graph, Notes* notes) { return Folder(graph).run(notes); }

}  // namespace brrr
