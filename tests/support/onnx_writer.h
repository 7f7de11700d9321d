#pragma once
// Small ONNX files for tests: messages as strings of bytes, put together from fields.

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/protobuf_writer.h"

namespace brrr::test::onnx_bytes {

constexpr int kFloat = 1, kInt64 = 7, kBool = 9;

inline std::string attribute(std::string_view name, int64_t value) {
  return bytes_field(5, bytes_field(1, name) + varint_field(3, static_cast<uint64_t>(value)) +
                            varint_field(20, 2));
}
inline std::string attribute(std::string_view name, const std::vector<int64_t>& values) {
  std::string field = bytes_field(1, name);
  for (const int64_t v : values) field += varint_field(8, static_cast<uint64_t>(v));
  return bytes_field(5, field + varint_field(20, 7));
}
inline std::string graph_attribute(std::string_view name, const std::string& graph) {
  return bytes_field(5, bytes_field(1, name) + bytes_field(6, graph) + varint_field(20, 5));
}
/// A field `attribute` whose value the call of the function gives.
inline std::string referring(std::string_view name, std::string_view of_call, int kind) {
  return bytes_field(5, bytes_field(1, name) + varint_field(20, static_cast<uint64_t>(kind)) +
                            bytes_field(21, of_call));
}

/// A field `node` of a graph (1) or of a function (7).
inline std::string node(std::string_view op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& attributes = "",
                        std::string_view domain = "", uint32_t field = 1) {
  std::string bytes;
  for (const std::string& name : inputs) bytes += bytes_field(1, name);
  for (const std::string& name : outputs) bytes += bytes_field(2, name);
  bytes += bytes_field(4, op);
  if (!domain.empty()) bytes += bytes_field(7, domain);
  return bytes_field(field, bytes + attributes);
}

inline std::string tensor(std::string_view name, int type, const std::vector<int64_t>& dims,
                          std::string_view raw) {
  std::string bytes;
  for (const int64_t d : dims) bytes += varint_field(1, static_cast<uint64_t>(d));
  return bytes + varint_field(2, static_cast<uint64_t>(type)) + bytes_field(8, name) +
         bytes_field(9, raw);
}
template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
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

/// A size (a number of at least 0), or a name for what is not known.
inline std::string dim(int64_t size) {
  return bytes_field(1, size < 0 ? bytes_field(2, "n") : varint_field(1, static_cast<uint64_t>(size)));
}
inline std::string value_info(std::string_view name, int type, const std::vector<int64_t>& dims) {
  std::string shape;
  for (const int64_t d : dims) shape += dim(d);
  return bytes_field(1, name) +
         bytes_field(2, bytes_field(1, varint_field(1, static_cast<uint64_t>(type)) +
                                           bytes_field(2, shape)));
}
inline std::string input(std::string_view name, int type, const std::vector<int64_t>& dims) {
  return bytes_field(11, value_info(name, type, dims));
}
inline std::string output(std::string_view name, int type, const std::vector<int64_t>& dims) {
  return bytes_field(12, value_info(name, type, dims));
}

inline std::string opset(std::string_view domain, int64_t version) {
  return bytes_field(1, domain) + varint_field(2, static_cast<uint64_t>(version));
}
/// The bytes of a file with the graph; `more`: further fields of ModelProto.
inline std::string model(const std::string& graph, int64_t version = 18,
                         const std::string& more = "") {
  return varint_field(1, 8) + bytes_field(2, "test") + bytes_field(7, graph) +
         bytes_field(8, opset("", version)) + more;
}

}  // namespace brrr::test::onnx_bytes
