#pragma once
// ExportCall: one node of a graph, as the row that writes it as nodes of ONNX sees it. Rows stand
// in tables (export_*.cpp), as those of the import do; emission.cpp walks over the graph.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/onnx/onnx_file.h"
#include "ir/op_def.h"
#include "modules/onnx/export/size_formula.h"

namespace brrr::onnx {

class Emission;
struct GraphFamily;

// Attributes of a node.
AttributeProto attribute(std::string_view name, int64_t value);
AttributeProto attribute(std::string_view name, double value);
AttributeProto attribute(std::string_view name, std::vector<int64_t> values);
/// `value` must live as long as the model.
AttributeProto text_attribute(std::string_view name, std::string_view value);
AttributeProto graph_attribute(std::string_view name, GraphProto graph);

/// The double that a number becomes when it is stored in the dtype.
double nearest_in(DType dtype, double value);

class ExportCall {
 public:
  ExportCall(Emission& emission, const GraphFamily& family, NodeId id);

  NodeId id() const { return id_; }
  /// The node for the first of the sizes, and its types.
  const Node& node() const;
  const Type& type(size_t operand) const;
  const Type& result(size_t port = 0) const;
  bool is_used(uint32_t port) const;
  int64_t opset() const;
  Emission& emission() { return emission_; }
  const GraphFamily& family() const { return family_; }

  /// The name of operand i in the file.
  std::string_view in(size_t i) const;
  /// Those of the operands from `first` on.
  std::vector<std::string_view> ins(size_t first = 0) const;
  /// Appends a node and gives the name of its first result; further(n) gives that of another.
  std::string_view emit(std::string_view op_type, std::vector<std::string_view> inputs,
                        std::vector<AttributeProto> attributes = {}, size_t outputs = 1);
  std::string_view further(size_t output) const;
  /// emit("Cast").
  std::string_view cast(std::string_view name, DType dtype);
  /// What the node gives at that port.
  void out(std::string_view name, uint32_t port = 0);

  // Numbers of attributes, by the sizes.
  SizeFormula integer(std::string_view attribute) const;
  std::vector<SizeFormula> integers(std::string_view attribute) const;  // a list, or a shape
  std::vector<SizeFormula> shape_of(size_t port = 0) const;             // of a result
  std::vector<SizeFormula> operand_shape(size_t i) const;
  /// The same where it must not depend on sizes.
  std::vector<int64_t> fixed(std::string_view attribute) const;
  int64_t fixed_integer(std::string_view attribute) const;

  // Constants and values that sizes decide.
  std::string_view scalar(double value, DType dtype);
  std::string_view scalar(const SizeFormula& value, DType dtype);
  std::string_view vector(const std::vector<int64_t>& values);  // i64
  std::string_view vector(const std::vector<SizeFormula>& values);
  std::string_view text(std::string value);
  /// Throws UserError that names the node: it has no counterpart.
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  Emission& emission_;
  const GraphFamily& family_;
  NodeId id_;
  std::vector<std::string_view> last_;  // results of the last node
};

struct ExportRow {
  Op op;
  void (*emit)(ExportCall& call);
  /// Whether it can write the node; null: always. A composite that it cannot write is decomposed.
  bool (*can)(const Graph& graph, NodeId id, int64_t opset) = nullptr;
};
/// Null: there is none.
const ExportRow* find_export_row(Op op);

std::span<const ExportRow> elementwise_exports();
std::span<const ExportRow> movement_exports();
std::span<const ExportRow> reduction_exports();
std::span<const ExportRow> product_exports();
std::span<const ExportRow> control_exports();

}  // namespace brrr::onnx
