// cuBLASLt for the fake driver: column-major products by plain loops in double, with the epilogues
// that are used, read from the descriptors as the library documents them.

#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "support/fake_cuda/fake_cuda.h"

namespace {

using brrr::DType;

struct Layout {
  cudaDataType type;
  int64_t rows, columns, ld;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct Desc {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::map<int, std::vector<char>> attributes;
  template <typename T>
  T get(cublasLtMatmulDescAttributes_t which, T fallback) const {
    const auto at = attributes.find(which);
    if (at == attributes.end() || at->second.size() != sizeof(T)) return fallback;
    T value;
    std::memcpy(&value, at->second.data(), sizeof(T));
    return value;
  }
};

DType dtype_of(cudaDataType t) {
  switch (t) {
    case CUDA_R_16BF:
      return DType::bf16;
    case CUDA_R_16F:
      return DType::f16;
    case CUDA_R_8F_E4M3:
      return DType::f8e4m3;
    case CUDA_R_8F_E5M2:
      return DType::f8e5m2;
    default:
      return DType::f32;
  }
}

/// 11 bits of mantissa, as the matrix unit reads f32 operands in tf32.
double to_tf32(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

constexpr double kRoot2OverPi = 0.7978845608028654;
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kRoot2OverPi * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  const double t = std::tanh(kRoot2OverPi * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot2OverPi * (1 + 3 * 0.044715 * x * x);
}

struct Call {
  Desc desc;
  Layout a, b, c, d;
  const void *pa, *pb, *pc;
  void* pd;
  double alpha, beta;

  void run() const {
    const bool ta = desc.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
    const bool tb = desc.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
    const auto epilogue = desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    const void* bias = desc.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
    void* aux = desc.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr);
    const int64_t aux_ld = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
    const auto bias_type = static_cast<cudaDataType>(
        desc.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(d.type)));
    const int64_t k = ta ? a.rows : a.columns;
    const DType in = dtype_of(a.type), in_b = dtype_of(b.type), out = dtype_of(d.type);
    const bool tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const auto read = [&](DType t, const void* data, int64_t at) {
      const double x = load_as_double(t, data, at);
      return tf32 ? to_tf32(x) : x;
    };
    double scale = alpha;
    for (const auto which :
         {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
      if (const auto* factor = desc.get<const float*>(which, nullptr)) scale *= *factor;
    for (int64_t batch = 0; batch < d.batch; ++batch)
      for (int64_t column = 0; column < d.columns; ++column)
        for (int64_t row = 0; row < d.rows; ++row) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i) {
            const int64_t at = batch * a.stride + (ta ? row * a.ld + i : i * a.ld + row);
            const int64_t bt = batch * b.stride + (tb ? i * b.ld + column : column * b.ld + i);
            sum += read(in, pa, at) * read(in_b, pb, bt);
          }
          double y = scale * sum;
          if (beta != 0)
            y +=
                beta * load_as_double(dtype_of(c.type), pc, batch * c.stride + column * c.ld + row);
          if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0)
            y += load_as_double(dtype_of(bias_type), bias, row);
          const int64_t at_aux = column * aux_ld + row;
          if ((epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
            if ((epilogue & 128) != 0) store_from_double(out, aux, at_aux, y);
            y = gelu(y);
          } else if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
            y *= gelu_slope(load_as_double(out, aux, at_aux));
          }
          store_from_double(out, pd, batch * d.stride + column * d.ld + row, y);
        }
    if (epilogue != CUBLASLT_EPILOGUE_BGRADA && epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    // The reduction over k of an input, whatever D is scaled by or added to.
    const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (int64_t lane = 0; lane < (of_a ? d.rows : d.columns); ++lane) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += of_a ? read(in, pa, ta ? lane * a.ld + i : i * a.ld + lane)
                    : read(in_b, pb, tb ? i * b.ld + lane : lane * b.ld + i);
      store_from_double(dtype_of(bias_type), const_cast<void*>(bias), lane, sum);
    }
  }
};

Layout& of(cublasLtMatrixLayout_t l) { return *reinterpret_cast<Layout*>(l); }
Desc& of(cublasLtMatmulDesc_t d) { return *reinterpret_cast<Desc*>(d); }

/// Beside 8 bits a bias is in 16, also where the result is in f32.
bool has_valid_fp8_bias(const Desc& desc, const Layout& d) {
  const auto epilogue = desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  if ((epilogue & CUBLASLT_EPILOGUE_BIAS) == 0) return true;
  const auto type = static_cast<cudaDataType>(
      desc.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(d.type)));
  return dtype_of(type) == DType::bf16 || (d.type == CUDA_R_16F && type == CUDA_R_16F);
}

/// 8 bits: both operands lie along k, sizes are multiples of 16, not two of e5m2, with scales.
bool is_valid_fp8(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool is_fp8_a = is_fp8(dtype_of(a.type)), is_fp8_b = is_fp8(dtype_of(b.type));
  if (!is_fp8_a && !is_fp8_b) return true;
  for (int64_t size : {a.rows, d.rows, d.columns})
    if (size % 16 != 0) return false;
  return is_fp8_a && is_fp8_b && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
         desc.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T &&
         desc.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_N &&
         desc.compute == CUBLAS_COMPUTE_32F && has_valid_fp8_bias(desc, d) &&
         desc.get<const void*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr) != nullptr &&
         desc.get<const void*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr) != nullptr;
}

/// The gradient of a bias: of an A that is not transposed or a B that is (nvmath-python's tests say
/// so), in 16 bits, as wide as the result, of one product.
bool is_valid_bias_gradient(const Desc& desc, const Layout& a, const Layout& d) {
  const auto epilogue = desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  if (epilogue != CUBLASLT_EPILOGUE_BGRADA && epilogue != CUBLASLT_EPILOGUE_BGRADB) return true;
  const bool lies_right = epilogue == CUBLASLT_EPILOGUE_BGRADA
                              ? desc.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_N
                              : desc.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  return lies_right && (a.type == CUDA_R_16BF || a.type == CUDA_R_16F) && d.batch == 1 &&
         desc.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1) ==
             static_cast<int32_t>(d.type) &&
         desc.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr) != nullptr;
}

// What the library would not take.
bool is_valid(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  const bool ta = desc.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
  const bool tb = desc.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  for (const Layout* l : {&a, &b, &d})
    if (l->ld < l->rows) return false;
  if (!is_valid_fp8(desc, a, b, d) || !is_valid_bias_gradient(desc, a, d)) return false;
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
         (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows) &&
         desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8) % 8 == 0;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_FAKE"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute, {}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &of(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  of(desc).attributes[which].assign(begin, begin + bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void* data, size_t bytes) {
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof(int32_t))
    std::memcpy(&of(layout).batch, data, bytes);
  else if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof(int64_t))
    std::memcpy(&of(layout).stride, data, bytes);
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete reinterpret_cast<int*>(p);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  if (!is_valid(of(desc), of(a), of(b), of(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (; *count < most && *count < 2; ++*count) {
    results[*count] = {};
    results[*count].algo.data[0] = 1 + static_cast<uint64_t>(*count);
    results[*count].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (algorithm->data[0] == 0 || !fake_is_device(workspace, workspace_bytes))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Call call{of(desc),
                  of(la),
                  of(lb),
                  of(lc),
                  of(ld),
                  a,
                  b,
                  c,
                  d,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta)};
  fake_queue([call] { call.run(); }, stream);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
