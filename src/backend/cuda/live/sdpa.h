#pragma once
// Attention by cuDNN (sdpa_call.h) on a device. cuDNN takes a graph of small operations and finds
// the fused kernel that computes all of them; the graph is written here, from the formulas.

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "backend/cuda/attention/sdpa_call.h"
#include "backend/cuda/live/cudnn.h"

namespace brrr::cuda {

/// Device addresses of a call's arguments; null: the call has none.
struct SdpaAddresses {
  void *q = nullptr, *k = nullptr, *v = nullptr, *y = nullptr, *lse = nullptr;
  void *dy = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr, *sums = nullptr;
  void* workspace = nullptr;
};

/// What cuDNN compiled for a call; calls that differ in their addresses alone share it.
class SdpaPlan {
 public:
  /// `device`: for what GPU, where there is none (cuDNN from 9.8 on); null: the library's own.
  /// Throws cudnn::Refusal.
  SdpaPlan(const cudnn::Library& library, const SdpaCall& call,
           const cudnn::Descriptor* device = nullptr);
  SdpaPlan(const SdpaPlan&) = delete;
  SdpaPlan& operator=(const SdpaPlan&) = delete;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  const cudnn::Library& library() const { return library_; }
  const cudnn::Descriptor& descriptor() const { return plan_; }
  /// The addresses of one call, as cuDNN takes them.
  cudnn::Descriptor pack(const SdpaAddresses& at) const;

 private:
  /// A place in `parts_`.
  struct Tensor {
    size_t index;
    std::array<int64_t, 4> sizes;
  };
  using Sizes = std::array<int64_t, 4>;
  cudnn::DataType low() const {
    return call_.dtype == DType::bf16 ? cudnn::DataType::bf16 : cudnn::DataType::f16;
  }

  Tensor tensor(int64_t id, const Sizes& sizes, const Sizes& strides, cudnn::DataType type,
                bool is_virtual, bool is_value = false);
  Tensor stored(int64_t id, const SdpaCall::Matrix& m, int64_t rows);
  /// The same numbers as columns.
  Tensor transposed(int64_t id, const SdpaCall::Matrix& m, int64_t rows);
  Tensor value(int64_t id);
  Tensor statistic(int64_t id);  // one number of each query, in memory
  Tensor between(const Sizes& sizes, cudnn::DataType type);

  Tensor pointwise(cudnn::Pointwise mode, const Tensor& x, const Tensor* b = nullptr,
                   const Tensor* into = nullptr, const Tensor* selector = nullptr,
                   cudnn::DataType type = cudnn::DataType::f32, int64_t axis = -1);
  Tensor matmul(const Tensor& a, const Tensor& b, const Tensor* into = nullptr);
  Tensor reduce(cudnn::Reduction mode, const Tensor& x, const Sizes& sizes,
                const Tensor* into = nullptr);
  Tensor turned(const Tensor& x, cudnn::DataType type, const Sizes& strides);
  void add_op(cudnn::Descriptor op);

  Tensor masked(const Tensor& scores);
  void write_forward();
  void write_backward();
  void compile(const cudnn::Descriptor* device);

  const cudnn::Library& library_;
  SdpaCall call_;
  Sizes scores_;
  std::deque<cudnn::Descriptor> parts_;  // tensors, what operations are made of, the engine
  std::vector<cudnn::Descriptor> ops_;
  int64_t next_id_ = 100;
  cudnn::Descriptor graph_, plan_;
  int64_t workspace_bytes_ = 0;
  float scale_, one_ = 1, hidden_;
};

/// A call with its addresses, ready to be queued on the library's stream.
class BoundSdpa {
 public:
  BoundSdpa(std::shared_ptr<const SdpaPlan> plan, const SdpaAddresses& at)
      : plan_(std::move(plan)), pack_(plan_->pack(at)) {}
  /// False when the library refuses.
  bool run() const {
    const cudnn::Library& library = plan_->library();
    return library.cudnnBackendExecute(library.handle(), plan_->descriptor().raw(), pack_.raw()) ==
           cudnn::kSuccess;
  }

 private:
  std::shared_ptr<const SdpaPlan> plan_;
  cudnn::Descriptor pack_;
};

}  // namespace brrr::cuda
