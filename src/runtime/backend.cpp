#include "runtime/backend.h"

#include <sstream>

#include "base/env.h"

namespace brrr {

bool is_disabled(std::string_view kernel) {
  const auto list = env::get("BRRR_DISABLE_KERNEL");
  if (!list) return false;
  std::istringstream names(*list);
  for (std::string name; std::getline(names, name, ',');)
    if (name == kernel) return true;
  return false;
}

Backend::Choice Backend::choose(const NodeView& node) const {
  Choice choice;
  for (const KernelEntry& entry : kernels) {
    if (entry.op != node.node().op->name) continue;
    std::string reason =
        is_disabled(entry.name) ? "BRRR_DISABLE_KERNEL names it" : entry.accepts(node);
    if (reason.empty()) {
      choice.entry = &entry;
      return choice;
    }
    choice.refusals.push_back(fmt::format("{}: {}", entry.name, reason));
  }
  return choice;
}

Target Backend::target() const {
  Target t;
  t.name = name;
  t.alignment = alignment;
  t.has_tf32 = has_tf32;
  t.rounds_activations = rounds_activations;
  t.runs = [this](const Graph& g, NodeId id) { return choose(NodeView(g, id)).entry != nullptr; };
  if (gains_by_epilogue)
    t.gains_by_epilogue = [this](const Graph& g, NodeId product, NodeId reader) {
      return gains_by_epilogue(NodeView(g, product), NodeView(g, reader));
    };
  if (gains_by_bias_gradient)
    t.gains_by_bias_gradient = [this](const Graph& g, NodeId product, NodeId sum) {
      return gains_by_bias_gradient(NodeView(g, product), NodeView(g, sum));
    };
  if (reads_panels)
    t.reads_panels = [this](const Graph& g, NodeId product) {
      return reads_panels(NodeView(g, product));
    };
  if (gains_by_panels)
    t.gains_by_panels = [this](const Graph& g, NodeId product) {
      return gains_by_panels(NodeView(g, product));
    };
  return t;
}

}  // namespace brrr
