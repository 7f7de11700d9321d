// if and loop, whose regions read names of the outside.

#include "modules/onnx/export/emission.h"
#include "modules/onnx/export/export_call.h"
#include "ops/control.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

void if_of(ExportCall& c) {
  Emission& e = c.emission();
  const NodeId id = c.id();
  const std::string_view condition = c.in(0);
  const std::vector<std::string_view> captured = c.ins(1);
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
  return is(node, Op::full) && full_value(node) != 0;
}

/// A loop as it is written. Its rows are stacked by ONNX where every iteration is run; else their
/// number would depend on data, so that they are written into a tensor which is carried.
class LoopWriter {
 public:
  explicit LoopWriter(ExportCall& c)
      : c_(c), e_(c.emission()), form_(c.node()), family_(c.family().region(c.id(), "body")) {
    runs_to_bound_ = is_always(c.family().first(), c.node().operands[0]) &&
                     is_always(form_.body, form_.body.outputs()[0].value);
    counts_ = c.is_used(static_cast<uint32_t>(form_.carried + form_.stacked));
  }

  void write() {
    begin_body();
    const GraphProto walked = e_.region(family_, given_, results_);
    std::vector<NodeProto>* outside = e_.write_to(&body_.nodes);
    c_.cast(iteration_, DType::i32);
    body_.nodes.back().outputs[0] = narrow_;
    body_.nodes.insert(body_.nodes.end(), walked.nodes.begin(), walked.nodes.end());
    for (size_t i = 0; i < form_.carried; ++i) carry(carried_[i], c_.in(1 + i), results_[1 + i]);
    write_rows(outside);
    write_counter();
    e_.write_to(outside);
    finish();
  }

 private:
  struct Carried {
    std::string_view inside;
    DType dtype;
    std::vector<SizeFormula> shape;
    std::string_view initial, next;
  };

  Carried declare(const char* name, DType dtype, std::vector<SizeFormula> shape) {
    return {e_.fresh(name), dtype, std::move(shape), {}, {}};
  }
  void carry(Carried& value, std::string_view initial, std::string_view next) {
    value.initial = initial;
    value.next = next;
  }

  void begin_body() {
    iteration_ = e_.fresh("iteration");
    condition_ = e_.fresh("condition");
    narrow_ = e_.fresh("iteration_i32");
    given_ = {narrow_};
    for (size_t i = 0; i < form_.carried; ++i) {
      carried_.push_back(declare("carried", c_.result(i).dtype, c_.shape_of(i)));
      given_.push_back(carried_.back().inside);
    }
    for (const std::string_view name : c_.ins(1 + form_.carried)) given_.push_back(name);
    for (size_t i = 0; i < form_.body.outputs().size(); ++i) results_.push_back(e_.fresh("next"));
  }

  /// Inside the body; what is written into lies outside.
  void write_rows(std::vector<NodeProto>* outside) {
    if (runs_to_bound_) return;
    for (size_t i = 0; i < form_.stacked; ++i) {
      const size_t port = form_.carried + i;
      Carried rows = declare("rows", c_.result(port).dtype, c_.shape_of(port));
      std::vector<int64_t> column(rows.shape.size(), 1);
      column[0] = -1;
      const std::string_view index =
          c_.emit("Range", {c_.scalar(0.0, DType::i64), c_.scalar(c_.integer("bound"), DType::i64),
                            c_.scalar(1.0, DType::i64)});
      const std::string_view is_here =
          c_.emit("Reshape", {c_.emit("Equal", {index, iteration_}), c_.vector(column)});
      const std::string_view row =
          c_.emit("Unsqueeze", {results_[1 + port], c_.vector(std::vector<int64_t>{0})});
      const std::string_view next = c_.emit("Where", {is_here, row, rows.inside});
      std::vector<NodeProto>* inside = e_.write_to(outside);
      const std::string_view zeros =
          c_.emit("Expand", {c_.scalar(0.0, rows.dtype), c_.vector(rows.shape)});
      e_.write_to(inside);
      carry(rows, zeros, next);
      carried_.push_back(rows);
    }
  }
  void write_counter() {
    if (!counts_) return;
    Carried counter = declare("counter", DType::i64, {});
    const std::string_view next = c_.emit("Add", {counter.inside, c_.scalar(1.0, DType::i64)});
    carry(counter, c_.scalar(0.0, DType::i64), next);
    carried_.push_back(counter);
  }

  void finish() {
    body_.name = e_.fresh("body");
    body_.inputs = {e_.value_info(iteration_, DType::i64, {}),
                    e_.value_info(condition_, DType::boolean, {})};
    body_.outputs = {e_.value_info(results_[0], DType::boolean, {})};
    std::vector<std::string_view> in{c_.scalar(c_.integer("bound"), DType::i64), c_.in(0)};
    for (const Carried& value : carried_) {
      body_.inputs.push_back(e_.value_info(value.inside, value.dtype, value.shape));
      body_.outputs.push_back(e_.value_info(value.next, value.dtype, value.shape));
      in.push_back(value.initial);
    }
    const size_t scanned = runs_to_bound_ ? form_.stacked : 0;
    for (size_t port = form_.carried; port < form_.carried + scanned; ++port) {
      std::vector<SizeFormula> row = c_.shape_of(port);
      row.erase(row.begin());
      body_.outputs.push_back(e_.value_info(results_[1 + port], c_.result(port).dtype, row));
    }
    c_.emit("Loop", std::move(in), {graph_attribute("body", std::move(body_))},
            carried_.size() + scanned);
    // Carried values, rows that were carried, the counter; then rows that were stacked.
    const size_t rows_at = runs_to_bound_ ? carried_.size() : form_.carried;
    for (size_t i = 0; i < form_.carried; ++i) c_.out(c_.further(i), static_cast<uint32_t>(i));
    for (size_t i = 0; i < form_.stacked; ++i)
      c_.out(c_.further(rows_at + i), static_cast<uint32_t>(form_.carried + i));
    if (!counts_) return;
    const std::string_view count = c_.further(carried_.size() - 1);
    c_.out(c_.cast(count, DType::i32), static_cast<uint32_t>(form_.carried + form_.stacked));
  }

  ExportCall& c_;
  Emission& e_;
  LoopForm form_;
  GraphFamily family_;
  bool runs_to_bound_ = false, counts_ = false;
  std::string_view iteration_, condition_, narrow_;
  std::vector<std::string_view> given_, results_;
  std::vector<Carried> carried_;
  GraphProto body_;
};

void loop_of(ExportCall& c) { LoopWriter(c).write(); }

}  // namespace

std::span<const ExportRow> control_exports() {
  static const ExportRow rows[] = {{Op::if_, if_of}, {Op::loop, loop_of}};
  return rows;
}

}  // namespace brrr::onnx
