// Kernels on the PTX machine where they go round: attention whose blocks of threads stay on a GPU
// of one multiprocessor and take block of rows after block of rows, so that every stage of shared
// memory is filled many times and every barrier is waited for; and rows of logits so long that 512
// threads share one.

#include <gtest/gtest.h>

#include "backend/cuda/attention_cases.h"
#include "support/cuda_emulator.h"
#include "support/nvrtc.h"
#include "support/ptx_fixture.h"
#include "support/ptx_kernels.h"

namespace brrr::cuda {
namespace {

namespace ptx = test::ptx;

class PtxRounds : public test::OnPtxMachine {
 protected:
  static PlanEntry entry_of(Op op, std::string_view name) {
    for (const PlanEntry& entry : device_kernels())
      if (entry.op == op && entry.name == name) return entry;
    ADD_FAILURE() << "no " << name << " for " << name_of(op);
    return {};
  }

  /// The work list has so many rounds at least; each takes whole tiles of the other side.
  static void check_attention(const Case& c, DType t, bool backward, int64_t rounds) {
    GpuDescription gpu;
    gpu.multiprocessors = 1;
    gpu.l2_bytes = 256 << 10;  // sections of one head or two
    const Call call = call_of(c, t, backward);
    const PlanEntry entry = entry_of(call.node().op->id, "tma");
    ASSERT_EQ(entry.accepts(call.view(), gpu), "");
    constexpr int64_t kRows = 128;
    const int64_t blocks = c.heads * ((std::min(c.queries, c.keys) + kRows - 1) / kRows);
    for (const Launch& launch : entry.plan(call.view(), gpu).launches) {
      if (launch.block.x != 384) continue;  // has no work list
      EXPECT_GE(blocks, rounds * int64_t{launch.grid.x}) << launch.source.entry;
    }
    const std::vector<RefTensor> wanted = call.wanted();
    expect_close(call, run_kernel(test::emulated_entry(entry, gpu), call), wanted,
                 magnitudes(call, wanted, backward));
  }

  /// The step of a loss head with so many classes; `change` may put an error into its kernels.
  static void check_head(std::string_view name, bool rounds_logits,
                         const std::function<void(std::string&)>& change = {}) {
    constexpr int64_t kClasses = 9001;
    const Shape x{3, 16}, rows{3};
    Sample s{{operand(x, -1, 1, DType::bf16), operand({kClasses, 16}, -1, 1, DType::bf16),
              operand(rows, -1, kClasses, DType::i32), operand(rows)},
             {{"ignore_index", int64_t{-1}}, {"transpose_w", true}}};
    if (rounds_logits) s.attrs.set("round_logits", true);
    const Call call(op("linear_cross_entropy_step"), s);
    PlanEntry entry = entry_of(Op::linear_cross_entropy_step, name);
    if (change)
      entry.plan = [plan = entry.plan, &change](const NodeView& node, const GpuDescription& gpu) {
        LaunchPlan made = plan(node, gpu);
        for (Launch& launch : made.launches)
          if (launch.source.entry == "linear_cross_entropy_step") {
            std::string text = launch.source.text();
            change(text);
            launch.source = {launch.source.entry, {}, text};
          }
        return made;
      };
    ASSERT_EQ(entry.accepts(call.view(), {}), "");
    const std::vector<RefTensor> wanted = call.wanted();
    std::vector<double> sizes = magnitudes(call, wanted, true);
    for (size_t i = 0; rounds_logits && i < sizes.size(); ++i)
      sizes[i] *= wanted[i].type.dtype == DType::f32 ? 4096 : 4;
    expect_close(call, run_kernel(test::emulated_entry(entry, {}), call), wanted, sizes);
  }
};

TEST_F(PtxRounds, AttentionForward) {
  check_attention({.heads = 3, .queries = 400, .keys = 700, .width = 64, .causal = false},
                  DType::bf16, false, 12);
  check_attention({.heads = 2, .queries = 390, .keys = 390, .width = 128, .causal = true},
                  DType::f16, false, 8);
}

TEST_F(PtxRounds, AttentionBackward) {
  check_attention({.heads = 2, .queries = 390, .keys = 390, .width = 64, .causal = true},
                  DType::bf16, true, 8);
}

TEST_F(PtxRounds, LossHeadOfManyClasses) {
  for (const std::string_view name : {"chunks", "padded_chunks"})
    for (const bool rounds_logits : {true, false}) {
      SCOPED_TRACE(std::string(name) + (rounds_logits ? ", logits in bf16" : ", logits in f32"));
      check_head(name, rounds_logits);
    }
}

/// The barriers that are left are needed.
TEST_F(PtxRounds, FindsABarrierThatIsMissingInTheLossHead) {
  std::string message;
  try {
    check_head("chunks", true, [](std::string& text) {
      const std::string barrier = "__syncthreads();\n", after = "    x = warps[0];";
      const size_t at = text.find(barrier + after);
      ASSERT_NE(at, std::string::npos);
      text.erase(at, barrier.size());
    });
  } catch (const ptx::Error& e) {
    message = e.what();
  }
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "nobody has written byte", message);
}

}  // namespace
}  // namespace brrr::cuda
