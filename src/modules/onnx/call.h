#pragma once
// Call: one node of an ONNX file, as the function of its operator sees it. Operators are rows of
// tables (operators/*.cpp); operator_table.cpp joins them.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "modules/onnx/lowering.h"
#include "modules/onnx/onnx_module.h"
#include "ops/ops.h"

namespace brrr::onnx {

class Call {
 public:
  Call(Lowering& lowering, const NodeProto& node, Names& names);

  const NodeProto& node() const { return node_; }
  Lowering& lowering() { return lowering_; }
  Names& names() { return names_; }
  Graph& graph() { return lowering_.build().graph; }
  /// The version of the operators of the node's domain.
  int64_t opset() const { return opset_; }

  // -- operands
  // -------------------------------------------------------------------------------------
  size_t inputs() const { return node_.inputs.size(); }
  /// Whether operand i is there: not left out.
  bool has(size_t i) const;
  /// Operand i, a tensor.
  Value in(size_t i);
  std::optional<Value> optional(size_t i);
  const Item& item(size_t i);
  /// The value of operand i, which the graph must know: it ends here where it does not.
  const RefTensor& known(size_t i);
  /// The same where it is known without ending the graph; null where it depends on data.
  const RefTensor* known_or_null(size_t i);
  /// The value of operand i, which must have one element.
  double known_number(size_t i);
  int64_t known_integer(size_t i);
  /// The value of operand i as integers.
  std::vector<int64_t> integers(size_t i);

  // -- attributes
  // -----------------------------------------------------------------------------------
  bool has_attribute(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name, std::optional<int64_t> fallback = std::nullopt) const;
  double number(std::string_view name, std::optional<double> fallback = std::nullopt) const;
  std::string text(std::string_view name, std::optional<std::string> fallback = std::nullopt) const;
  std::optional<std::vector<int64_t>> integer_list(std::string_view name) const;
  std::optional<std::vector<float>> number_list(std::string_view name) const;
  std::vector<std::string> text_list(std::string_view name) const;
  const TensorProto* tensor(std::string_view name) const;
  const GraphProto& subgraph(std::string_view name) const;
  /// The type of elements that an attribute names, one that has a dtype.
  ElementType element_type(std::string_view name) const;
  /// The dtype that an attribute of data types names; integers of 2 and 4 bits are refused.
  DType dtype(std::string_view name, std::optional<DType> fallback = std::nullopt) const;
  /// An attribute, or operand i in newer versions: sizes that moved there.
  std::optional<std::vector<int64_t>> integers_of(std::string_view name, size_t i);
  /// The attribute as it is written, or as the call of the function gives it.
  const AttributeProto* find(std::string_view name) const;

  // -- results
  // --------------------------------------------------------------------------------------
  size_t outputs() const { return node_.outputs.size(); }
  bool wants(size_t i) const;
  void out(size_t i, Item item);
  void out(Value v) { out(0, Item(v)); }

  // -- helpers
  // --------------------------------------------------------------------------------------
  /// An axis in [0, rank); UserError outside.
  int64_t axis(int64_t axis, int rank) const;
  std::vector<int64_t> axes(std::vector<int64_t> axes, int rank) const;
  /// A scalar of the dtype.
  Value scalar(Number value, DType dtype) { return brrr::scalar(graph(), value, dtype); }
  /// A list as a vector of i64, or of f32.
  Value vector(const std::vector<int64_t>& list);
  Value vector(const std::vector<float>& list);
  Value scalar_like(Number value, const Value& like) { return scalar(value, like.dtype()); }

  /// Throws Unsupported: "FILE: Conv 'name': not supported: ...".
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    refuse_text(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Throws UserError: "FILE: Conv 'name': ...".
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_text(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_text(const std::string& message) const;
  [[noreturn]] void fail_text(const std::string& message) const;
  /// "FILE: Conv 'name'"
  std::string where() const;
  /// "f32[2,3], i64[1], -": what the operands are, as far as they are there.
  std::string operand_types();

 private:
  const AttributeProto& get(std::string_view name, AttributeProto::Kind kind,
                            const char* what) const;

  Lowering& lowering_;
  const NodeProto& node_;
  Names& names_;
  int64_t opset_ = 0;
};

/// How an operator is lowered, for versions of its domain from `since` on; a later row of the same
/// operator takes over from its own `since` on.
struct OperatorRow {
  std::string_view domain, op_type;
  void (*lower)(Call& call);
  int64_t since = 1;
};

/// The row for an operator of that version; null: not supported.
const OperatorRow* find_operator(std::string_view domain, std::string_view op_type,
                                 int64_t version);

/// All rows, in no particular order.
std::vector<const OperatorRow*> all_operators();

/// How many operands an operator takes at least; 0 where ONNX does not say.
size_t fewest_operands(std::string_view domain, std::string_view op_type);

/// What is wrong with the number of axes of an operand, as the specification fixes it: "must have 2
/// axes"; "" where nothing is.
std::string rank_problem(std::string_view domain, std::string_view op_type, size_t operand,
                         int rank);

// The tables, a file each.
std::span<const OperatorRow> arithmetic_operators();
std::span<const OperatorRow> attention_operators();
std::span<const OperatorRow> contraction_operators();
std::span<const OperatorRow> control_operators();
std::span<const OperatorRow> indexing_operators();
std::span<const OperatorRow> learning_operators();
std::span<const OperatorRow> loss_operators();
std::span<const OperatorRow> microsoft_operators();
std::span<const OperatorRow> movement_operators();
std::span<const OperatorRow> quantised_lstm_operators();
std::span<const OperatorRow> quantised_operators();
std::span<const OperatorRow> recurrent_operators();
std::span<const OperatorRow> reduction_operators();
std::span<const OperatorRow> resampling_operators();
std::span<const OperatorRow> sampling_operators();
std::span<const OperatorRow> selection_operators();
std::span<const OperatorRow> sequence_operators();
std::span<const OperatorRow> signal_operators();
std::span<const OperatorRow> spatial_norm_operators();
std::span<const OperatorRow> spatial_operators();

}  // namespace brrr::onnx
