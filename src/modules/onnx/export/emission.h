#pragma once
// Emission: walks over a graph, in the versions that it has for several sizes, and writes the nodes
// of the file.

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "modules/onnx/export/export_call.h"
#include "modules/onnx/export/onnx_export.h"

namespace brrr::onnx {

/// One graph as it is for several sizes: the same nodes, whose numbers may differ.
struct GraphFamily {
  std::vector<const Graph*> graphs;
  const Graph& first() const { return *graphs[0]; }
  /// The family of a region of a node.
  GraphFamily region(NodeId id, std::string_view attribute) const;
};

class Emission {
 public:
  Emission(const ExportSource& source, const ExportOptions& options);
  std::shared_ptr<const ExportedModel> run();

  // -- for rows
  // ------------------------------------------------------------------------------------
  const ExportOptions& options() const { return options_; }
  /// Text that lives as long as the model.
  std::string_view text(std::string value);
  /// A name that nothing has yet: the scope of the node, `what` and a number.
  std::string_view fresh(std::string_view what);
  NodeProto& append(std::string_view op_type, std::vector<std::string_view> inputs,
                    std::vector<AttributeProto> attributes, size_t outputs);
  std::string_view name_of(ValueId value) const;
  void bind(ValueId value, std::string_view name);
  bool is_used(ValueId value) const;
  SizeFormula formula(const SizeValues& values, const std::string& what);
  std::string_view scalar(double value, DType dtype);
  std::string_view scalar(const SizeFormula& value, DType dtype);
  std::string_view vector(const std::vector<int64_t>& values);
  std::string_view vector(const std::vector<SizeFormula>& values);
  std::string_view literal(const Node& node);
  ValueInfo value_info(std::string_view name, DType dtype, const std::vector<SizeFormula>& shape);
  /// A region as a graph inside an attribute: its inputs have the names `inputs` of the outside, or
  /// of graph inputs. `outputs` become the names of its results, in order.
  GraphProto region(const GraphFamily& family, const std::vector<std::string_view>& inputs,
                    const std::vector<std::string_view>& outputs);
  /// Appends nodes to a region from now on, until the next call with what this one returned.
  std::vector<NodeProto>* write_to(std::vector<NodeProto>* nodes);

 private:
  struct State {  // of the graph that is being walked over
    explicit State(const Graph& graph);
    std::vector<std::vector<std::string_view>> names;  // [node][port]
    std::vector<std::vector<uint32_t>> uses;
  };
  /// While it lives, nodes are computed from sizes: beside the inputs, outside of every region.
  class AmongSizes;
  void check_family() const;
  void name_sizes();
  void find_derived_sizes();
  void inputs();
  void parameter(NodeId id);
  void outputs();
  void walk(const GraphFamily& family);
  std::string_view size_vector(const SizeFormula& formula);
  std::string_view size_read(size_t size);
  std::string_view size_computed(const SizeFormula& formula);
  std::string_view constant(DType dtype, const std::vector<int64_t>& dims,
                            std::vector<std::byte> bytes);
  void rename_outputs(const std::map<std::string_view, std::string_view>& renamed);

  const ExportSource& source_;
  ExportOptions options_;
  std::vector<Graph> graphs_;
  GraphFamily family_;
  std::vector<SizeValues> sizes_;                               // [size][example]
  std::vector<std::pair<std::string_view, int64_t>> readable_;  // [size]: an input and its axis
  /// Sizes behind those of the source: what axes inside the graph have, as formulas of the sizes
  /// before (past + length, quotients by strides), because others are products of these.
  std::vector<SizeFormula> derived_;
  std::vector<std::string> names_;  // of all sizes
  std::shared_ptr<ExportedModel> model_ = std::make_shared<ExportedModel>();
  std::deque<std::string>* texts_ = nullptr;
  std::vector<NodeProto>* nodes_ = nullptr;  // those that are being appended to
  State* state_ = nullptr;
  std::string_view scope_;
  std::map<std::string, int> counters_;
  std::map<std::string, std::string_view> constants_;  // by what they hold
  std::map<std::string, std::string_view> size_vectors_;
};

/// Throws UserError where two graphs differ in more than numbers; `names` are those of the sizes.
void check_alike(const GraphFamily& family, const std::string& names);

}  // namespace brrr::onnx
