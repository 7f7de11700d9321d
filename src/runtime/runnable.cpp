#include "runtime/runnable.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/rewriter.h"

namespace brrr {
namespace {

class MadeRunnable final : public Runnable {
 public:
  explicit MadeRunnable(GraphMaker maker) : maker_(std::move(maker)) {
    if (maker_.weights == nullptr) maker_.weights = std::make_shared<WeightList>(maker_.summary);
  }
  const std::vector<Port>& inputs() const override { return maker_.inputs; }
  const std::vector<Port>& outputs() const override { return maker_.outputs; }
  LoweredGraph lower(const GraphRequest& request) const override {
    LoweredGraph lowered;
    lowered.graph = maker_.graph(request.data);
    for (const NodeId id : lowered.graph.inputs(InputKind::data)) {
      const std::string& name = lowered.graph.input_name(id);
      const Type& type = lowered.graph.type({id, 0});
      const auto given = request.data.find(name);
      if (given == request.data.end()) user_error("the input '{}' is missing", name);
      if (given->second != type)
        user_error("the input '{}' must be {} beside the others; got {}", name, type.str(),
                   given->second.str());
    }
    lowered.graph = with_outputs(std::move(lowered.graph), request.wanted);
    return lowered;
  }
  std::shared_ptr<const WeightSource> weights() const override { return maker_.weights; }
  std::string summary() const override { return maker_.summary; }

 private:
  GraphMaker maker_;
};

}  // namespace

std::string Port::str() const {
  std::string text = type;
  if (!has_shape) return text;
  text += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += dims[i].size >= 0 ? fmt::format("{}", dims[i].size)
                              : (dims[i].name.empty() ? "?" : dims[i].name);
  }
  return text + ']';
}

Port port_of(const std::string& name, const Type& type) {
  Port port;
  port.name = name;
  port.type = std::string(name_of(type.dtype));
  port.dtype = type.dtype;
  port.has_shape = true;
  for (const Dim& d : type.shape.dims())
    port.dims.push_back(d.is_symbol() ? PortDim{-1, d.name(), -1} : PortDim{d.size(), "", -1});
  return port;
}

const Port* find_port(const std::vector<Port>& ports, std::string_view name) {
  const auto at = std::ranges::find(ports, name, &Port::name);
  return at == ports.end() ? nullptr : &*at;
}

uint64_t Runnable::file_bytes() const {
  uint64_t bytes = 0;
  weights()->each([&](const TensorView& tensor) { bytes += tensor.bytes.size(); });
  return bytes;
}

std::shared_ptr<const Runnable> make_runnable(GraphMaker maker) {
  return std::make_shared<MadeRunnable>(std::move(maker));
}

std::shared_ptr<const Runnable> runnable_of(const Graph& graph,
                                            std::shared_ptr<const WeightSource> weights) {
  GraphMaker maker;
  for (const NodeId id : graph.inputs(InputKind::data))
    maker.inputs.push_back(port_of(graph.input_name(id), graph.type({id, 0})));
  for (const Output& out : graph.outputs())
    maker.outputs.push_back(port_of(out.name, graph.type(out.value)));
  maker.graph = [graph](const std::map<std::string, Type>&) { return graph; };
  maker.weights = std::move(weights);
  maker.summary = "a graph";
  return make_runnable(std::move(maker));
}

Graph with_outputs(Graph graph, const std::vector<std::string>& wanted) {
  const auto is_unwanted = [&](const Output& out) {
    return out.updates == kNoNode && std::ranges::find(wanted, out.name) == wanted.end();
  };
  if (std::ranges::none_of(graph.outputs(), is_unwanted)) return graph;
  std::erase_if(graph.outputs(), is_unwanted);
  return drop_dead(std::move(graph));
}

}  // namespace brrr
