// Graphs of several sizes side by side.

#include <algorithm>

#include "base/errors.h"
#include "modules/onnx/export/emission.h"

namespace brrr::onnx {
namespace {

[[noreturn]] void differ(const std::string& names, const std::string& what) {
  throw SizesDiffer(
      fmt::format("the graph for some sizes of {} is not that for others ({})", names, what));
}

/// Whether a value may differ: numbers of sizes, which become formulas, and what is checked apart.
bool is_alike(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (std::holds_alternative<int64_t>(a) || std::holds_alternative<Region>(a)) return true;
  if (const auto* list = std::get_if<std::vector<int64_t>>(&a))
    return list->size() == std::get<std::vector<int64_t>>(b).size();
  if (const auto* shape = std::get_if<Shape>(&a)) return shape->rank() == std::get<Shape>(b).rank();
  return Attrs{{"", a}} == Attrs{{"", b}};  // NaN is equal to NaN
}

void check_node(const GraphFamily& family, NodeId id, const std::string& names) {
  const Node& first = family.first().node(id);
  const auto where = [&] {
    return fmt::format("{} {}", family.first().scope_of(id), first.op->name);
  };
  for (const Graph* graph : family.graphs) {
    const Node& node = graph->node(id);
    if (node.op != first.op || node.operands != first.operands ||
        node.results.size() != first.results.size())
      differ(names, where());
    for (size_t port = 0; port < node.results.size(); ++port)
      if (node.results[port].dtype != first.results[port].dtype ||
          node.results[port].shape.rank() != first.results[port].shape.rank())
        differ(names, where());
    auto other = node.attrs.begin();
    if (std::distance(node.attrs.begin(), node.attrs.end()) !=
        std::distance(first.attrs.begin(), first.attrs.end()))
      differ(names, where());
    for (const auto& [name, value] : first.attrs) {
      // Numbers of a constant may follow a size, too.
      const bool is_number = name == "value" && std::holds_alternative<double>(value);
      if (other->first != name || !(is_number || is_alike(value, other->second)))
        differ(names, fmt::format("{}, {}", where(), name));
      ++other;
    }
  }
  if (!first.op->runs_regions) return;
  for (const auto& [name, value] : first.attrs)
    if (std::holds_alternative<Region>(value)) check_alike(family.region(id, name), names);
}

}  // namespace

GraphFamily GraphFamily::region(NodeId id, std::string_view attribute) const {
  GraphFamily inner;
  for (const Graph* graph : graphs)
    inner.graphs.push_back(&graph->node(id).attrs.get<Region>(attribute).graph());
  return inner;
}

void check_alike(const GraphFamily& family, const std::string& names) {
  const Graph& first = family.first();
  for (const Graph* graph : family.graphs) {
    if (graph->size() != first.size() || graph->outputs().size() != first.outputs().size())
      differ(names, fmt::format("{} and {} nodes", first.size(), graph->size()));
    for (size_t i = 0; i < first.outputs().size(); ++i)
      if (graph->outputs()[i].value != first.outputs()[i].value ||
          graph->outputs()[i].name != first.outputs()[i].name)
        differ(names, "outputs");
  }
  for (NodeId id = 0; id < first.size(); ++id) check_node(family, id, names);
}

}  // namespace brrr::onnx
