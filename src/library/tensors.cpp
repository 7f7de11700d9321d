// Tensors of the C interface, and DLPack.

#include <limits>

#include "base/errors.h"
#include "base/integers.h"
#include "library/api.h"
#include "library/dlpack.h"
#include "library/tensor_list.h"

using namespace brrr;
using namespace brrr::library;

namespace brrr::library {
namespace {

struct DTypeCode {
  DType dtype;
  uint8_t code, bits;
};
// Codes of dlpack.h: 0 integer, 1 unsigned, 2 float, 4 bfloat, 6 bool.
constexpr DTypeCode kCodes[] = {{DType::f32, 2, 32}, {DType::f64, 2, 64}, {DType::bf16, 4, 16},
                                {DType::f16, 2, 16}, {DType::i32, 0, 32}, {DType::i64, 0, 64},
                                {DType::i8, 0, 8},   {DType::u8, 1, 8},   {DType::boolean, 6, 8},
                                {DType::i16, 0, 16}, {DType::u16, 1, 16}, {DType::u32, 1, 32},
                                {DType::u64, 1, 64}};

/// Bytes of a tensor; throws UserError where they do not fit.
size_t checked_bytes(DType dtype, const Shape& shape) {
  int64_t elements = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t size = shape.size(axis);
    if (size > 0 && elements > std::numeric_limits<int64_t>::max() / 8 / size)
      usage_error("a tensor of shape {} fits no memory", shape.str());
    elements *= size;
  }
  return static_cast<size_t>(elements) * bytes_of(dtype);
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int axis = 0; axis < shape.rank(); ++axis) sizes.push_back(shape.size(axis));
  return sizes;
}

/// What a DLManagedTensor that we gave away keeps.
struct Given {
  DLManagedTensor managed{};
  std::vector<int64_t> sizes;
  std::shared_ptr<void> keep;
};

DType dtype_of_dlpack(const DLDataType& type) {
  if (type.lanes == 1)
    for (const DTypeCode& c : kCodes)
      if (c.code == type.code && c.bits == type.bits) return c.dtype;
  usage_error("Brrr has no dtype for DLPack's type code {} with {} bits and {} lanes", type.code,
              type.bits, type.lanes);
}

}  // namespace
}  // namespace brrr::library

brrr_status brrr_tensor_create(brrr_dtype dtype, const int64_t* sizes, int rank,
                               brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const Shape shape = shape_of(sizes, rank);
    checked_bytes(dtype_of(dtype), shape);
    out = new_tensor(dtype_of(dtype), shape).release();
  });
}

brrr_status brrr_tensor_borrow(brrr_dtype dtype, const int64_t* sizes, int rank, void* data,
                               void (*release)(void* context), void* context,
                               brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const Shape shape = shape_of(sizes, rank);
    auto made = std::make_unique<brrr_tensor>();
    made->dtype = dtype_of(dtype);
    made->bytes = checked_bytes(made->dtype, shape);
    if (made->bytes > 0) checked(static_cast<char*>(data), "data");
    made->sizes = sizes_of(shape);
    made->data = data;
    made->keep = std::shared_ptr<void>(data, [release, context](void*) {
      if (release != nullptr) release(context);
    });
    out = made.release();
  });
}

void brrr_tensor_free(brrr_tensor* tensor) { delete tensor; }

brrr_dtype brrr_tensor_dtype(const brrr_tensor* tensor) {
  return tensor == nullptr ? BRRR_F32 : to_c(tensor->dtype);
}
int brrr_tensor_rank(const brrr_tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int>(tensor->sizes.size());
}
const int64_t* brrr_tensor_sizes(const brrr_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->sizes.data();
}
void* brrr_tensor_data(const brrr_tensor* tensor) {
  return tensor == nullptr ? nullptr : tensor->data;
}
size_t brrr_tensor_bytes(const brrr_tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->bytes;
}

brrr_status brrr_tensor_to_dlpack(brrr_tensor* tensor, DLManagedTensor** managed) {
  return guarded([&] {
    const brrr_tensor& from = checked(tensor, "tensor");
    DLManagedTensor*& out = checked(managed, "managed");
    auto given = std::make_unique<Given>();
    given->sizes = from.sizes;
    given->keep = from.keep;
    DLTensor& t = given->managed.dl_tensor;
    t.data = from.data;
    t.device = {kDlpackCpu, 0};
    t.ndim = static_cast<int32_t>(from.sizes.size());
    const DTypeCode* code = nullptr;
    for (const DTypeCode& c : kCodes)
      if (c.dtype == from.dtype) code = &c;
    if (code == nullptr)
      usage_error("DLPack has no type for {}; cast the tensor first", name_of(from.dtype));
    t.dtype = {code->code, code->bits, 1};
    t.shape = given->sizes.data();
    given->managed.manager_ctx = given.get();
    given->managed.deleter = [](DLManagedTensor* self) {
      delete static_cast<Given*>(self->manager_ctx);
    };
    out = &given.release()->managed;
  });
}

brrr_status brrr_tensor_from_dlpack(DLManagedTensor* managed, brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const DLTensor& from = checked(managed, "managed").dl_tensor;
    if (from.device.device_type != kDlpackCpu)
      usage_error("expected a tensor in the memory of the host; it lies on device type {}",
                  from.device.device_type);
    const Shape shape = shape_of(from.shape, from.ndim);
    int64_t stride = 1;
    for (int axis = from.ndim - 1; axis >= 0 && from.strides != nullptr; --axis) {
      if (from.shape[axis] > 1 && from.strides[axis] != stride && shape.elements() > 0)
        usage_error("expected a tensor in row-major order (contiguous()); axis {} has stride {}",
                    axis, from.strides[axis]);
      stride *= from.shape[axis];
    }
    auto made = std::make_unique<brrr_tensor>();
    made->dtype = dtype_of_dlpack(from.dtype);
    made->bytes = checked_bytes(made->dtype, shape);
    made->sizes = sizes_of(shape);
    made->data = static_cast<char*>(from.data) + from.byte_offset;
    made->keep = std::shared_ptr<void>(made->data, [managed](void*) {
      if (managed->deleter != nullptr) managed->deleter(managed);
    });
    out = made.release();
  });
}

void brrr_tensors_free(brrr_tensors* tensors) { delete tensors; }
size_t brrr_tensors_count(const brrr_tensors* tensors) {
  return tensors == nullptr ? 0 : tensors->list.size();
}
const char* brrr_tensors_name(const brrr_tensors* tensors, size_t index) {
  return index < brrr_tensors_count(tensors) ? tensors->list[index].first.c_str() : nullptr;
}
brrr_status brrr_tensors_get(const brrr_tensors* tensors, size_t index, brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const auto& list = checked(tensors, "tensors").list;
    if (index >= list.size()) usage_error("there are {} tensors; got index {}", list.size(), index);
    out = new brrr_tensor(*list[index].second);
  });
}
