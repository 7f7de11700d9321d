// Mixed precision as a pass over the forward graph. Parameters, state and outputs keep their types;
// the casts between are ordinary nodes, so their derivatives, merging and fusing are ordinary, too.

#include <map>
#include <set>

#include "ops/ops.h"
#include "passes/adapters/choose_adapters.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// A sum of two products that is rounded as one product.
bool is_sum_of_products(const Node& node) {
  return is(node, Op::add) && node.attrs.get_or<bool>(kRoundsAsProduct, false);
}

class Caster {
 public:
  Caster(const Graph& in, DType low) : rewriter_(in, Types::change), low_(low) {}

  Graph run(Notes* notes) {
    const Graph& in = rewriter_.in();
    for (NodeId id = 0; id < in.size(); ++id) {
      rewriter_.enter_scope_of(id);
      if (in.is_input(id))
        rewriter_.copy(id);
      else
        place(id);
    }
    keep_output_types();
    if (notes) report(*notes);
    return rewriter_.finish();
  }

 private:
  static bool is_low(DType t) { return t == DType::bf16 || t == DType::f16; }

  // The value in another dtype; each conversion is made once.
  Value to(Value v, DType dtype) {
    if (v.dtype() == dtype) return v;
    const auto [at, fresh] = casts_.try_emplace({v.id, dtype});
    if (fresh) {
      const Node& producer = rewriter_.out().node(v.id.node);
      // Constants are written in the dtype that is wanted.
      at->second = is(producer, Op::full)
                       ? full(rewriter_.out(), v.shape(), full_value(producer), dtype)
                       : cast(v, dtype);
      ++cast_count_;
    }
    return at->second;
  }

  // What the operands of an op that follows them have in common: the widest float dtype among
  // those that are no constants, as in PyTorch, where a Python number widens nothing.
  DType common(const std::vector<Value>& operands) const {
    DType widest = low_;
    bool any = false;
    for (const Value& v : operands) {
      if (!is_float(v.dtype()) || is_constant(v)) continue;
      any = true;
      if (bytes_of(v.dtype()) > bytes_of(widest)) widest = v.dtype();
    }
    return any ? widest : DType::f32;
  }
  static bool is_constant(Value v) { return is(v.graph->node(v.id.node), Op::full); }

  void place(NodeId id) {
    const Node& node = rewriter_.in().node(id);
    std::vector<Value> operands = rewriter_.operands(id);
    const OpDef& op = *node.op;
    if (is_sum_of_products(node)) return add_products(id, operands);
    // Regions say the dtypes of what they are given.
    for (size_t i = 0; op.runs_regions && i < operands.size(); ++i)
      operands[i] = to(operands[i], rewriter_.in().type(node.operands[i]).dtype);
    switch (op.autocast) {
      case Autocast::low:
        for (size_t i = 0; i < operands.size(); ++i)
          if (operands[i].dtype() == DType::f32 && op.casts_operand(node.attrs, i))
            operands[i] = to(operands[i], low_);
        break;
      case Autocast::fp32:
        for (Value& v : operands)
          if (is_low(v.dtype())) v = to(v, DType::f32);
        break;
      case Autocast::follow:
        follow(node, operands);
        break;
    }
    if (op.autocast != Autocast::follow) ++counts_[op.autocast][op.name];
    Attrs attrs = node.attrs;
    std::vector<ValueId> ids;
    for (const Value& v : operands) ids.push_back(v.id);
    const NodeId copy = rewriter_.out().add(op, ids, std::move(attrs));
    for (uint32_t port = 0; port < node.results.size(); ++port)
      rewriter_.bind({id, port}, rewriter_.out().value(copy, port));
  }

  /// keep_accumulators takes the casts away between the products and their sum.
  void add_products(NodeId id, const std::vector<Value>& operands) {
    const Node& node = rewriter_.in().node(id);
    std::vector<Value> wide;
    for (const Value& v : operands) wide.push_back(to(v, DType::f32));
    rewriter_.bind({id, 0}, cast(call(*node.op, wide, node.attrs)[0], low_));
    ++cast_count_;
  }

  void follow(const Node& node, std::vector<Value>& operands) {
    bool mixed = false;
    std::vector<size_t> which;
    std::vector<Value> followed;
    for (size_t i = 0; i < operands.size(); ++i) {
      const DType t = operands[i].dtype();
      if (!is_float(t) || t == DType::f64 || !node.op->casts_operand(node.attrs, i)) continue;
      mixed = mixed || (!followed.empty() && followed[0].dtype() != t);
      which.push_back(i);
      followed.push_back(operands[i]);
    }
    if (!mixed) return;
    const DType dtype = common(followed);
    for (size_t i : which) operands[i] = to(operands[i], dtype);
  }

  // What the outside reads, and state, has the type that the model's author gave it.
  void keep_output_types() {
    const Graph& in = rewriter_.in();
    for (const Output& o : in.outputs()) {
      const Value now = rewriter_.map(o.value);
      const DType wanted = in.type(o.value).dtype;
      if (now.dtype() != wanted) rewriter_.bind(o.value, to(now, wanted));
    }
  }

  void report(Notes& notes) const {
    for (const auto& [policy, ops] : counts_) {
      std::string names;
      for (const auto& [name, count] : ops)
        names += fmt::format("{}{} {}", names.empty() ? "" : ", ", count, name);
      notes.push_back(
          fmt::format("in {}: {}", policy == Autocast::low ? name_of(low_) : "f32", names));
    }
    notes.push_back(fmt::format("{} casts; every other op follows its operands", cast_count_));
  }

  Rewriter rewriter_;
  DType low_;
  std::map<std::pair<ValueId, DType>, Value> casts_;
  std::map<Autocast, std::map<std::string, int>> counts_;
  int cast_count_ = 0;
};

}  // namespace

Graph autocast(const Graph& graph, DType low, Notes* notes) {
  BRRR_CHECK(low == DType::bf16 || low == DType::f16, "autocast to {}", name_of(low));
  return Caster(graph, low).run(notes);
}

namespace {

// The attribute that gives the dtype of a result which is a sum of products; null: it is none.
const char* dtype_attribute(const Node& node, uint32_t port) {
  const auto& attributes = node.op->accumulator_dtype;
  return port < attributes.size() ? attributes[port] : nullptr;
}

/// A result that is no gradient of a weight: those are products of transposed rows.
bool is_activation(const Node& node, uint32_t port) {
  if (node.op->loss && node.op->loss->from_product)
    return dtype_attribute(node, port) == std::string_view("dx_dtype");
  return !node.attrs.get_or<bool>("transpose_a", false);
}

}  // namespace

Graph keep_accumulators(const Graph& in, Notes* notes, bool round_activations) {
  const auto uses = count_uses(in);
  int widened = 0;
  std::set<ValueId> absorbed;
  std::map<NodeId, ValueId> sums;  // by cast to f32: the sum of products that it widens again
  // The product whose only reader is a cast to f32 gives its f32 accumulators instead.
  for (NodeId id = 0; id < in.size(); ++id) {
    const Node& node = in.node(id);
    if (!is(node, Op::cast) || node.results[0].dtype != DType::f32) continue;
    const ValueId from = node.operands[0];
    const Node& rounding = in.node(from.node);
    if (is(rounding, Op::cast) && is_sum_of_products(in.node(rounding.operands[0].node)) &&
        uses[from.node][from.port] == 1 && !round_activations)
      sums.emplace(id, rounding.operands[0]);
    if (dtype_attribute(in.node(from.node), from.port) == nullptr) continue;
    if (round_activations && is_activation(in.node(from.node), from.port)) continue;
    if (uses[from.node][from.port] == 1) absorbed.insert(from);
  }
  // The gradient of a table in 16 bits sums rows as wide as they were, and is rounded then.
  auto wide_rows = [&](const Node& node) -> std::optional<ValueId> {
    const bool adds_rows = node.op->only_adds && node.op->op_class == OpClass::movement;
    if (!adds_rows || node.results[0].dtype == DType::f32) return {};
    const Node& rows = in.node(node.operands[0].node);
    if (!is(rows, Op::cast)) return {};
    if (in.type(rows.operands[0]).dtype != DType::f32) return {};
    return rows.operands[0];
  };
  const auto widen = [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (const auto rows = wide_rows(node)) {
      std::vector<Value> operands = r.operands(id);
      operands[0] = r.map(*rows);
      r.bind({id, 0}, cast(call(*node.op, operands, node.attrs)[0], node.results[0].dtype));
      ++widened;
      return true;
    }
    if (const auto sum = sums.find(id); sum != sums.end()) {
      r.bind({id, 0}, r.map(sum->second));
      ++widened;
      return true;
    }
    if (is(node, Op::cast) && absorbed.contains(node.operands[0])) {
      r.bind({id, 0}, r.map(node.operands[0]));
      return true;
    }
    Attrs attrs = node.attrs;
    const int before = widened;
    const auto ports = static_cast<uint32_t>(node.results.size());
    for (uint32_t port = 0; port < ports; ++port) {
      if (!absorbed.contains({id, port})) continue;
      attrs.set(dtype_attribute(node, port), DType::f32);
      ++widened;
    }
    if (widened == before) return false;
    const auto results = call(*node.op, r.operands(id), std::move(attrs));
    for (uint32_t port = 0; port < ports; ++port) r.bind({id, port}, results[port]);
    return true;
  };
  Graph out = rewrite(in, widen, Types::change);
  if (notes && widened) notes->push_back(fmt::format("{} sums stay f32 without rounding", widened));
  return out;
}

}  // namespace brrr
