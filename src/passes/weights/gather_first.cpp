#include "base/human.h"
#include "ops/ops.h"
#include "passes/weights/given_integers.h"

namespace brrr {
namespace {

class TableReader {
 public:
  explicit TableReader(const Graph& in) : in_(in) {}

  Graph run(Notes* notes) {
    size_t tables = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const Node& node = in_.node(id);
      if (!is(node, Op::gather) || node.attrs.get<int64_t>("axis") != 0) return false;
      const ValueId table = node.operands[0];
      const Shape& shape = in_.type(table).shape;
      if (shape.rank() == 0 || !shape.is_static() || shape.size(0) < 2 || !is_widened(table))
        return false;
      r.enter_scope_of(id);
      r.bind({id, 0}, rows(r, table, shape, r.map(node.operands[1])));
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

  /// Whether element-wise nodes compute the table from one of fewer bytes.
  bool is_widened(ValueId v) const {
    const Node& node = in_.node(v.node);
    if (!is_elementwise(node)) return false;
    for (const ValueId& operand : node.operands) {
      if (in_.type(operand).shape != in_.type(v).shape) continue;
      if (bytes_of(in_.type(operand).dtype) < bytes_of(in_.type(v).dtype) || is_widened(operand))
        return true;
    }
    return false;
  }

  /// The rows `ids` of a value that has the rows of a table [V, ...] or broadcasts to them.
  Value rows(Rewriter& r, ValueId v, const Shape& table, Value ids) const {
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
    for (const ValueId& operand : node.operands) operands.push_back(rows(r, operand, table, ids));
    return call(*node.op, operands, node.attrs)[0];
  }

  const Graph& in_;
};

}  // namespace

Graph gather_first(const Graph& graph, Notes* notes) { return TableReader(graph).run(notes); }

}  // namespace brrr
