#pragma once
// Types that the attention kernels share: sizes and operands of a node (AttentionProblem), row
// addresses, masks and dropout bits of a run (AttentionRun), and the division into blocks. Blocks
// of queries times blocks of keys are computed one after the other and never stored
// (FlashAttention-2: Dao 2023).

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
/// A sequence has `heads` of them. In a ragged batch the row index `i` runs over the rows of all
/// sequences, and `step.batch` is 0.
struct HeadRows {
  size_t at = 0;  // which of the node's
  int64_t heads = 1;
  HeadStrides step;
  bool beside = false;  // heads lie side by side in a row
  int64_t scales = -1;  // int8 rows: offset of their scales in bytes; -1: the rows are floats
  int64_t row() const { return step.row; }
  int64_t offset(int64_t head, int64_t i) const {
    return step.first + head / heads * step.batch + head % heads * step.head + i * step.row;
  }
};

/// Heads are those of all sequences: query heads [0, heads), key heads [0, kv_heads), of which
/// `group` query heads share one.
struct AttentionProblem {
  int64_t heads = 1, kv_heads = 1, group = 1;
  int64_t sequences = 1;
  int64_t sequence_heads = 1, sequence_kv_heads = 1;  // heads of one sequence
  int64_t t = 0, s = 0, d = 0, dv = 0;  // queries and keys of a sequence, or all of a ragged batch
  DType dtype = DType::f32;
  float scale = 1;
  std::optional<int64_t> keys_after;  // keys after its position that a query sees; nothing: all
  int64_t window = 0;                 // keys up to and with its position that a query sees; 0: all
  // Indices of optional operands; -1 if absent.
  int position = -1, mask = -1, lengths = -1, starts = -1, blocks = -1, key = -1, dlse = -1;
  HeadRows q, k, v;  // operands; gradients, as results, lie as they do
  HeadRows y;        // result, or operand of the gradient ...
  HeadRows dy;       // ... which has this, too
  size_t lse = 1;    // result or operand

  DType mask_dtype = DType::f32;
  float masked = 0;
  int64_t mask_row = 0, mask_column = 0;      // strides of the mask, 0 where it is broadcast
  std::vector<int64_t> mask_offset;           // [heads] or, where sequences share them, of one
  int64_t longest = 0;                        // maximum length of a sequence; 0: t
  int64_t block_rows = 0, table_columns = 0;  // of keys in blocks; 0: keys are contiguous
  std::vector<int64_t> position_offset, lengths_offset;  // [sequences]
  uint32_t threshold = 0, stream = 0;
  float keep_scale = 1;

  explicit AttentionProblem(const NodeView& node);
  bool is_ragged() const { return starts >= 0; }
  /// Whether keys and values lie in int8 rows, with a scale for each head.
  bool has_int8_keys() const { return k.scales >= 0; }
  /// Whether keys and values lie in blocks of a pool of s rows.
  bool in_blocks() const { return blocks >= 0; }
  int64_t kv_head(int64_t head) const { return head / group; }
  /// Upper bounds on the queries and the keys of one sequence, which size the scratch memory.
  int64_t most_queries() const { return longest > 0 ? std::min(t, longest) : t; }
  int64_t most_keys() const { return longest > 0 ? std::min(s, longest) : s; }
  /// Number of rows of all query heads, and of all key heads.
  int64_t query_rows() const { return (is_ragged() ? sequence_heads : heads) * t; }
  int64_t key_rows() const { return (is_ragged() ? sequence_kv_heads : kv_heads) * s; }
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

/// One run of a problem: addresses the rows of each sequence and applies masks to the scores.
class AttentionRun {
 public:
  /// Throws UserError if the starts of a ragged batch are not ascending or exceed its rows, if a
  /// sequence is longer than `longest`, or if a block index is outside the pool.
  AttentionRun(const AttentionProblem& problem, const KernelArgs& args);

  int64_t sequence(int64_t head) const { return head / p_.sequence_heads; }
  int64_t kv_sequence(int64_t kv_head) const { return kv_head / p_.sequence_kv_heads; }
  /// first(): index of the first row of a sequence in a ragged batch, else 0. queries() and keys():
  /// number of rows of a sequence.
  int64_t first(int64_t sequence) const { return starts_ != nullptr ? starts_[sequence] : 0; }
  int64_t queries(int64_t sequence) const {
    return starts_ != nullptr ? starts_[sequence + 1] - starts_[sequence] : p_.t;
  }
  int64_t keys(int64_t sequence) const {
    if (table_ != nullptr) return lengths_[sequence];
    return starts_ != nullptr ? starts_[sequence + 1] - starts_[sequence] : p_.s;
  }
  /// Returns the address of row i of a head, counted from the first row of its sequence.
  const void* in(const HeadRows& rows, int64_t head, int64_t i = 0) const {
    return static_cast<const std::byte*>(args_.in[rows.at]) + p_.bytes(offset(rows, head, i));
  }
  /// Rows of one head; `row` is the distance between two rows in elements.
  struct Rows {
    const void* data;
    int64_t row;
  };
  /// Returns keys or values [i, i + n) of a head, `width` columns each. They are read in place if
  /// they are contiguous or lie in consecutive blocks, and are copied to `space` [n, width] if not.
  Rows key_rows(const HeadRows& rows, int64_t kv_head, int64_t i, int64_t n, int64_t width,
                void* space) const;
  /// Converts keys or values [i, i + n) of a head from int8 rows to f32. `to` is [n, ld]; columns
  /// beyond `width` become zero.
  void widen_keys(const HeadRows& rows, int64_t kv_head, int64_t i, int64_t n, int64_t width,
                  float* to, int64_t ld) const;
  void* out(const HeadRows& rows, int64_t head, int64_t i = 0) const {
    return static_cast<std::byte*>(args_.out[rows.at]) + p_.bytes(offset(rows, head, i));
  }
  /// The number of a query among those of all heads, as lse [..., H, T] has them.
  int64_t query_row(int64_t head, int64_t i) const {
    if (starts_ == nullptr) return head * p_.t + i;
    return head % p_.sequence_heads * p_.t + first(sequence(head)) + i;
  }
  /// The number of a key among those of all key heads.
  int64_t key_row(int64_t kv_head, int64_t i) const {
    if (starts_ == nullptr) return kv_head * p_.s + i;
    return kv_head % p_.sequence_kv_heads * p_.s + first(kv_sequence(kv_head)) + i;
  }
  const float* lse_in(int64_t head) const {
    return static_cast<const float*>(args_.in[p_.lse]) + query_row(head, 0);
  }
  /// Returns the gradient of lse for a head, or null if the node has none.
  const float* dlse_in(int64_t head) const {
    if (p_.dlse < 0) return nullptr;
    return static_cast<const float*>(args_.in[static_cast<size_t>(p_.dlse)]) + query_row(head, 0);
  }
  /// Writes zeros to y and lse of the queries that lie in no sequence.
  void finish_queries_outside() const;
  /// Writes zeros to the gradients of q, k and v of the rows that lie in no sequence.
  void clear_gradients_outside() const;

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

  int64_t offset(const HeadRows& rows, int64_t head, int64_t i) const {
    return rows.offset(head, first(head / rows.heads) + i);
  }
  /// The rows in front of all sequences of a ragged batch, and those behind them.
  std::array<std::pair<int64_t, int64_t>, 2> outside() const {
    return {{{0, starts_[0]}, {starts_[p_.sequences], p_.t}}};
  }
  void clear_rows_outside(const HeadRows& rows, int64_t width) const;
  void check_blocks() const;

  const AttentionProblem& p_;
  const KernelArgs& args_;
  decltype(RandomRows::draw) draw_;
  const int32_t* starts_ = nullptr;  // [sequences + 1]
  const int32_t* positions_ = nullptr;
  const void* mask_ = nullptr;
  const int32_t* lengths_ = nullptr;
  const int32_t* table_ = nullptr;  // [sequences, table_columns]
  RngKey key_;
};

/// Enumerates blocks of rows of every head, sequence by sequence, as tasks for the thread team.
class SequenceBlocks {
 public:
  /// Divides the queries, or the keys if `of_keys`, of `heads` heads per sequence into blocks of
  /// `block` rows.
  void divide(const AttentionRun& run, int64_t sequences, bool of_keys, int64_t heads,
              int64_t block);
  int64_t count() const { return first_.back() * heads_; }
  struct Block {
    int64_t head;           // of all sequences
    int64_t index, blocks;  // which of the blocks of the sequence
  };
  Block operator[](int64_t i) const;

 private:
  std::vector<int64_t> first_;  // blocks of a head in front of each sequence, [sequences + 1]
  int64_t heads_ = 1;
};

/// Row offsets in packed memory: the rows of one head are contiguous. In a ragged batch each
/// sequence begins at a multiple of `unit` rows; sequences of equal length are padded to a multiple
/// of `block` rows.
class PackedRowLayout {
 public:
  PackedRowLayout() = default;
  PackedRowLayout(int64_t heads_of_sequence, int64_t sequences, int64_t rows, bool is_ragged,
                  int64_t block, int64_t unit);
  int64_t rows() const { return heads_ * per_head_; }
  /// Returns the packed index of row i of a head whose sequence begins at row `first` of the batch.
  int64_t at(int64_t head, int64_t first, int64_t i) const {
    if (!is_ragged_) return head * per_head_ + i;
    return head % heads_ * per_head_ +
           blocks_of(first + head / heads_ * (unit_ - 1), unit_) * unit_ + i;
  }

 private:
  int64_t heads_ = 0, per_head_ = 0, unit_ = 1;
  bool is_ragged_ = false;
};

/// One query of each head: how many heads that share their keys are one task.
int64_t heads_of_one_query(const AttentionProblem& problem, int64_t threads);
/// Prefetches n keys or values of `width` columns that a single query reads. Their range is too
/// short for the hardware prefetcher. Does nothing if rows hold several heads side by side.
void fetch_rows(const AttentionProblem& problem, const AttentionRun::Rows& rows, int64_t n,
                int64_t width);

/// Writes y and lse of some queries: `sums` are the weighted values, [count, ld], divided here. A
/// query that saw no key has a total of 0 and becomes NaN.
void finish_queries(const AttentionProblem& problem, const KernelArgs& args,
                    const AttentionRun& run, int64_t head, int64_t t0, int64_t count,
                    const RowState* states, float* sums, int64_t ld);

/// attention_grad: the queries that may see any of the keys [begin, begin + count).
struct QueryRange {
  int64_t begin = 0, end = 0;
};
QueryRange queries_of(const AttentionRun& run, int64_t head, int64_t begin, int64_t count);

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
