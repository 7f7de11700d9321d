// What is known of a graph while it is built.

#include "base/errors.h"
#include "base/memory.h"
#include "ir/evaluate.h"
#include "modules/onnx/lowering.h"

namespace brrr::onnx {
namespace {

constexpr int64_t kMostKnown = 16777216;  // elements of a value that is known while lowering
constexpr double kMostWork = 1e9;         // operations that computing one may take

void round_to_dtype(RefTensor& t) {
  if (!is_float(t.type.dtype) || t.type.dtype == DType::f64) return;
  for (double& x : t.data) x = rounded_to(t.type.dtype, x);
}

}  // namespace

Build::Dependence Build::dependence(ValueId v) {
  for (auto id = static_cast<NodeId>(dependences_.size()); id < graph.size(); ++id) {
    uint8_t d = nothing;
    if (graph.is_input(id) && graph.role(id) != Role::parameter)
      d = bindable_.contains(id) ? small_inputs : data;
    for (const ValueId operand : graph.node(id).operands) d |= dependences_[operand.node];
    dependences_.push_back(d);
  }
  const uint8_t d = dependences_[v.node];
  return (d & data) != 0 ? data : static_cast<Dependence>(d);
}

std::vector<std::string> Build::small_inputs_of(ValueId v) const {
  std::set<NodeId> seen{v.node};
  std::vector<NodeId> open{v.node};
  std::vector<std::string> names;
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (bindable_.contains(id)) names.push_back(graph.input_name(id));
    for (const ValueId operand : graph.node(id).operands)
      if (seen.insert(operand.node).second) open.push_back(operand.node);
  }
  return names;
}

void Build::will_know(const std::vector<Type>& types) {
  constexpr int64_t kElementBytes = 8;  // of a RefTensor
  for (const Type& type : types) {
    if (type.shape.elements() > kMostKnown)
      user_error("a shape depends on {}, which is too large to be known", type.str());
    known_bytes_ += type.shape.elements() * kElementBytes;
  }
  if (most_bytes_ > 0 && known_bytes_ > most_bytes_)
    throw UserError(fmt::format("values on which shapes depend need {}, and {} are left for them",
                                memory_text(known_bytes_), memory_text(most_bytes_)),
                    ExitCode::kNoMemory);
}

const RefTensor& Build::evaluate(ValueId v, const Weight& weight) {
  std::set<NodeId> missing;
  std::vector<NodeId> open{v.node};
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (known_.contains(id) || !missing.insert(id).second) continue;
    for (const ValueId operand : graph.node(id).operands) open.push_back(operand.node);
  }
  for (const NodeId id : missing) {  // ascending: operands first
    will_know(graph.node(id).results);
    if (graph.is_input(id)) {
      const Type& type = graph.type({id, 0});
      known_[id] = {read_tensor(type, weight(graph.input_name(id)).data())};
      continue;
    }
    if (cost_of(graph, id).flops > kMostWork)
      user_error("a shape depends on a constant of {} that takes too long to compute",
                 graph.node(id).op->name);
    std::vector<const RefTensor*> in;
    for (const ValueId operand : graph.node(id).operands)
      in.push_back(&known_[operand.node][operand.port]);
    std::vector<RefTensor> results = evaluate_node(graph, id, in);
    for (RefTensor& t : results) round_to_dtype(t);
    known_[id] = std::move(results);
  }
  return known_[v.node][v.port];
}

}  // namespace brrr::onnx
