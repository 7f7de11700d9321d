#include "ir/region.h"

#include "base/hash.h"
#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {
namespace {

/// Result types follow from the rest; scopes only say where a node came from.
uint64_t hash_of(const Graph& graph) {
  Hash hash;
  for (const Node& node : graph.nodes()) {
    hash.add(node.op->name);
    for (const ValueId& v : node.operands) hash.add(v.node).add(v.port);
    hash.add(hash_of(node.attrs));
  }
  for (const Output& o : graph.outputs()) hash.add(o.name).add(o.value.node).add(o.value.port);
  return hash.value();
}

std::string problem_of(const Graph& graph) {
  size_t inputs = 0;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!graph.is_input(id)) continue;
    const std::string name = "a" + std::to_string(inputs);
    if (graph.role(id) != Role::data || graph.input_name(id) != name)
      return fmt::format(
          "input {} must be data named {}, the operand that it is; got the {} '{}': a region reads "
          "the outside through operands alone",
          inputs, name, name_of(graph.role(id)), graph.input_name(id));
    ++inputs;
  }
  if (graph.outputs().empty()) return "there is no output";
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Output& o = graph.outputs()[i];
    if (o.updates != kNoNode) return fmt::format("it updates '{}'", o.name);
    if (o.gradient_of != kNoNode) return fmt::format("it outputs the gradient '{}'", o.name);
    if (o.name != std::to_string(i))
      return fmt::format("output {} must be named \"{}\"; got \"{}\"", i, i, o.name);
  }
  return "";
}

}  // namespace

struct Region::Content {
  Graph graph;
  uint64_t hash;
  std::string problem;
};

Region::Region(Graph graph) {
  const uint64_t hash = hash_of(graph);
  std::string problem = problem_of(graph);
  content_ = std::make_shared<const Content>(Content{std::move(graph), hash, std::move(problem)});
}

const Graph& Region::graph() const { return content_->graph; }
uint64_t Region::hash() const { return content_->hash; }
const std::string& Region::problem() const { return content_->problem; }

bool Region::operator==(const Region& other) const {
  if (content_ == other.content_) return true;
  return hash() == other.hash() && graph() == other.graph();
}

}  // namespace brrr
