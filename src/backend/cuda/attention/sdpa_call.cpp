#include "backend/cuda/attention/sdpa_call.h"

#include "backend/cuda/clusters/cluster.h"
#include "base/integers.h"
#include "base/memory.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kWidest = 128;
constexpr int64_t kSmallBytes = 1 << 20;  // what its kernels keep besides
constexpr int64_t kScoreTile = 64;
constexpr int64_t kMemoryShare = 64;  // of the GPU's memory, that gradients of scores may take

int64_t score_gradient_bytes(const SdpaCall& call) {
  return call.batch * call.heads * round_up(call.queries, kScoreTile) *
         round_up(call.keys, kScoreTile) * 2;
}

}  // namespace

std::string as_sdpa_call(const NodeView& node, const GpuDescription& gpu, SdpaCall& call) {
  const AttentionNode n(node);
  if (n.dtype != DType::bf16 && n.dtype != DType::f16) return "no 16-bit floats";
  if (std::string why = n.beyond_the_matrix_unit(); !why.empty()) return why;
  if (n.is_ragged) return "sequences of different lengths in one batch";
  if (n.sees_some_after) return "a window after the query";
  if (n.p > 0) return "its dropout draws other numbers";
  if (n.has_mask || n.has_lengths || n.has_position) return "a mask besides the causal one";
  if (n.has_dlse) return "a gradient of the log-sum-exp";
  if (n.width != n.values || n.width % 8 != 0 || n.width > kWidest)
    return fmt::format("heads of {} and {}: one width, a multiple of 8 up to {}", n.width, n.values,
                       kWidest);
  if (n.heads * n.queries * n.keys * n.width == 0) return "an empty tensor";
  if (n.alignment % 16 != 0 || (n.backward && operand_alignment(node, n.lse.index) % 16 != 0))
    return "an operand that is not aligned";
  call = SdpaCall();
  call.backward = n.backward;
  call.causal = n.causal;
  call.dtype = n.dtype;
  call.batch = n.batches;
  call.heads = n.heads_per_batch;
  call.queries = n.queries;
  call.keys = n.keys;
  call.width = n.width;
  call.scale = n.scale;
  call.q = n.q;
  call.k = n.k;
  call.v = n.v;
  call.y = n.y;
  call.lse = n.lse;
  if (!n.backward) return "";
  call.dy = n.dy;
  call.dq = n.dq;
  call.dk = n.dk;
  call.dv = n.dv;
  if (gpu.sm != 90) return "a backward pass with the same bits every time: on sm_90 only";
  if (score_gradient_bytes(call) > gpu.memory_bytes / kMemoryShare)
    return fmt::format("its backward pass would keep {} of scores",
                       memory_text(score_gradient_bytes(call)));
  return "";
}

int64_t sdpa_workspace_bytes(const SdpaCall& call) {
  return kSmallBytes + (call.backward ? score_gradient_bytes(call) : 0);
}

std::string describe(const SdpaCall& c) {
  std::string text = fmt::format("sdpa{} {} {}x{} {}x{}x{}{} scale {}", c.backward ? "_grad" : "",
                                 name_of(c.dtype), c.batch, c.heads, c.queries, c.keys, c.width,
                                 c.causal ? " causal" : "", c.scale);
  // Another layout is another program.
  const auto layout = [&](const char* name, const SdpaCall::Matrix& m) {
    text += fmt::format(" {}{}/{}/{}", name, m.batch, m.head, m.row);
  };
  layout("q", c.q);
  layout("k", c.k);
  layout("v", c.v);
  layout("y", c.y);
  if (c.backward) {
    layout("dq", c.dq);
    layout("dy", c.dy);
  }
  return text;
}

}  // namespace brrr::cuda
