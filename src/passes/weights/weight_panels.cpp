#include <algorithm>
#include <map>

#include "base/human.h"
#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "passes/passes.h"
#include "passes/weights/made_of_parameters.h"

namespace brrr {
namespace {

bool is_parameter(const Graph& g, ValueId value) {
  return g.is_input(value.node) && g.role(value.node) == Role::parameter;
}

/// A matrix that is a parameter in 16 bits.
bool is_cast(const Graph& g, ValueId value) {
  const Node& node = g.node(value.node);
  return is(node, Op::cast) && is_parameter(g, node.operands[0]) && g.type(value).shape.rank() == 2;
}

/// A matrix below adapters, in 16 bits.
bool is_base_matrix(const Graph& g, ValueId value) {
  return is_parameter(g, value) && is_of_base(g, value.node) && g.type(value).shape.rank() == 2 &&
         bytes_of(g.type(value).dtype) == 2;
}

/// A matrix that is a parameter, or several side by side (join_products).
bool is_parameters(const Graph& g, ValueId value) {
  const Node& node = g.node(value.node);
  if (g.type(value).shape.rank() != 2) return false;
  if (g.is_input(value.node)) return is_parameter(g, value);
  return node.op->derives_weights && node.operands.size() > 1 &&
         std::ranges::all_of(node.operands, [&](ValueId v) { return is_parameter(g, v); });
}

/// How a product or a loss head reads its weight, operand 1; nothing: it is neither.
std::optional<Layout> layout_of_right(const Node& node) {
  if (node.op->loss && node.op->loss->from_product)
    return right_layout(node.attrs.get<bool>("transpose_w"));
  const std::optional<ProductForm> form = product_form(node);
  if (!form || form->transpose_a) return std::nullopt;
  return right_layout(form->transpose_b);
}

Layout other(Layout layout) { return right_layout(layout == Layout::panels); }

/// Which operand of which node reads panels.
using Reads = std::map<std::pair<NodeId, size_t>, Layout>;

/// Whether the target gathers rows of a table in this layout.
bool gathers_from(const Graph& g, const Target& target, NodeId embedding, Layout layout) {
  Graph alone;
  std::vector<ValueId> operands;
  for (const ValueId v : g.node(embedding).operands) {
    Type type = g.type(v);
    if (operands.empty()) type.storage = {layout};
    operands.push_back(alone.input(fmt::format("{}", operands.size()), type).id);
  }
  return target.runs(alone, alone.add(*g.node(embedding).op, operands, g.node(embedding).attrs));
}

/// Tables below adapters that the loss head reads in panels, too: without a copy in rows, they are
/// held once.
void add_tied_tables(const Graph& g, const Target& target, Reads& reads) {
  std::map<NodeId, Layout> heads;
  for (const auto& [read, layout] : reads) {
    const auto& [id, operand] = read;
    const NodeId weight = g.node(id).operands[operand].node;
    if (g.node(id).op->loss && g.is_input(weight)) heads.emplace(weight, layout);
  }
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& node = g.node(id);
    if (node.op->part != OpDef::Part::rows || node.operands.empty()) continue;
    const auto head = heads.find(node.operands[0].node);
    if (head != heads.end() && head->second == Layout::transposed_panels &&
        gathers_from(g, target, id, head->second))
      reads[{id, 0}] = head->second;
  }
}

/// Where the panels are one more form of a weight that is there anyway, or stands below adapters:
/// who gains by them.
Reads reads_that_gain(const Graph& g, const Target& target) {
  Reads reads;
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& node = g.node(id);
    const auto layout = layout_of_right(node);
    if (layout && (is_cast(g, node.operands[1]) || is_base_matrix(g, node.operands[1])) &&
        target.gains_by_panels(g, id))
      reads[{id, 1}] = *layout;
  }
  add_tied_tables(g, target, reads);
  return reads;
}

/// Where they take the place of the weight: every reader of it must read the same ones.
Reads reads_of_all(const Graph& g, const Target& target) {
  struct Readers {
    bool others = false;
    std::optional<Layout> layout;  // of products
    std::vector<NodeId> tables;    // embeddings
    Reads reads;
  };
  // Weights of i8 may be computed from bytes of another type.
  const std::vector<bool> is_made = made_of_parameters(g);
  const auto is_weight = [&](ValueId v) {
    const Type& type = g.type(v);
    return is_parameters(g, v) || (type.dtype == DType::i8 && type.shape.rank() == 2 &&
                                   type.storage.is_plain() && is_made[v.node]);
  };
  std::map<ValueId, Readers> readers;
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& node = g.node(id);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const ValueId v = node.operands[i];
      if (!is_weight(v)) continue;
      Readers& r = readers[v];
      const auto layout = i == 1 ? layout_of_right(node) : std::nullopt;
      if (node.op->part == OpDef::Part::rows && i == 0) {
        r.tables.push_back(id);
      } else if (layout && !node.op->loss && target.reads_panels(g, id) &&
                 r.layout.value_or(*layout) == *layout) {
        r.layout = layout;
        r.reads[{id, i}] = *layout;
      } else {
        r.others = true;
      }
    }
  }
  for (const Output& o : g.outputs()) readers.erase(o.value);
  Reads all;
  for (const auto& [weight, r] : readers) {
    if (r.others || !r.layout) continue;
    if (!r.tables.empty() && *r.layout != Layout::transposed_panels) continue;
    all.insert(r.reads.begin(), r.reads.end());
    for (const NodeId table : r.tables) all[{table, 0}] = *r.layout;
  }
  return all;
}

}  // namespace

Graph weight_panels(const Graph& in, const Target& target, Refresher refresher, Notes* notes) {
  const Reads reads =
      refresher == Refresher::loader ? reads_of_all(in, target) : reads_that_gain(in, target);
  std::map<std::pair<ValueId, Layout>, Value> panels;
  const auto in_panels = [&](Value weight, Layout layout) {
    const auto [at, fresh] = panels.try_emplace({weight.id, layout});
    if (fresh) at->second = store(weight, {layout});
    return at->second;
  };
  size_t readers = 0;
  Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    std::vector<Value> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const auto at = reads.find({id, i});
      if (at == reads.end()) continue;
      if (operands.empty()) operands = r.operands(id);
      const Value weight = operands[i];
      operands[i] = in_panels(weight, at->second);
      // The gradient of x is a product of the transpose. Below adapters the head has one order of
      // panels, which it turns: a second would be held for a few per cent of its time.
      if (node.op->loss && node.op->is_gradient)
        operands.push_back(is_base_matrix(in, node.operands[i])
                               ? operands[i]
                               : in_panels(weight, other(at->second)));
    }
    if (operands.empty()) return false;
    const std::vector<Value> results = call(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
    ++readers;
    return true;
  });
  if (notes && readers > 0)
    notes->push_back(fmt::format("{} in panels, for {}", counted(std::ssize(panels), "weight"),
                                 counted(readers, "node")));
  return out;
}

}  // namespace brrr
