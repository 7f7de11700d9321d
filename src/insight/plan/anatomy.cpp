#include "insight/plan/anatomy.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ops/fused.h"
#include "ops/op.h"
#include "train/predict.h"

namespace brrr::insight {
namespace {

bool is_backward(const Graph& g, NodeId id) {
  return g.phase(id) == Phase::backward || g.node(id).op->is_gradient;
}

/// Small scalars of the backward pass may be scheduled anywhere; it begins with real work.
bool is_work(const Graph& g, NodeId id) {
  bool work = false;
  machine::each_part(g, id, [&](const OpDef& op, const Cost&) {
    work |= op.op_class == OpClass::contraction || op.op_class == OpClass::normalisation;
  });
  return work;
}

}  // namespace

bool is_optimizer(const Graph& g, NodeId id) {
  return !g.is_input(id) &&
         (g.node(id).op->op_class == OpClass::optimizer || g.phase(id) == Phase::optimizer);
}

Phases::Phases(const Graph& g) : g_(g), begin_(static_cast<NodeId>(g.size())) {
  for (NodeId id = 0; id < g.size(); ++id)
    if (!g.is_input(id) && is_backward(g, id) && is_work(g, id)) {
      begin_ = id;
      break;
    }
}

const char* Phases::of(NodeId id) const {
  if (is_optimizer(g_, id)) return "optimizer";
  return id >= begin_ || is_backward(g_, id) ? "backward" : "forward";
}

OpClass weightiest_class(const Graph& g, NodeId id) {
  OpClass most = class_of(g.node(id));
  if (most == OpClass::contraction) return most;
  machine::each_part(g, id, [&](const OpDef& op, const Cost&) {
    if (op.op_class == OpClass::normalisation) most = OpClass::normalisation;
  });
  return most;
}

std::string layer_of(const Graph& g, NodeId id) {
  const std::string& path = g.path_of(id);
  if (g.phase(id) == Phase::optimizer) return "optimizer";
  if (path.empty()) return "(model)";
  if (path.starts_with("h.") && g.layer(id) >= 0) return std::string(g.block_of(id));
  return path.substr(0, path.find('.'));
}

std::string op_text(const Graph& g, NodeId id) {
  if (!is(g.node(id), Op::fused)) return g.node(id).op->name;
  std::vector<std::string> parts;
  machine::each_part(g, id, [&](const OpDef& op, const Cost& cost) {
    if (cost.flops > 0 && std::find(parts.begin(), parts.end(), op.name) == parts.end())
      parts.push_back(op.name);
  });
  if (parts.size() > 3) parts = {parts[0], parts[1], "..."};
  return parts.empty() ? "fused" : fmt::format("{}", fmt::join(parts, "+"));
}

std::string shape_text(const Graph& g, const Node& node) {
  std::vector<Type> types = operand_types(g, node);
  if (types.empty()) types = node.results;
  std::stable_sort(types.begin(), types.end(),
                   [](const Type& a, const Type& b) { return a.bytes() > b.bytes(); });
  const bool product = types.size() > 1 && types[1].shape.rank() > 1;
  return types[0].str() + (product ? " " + types[1].str() : "");
}

}  // namespace brrr::insight
