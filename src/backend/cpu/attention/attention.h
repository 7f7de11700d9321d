#pragma once
// Attention as the kernels see it: what an attention or attention_grad node says, and where the
// mask, the lengths and the dropout bits of a query stand. Blocks of queries by blocks of keys are
// computed one after the other and never stored (FlashAttention-2: Dao 2023).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_rows.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/rows/random_rows.h"
#include "base/threads/parallel.h"
#include "ops/attention.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Queries and keys of a block, forward and backward: multiples of the height and the width of
/// every register tile of gemm(), measured to be good.
inline constexpr int64_t kQueryBlock = 48;
inline constexpr int64_t kKeyBlock = 192;
inline constexpr int64_t kGradQueryBlock = 48;
inline constexpr int64_t kGradKeyBlock = 96;

inline int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

/// Where the rows of the heads of an operand or a result lie in one of the node's, in elements.
/// `heads` of them belong to a sequence.
struct HeadRows {
  size_t at = 0;  // which of the node's
  int64_t heads = 1;
  HeadStrides step;
  bool beside = false;  // heads lie side by side in a row
  int64_t row() const { return step.row; }
  int64_t offset(int64_t head, int64_t i) const {
    return step.first + head / heads * step.batch + head % heads * step.head + i * step.row;
  }
};

/// Heads are those of all sequences: query heads [0, heads), key heads [0, kv_heads), of which
/// `group` query heads share one.
struct AttentionProblem {
  int64_t heads = 1, kv_heads = 1, group = 1;
  int64_t sequence_heads = 1;  // query heads of a sequence
  int64_t t = 0, s = 0, d = 0, dv = 0;
  DType dtype = DType::f32;
  float scale = 1;
  bool causal = false;
  int64_t window = 0;
  int position = -1, mask = -1, lengths = -1, key = -1, dlse = -1;  // operands, -1: absent
  HeadRows q, k, v;  // operands; gradients, as results, lie as they do
  HeadRows y;        // result, or operand of the gradient ...
  HeadRows dy;       // ... which has this, too
  size_t lse = 1;    // result or operand

  DType mask_dtype = DType::f32;
  float masked = 0;
  int64_t mask_row = 0, mask_column = 0;  // strides of the mask, 0 where it is broadcast
  std::vector<int64_t> mask_offset;       // [heads]
  std::vector<int64_t> position_offset, lengths_offset;  // [sequences]
  uint32_t threshold = 0, stream = 0;
  float keep_scale = 1;

  explicit AttentionProblem(const NodeView& node);
  int64_t kv_head(int64_t head) const { return head / group; }
  const void* in(const KernelArgs& args, const HeadRows& rows, int64_t head, int64_t i = 0) const {
    return static_cast<const std::byte*>(args.in[rows.at]) + bytes(rows.offset(head, i));
  }
  void* out(const KernelArgs& args, const HeadRows& rows, int64_t head, int64_t i = 0) const {
    return static_cast<std::byte*>(args.out[rows.at]) + bytes(rows.offset(head, i));
  }
  /// Of the operand [heads, T] of the gradient.
  const float* lse_in(const KernelArgs& args, int64_t head) const {
    return static_cast<const float*>(args.in[lse]) + head * t;
  }
  /// Whether rows lie so far apart that all of them fall into a few sets of a cache: better copied.
  bool in_few_sets(const HeadRows& rows) const {
    return rows.beside && bytes(rows.row()) % kSetsRepeat == 0;
  }
  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(bytes_of(dtype)); }
};

/// Keys [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
};

/// Empty, or why the kernels do not take the node.
std::string refuse_attention(const NodeView& node);

/// A run of a problem: the operands that decide which scores count.
class ScoreRules {
 public:
  ScoreRules(const AttentionProblem& problem, const KernelArgs& args);
  /// The keys that query t of a head may see. Both ends grow with t.
  KeyRange visible(int64_t head, int64_t t) const;
  /// Those that any of the queries [t0, t0 + count) may see, from the beginning of a block of
  /// `block` keys on.
  KeyRange visible(int64_t head, int64_t t0, int64_t count, int64_t block) const;
  /// One row of scores, of keys [k0, k0 + n), with its mask and its random bits in `space`.
  struct Space {
    alignas(64) float mask[kKeyBlock];
    alignas(64) uint16_t bits[kKeyBlock + 8 * (2 + kRandomSlack)];
  };
  ScoreRow row(int64_t head, int64_t t, int64_t k0, int64_t n, float* scores, Space& space) const;

 private:
  /// The n elements of the mask from that one on, in f32.
  void read_mask(int64_t from, int64_t n, float* to) const;

  const AttentionProblem& p_;
  decltype(RandomRows::draw) draw_;
  const int32_t* positions_ = nullptr;
  const void* mask_ = nullptr;
  const int32_t* lengths_ = nullptr;
  RngKey key_;
};

/// One query of each head: how many heads that share their keys are one task.
int64_t heads_of_one_query(const AttentionProblem& problem, int64_t threads);
/// Asks for keys and values that one query reads once: runs of a head are over before the hardware
/// notices them.
void fetch_keys(const AttentionProblem& problem, const KernelArgs& args, int64_t kv_head,
                int64_t k0, int64_t n);

/// Writes y and lse of some queries: `sums` are the weighted values, [count, ld], divided here. A
/// query that saw no key has a total of 0 and becomes NaN.
void finish_queries(const AttentionProblem& problem, const KernelArgs& args, int64_t head,
                    int64_t t0, int64_t count, const RowState* states, float* sums, int64_t ld);

/// attention_grad: the queries that may see any of the keys [begin, begin + count).
struct QueryRange {
  int64_t begin = 0, end = 0;
};
QueryRange queries_of(const AttentionProblem& problem, const ScoreRules& rules, int64_t head,
                      int64_t begin, int64_t count);

/// attention_grad: a key head is one task, or where heads are few, several: task g takes the key
/// blocks g, g + groups, ... and has its own part of dq; the parts are added in order. The query
/// heads that share the key head come one after the other. The number of groups depends on shapes
/// alone.
int64_t grad_groups(const AttentionProblem& problem, int64_t key_block);

/// A matrix as the products read it: f32, rows zero-padded to whole vectors.
struct FloatRows {
  const float* data;
  int64_t ld;
};

/// A product with a B that lies in rows of whole vectors, or has a tail; any number of rows.
inline void multiply_unpacked(const GemmKernels& gemm, GemmBlock block) {
  for (int64_t left = block.rows; left > 0; left -= gemm.mr) {
    block.rows = std::min(left, gemm.mr);
    gemm.multiply(block);
    block.a += block.a_panel;
    block.c += gemm.mr * block.ldc;
  }
}

/// Whether [..., width] of that dtype is such a matrix as it stands.
bool reads_in_place(DType dtype, int64_t width);
inline int64_t padded(int64_t width) { return blocks_of(width, 32) * 32; }

/// Parts of the scratch memory, one after the other, each aligned.
class ScratchLayout {
 public:
  /// Returns the offset of `bytes` more bytes.
  int64_t take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += blocks_of(bytes, 64) * 64;
    return at;
  }
  int64_t take_floats(int64_t count) { return take(count * static_cast<int64_t>(sizeof(float))); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

std::unique_ptr<Kernel> attention_forward(const NodeView& node);
std::unique_ptr<Kernel> attention_backward(const NodeView& node);

}  // namespace brrr::cpu
