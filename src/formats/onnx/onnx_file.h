#pragma once
// An ONNX file as it is written: nodes, tensors and types, read from the protocol buffer without a
// meaning of any operator. The bytes come from outside: every length is checked, nesting and the
// number of items are limited, and errors name the file. Field numbers are those of onnx.proto3
// (ONNX 1.22, IR version 14).

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace brrr::onnx {

/// The numbers of TensorProto.DataType.
enum class ElementType : int32_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  complex64 = 14,
  complex128 = 15,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
  u2 = 25,
  i2 = 26,
};
/// "FLOAT", "INT64", ...; "data type 99" for a number that ONNX does not know.
std::string name_of(ElementType type);
/// The dtype that holds its values: i8 and u8 for integers of 2 and 4 bits. Nothing where Brrr has
/// none (strings, complex numbers, floats of 4 bits).
std::optional<DType> dtype_of(ElementType type);
ElementType element_type_of(DType dtype);

/// A constant tensor. Its bytes lie in the file, in a file beside it, or, where the file spells its
/// values as numbers, in memory of its own.
struct TensorProto {
  std::string_view name;
  ElementType type = ElementType::undefined;
  std::vector<int64_t> dims;
  std::span<const std::byte> bytes;         // little endian, row by row, as dtype_of(type) has them
  std::vector<std::string_view> strings;    // of ElementType::string
  std::shared_ptr<const void> keeps_bytes;  // what `bytes` lie in, unless that is the file itself

  /// What external_data says, where the bytes lie in another file: opened by File::load.
  std::string_view location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
  bool is_external = false;

  /// The product of dims. UserError where it does not fit 63 bits.
  int64_t elements() const;
};

struct GraphProto;
struct ValueType;

/// One size of a declared shape: a number, a name, or neither.
struct Dimension {
  std::optional<int64_t> size;
  std::string_view name;
};

enum class ValueKind { none, tensor, sequence, optional, map, sparse };

/// What a file declares of a value.
struct ValueType {
  ValueKind kind = ValueKind::none;
  ElementType element = ElementType::undefined;  // of a tensor
  std::optional<std::vector<Dimension>> shape;   // of a tensor; nothing: any rank
  std::shared_ptr<const ValueType> of;           // of a sequence and an optional
};

struct ValueInfo {
  std::string_view name;
  ValueType type;
};

struct AttributeProto {
  /// The numbers of AttributeProto.AttributeType.
  enum class Kind : int32_t {
    undefined = 0,
    number = 1,
    integer = 2,
    string = 3,
    tensor = 4,
    graph = 5,
    numbers = 6,
    integers = 7,
    strings = 8,
    tensors = 9,
    graphs = 10,
    sparse_tensor = 11,
    sparse_tensors = 12,
    type = 13,
    types = 14,
  };
  std::string_view name;
  std::string_view refers_to;  // inside a function: the attribute of the call that gives the value
  Kind kind = Kind::undefined;
  float number = 0;
  int64_t integer = 0;
  std::string_view string;
  std::shared_ptr<TensorProto> tensor;
  std::shared_ptr<GraphProto> graph;
  std::vector<float> numbers;
  std::vector<int64_t> integers;
  std::vector<std::string_view> strings;
  ValueType type;
};

struct NodeProto {
  std::string_view name, op_type, domain, overload;
  std::vector<std::string_view> inputs, outputs;  // "": left out
  std::vector<AttributeProto> attributes;

  const AttributeProto* find(std::string_view attribute) const;
};

struct SparseTensorProto {
  TensorProto values;   // [n], whose name is the tensor's
  TensorProto indices;  // [n] in the order of elements, or [n, rank]
  std::vector<int64_t> dims;
};

struct GraphProto {
  std::string_view name;
  std::vector<NodeProto> nodes;
  std::vector<TensorProto> initializers;
  std::vector<SparseTensorProto> sparse_initializers;
  std::vector<ValueInfo> inputs, outputs;
};

/// The version of each domain's operators; "" is ONNX's own, which is also written "ai.onnx".
using Opsets = std::map<std::string_view, int64_t>;

struct FunctionProto {
  std::string_view name, domain, overload;
  std::vector<std::string_view> inputs, outputs, attributes;
  std::vector<AttributeProto> defaults;  // attributes that a call may leave out
  std::vector<NodeProto> nodes;
  Opsets opsets;
};

/// What a file says.
struct ModelProto {
  int64_t ir_version = 0;
  std::string_view producer, producer_version;
  Opsets opsets;
  GraphProto graph;
  std::vector<FunctionProto> functions;
  std::vector<std::pair<std::string_view, std::string_view>> metadata;
};

/// A file in memory, which stays mapped as long as it lives; all views are of it.
class File : public ModelProto {
 public:
  /// Maps and reads a file, and the files beside it that hold tensors. UserError for what is no
  /// ONNX file.
  static std::shared_ptr<const File> load(const fs::path& path);
  /// Reads bytes that stay where they are; tensors in other files are refused. `what` names them in
  /// errors.
  static std::shared_ptr<const File> parse(std::string_view bytes, std::string what);

  const std::string& what() const { return what_; }
  /// The size of the file and those beside it.
  uint64_t bytes() const { return bytes_; }

 private:
  explicit File(std::string what) : what_(std::move(what)) {}
  std::string what_;
  std::shared_ptr<const MappedFile> map_;
  uint64_t bytes_ = 0;
  friend class FileReader;
};

/// A TensorProto alone in its file, as ONNX's test data has them.
TensorProto parse_tensor(std::string_view bytes, const std::string& what);
/// A SequenceProto or an OptionalProto of tensors: kind, and the tensors; an optional without a
/// value has none.
std::vector<TensorProto> parse_sequence(std::string_view bytes, const std::string& what);

}  // namespace brrr::onnx
