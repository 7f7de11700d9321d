#pragma once
// Small ONNX files, for tests: pieces of protocol buffers by the names that ONNX gives them.

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "support/protobuf_writer.h"

namespace brrr::test::onnx_file {

using Texts = std::vector<std::string>;

inline constexpr int kFloat = 1, kInt64 = 7, kBool = 9;  // of TensorProto.DataType

inline std::string fields(uint32_t number, const Texts& parts) {
  std::string out;
  for (const std::string& part : parts) out += bytes_field(number, part);
  return out;
}

template <typename T>
std::string tensor(std::string_view name, const std::vector<int64_t>& dims,
                   const std::vector<T>& values, int type) {
  std::string out, raw(values.size() * sizeof(T), '\0');
  for (const int64_t d : dims) out += varint_field(1, static_cast<uint64_t>(d));
  if (!values.empty()) std::memcpy(raw.data(), values.data(), raw.size());
  return out + varint_field(2, static_cast<uint64_t>(type)) + bytes_field(8, name) +
         bytes_field(9, raw);
}
inline std::string floats(std::string_view name, const std::vector<int64_t>& dims,
                          const std::vector<float>& values) {
  return tensor(name, dims, values, kFloat);
}
inline std::string integers(std::string_view name, const std::vector<int64_t>& dims,
                            const std::vector<int64_t>& values) {
  return tensor(name, dims, values, kInt64);
}

// Attributes: the last field is the number of their kind.
inline std::string attribute(std::string_view name, const std::string& value, uint64_t kind) {
  return bytes_field(1, name) + value + varint_field(20, kind);
}
inline std::string number(std::string_view name, float value) {
  return attribute(name, number_field(2, value), 1);
}
inline std::string integer(std::string_view name, int64_t value) {
  return attribute(name, varint_field(3, static_cast<uint64_t>(value)), 2);
}
inline std::string graph_attribute(std::string_view name, const std::string& graph) {
  return attribute(name, bytes_field(6, graph), 5);
}
inline std::string integer_list(std::string_view name, const std::vector<int64_t>& values) {
  std::string out;
  for (const int64_t v : values) out += varint_field(8, static_cast<uint64_t>(v));
  return attribute(name, out, 7);
}
/// An attribute of a function's node that is what the call's attribute `of` is: a number.
inline std::string number_of_call(std::string_view name, std::string_view of) {
  return attribute(name, bytes_field(21, of), 1);
}

inline std::string node(std::string_view op, const Texts& inputs, const Texts& outputs,
                        const Texts& attributes = {}, std::string_view domain = "") {
  return fields(1, inputs) + fields(2, outputs) + bytes_field(4, op) + fields(5, attributes) +
         bytes_field(7, domain);
}

/// A size below 0 is unknown.
inline std::string value(std::string_view name, int type = kFloat,
                         const std::vector<int64_t>& dims = {}) {
  std::string shape;
  for (const int64_t d : dims)
    shape +=
        bytes_field(1, d < 0 ? bytes_field(2, "n") : varint_field(1, static_cast<uint64_t>(d)));
  const std::string tensor_type =
      varint_field(1, static_cast<uint64_t>(type)) + bytes_field(2, shape);
  return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor_type));
}

inline std::string graph(const Texts& inputs, const Texts& outputs, const Texts& nodes,
                         const Texts& initializers = {}) {
  return fields(1, nodes) + bytes_field(2, "g") + fields(5, initializers) + fields(11, inputs) +
         fields(12, outputs);
}

inline std::string opset(std::string_view domain, uint64_t version) {
  return bytes_field(1, domain) + varint_field(2, version);
}

/// A function of the domain "own".
inline std::string function(std::string_view name, const Texts& inputs, const Texts& outputs,
                            const Texts& nodes, const Texts& attributes = {},
                            const Texts& defaults = {}) {
  return bytes_field(1, name) + fields(4, inputs) + fields(5, outputs) + fields(6, attributes) +
         fields(7, nodes) + bytes_field(9, opset("", 17)) + bytes_field(9, opset("own", 1)) +
         bytes_field(10, "own") + fields(11, defaults);
}

inline std::string model(const std::string& graph, const Texts& functions = {}) {
  return varint_field(1, 9) + bytes_field(7, graph) + bytes_field(8, opset("", 17)) +
         bytes_field(8, opset("own", 1)) + fields(25, functions);
}

}  // namespace brrr::test::onnx_file
