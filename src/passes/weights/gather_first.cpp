#include "passes/weights/gather_first.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/human.h"
#include "ops/ops.h"

namespace brrr {
namespace {

class TableReader {
 public:
  explicit TableReader(const Graph& in)
      : in_(in), is_widened_(in.size()), is_read_otherwise_(in.size()) {
    for (NodeId id = 0; id < in.size(); ++id) {
      is_widened_[id] = widens(id);
      for (size_t i = 0; i < in.node(id).operands.size(); ++i)
        if (i > 0 || !is_row_gather(id)) is_read_otherwise_[in.node(id).operands[i].node] = true;
    }
    for (const Output& o : in.outputs()) is_read_otherwise_[o.value.node] = true;
  }

  Graph run(Notes* notes) {
    size_t tables = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      if (!is_row_gather(id)) return false;
      const Node& node = in_.node(id);
      const ValueId table = node.operands[0];
      const Shape &shape = in_.type(table).shape, &ids = in_.type(node.operands[1]).shape;
      if (shape.rank() == 0 || !shape.is_static() || !ids.is_static() ||
          ids.elements() >= shape.size(0) || !is_widened_[table.node] ||
          is_read_otherwise_[table.node])
        return false;
      r.enter_scope_of(id);
      std::map<ValueId, Value> made;
      r.bind({id, 0}, rows(r, table, shape, r.map(node.operands[1]), made));
      ++tables;
      return true;
    });
    if (tables == 0) return in_;
    if (notes)
      notes->push_back(fmt::format("{} computed after the rows are gathered",
                                   counted(static_cast<int64_t>(tables), "table")));
    return drop_dead(std::move(out));
  }

 private:
  bool is_elementwise(const Node& node) const {
    return (node.op->op_class == OpClass::elementwise || is(node, Op::cast)) &&
           node.op->is_primitive() && !node.op->draws_random && node.results.size() == 1 &&
           !node.operands.empty();
  }

  bool is_row_gather(NodeId id) const {
    return is(in_.node(id), Op::gather) && in_.node(id).attrs.get<int64_t>("axis") == 0;
  }

  /// Whether element-wise nodes compute the node's result from a tensor of fewer bytes. Earlier
  /// nodes are known.
  bool widens(NodeId id) const {
    const Node& node = in_.node(id);
    if (!is_elementwise(node)) return false;
    const Type& result = node.results[0];
    return std::ranges::any_of(node.operands, [&](ValueId v) {
      const Type& operand = in_.type(v);
      return operand.shape == result.shape &&
             (bytes_of(operand.dtype) < bytes_of(result.dtype) || is_widened_[v.node]);
    });
  }

  /// Computes the rows `ids` of a value that has the rows of a table [V, ...] or broadcasts to
  /// them. `made` holds the values that are computed already.
  Value rows(Rewriter& r, ValueId v, const Shape& table, Value ids,
             std::map<ValueId, Value>& made) const {
    if (const auto at = made.find(v); at != made.end()) return at->second;
    const Value result = new_rows(r, v, table, ids, made);
    made.emplace(v, result);
    return result;
  }
  Value new_rows(Rewriter& r, ValueId v, const Shape& table, Value ids,
                 std::map<ValueId, Value>& made) const {
    const Node& node = in_.node(v.node);
    const Shape& shape = in_.type(v).shape;
    // A value without rows broadcasts to the gathered rows, whose last axes are those of the table.
    if (shape.rank() < table.rank()) return r.map(v);
    if (shape[0] != table[0]) {
      Shape row = shape;
      row.erase(0);
      return reshape(r.map(v), row);
    }
    if (!is_elementwise(node)) return gather(r.map(v), ids, 0);
    std::vector<Value> operands;
    for (const ValueId& operand : node.operands)
      operands.push_back(rows(r, operand, table, ids, made));
    return call(*node.op, operands, node.attrs)[0];
  }

  const Graph& in_;
  std::vector<bool> is_widened_;         // by result 0 of a node
  std::vector<bool> is_read_otherwise_;  // than as a table of gathered rows
};

}  // namespace

Graph gather_first(const Graph& graph, Notes* notes) { return TableReader(graph).run(notes); }

}  // namespace brrr
