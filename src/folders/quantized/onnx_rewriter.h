#pragma once
// Copies an ONNX file with changes to its graphs: nodes added and left out, inputs of nodes
// renamed, initializers added and left out. What does not change is copied byte for byte.

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/onnx/onnx_file.h"
#include "formats/protobuf_writer.h"

namespace brrr::io {

/// Names of the fields of ModelProto and GraphProto that hold what changes.
inline constexpr uint32_t kOnnxGraph = 7, kOnnxNode = 1, kOnnxInitializer = 5;

/// What changes in one graph. Nodes are counted as the file has them.
struct OnnxGraphChange {
  ProtobufWriter first;                     // nodes in front of all others
  std::map<size_t, ProtobufWriter> before;  // nodes in front of a node
  ProtobufWriter initializers;              // further ones
  std::set<size_t> left_out_nodes;
  std::set<std::string, std::less<>> left_out_initializers;
  std::map<size_t, std::map<size_t, std::string>> inputs;  // new names of a node's inputs
};

/// By the number of a graph: 0 is the main one, then bodies, depth first, in the nodes' order.
using OnnxChanges = std::map<size_t, OnnxGraphChange>;

/// The bytes of the changed file. Initializers of the main graph that lie in other files come into
/// it. Throws UserError for tensors of subgraphs, attributes and functions that lie in other files,
/// and where the result would exceed 2 GiB.
std::string rewritten_onnx(const fs::path& path, const onnx::File& file,
                           const OnnxChanges& changes);

/// A TensorProto with its elements as raw bytes.
ProtobufWriter onnx_tensor(const std::string& name, onnx::ElementType type,
                           const std::vector<int64_t>& dims, std::string_view raw);

/// A NodeProto of ONNX's own operators, with integer attributes.
ProtobufWriter onnx_node(const std::string& op, const std::string& name,
                         const std::vector<std::string>& inputs, const std::string& output,
                         const std::map<std::string, int64_t>& attributes = {});

/// The names of values and nodes of a file, its subgraphs included, which have to differ.
class UsedOnnxNames {
 public:
  explicit UsedOnnxNames(const onnx::GraphProto& graph) { add(graph); }

  /// Takes the name, or, where it is used, the first free one of NAME_2, NAME_3, ...
  std::string take(const std::string& wanted);

 private:
  void add(const onnx::GraphProto& graph);

  std::set<std::string> names_;
};

}  // namespace brrr::io
