#pragma once
// Runnable: what can be run by the names of its inputs and outputs. An ONNX file, a .brrr file, an
// architecture with weights and a graph alone are Runnables; RunnableSession runs them and knows
// none of them. A Runnable builds a graph for sizes that are known: lower() is given one binding,
// which is the types of the inputs and the values of those that shapes depend on. Where a size is
// only known from data (NonZero), the graph ends there: what it hands on goes into the graph of the
// next lower(), together with the values that were read.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/weight_source.h"
#include "ir/graph.h"
#include "ir/ref_tensor.h"

namespace brrr {

/// One size of a declared shape: a number, or a name ("" where the file has none).
struct PortDim {
  int64_t size = -1;  // -1: any
  std::string name;
  int64_t most = -1;  // of an open size; -1: any
};

/// What a Runnable declares of an input or an output.
struct Port {
  std::string name;
  std::string type;  // "f32", "i64", "sequence of f32", ...
  DType dtype = DType::f32;
  bool is_tensor = true;
  bool has_shape = false;
  std::vector<PortDim> dims;
  bool is_optional = false;       // an input that may be left out
  std::optional<int64_t> lowest;  // of the numbers of an input; nothing: any
  /// "f32[batch,3,?,?]"
  std::string str() const;
};

/// A tensor whose shape may have symbolic sizes, which become open axes of that name.
Port port_of(const std::string& name, const Type& type);
/// nullptr: there is none of that name.
const Port* find_port(const std::vector<Port>& ports, std::string_view name);

/// How a value that is no single tensor is handed on: a sequence of so many tensors, "name#0" and
/// so on, or an optional without a value.
struct Listed {
  int64_t count = 0;
  bool is_none = false;
  bool operator==(const Listed&) const = default;
  auto operator<=>(const Listed&) const = default;
};

/// What is known when a graph is built.
struct GraphRequest {
  std::map<std::string, Type> data;        // given to each run, by name
  std::map<std::string, RefTensor> known;  // values by name
  std::map<std::string, Listed> lists;
  std::vector<std::string> wanted;  // names of outputs
  /// Bytes that values may take which are computed while the graph is built; 0: any number.
  int64_t memory = 0;
};

struct LoweredGraph {
  /// Inputs of Role::data by the names of GraphRequest::data, of Role::parameter by names of
  /// weights; outputs by the names of what is handed on, and of the Runnable's outputs at the end.
  Graph graph;
  std::map<std::string, Listed> lists;  // outputs that are no single tensor
  /// What the next graph knows beside what this one knew.
  std::map<std::string, RefTensor> known;
  /// Values whose content the next graph must know: outputs of this one. Empty: this is the last.
  std::vector<std::string> to_read;
  /// Inputs whose content this graph must know: it was not built. They move from `data` to `known`.
  std::vector<std::string> to_bind;
};

/// Thrown for an operator, or a use of it, that is not supported.
class Unsupported : public UserError {
 public:
  using UserError::UserError;
};

class Runnable {
 public:
  virtual ~Runnable() = default;
  virtual const std::vector<Port>& inputs() const = 0;
  virtual const std::vector<Port>& outputs() const = 0;
  /// Throws UserError for operators that are not supported and for sizes that do not go together.
  virtual LoweredGraph lower(const GraphRequest& request) const = 0;
  /// Has every weight that a graph of lower() names, once that graph was built.
  virtual std::shared_ptr<const WeightSource> weights() const = 0;
  /// One line for people: "ONNX, opset 17, by pytorch 2.9".
  virtual std::string summary() const = 0;
  /// Files that it keeps beside its graph, by name: those of a tokenizer and of how texts are made.
  virtual std::map<std::string, std::string> files() const { return {}; }
  /// The size of the mapped files that hold it.
  virtual uint64_t file_bytes() const;
};

/// A Runnable whose graphs are made by a function of the inputs' types.
struct GraphMaker {
  std::vector<Port> inputs, outputs;
  /// Outputs that nobody wants are left out of its graph by lower().
  std::function<Graph(const std::map<std::string, Type>& inputs)> graph;
  std::shared_ptr<const WeightSource> weights;  // null: it has none
  std::string summary;
};
std::shared_ptr<const Runnable> make_runnable(GraphMaker maker);
/// One graph of fixed sizes.
std::shared_ptr<const Runnable> runnable_of(const Graph& graph,
                                            std::shared_ptr<const WeightSource> weights = nullptr);

/// The graph without the outputs that `wanted` does not name.
Graph with_outputs(Graph graph, const std::vector<std::string>& wanted);

}  // namespace brrr
