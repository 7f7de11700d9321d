#include <algorithm>
#include <map>
#include <set>

#include "base/human.h"
#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// What a value is a reshape or a broadcast of.
ValueId behind_moves(const Graph& g, ValueId v) {
  while (is(g.node(v.node), Op::reshape, Op::broadcast_to, Op::slice))
    v = g.node(v.node).operands[0];
  return v;
}

/// The parameters that integers are multiplied by: rounding a scale would change every weight of
/// its group by as much.
std::set<ValueId> scales_of_integers(const Graph& g) {
  std::set<ValueId> scales;
  for (const Node& node : g.nodes()) {
    if (!is(node, Op::mul)) continue;
    for (const size_t side : {0, 1}) {
      ValueId v = node.operands[side];
      if (is(g.node(v.node), Op::sub)) v = g.node(v.node).operands[0];
      if (is(g.node(v.node), Op::cast) && is_integer(g.type(g.node(v.node).operands[0]).dtype))
        scales.insert(behind_moves(g, node.operands[1 - side]));
    }
  }
  return scales;
}

}  // namespace

Graph low_parameters(const Graph& in, DType low, LowParameters which, Notes* notes) {
  std::map<ValueId, Value> wide;  // the f32 view of a parameter that is stored in low
  const std::set<ValueId> scales = scales_of_integers(in);
  Rewriter r(in, Types::change);
  auto is_low = [&](ValueId v) {
    return in.is_input(v.node) && in.input_kind(v.node) == InputKind::parameter &&
           in.type(v).dtype == DType::f32 && in.type(v).shape.rank() >= 2 && !scales.contains(v) &&
           (which == LowParameters::all || is_of_base(in, v.node));
  };
  const auto is_f32 = [&](ValueId v) { return in.type(v).dtype == DType::f32; };
  int count = 0;
  for (NodeId id = 0; id < in.size(); ++id) {
    const Node& node = in.node(id);
    r.enter_scope_of(id);
    if (is_low({id, 0})) {
      const Type type{low, in.type({id, 0}).shape};
      r.bind({id, 0}, r.out().input(in.input_name(id), type, in.role(id), node.attrs));
      ++count;
      continue;
    }
    std::vector<Value> operands = r.operands(id);
    // What moves parameters and nothing else that is f32 gives a result in 16 bits, too.
    const bool moves =
        !node.operands.empty() && is_low(node.operands[0]) &&
        node.op->op_class == OpClass::movement && !is(node, Op::cast) &&
        std::ranges::all_of(node.operands, [&](ValueId v) { return is_low(v) || !is_f32(v); });
    std::vector<ValueId> ids;
    for (size_t i = 0; i < operands.size(); ++i) {
      Value v = operands[i];
      if (is_low(node.operands[i]) && !moves) {
        const auto [at, fresh] = wide.try_emplace(v.id);
        if (fresh) at->second = cast(v, DType::f32);
        v = at->second;
      }
      ids.push_back(v.id);
    }
    if (in.is_input(id)) {
      r.copy(id);
      continue;
    }
    const NodeId copy = r.out().add(*node.op, ids, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port)
      r.bind({id, port}, r.out().value(copy, port));
    if (moves) r.bind({id, 0}, cast(r.out().value(copy), DType::f32));
  }
  if (notes && count)
    notes->push_back(fmt::format("{} stored in {}", counted(count, "parameter"), name_of(low)));
  Graph out = r.finish();
  for (size_t i = 0; i < out.outputs().size(); ++i)
    if (is_low(in.outputs()[i].value) && out.outputs()[i].updates == kNoNode)
      out.outputs()[i].value = cast(Value{&out, out.outputs()[i].value}, DType::f32).id;
  return out;
}

}  // namespace brrr
