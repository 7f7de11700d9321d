// if and loop, whose regions read names of the outside.

#include "modules/onnx/export/emission.h"
#include "modules/onnx/export/export_call.h"
#include "ops/control.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

AttributeProto to_type(ElementType type) { return attribute("to", static_cast<int64_t>(type)); }

std::vector<std::string_view> operand_names(const ExportCall& c, size_t first) {
  std::vector<std::string_view> names;
  for (size_t i = first; i < c.node().operands.size(); ++i) names.push_back(c.in(i));
  return names;
}

void if_of(ExportCall& c) {
  Emission& e = c.emission();
  const NodeId id = c.id();
  const std::string_view condition = c.in(0);
  const std::vector<std::string_view> captured = operand_names(c, 1);
  std::vector<AttributeProto> branches;
  for (const auto& [ours, theirs] : {std::pair("then", "then_branch"), {"else", "else_branch"}}) {
    const GraphFamily family = c.family().region(id, ours);
    std::vector<std::string_view> outputs;
    for (size_t i = 0; i < c.node().results.size(); ++i)
      outputs.push_back(e.fresh(c.text(fmt::format("{}_result", ours))));
    GraphProto graph = e.region(family, captured, outputs);
    graph.name = e.fresh(ours);
    for (size_t i = 0; i < outputs.size(); ++i)
      graph.outputs.push_back(e.value_info(outputs[i], c.result(i).dtype, c.shape_of(i)));
    branches.push_back(graph_attribute(theirs, std::move(graph)));
  }
  c.emit("If", {condition}, std::move(branches), c.node().results.size());
  for (uint32_t port = 0; port < c.node().results.size(); ++port) c.out(c.further(port), port);
}

/// Whether a value is the constant true.
bool is_always(const Graph& g, ValueId v) {
  const Node& node = g.node(v.node);
  return node.op->name == "full" && full_value(node) != 0;
}

void loop_of(ExportCall& c) {
  Emission& e = c.emission();
  const NodeId id = c.id();
  const LoopForm form(c.node());
  const GraphFamily family = c.family().region(id, "body");
  const size_t carried = form.carried, stacked = form.stacked;
  const auto count_port = static_cast<uint32_t>(carried + stacked);
  // Inputs of the body: the iteration's number, the condition, what is carried. A counter is
  // carried, too, where somebody asks how many iterations there were.
  const bool runs_to_bound = is_always(c.family().first(), c.node().operands[0]) &&
                             is_always(form.body, form.body.outputs()[0].value);
  const bool counts = c.is_used(count_port) || (stacked > 0 && !runs_to_bound);
  const std::string_view iteration = e.fresh("iteration"), condition = e.fresh("condition");
  GraphProto body;
  body.inputs = {e.value_info(iteration, DType::i64, {}),
                 e.value_info(condition, DType::boolean, {})};
  const std::string_view narrow = e.fresh("iteration_i32");
  std::vector<std::string_view> given{narrow}, initial;
  for (size_t i = 0; i < carried; ++i) {
    given.push_back(e.fresh("carried"));
    initial.push_back(c.in(1 + i));
    body.inputs.push_back(e.value_info(given.back(), c.result(i).dtype, c.shape_of(i)));
  }
  std::string_view counter;
  if (counts) {
    counter = e.fresh("counter");
    body.inputs.push_back(e.value_info(counter, DType::i64, {}));
  }
  for (const std::string_view name : operand_names(c, 1 + carried)) given.push_back(name);
  std::vector<std::string_view> results;
  for (size_t i = 0; i < form.body.outputs().size(); ++i) results.push_back(e.fresh("next"));
  const GraphProto walked = e.region(family, given, results);
  std::vector<NodeProto>* outside = e.write_to(&body.nodes);
  c.emit("Cast", {iteration}, {to_type(ElementType::i32)});
  body.nodes.back().outputs[0] = narrow;
  body.nodes.insert(body.nodes.end(), walked.nodes.begin(), walked.nodes.end());
  std::string_view next_count;
  if (counts) next_count = c.emit("Add", {counter, c.scalar(1.0, DType::i64)});
  e.write_to(outside);
  body.name = e.fresh("body");
  body.outputs.push_back(e.value_info(results[0], DType::boolean, {}));
  for (size_t i = 0; i < carried; ++i)
    body.outputs.push_back(e.value_info(results[1 + i], c.result(i).dtype, c.shape_of(i)));
  if (counts) body.outputs.push_back(e.value_info(next_count, DType::i64, {}));
  for (size_t i = 0; i < stacked; ++i) {
    std::vector<SizeFormula> row = c.shape_of(carried + i);
    row.erase(row.begin());
    body.outputs.push_back(
        e.value_info(results[1 + carried + i], c.result(carried + i).dtype, row));
  }
  const SizeFormula bound = c.integer("bound");
  std::vector<std::string_view> in{c.scalar(bound, DType::i64), c.in(0)};
  in.insert(in.end(), initial.begin(), initial.end());
  if (counts) in.push_back(c.scalar(0.0, DType::i64));
  c.emit("Loop", std::move(in), {graph_attribute("body", std::move(body))},
         carried + stacked + (counts ? 1 : 0));
  std::vector<std::string_view> out;
  for (size_t i = 0; i < carried + stacked + (counts ? 1 : 0); ++i) out.push_back(c.further(i));
  for (size_t i = 0; i < carried; ++i) c.out(out[i], static_cast<uint32_t>(i));
  const size_t first_row = carried + (counts ? 1 : 0);
  for (size_t i = 0; i < stacked; ++i) {
    const auto port = static_cast<uint32_t>(carried + i);
    std::string_view rows = out[first_row + i];
    if (!runs_to_bound && c.is_used(port)) {
      // Zeros behind the last iteration.
      const std::string_view missing = c.emit("Sub", {c.scalar(bound, DType::i64), out[carried]});
      const std::vector<int64_t> one{1};
      std::vector<SizeFormula> row = c.shape_of(port);
      row.erase(row.begin());
      std::string_view shape = c.emit("Reshape", {missing, c.vector(one)});
      if (!row.empty())
        shape = c.emit("Concat", {shape, c.vector(row)}, {attribute("axis", int64_t{0})});
      const std::string_view zeros = c.emit("Expand", {c.scalar(0.0, c.result(port).dtype), shape});
      rows = c.emit("Concat", {rows, zeros}, {attribute("axis", int64_t{0})});
    }
    c.out(rows, port);
  }
  if (c.is_used(count_port))
    c.out(c.emit("Cast", {out[carried]}, {to_type(ElementType::i32)}), count_port);
}

}  // namespace

std::span<const ExportRow> control_exports() {
  static const ExportRow rows[] = {{"if", if_of}, {"loop", loop_of}};
  return rows;
}

}  // namespace brrr::onnx
