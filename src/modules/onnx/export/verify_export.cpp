#include "modules/onnx/export/verify_export.h"

#include <algorithm>
#include <cmath>

namespace brrr::onnx {
namespace {

/// The weights of a graph, as its source gives them.
std::shared_ptr<const WeightSource> weights_of(const Graph& graph, const ExportSource& source) {
  auto weights = std::make_shared<WeightList>(source.name);
  for (const NodeId id : graph.inputs(InputKind::parameter)) {
    const std::string& name = graph.input_name(id);
    const Type& type = graph.type({id, 0});
    weights->add({name, type.dtype, type.shape, source.weight(name), type.storage});
  }
  return weights;
}

struct Comparison {
  double apart = 0;          // of the largest element
  bool has_numbers = false;  // other than NaN on both sides
};

Comparison compared(const HostTensor& a, const HostTensor& b) {
  constexpr double kTiny = 1e-9;  // of outputs that are zero but for rounding
  Comparison c;
  double largest = kTiny, apart = 0;
  c.has_numbers = a.shape.elements() == 0;
  for (int64_t i = 0; i < a.shape.elements(); ++i) {
    const double x = load_as_double(a.dtype, a.bytes.data(), i),
                 y = load_as_double(b.dtype, b.bytes.data(), i);
    if (std::isnan(x) && std::isnan(y)) continue;
    c.has_numbers = true;
    if (x == y) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
      continue;
    }
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    const double d = std::abs(x - y);
    apart = std::isnan(d) ? INFINITY : std::max(apart, d);
  }
  c.apart = apart / largest;
  return c;
}

bool has_16_bits(const Graph& graph) {
  for (const Node& node : graph.nodes())
    for (const Type& type : node.results)
      if (type.dtype == DType::f16 || type.dtype == DType::bf16) return true;
  return false;
}

}  // namespace

ExportDifference compare_export(const ExportSource& source, std::shared_ptr<const Runnable> written,
                                const Backend& backend, const std::vector<int64_t>& sizes,
                                const PortValues& inputs) {
  const Graph graph = source.graph(sizes);
  RunnableSession ours(runnable_of(graph, weights_of(graph, source)), backend);
  RunnableSession theirs(std::move(written), backend);
  const PortValues expected = ours.run(inputs), given = theirs.run(inputs);
  ExportDifference worst;
  worst.has_16_bits = has_16_bits(graph);
  for (const auto& [name, value] : expected) {
    const auto other = given.find(name);
    if (other == given.end()) user_error("the file has no output '{}'", name);
    const HostTensor &a = value.tensor(), &b = other->second.tensor();
    if (a.dtype != b.dtype || a.shape != b.shape)
      user_error("the output '{}' of the file is {}; expected {}", name,
                 Type{b.dtype, b.shape}.str(), Type{a.dtype, a.shape}.str());
    const Comparison c = compared(a, b);
    if (!c.has_numbers) worst.all_nan = name;
    if (worst.output.empty() || c.apart > worst.largest)
      worst.output = name, worst.largest = c.apart;
  }
  return worst;
}

}  // namespace brrr::onnx
