#include "runtime/parameters.h"

#include <algorithm>
#include <map>
#include <vector>

namespace brrr {
namespace {

/// A source of parameters that lie in rows, rounded from f32.
ParameterSource source_of(FloatWeights weights) {
  return [weights = std::move(weights)](const std::string& name, const Type& type,
                                        std::span<std::byte> to) {
    const auto elements = static_cast<size_t>(type.shape.elements());
    if (type.dtype == DType::f32)
      return weights(name, {reinterpret_cast<float*>(to.data()), elements});
    std::vector<float> wide(elements);
    weights(name, wide);
    convert(DType::f32, wide.data(), type.dtype, to.data(), type.shape.elements());
  };
}

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

// Derived weights are made one at a time, so that the sources of no other weight take memory.
void load_parameters(Engine& engine, const FloatWeights& weights) {
  engine.load(source_of(weights));
}

void load_and_keep(Engine& engine, FloatWeights weights) {
  engine.keep_source(source_of(std::move(weights)));
}

int64_t loading_bytes(const Engine& engine, Loading how) {
  const auto wide = [&](const Type& type) {
    return how == Loading::as_stored || type.dtype == DType::f32
               ? 0
               : type.shape.elements() * int64_t{sizeof(float)};
  };
  int64_t most = 0;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() == InputKind::parameter && !s.is_lent) most = std::max(most, wide(s.type));
    const DerivedWeight* derived = engine.stands_for_parameters(s);
    if (derived == nullptr) continue;
    int64_t widest = steps_between(derived->form.graph()), bytes = 0;
    for (const auto& [name, type] : engine.sources_to_fill(*derived)) {
      bytes += type.bytes();
      widest = std::max(widest, wide(type));
    }
    most = std::max(most, bytes + widest);
  }
  return most;
}

}  // namespace brrr
