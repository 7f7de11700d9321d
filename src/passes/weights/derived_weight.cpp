#include "passes/weights/derived_weight.h"

#include "base/errors.h"
#include "base/hash.h"
#include "ir/op_def.h"
#include "ops/op.h"
#include "passes/passes.h"

namespace brrr {
namespace {

constexpr const char* kForm = "form";
std::string operand_name(size_t i) { return fmt::format("a{}", i); }

ValueId result_of(const DerivedWeight& weight) {
  return weight.form.graph().outputs().front().value;
}

}  // namespace

const Type& DerivedWeight::type() const { return form.graph().type(result_of(*this)); }

std::string DerivedWeight::name() const {
  const Graph& g = form.graph();
  const Node& last = g.node(result_of(*this).node);
  const bool is_cast = is(last, Op::cast) && g.size() == 2 && sources.size() == 1;
  if (is_cast) return fmt::format("{}:{}", sources[0], name_of(last.results[0].dtype));
  Hash hash;
  hash.add(form.hash());
  for (const std::string& source : sources) hash.add(source);
  const std::string others =
      sources.size() > 1 ? fmt::format("+{}", sources.size() - 1) : std::string();
  return fmt::format("{}{}:{}:{:08x}", sources[0], others, last.op->name,
                     static_cast<uint32_t>(hash.value()));
}

Value derived_input(Graph& graph, const DerivedWeight& weight) {
  const std::string name = weight.name();
  if (const NodeId found = graph.find_input(name); found != kNoNode) return graph.value(found);
  Attrs attrs{{kForm, weight.form}};
  for (size_t i = 0; i < weight.sources.size(); ++i) attrs.set(operand_name(i), weight.sources[i]);
  return graph.input(name, weight.type(), Role::derived, std::move(attrs));
}

std::optional<DerivedWeight> derived_weight(const Attrs& input) {
  if (input.get<std::string>("kind") != name_of(Role::derived)) return std::nullopt;
  const std::string& name = input.get<std::string>("name");
  const AttrValue* form = input.find(kForm);
  if (form == nullptr || !std::holds_alternative<Region>(*form))
    user_error("the derived weight '{}' has no form: the graph that makes it", name);
  DerivedWeight weight{{}, std::get<Region>(*form)};
  if (!weight.form.problem().empty())
    user_error("the derived weight '{}': {}", name, weight.form.problem());
  for (size_t i = 0; i < weight.form.graph().inputs().size(); ++i) {
    const AttrValue* source = input.find(operand_name(i));
    if (source == nullptr || !std::holds_alternative<std::string>(*source))
      user_error("the derived weight '{}' does not name its source {}", name, operand_name(i));
    weight.sources.push_back(std::get<std::string>(*source));
  }
  if (weight.sources.empty()) user_error("the derived weight '{}' is made of no parameter", name);
  const size_t results = weight.form.graph().outputs().size();
  if (results != 1) user_error("the form of the derived weight '{}' has {} outputs", name, results);
  Type type{input.get<DType>("dtype"), input.get<Shape>("shape")};
  if (const auto storage = storage_from_name(input.get_or<std::string>("storage", "rows")))
    type.storage = *storage;
  if (type != weight.type())
    user_error("the derived weight '{}' is {}, and its form gives {}", name, type.str(),
               weight.type().str());
  if (name != weight.name())
    user_error("the derived weight '{}' must be named '{}', after its sources and its form", name,
               weight.name());
  return weight;
}

Value make_weight(Graph& graph, const DerivedWeight& weight, std::span<const Value> sources) {
  const Graph& form = weight.form.graph();
  std::vector<std::vector<ValueId>> made(form.size());
  size_t next = 0;
  for (NodeId id = 0; id < form.size(); ++id) {
    if (form.is_input(id)) {
      made[id] = {sources[next++].id};
      continue;
    }
    const Node& node = form.node(id);
    std::vector<ValueId> operands;
    for (const ValueId& v : node.operands) operands.push_back(made[v.node][v.port]);
    const NodeId added = graph.add(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port) made[id].push_back({added, port});
  }
  const ValueId result = result_of(weight);
  return graph.value(made[result.node][result.port]);
}

Graph refresh_graph(std::span<const DerivedWeight> weights) {
  Graph g;
  for (const DerivedWeight& weight : weights) {
    const Graph& form = weight.form.graph();
    std::vector<Value> sources;
    for (size_t i = 0; i < weight.sources.size(); ++i) {
      const NodeId found = g.find_input(weight.sources[i]);
      const Type& type = form.type({form.inputs()[i], 0});
      sources.push_back(found != kNoNode ? g.value(found)
                                         : g.input(weight.sources[i], type, Role::parameter));
    }
    g.update(derived_input(g, weight), make_weight(g, weight, sources));
  }
  // What is made on the way, for several weights perhaps, is made once and leaves as soon as it
  // can.
  return schedule(simplify(g));
}

}  // namespace brrr
