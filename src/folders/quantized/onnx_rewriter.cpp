#include "folders/quantized/onnx_rewriter.h"

#include <optional>

#include "base/errors.h"
#include "formats/protobuf.h"

namespace brrr::io {
namespace {

constexpr uint64_t kLargestFile = INT32_MAX;
// The numbers of further fields of ModelProto and GraphProto.
constexpr uint32_t kFunctionField = 25, kSparseField = 15;
constexpr uint32_t kAttributeOfNode = 5, kInputOfNode = 1;  // fields of NodeProto
// The numbers of the fields of AttributeProto that hold tensors or graphs.
constexpr uint32_t kTensor = 5, kGraph = 6, kTensors = 10, kSparse = 22, kSparses = 23;

/// Copies a varint or length-delimited field.
void copy_field(const ProtobufReader& from, ProtobufWriter& to) {
  if (from.is_bytes())
    to.view(from.field(), std::as_bytes(std::span(from.bytes().data(), from.bytes().size())));
  else
    to.varint(from.field(), from.varint());
}

/// Throws UserError for a tensor whose numbers lie in another file.
void refuse_external_tensor(std::string_view message, const std::string& what) {
  constexpr uint32_t kName = 8, kDataLocation = 14;
  constexpr uint64_t kExternal = 1;  // TensorProto.EXTERNAL
  ProtobufReader tensor(message, what);
  std::string_view name;
  bool is_external = false;
  while (tensor.next()) {
    if (tensor.field() == kName) name = tensor.bytes();
    if (tensor.field() == kDataLocation) is_external = tensor.varint() == kExternal;
  }
  if (is_external)
    user_error(
        "{}: the tensor '{}' of an attribute, a subgraph or a function lies in another file, which "
        "the quantised file would not find; write the model with its tensors inside: "
        "onnx.save(onnx.load(FILE), NEW)",
        what, name);
}

void refuse_external_sparse_tensor(std::string_view message, const std::string& what) {
  constexpr uint32_t kValues = 1, kIndices = 2;
  ProtobufReader sparse(message, what);
  while (sparse.next())
    if (sparse.field() == kValues || sparse.field() == kIndices)
      refuse_external_tensor(sparse.bytes(), what);
}

void refuse_external_in_node(std::string_view message, const std::string& what);

/// Searches a subgraph. The recursion is bounded, because File::load() limits the nesting.
void refuse_external_in_subgraph(std::string_view message, const std::string& what) {
  ProtobufReader graph(message, what);
  while (graph.next()) {
    if (graph.field() == kOnnxNode) refuse_external_in_node(graph.bytes(), what);
    if (graph.field() == kOnnxInitializer) refuse_external_tensor(graph.bytes(), what);
    if (graph.field() == kSparseField) refuse_external_sparse_tensor(graph.bytes(), what);
  }
}

void refuse_external_in_attribute(std::string_view message, const std::string& what) {
  ProtobufReader a(message, what);
  while (a.next()) {
    if (a.field() == kTensor || a.field() == kTensors) refuse_external_tensor(a.bytes(), what);
    if (a.field() == kSparse || a.field() == kSparses)
      refuse_external_sparse_tensor(a.bytes(), what);
    if (a.field() == kGraph) refuse_external_in_subgraph(a.bytes(), what);
  }
}

void refuse_external_in_node(std::string_view message, const std::string& what) {
  ProtobufReader node(message, what);
  while (node.next())
    if (node.field() == kAttributeOfNode) refuse_external_in_attribute(node.bytes(), what);
}

void refuse_external_in_function(std::string_view message, const std::string& what) {
  constexpr uint32_t kNode = 7;  // of FunctionProto
  ProtobufReader function(message, what);
  while (function.next())
    if (function.field() == kNode) refuse_external_in_node(function.bytes(), what);
}

std::string_view name_of_tensor(std::string_view message, const std::string& what) {
  constexpr uint32_t kName = 8;
  ProtobufReader tensor(message, what);
  std::string_view name;
  while (tensor.next())
    if (tensor.field() == kName) name = tensor.bytes();
  return name;
}

std::optional<std::string_view> graph_of_attribute(std::string_view message,
                                                   const std::string& what) {
  std::optional<std::string_view> graph;
  for (ProtobufReader a(message, what); a.next();)
    if (a.field() == kGraph) graph = a.bytes();
  return graph;
}

class OnnxCopy {
 public:
  OnnxCopy(const onnx::File& file, const std::string& what, const OnnxChanges& changes)
      : what_(what), changes_(changes) {
    for (const onnx::TensorProto& t : file.graph.initializers) tensors_[t.name] = &t;
  }

  std::string run(std::string_view bytes) {
    ProtobufReader model(bytes, what_);
    ProtobufWriter result;
    while (model.next()) {
      if (model.field() == kOnnxGraph) {
        result.message(kOnnxGraph, rewrite_graph(model.bytes()));
        continue;
      }
      if (model.field() == kFunctionField) refuse_external_in_function(model.bytes(), what_);
      copy_field(model, result);
    }
    if (result.size() > kLargestFile)
      user_error("{} would have more than 2 GiB with its weights inside, which ONNX does not allow",
                 what_);
    return result.str();
  }

 private:
  ProtobufWriter rewrite_graph(std::string_view bytes) {
    static const OnnxGraphChange kNone;
    const size_t number = graphs_++;
    const auto at = changes_.find(number);
    const OnnxGraphChange& change = at == changes_.end() ? kNone : at->second;
    ProtobufWriter result;
    result.append(change.first);
    ProtobufReader graph(bytes, what_);
    for (size_t node = 0; graph.next();) {
      if (graph.field() == kOnnxNode) {
        if (const auto before = change.before.find(node); before != change.before.end())
          result.append(before->second);
        if (!change.left_out_nodes.contains(node)) {
          const auto inputs = change.inputs.find(node);
          result.message(kOnnxNode,
                         rewrite_node(graph.bytes(),
                                      inputs == change.inputs.end() ? nullptr : &inputs->second));
        }
        ++node;
      } else if (graph.field() == kOnnxInitializer) {
        copy_initializer(graph, number == 0, change, result);
      } else {
        if (graph.field() == kSparseField) refuse_external_sparse_tensor(graph.bytes(), what_);
        copy_field(graph, result);
      }
    }
    result.append(change.initializers);
    return result;
  }

  void copy_initializer(const ProtobufReader& graph, bool is_main, const OnnxGraphChange& change,
                        ProtobufWriter& to) const {
    const std::string_view name = name_of_tensor(graph.bytes(), what_);
    if (change.left_out_initializers.contains(name)) return;
    if (!is_main) refuse_external_tensor(graph.bytes(), what_);
    const auto at = is_main ? tensors_.find(name) : tensors_.end();
    // Tensors of other files come into this one, which may lie elsewhere.
    if (at != tensors_.end() && at->second->is_external) {
      const onnx::TensorProto& t = *at->second;
      to.message(kOnnxInitializer,
                 onnx_tensor(std::string(name), t.type, t.dims,
                             {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}));
    } else {
      copy_field(graph, to);
    }
  }

  ProtobufWriter rewrite_node(std::string_view bytes, const std::map<size_t, std::string>* inputs) {
    ProtobufWriter result;
    ProtobufReader node(bytes, what_);
    for (size_t input = 0; node.next();) {
      if (node.field() == kInputOfNode) {
        const size_t number = input++;
        if (inputs != nullptr && inputs->contains(number)) {
          result.text(kInputOfNode, inputs->at(number));
          continue;
        }
      }
      const std::optional<std::string_view> graph =
          node.field() == kAttributeOfNode ? graph_of_attribute(node.bytes(), what_) : std::nullopt;
      if (graph) {
        result.message(kAttributeOfNode, rewrite_attribute(node.bytes(), *graph));
        continue;
      }
      if (node.field() == kAttributeOfNode) refuse_external_in_attribute(node.bytes(), what_);
      copy_field(node, result);
    }
    return result;
  }

  /// `graph`: the body in it.
  ProtobufWriter rewrite_attribute(std::string_view bytes, std::string_view graph) {
    constexpr uint32_t kName = 1, kKind = 20;
    ProtobufWriter result;
    // The fields of other kinds of attributes mean nothing beside a graph.
    for (ProtobufReader a(bytes, what_); a.next();)
      if (a.field() == kName || a.field() == kKind) copy_field(a, result);
    result.message(kGraph, rewrite_graph(graph));
    return result;
  }

  const std::string& what_;
  const OnnxChanges& changes_;
  std::map<std::string_view, const onnx::TensorProto*> tensors_;  // of the main graph
  size_t graphs_ = 0;                                             // so far
};

}  // namespace

std::string rewritten_onnx(const fs::path& path, const onnx::File& file,
                           const OnnxChanges& changes) {
  const MappedFile map(path);
  const std::string what = path.string();
  return OnnxCopy(file, what, changes).run(map.text());
}

ProtobufWriter onnx_tensor(const std::string& name, onnx::ElementType type,
                           const std::vector<int64_t>& dims, std::string_view raw) {
  ProtobufWriter w;
  w.packed(1, dims);
  w.integer(2, static_cast<int64_t>(type));
  w.text(8, name);
  w.text(9, raw);
  return w;
}

ProtobufWriter onnx_node(const std::string& op, const std::string& name,
                         const std::vector<std::string>& inputs, const std::string& output,
                         const std::map<std::string, int64_t>& attributes) {
  constexpr int64_t kInteger = 2;  // AttributeProto.INT
  ProtobufWriter n;
  for (const std::string& input : inputs) n.text(1, input);
  n.text(2, output);
  n.text(3, name);
  n.text(4, op);
  for (const auto& [key, value] : attributes) {
    ProtobufWriter a;
    a.text(1, key);
    a.integer(3, value);
    a.integer(20, kInteger);
    n.message(5, std::move(a));
  }
  return n;
}

std::string UsedOnnxNames::take(const std::string& wanted) {
  std::string name = wanted;
  for (int64_t i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
  return name;
}

void UsedOnnxNames::add(const onnx::GraphProto& graph) {
  for (const auto* values : {&graph.inputs, &graph.outputs})
    for (const onnx::ValueInfo& v : *values) names_.emplace(v.name);
  for (const onnx::TensorProto& t : graph.initializers) names_.emplace(t.name);
  for (const onnx::SparseTensorProto& t : graph.sparse_initializers) names_.emplace(t.values.name);
  for (const onnx::NodeProto& n : graph.nodes) {
    names_.emplace(n.name);
    for (const auto* values : {&n.inputs, &n.outputs})
      for (const std::string_view name : *values) names_.emplace(name);
    for (const onnx::AttributeProto& a : n.attributes)
      if (a.graph) add(*a.graph);
  }
}

}  // namespace brrr::io
