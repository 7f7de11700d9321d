#pragma once
// How a node runs on a GPU: launches and library calls, one after another. There may be more than
// one way; which of them is faster only the device can say (device.h), the first is the default.

#include <string>
#include <variant>
#include <vector>

#include "backend/cuda/attention/sdpa_call.h"
#include "backend/cuda/products/matmul_call.h"

namespace brrr::cuda {

using Command = std::variant<Launch, MatmulCall, SdpaCall>;

struct NodePlan {
  std::string name;
  bool is_last_resort = false;  // taken, unmeasured, only where no other way runs
  std::vector<Command> commands;
  int64_t scratch_bytes = 0;
  bool in_place = true;

  int64_t take_scratch(int64_t bytes) {
    const int64_t at = scratch_bytes;
    scratch_bytes +=
        (bytes + LaunchPlan::kAlignment - 1) / LaunchPlan::kAlignment * LaunchPlan::kAlignment;
    return at;
  }
  /// Adds the launches of a plan for another node, whose operands and results lie where `in` and
  /// `out` say.
  void append(const LaunchPlan& plan, const std::vector<LaunchArg>& in,
              const std::vector<LaunchArg>& out);
};

/// The plan with its own operands and results; products go to the library where it computes them.
NodePlan own_plan(const LaunchPlan& plan, std::string name);
/// The plan with every product that names itself given to the library; no value: there is none.
std::optional<NodePlan> library_plan(const LaunchPlan& plan, std::string name,
                                     const GpuDescription& gpu);

/// A node of a program for a GPU. The device that runs it keeps what it made of it in `prepared`.
class CudaKernel final : public Kernel {
 public:
  CudaKernel(const NodeView& node, std::vector<NodePlan> ways);

  void run(const KernelArgs& args) override;  // InternalError: only a GPU runs it
  int64_t scratch_bytes() const override;
  bool in_place() const override;
  const std::vector<NodePlan>& ways() const { return ways_; }
  std::span<const int64_t> in_bytes() const { return in_bytes_; }
  std::span<const int64_t> out_bytes() const { return out_bytes_; }
  /// Operands that are one i32: a position, which is 0 while ways are measured.
  std::span<const size_t> positions() const { return positions_; }

  struct Prepared {
    virtual ~Prepared() = default;
  };
  std::unique_ptr<Prepared> prepared;

 private:
  std::vector<NodePlan> ways_;
  std::vector<int64_t> in_bytes_, out_bytes_;
  std::vector<size_t> positions_;
};

/// What the commands of a plan are, for caches: two plans of one text take the same time.
std::string describe(const NodePlan& plan);

}  // namespace brrr::cuda
