#include "modules/onnx/export/verify_export.h"

#include <algorithm>
#include <cmath>

namespace brrr::onnx {
namespace {

/// One graph of an ExportSource as a module.
class SourceModule final : public modules::Module {
 public:
  SourceModule(const ExportSource& source, const std::vector<int64_t>& sizes)
      : source_(source), graph_(source.graph(sizes)) {
    for (const NodeId id : graph_.inputs(InputKind::data))
      inputs_.push_back(port(graph_.input_name(id), graph_.type({id, 0})));
    for (const Output& out : graph_.outputs())
      outputs_.push_back(port(out.name, graph_.type(out.value)));
  }
  const std::vector<modules::Port>& inputs() const override { return inputs_; }
  const std::vector<modules::Port>& outputs() const override { return outputs_; }
  modules::Lowered lower(const modules::Request&) const override {
    modules::Lowered lowered;
    lowered.graph = graph_;
    return lowered;
  }
  std::span<const std::byte> weight(std::string_view name) const override {
    return source_.weight(name);
  }
  std::string summary() const override { return source_.name; }
  uint64_t file_bytes() const override { return 0; }

 private:
  static modules::Port port(const std::string& name, const Type& type) {
    modules::Port p;
    p.name = name;
    p.type = std::string(brrr::name_of(type.dtype));
    p.dtype = type.dtype;
    p.has_shape = true;
    for (const int64_t size : type.shape.sizes()) p.dims.push_back({size, ""});
    return p;
  }
  const ExportSource& source_;
  Graph graph_;
  std::vector<modules::Port> inputs_, outputs_;
};

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

ExportDifference compare_export(const ExportSource& source,
                                std::shared_ptr<const modules::Module> written,
                                const Backend& backend, const std::vector<int64_t>& sizes,
                                const modules::ModuleValues& inputs) {
  modules::ModuleSession ours(std::make_shared<SourceModule>(source, sizes), backend);
  modules::ModuleSession theirs(std::move(written), backend);
  const modules::ModuleValues expected = ours.run(inputs), given = theirs.run(inputs);
  ExportDifference worst;
  worst.has_16_bits = has_16_bits(source.graph(sizes));
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
