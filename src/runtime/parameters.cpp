#include "runtime/parameters.h"

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/ranks/state_shards.h"

namespace brrr {
namespace {

/// The most bytes that lie between the sources of a derived weight and its result at once.
int64_t steps_between(const Graph& form) {
  const ValueId result = form.outputs()[0].value;
  int64_t most = 0;
  for (NodeId id = 0; id < form.size(); ++id) {
    if (form.is_input(id)) continue;
    int64_t bytes = 0;
    for (const ValueId v : form.node(id).operands)
      if (!form.is_input(v.node)) bytes += form.type(v).bytes();
    for (uint32_t port = 0; port < form.node(id).results.size(); ++port)
      if (const ValueId v{id, port}; v != result) bytes += form.type(v).bytes();
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

void load_parameters(Engine& engine, const FloatWeights& weights) {
  std::map<std::string, Shape> shapes;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() == InputKind::parameter)
      shapes.emplace(s.name, whole_type(s).value_or(s.type).shape);
    if (const DerivedWeight* derived = engine.stands_for_parameters(s); derived != nullptr)
      for (const auto& [name, type] : engine.sources_to_fill(*derived))
        shapes.emplace(name, type.shape);
  }
  WeightList list("the initial weights", nullptr, weights);
  for (const auto& [name, shape] : shapes) list.add({name, DType::f32, shape, {}});
  engine.load(list);
}

int64_t loading_bytes(const Engine& engine) {
  int64_t most = 0;
  for (const StateInfo& s : engine.states()) {
    const DerivedWeight* derived = engine.stands_for_parameters(s);
    if (derived == nullptr) continue;
    int64_t bytes = steps_between(derived->form.graph());
    for (const auto& [name, type] : engine.sources_to_fill(*derived)) bytes += type.bytes();
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace brrr
