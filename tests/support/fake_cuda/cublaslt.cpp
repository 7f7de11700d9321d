// cuBLASLt for the fake driver: column-major products by plain loops in double, with the epilogues
// that are used, read from the descriptors as the library documents them. It refuses what the
// documentation excludes: types, layouts, epilogues, buffers that are not aligned as the caller
// promised, a workspace that is too small. Its algorithms differ in what they ask for; those that
// add parts of a sum in the result's type round the parts, so a caller that lets them in sees it.

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
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
  cudaDataType_t scale = CUDA_R_32F;
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
  bool rounds_parts;  // the sum over k is made of two parts, each stored as the result is

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
          double sum = 0, first_part = 0;
          for (int64_t i = 0; i < k; ++i) {
            if (rounds_parts && i == k / 2) {
              first_part = brrr::rounded_to(out, sum);
              sum = 0;
            }
            const int64_t at = batch * a.stride + (ta ? row * a.ld + i : i * a.ld + row);
            const int64_t bt = batch * b.stride + (tb ? i * b.ld + column : column * b.ld + i);
            sum += read(in, pa, at) * read(in_b, pb, bt);
          }
          if (rounds_parts) sum = brrr::rounded_to(out, sum) + first_part;
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

/// What a caller asks of the heuristic; the defaults are the library's.
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::map<int, uint32_t> alignments;  // by attribute
  uint32_t alignment(cublasLtMatmulPreferenceAttributes_t which) const {
    const auto at = alignments.find(which);
    return at != alignments.end() ? at->second : 256;
  }
};
Preference& of(cublasLtMatmulPreference_t p) { return *reinterpret_cast<Preference*>(p); }

/// The algorithms of this library, those that it thinks fastest first.
struct Algorithm {
  uint64_t id;
  uint32_t alignment;  // in bytes, of all four matrices and of their columns
  uint32_t reduction;  // of cublasLtReductionScheme_t
  size_t workspace_bytes;
};
constexpr Algorithm kAlgorithms[] = {
    {1, 16, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 1 << 20},
    {2, 16, CUBLASLT_REDUCTION_SCHEME_INPLACE, 1 << 16},
    {3, 16, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {4, 16, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1 << 20},
    {5, 16, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 256 << 20},  // more than anyone offers
    {6, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
};
bool rounds_in_parts(const Algorithm& a) {
  return (a.reduction &
          (CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE | CUBLASLT_REDUCTION_SCHEME_INPLACE)) != 0;
}
const Algorithm* algorithm_of(const cublasLtMatmulAlgo_t* algorithm) {
  for (const Algorithm& a : kAlgorithms)
    if (algorithm != nullptr && a.id == algorithm->data[0]) return &a;
  return nullptr;
}

/// The four matrices of a call, and the attributes that say how their buffers are aligned.
struct Matrices {
  const Layout &a, &b, &c, &d;
  std::array<const Layout*, 4> all() const { return {&a, &b, &c, &d}; }
  static constexpr std::array kAlignments{
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
};
uint64_t size_of(cudaDataType t) { return brrr::bytes_of(dtype_of(t)); }

/// Whether an algorithm that wants so many bytes may read the columns of this matrix, and of each
/// matrix of its batch, where the first begins at a multiple of `base` bytes.
bool is_aligned(const Layout& l, uint64_t base, uint64_t bytes) {
  const auto lies_well = [&](int64_t elements) {
    return static_cast<uint64_t>(elements) * size_of(l.type) % bytes == 0;
  };
  return base % bytes == 0 && lies_well(l.ld) && (l.batch == 1 || lies_well(l.stride));
}

cublasLtEpilogue_t epilogue_of(const Desc& desc) {
  return desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
}
bool is_transposed(const Desc& desc, cublasLtMatmulDescAttributes_t which) {
  return desc.get(which, CUBLAS_OP_N) == CUBLAS_OP_T;
}
cudaDataType bias_type_of(const Desc& desc, const Layout& d) {
  return static_cast<cudaDataType>(
      desc.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(d.type)));
}
bool has_pointer(const Desc& desc, cublasLtMatmulDescAttributes_t which) {
  return desc.get<const void*>(which, nullptr) != nullptr;
}

/// The table of types under cublasLtMatmul: sums in f32, both operands and the result of one type
/// or the result in f32; 8 bits by 8 bits into 16 bits or f32.
std::string type_refusal(const Desc& desc, const Matrices& m) {
  const cudaDataType a = m.a.type, b = m.b.type, d = m.d.type;
  if (m.c.type != d) return "C and D of two types";
  if (desc.scale != CUDA_R_32F) return "a scale that is not f32";
  if (is_fp8(dtype_of(a)) || is_fp8(dtype_of(b))) {
    if (!is_fp8(dtype_of(a)) || !is_fp8(dtype_of(b))) return "one operand of 8 bits";
    if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) return "two operands of e5m2";
    return d == CUDA_R_32F || d == CUDA_R_16BF || d == CUDA_R_16F ? "" : "a result in 8 bits";
  }
  if (a != b) return "operands of two types";
  if (desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a != CUDA_R_32F) return "tf32 of 16 bits";
  return d == a || d == CUDA_R_32F ? "" : "a result that is neither as the operands nor f32";
}

/// Requirements of the kernels that multiply 8 bits, by the same page.
std::string fp8_refusal(const Desc& desc, const Matrices& m) {
  if (!is_fp8(dtype_of(m.a.type))) return "";
  for (const Layout* l : m.all())
    for (const int64_t size : {l->rows, l->columns})
      if (size % 16 != 0) return "a size of 8 bits that is no multiple of 16";
  if (!is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSA) ||
      is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSB))
    return "8 bits in another format than TN";
  if (desc.compute != CUBLAS_COMPUTE_32F) return "8 bits that are not summed in f32";
  if (!has_pointer(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) ||
      !has_pointer(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER))
    return "8 bits without scales";
  return "";
}

/// A bias is of the result's type, beside 8 bits with a result in f32 of bf16.
std::string bias_refusal(const Desc& desc, const Matrices& m) {
  if ((epilogue_of(desc) & CUBLASLT_EPILOGUE_BIAS) == 0) return "";
  if (!has_pointer(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER)) return "no bias";
  const bool is_narrow = is_fp8(dtype_of(m.a.type)) && m.d.type == CUDA_R_32F;
  return bias_type_of(desc, m.d) == (is_narrow ? CUDA_R_16BF : m.d.type) ? ""
                                                                         : "a bias of that type";
}

/// The gradient of a bias: of an A that is not transposed or a B that is (nvmath-python's tests say
/// so), in 16 bits, as wide as the result, of one product.
std::string bias_gradient_refusal(const Desc& desc, const Matrices& m) {
  const cublasLtEpilogue_t epilogue = epilogue_of(desc);
  if (epilogue != CUBLASLT_EPILOGUE_BGRADA && epilogue != CUBLASLT_EPILOGUE_BGRADB) return "";
  const bool lies_right = epilogue == CUBLASLT_EPILOGUE_BGRADA
                              ? !is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSA)
                              : is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSB);
  if (!lies_right) return "a bias gradient along the rows";
  if (m.a.type != CUDA_R_16BF && m.a.type != CUDA_R_16F) return "a bias gradient of that type";
  if (m.d.batch != 1) return "a bias gradient of a batch";
  if (bias_type_of(desc, m.d) != m.d.type) return "a bias gradient of another type than D";
  return has_pointer(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER) ? "" : "no bias gradient";
}

/// What GELU and its derivative read or write beside the result: 16-byte columns of its type.
std::string aux_refusal(const Desc& desc, const Matrices& m) {
  if ((epilogue_of(desc) & 128) == 0) return "";
  const auto at = reinterpret_cast<uintptr_t>(
      desc.get<const void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr));
  const auto ld = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  if (at == 0 || at % 16 != 0) return "an auxiliary buffer that is not aligned";
  if (ld % 8 != 0 || ld < m.d.rows) return "rows of the auxiliary buffer";
  return m.d.batch == 1 ? "" : "an auxiliary buffer of a batch without its stride";
}

std::string epilogue_refusal(const Desc& desc, const Matrices&) {
  switch (epilogue_of(desc)) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      return "";
    default:
      return "an epilogue that this library has not learned";
  }
}

std::string shape_refusal(const Desc& desc, const Matrices& m) {
  const bool ta = is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSA),
             tb = is_transposed(desc, CUBLASLT_MATMUL_DESC_TRANSB);
  for (const Layout* l : m.all()) {
    if (l->rows <= 0 || l->columns <= 0 || l->ld < l->rows) return "a layout without elements";
    if (l->batch != m.d.batch) return "batches of two sizes";
  }
  if ((ta ? m.a.columns : m.a.rows) != m.d.rows || (tb ? m.b.rows : m.b.columns) != m.d.columns ||
      (ta ? m.a.rows : m.a.columns) != (tb ? m.b.columns : m.b.rows))
    return "sizes that do not fit";
  return m.c.rows == m.d.rows && m.c.columns == m.d.columns ? "" : "C and D of two sizes";
}

/// Why the library does not do it; empty: it does.
std::string refusal_of(const Desc& desc, const Matrices& m) {
  for (const auto& refusal : {shape_refusal, type_refusal, fp8_refusal, epilogue_refusal,
                              bias_refusal, bias_gradient_refusal, aux_refusal})
    if (std::string why = refusal(desc, m); !why.empty()) return why;
  return "";
}

brrr::test::FakeMatmuls& matmuls() {
  static brrr::test::FakeMatmuls m;
  return m;
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
                                        cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute, scale, {}});
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
  *p = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete &of(p);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* data, size_t bytes) {
  Preference& preference = of(p);
  const auto take = [&](auto& to) {
    if (data == nullptr || bytes != sizeof(to)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, data, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(preference.workspace_bytes);
  if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return take(preference.reductions);
  if (std::find(Matrices::kAlignments.begin(), Matrices::kAlignments.end(), which) !=
      Matrices::kAlignments.end())
    return take(preference.alignments[which]);
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  if (most <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  const Matrices m{of(a), of(b), of(c), of(d)};
  if (std::string why = refusal_of(of(desc), m); !why.empty()) {
    matmuls().refusals.push_back(std::move(why));
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const Preference& preference = of(p);
  for (const Algorithm& algorithm : kAlgorithms) {
    if (*count == most || matmuls().finds_nothing) break;
    const uint32_t reduction = algorithm.reduction;
    if (reduction != CUBLASLT_REDUCTION_SCHEME_NONE && (reduction & preference.reductions) == 0)
      continue;
    if (algorithm.workspace_bytes > preference.workspace_bytes) continue;
    // 8 bits are multiplied from 16 bytes on alone.
    if (is_fp8(dtype_of(m.a.type)) && algorithm.alignment < 16) continue;
    bool fits = true;
    for (size_t i = 0; i < 4; ++i)
      fits = fits && is_aligned(*m.all()[i], preference.alignment(Matrices::kAlignments[i]),
                                algorithm.alignment);
    if (!fits) continue;
    results[*count] = {};
    results[*count].algo.data[0] = algorithm.id;
    results[*count].workspaceSize = algorithm.workspace_bytes;
    results[*count].state = CUBLAS_STATUS_SUCCESS;
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}
brrr::test::FakeMatmuls* fake_matmuls() { return &matmuls(); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* chosen, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Algorithm* algorithm = algorithm_of(chosen);
  const Matrices m{of(la), of(lb), of(lc), of(ld)};
  const auto refuse = [&](const char* why, cublasStatus_t status) {
    matmuls().refusals.emplace_back(why);
    return status;
  };
  if (algorithm == nullptr) return refuse("no such algorithm", CUBLAS_STATUS_INVALID_VALUE);
  if (std::string why = refusal_of(of(desc), m); !why.empty())
    return refuse(why.c_str(), CUBLAS_STATUS_NOT_SUPPORTED);
  // From version 12 on a workspace begins at a multiple of 256 bytes.
  if (workspace_bytes < algorithm->workspace_bytes || !fake_is_device(workspace, workspace_bytes) ||
      reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return refuse("a workspace that is too small", CUBLAS_STATUS_INVALID_VALUE);
  const std::array<const void*, 4> at{a, b, c, d};
  for (size_t i = 0; i < 4; ++i)
    if (!is_aligned(*m.all()[i], reinterpret_cast<uintptr_t>(at[i]),
                    std::max<uint64_t>(algorithm->alignment, size_of(m.all()[i]->type))))
      return refuse("a matrix that is not aligned", CUBLAS_STATUS_INVALID_VALUE);
  if (c == d && (m.c.ld != m.d.ld || m.c.stride != m.d.stride))
    return refuse("C and D in one place and of two layouts", CUBLAS_STATUS_INVALID_VALUE);
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
                  *static_cast<const float*>(beta),
                  rounds_in_parts(*algorithm)};
  fake_queue([call] { call.run(); }, stream);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
