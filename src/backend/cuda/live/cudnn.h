#pragma once
// cuDNN's graph interface as a table of functions. Its types and values are declared here, not
// included: where PyTorch brings the library its headers are often missing, and within version 9
// they do not change (a test compares them with the headers where those are).

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "backend/cuda/live/driver.h"

namespace brrr::cuda::cudnn {

struct Context;  // cudnnContext
using Handle = Context*;
using RawDescriptor = void*;
inline constexpr int kSuccess = 0;

enum class Kind : int {  // CUDNN_BACKEND_*_DESCRIPTOR
  pointwise = 0,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  pointwise_op = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_op = 19,
  reduction = 21,
  reduction_op = 22,
  reshape_op = 31,
  device = 38
};

enum class Field : int {  // CUDNN_ATTR_*
  pointwise_mode = 0,
  pointwise_math = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  pointwise_op = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_t = 758,
  graph_handle = 800,
  graph_ops = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_sizes = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  matmul_math = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  matmul_op = 1523,
  reduction_operator = 1600,
  reduction_math = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_op = 1612,
  reshape_x = 2200,
  reshape_y = 2201,
  device_json = 2702
};

enum class FieldType : int {  // CUDNN_TYPE_*
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristics_mode = 8,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  character = 24
};

enum class DataType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };
enum class Pointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  greater_equal = 303,
  index = 501,
  select = 601
};
enum class Reduction : int { add = 0, max = 3 };
enum class Heuristics : int { best = 3 };

/// The library, opened; one handle on the current context, if there is a GPU.
class Library {
 public:
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  /// Looks it up; returns why not, "" when it is ready.
  std::string load();
  /// The same of a file; for tests.
  std::string load(SharedLibrary library);
  /// After load(): a handle whose work goes to `stream`; returns why not.
  std::string open(CUstream stream);

  std::string version() const;                                                        // "9.19.0"
  int64_t version_number() const { return static_cast<int64_t>(cudnnGetVersion()); }  // 91900
  Handle handle() const { return handle_; }

  // As in cudnn_graph.h; the enumerations are passed as int, which is what they are.
  size_t (*cudnnGetVersion)() = nullptr;
  const char* (*cudnnGetErrorString)(int status) = nullptr;
  int (*cudnnCreate)(Handle* handle) = nullptr;
  int (*cudnnDestroy)(Handle handle) = nullptr;
  int (*cudnnSetStream)(Handle handle, CUstream stream) = nullptr;
  int (*cudnnBackendCreateDescriptor)(int kind, RawDescriptor* descriptor) = nullptr;
  int (*cudnnBackendDestroyDescriptor)(RawDescriptor descriptor) = nullptr;
  int (*cudnnBackendSetAttribute)(RawDescriptor descriptor, int field, int type, int64_t count,
                                  const void* values) = nullptr;
  int (*cudnnBackendGetAttribute)(RawDescriptor descriptor, int field, int type, int64_t wanted,
                                  int64_t* count, void* values) = nullptr;
  int (*cudnnBackendFinalize)(RawDescriptor descriptor) = nullptr;
  int (*cudnnBackendExecute)(Handle handle, RawDescriptor plan, RawDescriptor pack) = nullptr;

 private:
  Handle handle_ = nullptr;
};

/// A step that the library refused: caught where another way is taken instead.
struct Refusal {
  std::string reason;
};

/// A descriptor and its fields. Every call throws Refusal where the library refuses.
class Descriptor {
 public:
  Descriptor(const Library& library, Kind kind);
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor();

  Descriptor& set(Field field, DataType value) {
    return set_one(field, FieldType::data_type, value);
  }
  Descriptor& set(Field field, Pointwise value) {
    return set_one(field, FieldType::pointwise_mode, value);
  }
  Descriptor& set(Field field, Reduction value) {
    return set_one(field, FieldType::reduction_operator, value);
  }
  Descriptor& set(Field field, Heuristics value) {
    return set_one(field, FieldType::heuristics_mode, value);
  }
  Descriptor& set(Field field, bool value) { return set_one(field, FieldType::boolean, value); }
  Descriptor& set(Field field, int64_t value) { return set_one(field, FieldType::int64, value); }
  Descriptor& set(Field field, Handle value) { return set_one(field, FieldType::handle, value); }
  Descriptor& set(Field field, const Descriptor& value) {
    return set_one(field, FieldType::descriptor, value.raw_);
  }
  Descriptor& set(Field field, std::span<const int64_t> values) {
    return set_many(field, FieldType::int64, values.size(), values.data());
  }
  Descriptor& set(Field field, std::span<void* const> pointers) {
    return set_many(field, FieldType::pointer, pointers.size(), pointers.data());
  }
  Descriptor& set_descriptors(Field field, std::span<const RawDescriptor> descriptors) {
    return set_many(field, FieldType::descriptor, descriptors.size(), descriptors.data());
  }
  Descriptor& set_text(Field field, std::string_view text) {
    return set_many(field, FieldType::character, text.size(), text.data());
  }
  Descriptor& finish();

  int64_t get_int64(Field field) const;
  /// Fills descriptors of the caller; returns how many.
  int64_t get_descriptors(Field field, std::span<RawDescriptor> into) const;
  RawDescriptor raw() const { return raw_; }

 private:
  template <typename T>
  Descriptor& set_one(Field field, FieldType type, const T& value) {
    return set_many(field, type, 1, &value);
  }
  Descriptor& set_many(Field field, FieldType type, size_t count, const void* values);
  void check(int status, const char* what, int field) const;

  const Library* library_;
  RawDescriptor raw_ = nullptr;
};

}  // namespace brrr::cuda::cudnn
