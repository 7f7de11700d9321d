#include "backend/cuda/live/bound_node.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/errors.h"

namespace brrr::cuda {
namespace {

template <typename T>
void append(ArgumentBytes& to, const T& value) {
  std::memcpy(to.add(sizeof(value)), &value, sizeof(value));
}

/// What the copy engine is told: tiles whose 16-byte chunks are exchanged over 128 bytes, zeros
/// outside.
CUtensorMap encoded(const Driver& driver, const TensorBoxes& boxes, std::byte* at) {
  CUtensorMap map;
  std::array<cuuint64_t, 4> sizes{};
  std::array<cuuint64_t, 3> strides{};
  std::copy(boxes.sizes.begin(), boxes.sizes.end(), sizes.begin());
  std::copy(boxes.strides.begin(), boxes.strides.end(), strides.begin());
  const std::array<cuuint32_t, 4> box{TensorBoxes::kColumns, static_cast<cuuint32_t>(boxes.rows), 1,
                                      1},
      every{1, 1, 1, 1};
  const auto type = boxes.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result = driver.cuTensorMapEncodeTiled(
      &map, type, 4, at, sizes.data(), strides.data(), box.data(), every.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw TensorRefusal{fmt::format(
        "cuTensorMapEncodeTiled said {} to {} of sizes {} with strides of {} bytes, in boxes of "
        "{} x {}{}",
        driver.name_of(result), name_of(boxes.dtype), fmt::join(boxes.sizes, " x "),
        fmt::join(boxes.strides, ", "), boxes.kColumns, boxes.rows,
        alignment_of(at) < 16 ? ", at an address that is no multiple of 16" : "")};
  return map;
}

void append_value(ArgumentBytes& to, const Driver& driver, const LaunchArg& a,
                  const KernelArgs& args, CUdeviceptr error) {
  using Kind = LaunchArg::Kind;
  switch (a.kind) {
    case Kind::in:
    case Kind::out:
    case Kind::scratch:
      return append(to, address_of(a, args));
    case Kind::i32:
      return append(to, static_cast<int32_t>(a.value));
    case Kind::i64:
      return append(to, a.value);
    case Kind::f32:
      return append(to, a.number);
    case Kind::error:
      return append(to, error);
    case Kind::record:
      for (const LaunchArg& field : a.fields) append_value(to, driver, field, args, error);
      return;
    case Kind::tensor:
      return append(to, encoded(driver, a.boxes, address_of(a.fields.front(), args)));
  }
}

constexpr int kPlainSharedBytes = 48 << 10;  // what a kernel has without asking

}  // namespace

std::byte* address_of(const LaunchArg& a, const KernelArgs& args) {
  using Kind = LaunchArg::Kind;
  switch (a.kind) {
    case Kind::in:
      return static_cast<std::byte*>(const_cast<void*>(args.in[a.index])) + a.value;
    case Kind::out:
      return static_cast<std::byte*>(args.out[a.index]) + a.value;
    case Kind::scratch:
      return args.scratch + a.value;
    default:
      BRRR_CHECK(false, "an argument without an address");
      return nullptr;
  }
}

MatmulAddresses addresses_of(const MatmulCall& call, const KernelArgs& args,
                             const GpuDescription& gpu) {
  const Product& p = call.product;
  MatmulAddresses at;
  at.a = address_of(p.a, args);
  at.b = address_of(p.b, args);
  at.y = address_of(p.y, args);
  if (p.bias) at.bias = address_of(*p.bias, args);
  if (p.scale_a) at.scale_a = address_of(*p.scale_a, args);
  if (p.scale_b) at.scale_b = address_of(*p.scale_b, args);
  if (call.aux) at.aux = address_of(*call.aux, args);
  if (call.addend) at.addend = address_of(*call.addend, args);
  if (call.bias_gradient) at.bias_gradient = address_of(*call.bias_gradient, args);
  at.workspace = args.scratch + call.workspace;
  at.workspace_bytes = static_cast<size_t>(workspace_bytes(gpu));
  return at;
}

SdpaAddresses addresses_of(const SdpaCall& call, const KernelArgs& args) {
  SdpaAddresses at;
  at.q = address_of(call.q.at, args);
  at.k = address_of(call.k.at, args);
  at.v = address_of(call.v.at, args);
  at.y = address_of(call.y.at, args);
  at.lse = address_of(call.lse, args);
  at.workspace = args.scratch + call.workspace;
  if (!call.backward) return at;
  at.dy = address_of(call.dy.at, args);
  at.dq = address_of(call.dq.at, args);
  at.dk = address_of(call.dk.at, args);
  at.dv = address_of(call.dv.at, args);
  at.sums = args.scratch + call.sums;
  return at;
}

std::byte* ArgumentBytes::add(size_t bytes) {
  const size_t at = size_;
  size_ += bytes;
  blocks_.resize((size_ + sizeof(Block) - 1) / sizeof(Block));
  return data() + at;
}

BoundLaunch::BoundLaunch(const Driver& driver, CUfunction function, const Launch& launch,
                         const KernelArgs& args, CUdeviceptr error)
    : function_(function),
      grid_(launch.grid),
      block_(launch.block),
      shared_bytes_(static_cast<unsigned>(launch.shared_bytes)) {
  for (const LaunchArg& a : launch.args) {
    append_value(values_.emplace_back(), driver, a, args, error);
    parameters_.push_back(values_.back().data());
  }
  if (launch.shared_bytes > kPlainSharedBytes)
    BRRR_CU(driver, cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       launch.shared_bytes));
}

void BoundLaunch::run(const Driver& driver, CUstream stream) {
  BRRR_CU(driver, cuLaunchKernel(function_, grid_.x, grid_.y, grid_.z, block_.x, block_.y, block_.z,
                                 shared_bytes_, stream, parameters_.data(), nullptr));
}

}  // namespace brrr::cuda
