#include "backend/reference/interpreter.h"

#include "base/errors.h"

namespace brrr::reference {

Tensors evaluate(const Graph& graph, const Tensors& inputs) {
  std::vector<const RefTensor*> in;
  for (NodeId id : graph.inputs()) {
    const auto at = inputs.find(graph.input_name(id));
    if (at == inputs.end()) user_error("the input '{}' has no value", graph.input_name(id));
    if (!(at->second.type == graph.type({id, 0})))
      user_error("the input '{}' must be {}; got {}", graph.input_name(id),
                 graph.type({id, 0}).str(), at->second.type.str());
    in.push_back(&at->second);
  }
  std::vector<RefTensor> results = evaluate_graph(graph, in);
  Tensors out;
  for (size_t i = 0; i < results.size(); ++i) {
    const Output& o = graph.outputs()[i];
    const std::string name =
        o.updates == kNoNode ? o.name : "update:" + graph.input_name(o.updates);
    out[name] = std::move(results[i]);
  }
  return out;
}

Backend backend() {
  Backend b;
  b.name = "reference";
  return b;
}

}  // namespace brrr::reference
