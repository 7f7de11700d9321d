#pragma once
// Small ONNX files for tests as one string of fields, where the order and damage of fields matter:
// what onnx_writer.h writes, each as a field of its graph or node.

#include "support/onnx_writer.h"

namespace brrr::test::onnx_bytes {

using onnx_file::kBool;
using onnx_file::kFloat;
using onnx_file::kInt64;
using onnx_file::opset;

// Fields `attribute` of a node.
inline std::string attribute(std::string_view name, int64_t value) {
  return bytes_field(5, onnx_file::integer(name, value));
}
inline std::string attribute(std::string_view name, const std::vector<int64_t>& values) {
  return bytes_field(5, onnx_file::integer_list(name, values));
}
inline std::string graph_attribute(std::string_view name, const std::string& graph) {
  return bytes_field(5, onnx_file::graph_attribute(name, graph));
}
/// One whose value the call of the function gives.
inline std::string referring(std::string_view name, std::string_view of_call, uint64_t kind) {
  return bytes_field(5, onnx_file::attribute(name, bytes_field(21, of_call), kind));
}

/// A field `node` of a graph (1) or of a function (7).
inline std::string node(std::string_view op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& attributes = "",
                        std::string_view domain = "", uint32_t field = 1) {
  return bytes_field(field, onnx_file::node(op, inputs, outputs, {}, domain) + attributes);
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
inline std::string tensor(std::string_view name, int type, const std::vector<int64_t>& dims,
                          std::string_view bytes) {
  return onnx_file::tensor(name, dims, std::vector<char>(bytes.begin(), bytes.end()), type);
}
/// A field `initializer` of a graph.
inline std::string initializer(const std::string& tensor) { return bytes_field(5, tensor); }
/// A tensor whose bytes lie in another file.
inline std::string external(std::string_view name, int type, const std::vector<int64_t>& dims,
                            const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string bytes;
  for (const int64_t d : dims) bytes += varint_field(1, static_cast<uint64_t>(d));
  bytes += varint_field(2, static_cast<uint64_t>(type)) + bytes_field(8, name);
  for (const auto& [key, value] : entries)
    bytes += bytes_field(13, bytes_field(1, key) + bytes_field(2, value));
  return bytes + varint_field(14, 1);
}

inline std::string input(std::string_view name, int type, const std::vector<int64_t>& dims) {
  return bytes_field(11, onnx_file::value(name, type, dims));
}
inline std::string output(std::string_view name, int type, const std::vector<int64_t>& dims) {
  return bytes_field(12, onnx_file::value(name, type, dims));
}

/// The bytes of a file with the graph; `more`: further fields of ModelProto.
inline std::string model(const std::string& graph, uint64_t version = 18,
                         const std::string& more = "") {
  return varint_field(1, 8) + bytes_field(2, "test") + bytes_field(7, graph) +
         bytes_field(8, opset("", version)) + more;
}

}  // namespace brrr::test::onnx_bytes
