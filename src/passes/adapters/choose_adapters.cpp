#include "passes/adapters/choose_adapters.h"

#include <algorithm>
#include <map>
#include <vector>

#include "ir/rewriter.h"
#include "ops/ops.h"

namespace brrr {
namespace {

/// The adapters of one product, and where their columns begin in the stack.
struct Member {
  std::vector<const ProductAdapter*> adapters;
  int64_t first = 0, count = 0;
};

/// The products of the same rows.
struct Stack {
  std::vector<NodeId> products;
  std::vector<const ProductAdapter*> adapters;  // of all products, in the order of the columns
  int64_t columns = 0;
};

class AdapterChooser {
 public:
  AdapterChooser(const Graph& in, std::span<const ProductAdapter> adapters)
      : in_(in), tokens_(in.find_input("tokens")), wanted_(in.find_input("wanted")) {
    BRRR_CHECK(tokens_ != kNoNode && wanted_ != kNoNode, "no graph of sequences");
    find_wanted_rows();
    std::multimap<std::string_view, const ProductAdapter*> by_weight;
    for (const ProductAdapter& adapter : adapters) by_weight.emplace(adapter.weight, &adapter);
    for (NodeId id = 0; id < in.size(); ++id) {
      const NodeId weight = multiplied_parameter(in, id);
      if (weight == kNoNode) continue;
      const auto [first, last] = by_weight.equal_range(in.input_name(weight));
      if (first == last) continue;
      Stack& stack = stacks_[in.node(id).operands[0]];
      Member& member = members_[id];
      member.first = stack.columns;
      for (auto at = first; at != last; ++at) {
        BRRR_CHECK(at->second->factor.empty() && at->second->number > 0,
                   "an adapter of {} that rows cannot choose", at->first);
        member.adapters.push_back(at->second);
        member.count += at->second->rank;
      }
      stack.columns += member.count;
      stack.products.push_back(id);
      stack.adapters.insert(stack.adapters.end(), member.adapters.begin(), member.adapters.end());
    }
  }

  Graph run() {
    return rewrite(in_, [&](Rewriter& r, NodeId id) {
      const auto at = members_.find(id);
      if (at == members_.end()) return false;
      r.enter_scope_of(id);
      const Node& node = in_.node(id);
      const Value y = call(*node.op, r.operands(id), node.attrs)[0];
      const std::vector<Value> both{y, change(r, node, at->second)};
      r.bind({id, 0}, call(Op::add, both, {{std::string(kRoundsAsProduct), true}})[0]);
      return true;
    });
  }

 private:
  /// Marks the nodes whose rows are those of the tokens whose logits are wanted.
  void find_wanted_rows() {
    has_wanted_rows_.resize(in_.size());
    has_wanted_rows_[wanted_] = true;
    for (NodeId id = 0; id < in_.size(); ++id)
      for (const ValueId& v : in_.node(id).operands)
        if (has_wanted_rows_[v.node]) has_wanted_rows_[id] = true;
  }

  Value parameter(Graph& g, const std::string& name, Shape shape) const {
    if (const NodeId there = g.find_input(name); there != kNoNode) return g.value(there);
    Attrs attrs;
    attrs.set(kOfAdapter, true);
    return g.input(name, Type{DType::f32, std::move(shape)}, Role::parameter, std::move(attrs));
  }

  static Value side_by_side(const std::vector<Value>& parts, int axis) {
    return parts.size() == 1 ? parts[0] : concat(parts, axis);
  }

  /// The numbers of the rows' adapters, i32 [rows, 1].
  Value numbers(Rewriter& r, bool of_wanted_rows) const {
    Graph& g = r.out();
    const int64_t tokens = in_.type({tokens_, 0}).shape.size(0);
    const NodeId there = g.find_input("adapters");
    Value all = there != kNoNode ? g.value(there) : g.input("adapters", {tokens}, DType::i32);
    if (of_wanted_rows) all = gather(all, r.map({wanted_, 0}), 0);
    return reshape(all, {all.shape()[0], Dim(1)});
  }

  /// A number for each column of a stack, or one number where all are equal.
  template <typename Of>
  static Value per_column(Graph& g, const Stack& stack, DType dtype, const Of& number_of) {
    std::vector<Number> all;
    bool is_one = true;
    for (const ProductAdapter* adapter : stack.adapters) {
      all.insert(all.end(), static_cast<size_t>(adapter->rank), number_of(*adapter));
      is_one = is_one && number_of(*adapter) == number_of(*stack.adapters[0]);
    }
    return is_one ? scalar(g, all[0], dtype) : literal(g, {stack.columns}, all, dtype);
  }

  /// s x Aᵀ of all products of the rows x, with 0 in the columns of adapters that a row does not
  /// use.
  Value low_rows(Rewriter& r, ValueId x) {
    if (const auto there = low_.find(x); there != low_.end()) return there->second;
    Graph& g = r.out();
    const Stack& stack = stacks_.at(x);
    const int64_t in = in_.type(x).shape.size(-1);
    BRRR_CHECK(in_.type(x).shape.rank() == 2, "rows of sequences must be [N, C]; they are {}",
               in_.type(x).shape.str());
    std::vector<Value> a;
    for (const ProductAdapter* adapter : stack.adapters)
      a.push_back(parameter(g, adapter->a, {adapter->rank, in}));
    Value low = matmul(r.map(x), side_by_side(a, 0), false, true);
    const auto scale_of = [](const ProductAdapter& adapter) { return adapter.scale; };
    if (std::ranges::any_of(stack.adapters, [](const auto* each) { return each->scale != 1; }))
      low = low * per_column(g, stack, DType::f32, scale_of);
    const Value owners = per_column(g, stack, DType::i32,
                                    [](const ProductAdapter& adapter) { return adapter.number; });
    const Value chosen = numbers(r, has_wanted_rows_[x.node]);
    const Value is_in_use =
        logical_or(equal(chosen, owners), equal(chosen, scalar(g, kAllAdapters, DType::i32)));
    // A product by 0 would turn an infinity in another adapter into NaN.
    low = where(is_in_use, low, scalar(g, 0));
    return low_.emplace(x, low).first->second;
  }

  Value change(Rewriter& r, const Node& product, const Member& member) {
    const ValueId x = product.operands[0];
    Value low = low_rows(r, x);
    if (member.count < stacks_.at(x).columns) low = slice(low, 1, member.first, member.count);
    const int64_t out = product.results[0].shape.size(-1);
    std::vector<Value> b;
    for (const ProductAdapter* adapter : member.adapters)
      b.push_back(parameter(r.out(), adapter->b, {out, adapter->rank}));
    return matmul(low, side_by_side(b, 1), false, true);
  }

  const Graph& in_;
  const NodeId tokens_, wanted_;
  std::vector<bool> has_wanted_rows_;  // [node]
  std::map<ValueId, Stack> stacks_;    // by the rows that are multiplied
  std::map<NodeId, Member> members_;   // by product
  std::map<ValueId, Value> low_;       // low_rows() so far
};

}  // namespace

Graph add_chosen_adapters(const Graph& graph, std::span<const ProductAdapter> adapters) {
  return AdapterChooser(graph, adapters).run();
}

}  // namespace brrr
