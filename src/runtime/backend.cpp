#include "runtime/backend.h"

#include <algorithm>
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

bool NodeView::lies_in_rows() const {
  const auto plain = [](const Type& t) { return t.storage.is_plain(); };
  return std::ranges::all_of(in, plain) && std::ranges::all_of(out(), plain);
}

Backend::Choice Backend::choose(const NodeView& node) const {
  Choice choice;
  for (const KernelEntry& entry : kernels) {
    if (entry.op != node.node().op->id) continue;
    std::string reason =
        is_disabled(entry.name) ? "BRRR_DISABLE_KERNEL names it" : entry.refusal(node);
    if (reason.empty()) {
      choice.entry = &entry;
      return choice;
    }
    choice.refusals.push_back(fmt::format("{}: {}", entry.name, reason));
  }
  return choice;
}

Target Backend::target() const {
  Target t = *this;
  t.runs = [this](const Graph& g, NodeId id) { return choose(NodeView(g, id)).entry != nullptr; };
  return t;
}

}  // namespace brrr
