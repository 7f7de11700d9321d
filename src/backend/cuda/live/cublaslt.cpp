#include "backend/cuda/live/cublaslt.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/errors.h"

namespace brrr::cuda {
namespace {

cudaDataType type_of(DType t) {
  switch (t) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t epilogue_of(const MatmulCall& call) {
  const bool bias = call.product.bias.has_value();
  // The library's left operand is b.
  if (call.bias_gradient) return call.sums_a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
  switch (call.epilogue) {
    case Epilogue::none:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::gelu:
      if (call.aux) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::gelu_grad:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

namespace {

SharedLibrary open_library() {
  const std::string built = std::to_string(CUBLAS_VER_MAJOR);
  return SharedLibrary(
      {"libcublasLt.so." + built, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
}

std::string absence(const SharedLibrary& library) {
  if (library.is_open()) return "";
  return "no cuBLASLt: " + library.reason() + "; set CUDA_HOME to where CUDA 12 or 13 is";
}

}  // namespace

std::string CublasLt::find() { return absence(open_library()); }

std::string CublasLt::load() {
  SharedLibrary library = open_library();
  if (!library.is_open()) return absence(library);
  bool all = true;
  Table& table = f_;
  BRRR_CUBLASLT_FUNCTIONS(BRRR_FIND_FUNCTION)
  if (!all) return library.reason();
  if (const auto status = f_.cublasLtCreate(&handle_); status != CUBLAS_STATUS_SUCCESS)
    return fmt::format("cublasLtCreate said {}", f_.cublasLtGetStatusName(status));
  return "";
}

void CublasLt::close() {
  if (handle_ != nullptr) f_.cublasLtDestroy(std::exchange(handle_, nullptr));
}

std::string CublasLt::version() const {
  const size_t v = f_.cublasLtGetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

void CublasLt::check(cublasStatus_t status, const char* call) const {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw InternalError(fmt::format("{} said {}", call, f_.cublasLtGetStatusName(status)));
}

#define BRRR_LT(call) library_.check(f_.call, #call)

BoundMatmul::BoundMatmul(const CublasLt& library, const MatmulCall& call,
                         const MatmulAddresses& addresses)
    : library_(library), f_(library.functions()), at_(addresses) {
  const Product& p = call.product;
  if (p.accumulate) at_.addend = at_.y;
  beta_ = at_.addend != nullptr ? 1.0f : 0.0f;
  if (at_.addend == nullptr) at_.addend = at_.y;
  const cublasComputeType_t compute = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  BRRR_LT(cublasLtMatmulDescCreate(&desc_, compute, CUDA_R_32F));
  const cublasOperation_t left = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    BRRR_LT(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, left);
  set(CUBLASLT_MATMUL_DESC_TRANSB, right);
  set_epilogue(call);
  if (p.scale_a) {  // the library's left operand is b
    const int8_t fast = p.fast_accumulation ? 1 : 0;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at_.scale_b);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at_.scale_a);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
  }
  const cudaDataType in = type_of(p.in), in_b = type_of(p.dtype_b()), out = type_of(p.out);
  a_ = layout(in_b, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.row_b, p.batch,
              p.batch_b);
  b_ =
      layout(in, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.row_a, p.batch, p.batch_a);
  const int64_t row_c = p.accumulate ? p.row_y : p.n;
  const int64_t batch_c = p.accumulate || call.addend == std::nullopt ? p.batch_y : p.m * p.n;
  c_ = layout(out, p.n, p.m, call.addend ? row_c : p.row_y, p.batch, batch_c);
  d_ = layout(out, p.n, p.m, p.row_y, p.batch, p.batch_y);
}

BoundMatmul::~BoundMatmul() {
  for (cublasLtMatrixLayout_t l : {a_, b_, c_, d_})
    if (l != nullptr) f_.cublasLtMatrixLayoutDestroy(l);
  if (desc_ != nullptr) f_.cublasLtMatmulDescDestroy(desc_);
}

cublasLtMatrixLayout_t BoundMatmul::layout(cudaDataType type, int64_t rows, int64_t columns,
                                           int64_t ld, int64_t batch, int64_t stride) const {
  cublasLtMatrixLayout_t l = nullptr;
  BRRR_LT(cublasLtMatrixLayoutCreate(&l, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), ld));
  if (batch == 1) return l;
  const auto count = static_cast<int32_t>(batch);
  BRRR_LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof(count)));
  BRRR_LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                           sizeof(stride)));
  return l;
}

void BoundMatmul::set_epilogue(const MatmulCall& call) {
  const cublasLtEpilogue_t epilogue = epilogue_of(call);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    BRRR_LT(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (call.product.bias) {
    const auto type = static_cast<int32_t>(type_of(call.product.bias_dtype));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at_.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
  }
  if (call.bias_gradient) {
    const auto type = static_cast<int32_t>(CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at_.bias_gradient);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
  }
  if (call.aux) {
    const int64_t ld = call.product.n;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at_.aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
  }
}

std::vector<cublasLtMatmulAlgo_t> BoundMatmul::algorithms(int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  BRRR_LT(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    BRRR_LT(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  const uint64_t room = at_.workspace_bytes;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room);
  // Parts of a sum over k that are added in memory are added in f32, not rounded to 16 bits first.
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(at_.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(at_.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(at_.addend));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(at_.y));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = f_.cublasLtMatmulAlgoGetHeuristic(
      library_.handle(), desc_, a_, b_, c_, d_, preference, most, found.data(), &count);
  f_.cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> list;
  if (status != CUBLAS_STATUS_SUCCESS) return list;
  for (int i = 0; i < count; ++i)
    if (const auto& r = found[static_cast<size_t>(i)];
        r.state == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= room)
      list.push_back(r.algo);
  return list;
}

bool BoundMatmul::run(CUstream stream) const {
  const float one = 1;
  // Column-major: the left operand is b.
  return f_.cublasLtMatmul(library_.handle(), desc_, &one, at_.b, a_, at_.a, b_, &beta_, at_.addend,
                           c_, at_.y, d_, &algorithm_, at_.workspace, at_.workspace_bytes,
                           stream) == CUBLAS_STATUS_SUCCESS;
}

uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return address == 0 ? 256u : 1u << std::min(8, std::countr_zero(address));
}

std::string name_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

}  // namespace brrr::cuda
