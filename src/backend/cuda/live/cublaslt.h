#pragma once
// cuBLASLt: the products of matmul_call.h on a device. Row-major y = op(a) op(b) is computed as the
// column-major product of the transposes, in which a bias along the columns of y is what the
// library's epilogues call a bias.

#include <cublasLt.h>

#include <string>
#include <vector>

#include "backend/cuda/live/driver.h"
#include "backend/cuda/products/matmul_call.h"

namespace brrr::cuda {

#define BRRR_CUBLASLT_FUNCTIONS(X)        \
  X(cublasLtGetVersion)                   \
  X(cublasLtGetStatusName)                \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)

class CublasLt {
 public:
  CublasLt() = default;
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() { close(); }
  /// Looks it up and opens it on the current context; returns why not, "" when it is ready.
  std::string load();
  /// Gives the handle back, while its context is still there.
  void close();
  /// Whether there is such a library; returns why not.
  static std::string find();
  std::string version() const;  // "13.1.0"
  void check(cublasStatus_t status, const char* call) const;

  struct Table {
    BRRR_CUBLASLT_FUNCTIONS(BRRR_DECLARE_FUNCTION)
  };
  const Table& functions() const { return f_; }
  cublasLtHandle_t handle() const { return handle_; }

 private:
  Table f_;
  cublasLtHandle_t handle_ = nullptr;
};

/// Device addresses of a call's arguments; null: the call has none.
struct MatmulAddresses {
  const void *a = nullptr, *b = nullptr, *bias = nullptr, *addend = nullptr;
  const void *scale_a = nullptr, *scale_b = nullptr;
  void *y = nullptr, *aux = nullptr, *bias_gradient = nullptr, *workspace = nullptr;
  size_t workspace_bytes = 0;
};

class BoundMatmul {
 public:
  BoundMatmul(const CublasLt& library, const MatmulCall& call, const MatmulAddresses& addresses);
  BoundMatmul(const BoundMatmul&) = delete;
  BoundMatmul& operator=(const BoundMatmul&) = delete;
  ~BoundMatmul();

  /// Those that the library thinks fastest, the best first; empty: it does not do this call.
  std::vector<cublasLtMatmulAlgo_t> algorithms(int most) const;
  void set_algorithm(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }
  /// Queues it; false when the library refuses.
  bool run(CUstream stream) const;

 private:
  cublasLtMatrixLayout_t layout(cudaDataType type, int64_t rows, int64_t columns, int64_t ld,
                                int64_t batch, int64_t stride) const;
  void set_epilogue(const MatmulCall& call);
  const CublasLt& library_;
  const CublasLt::Table& f_;
  MatmulAddresses at_;
  float beta_ = 0;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

/// The largest power of two, 256 at most, that an address is a multiple of.
uint32_t alignment_of(const void* p);

/// Names that stay the same for one version of the library.
std::string name_of(const cublasLtMatmulAlgo_t& algorithm);

}  // namespace brrr::cuda
