// attention: for a block of queries, one block of keys after the other with a running softmax.
//
// An element of the result is computed by the same operations in the same order whatever the other
// queries are, how many keys lie beyond the visible ones and how many threads work: its products
// are gemm_f32's tiles, whose sums go over the terms in order, and blocks of keys begin at
// multiples of kKeyBlock: a block in which a query sees nothing changes nothing. So one query by
// itself (a decode step) equals the same query in a batch. It reads keys and values where they lie,
// once for all heads that share them where there are tasks enough without.

#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/products/gemm_kernels.h"

namespace brrr::cpu {
namespace {

class Forward final : public Kernel {
 public:
  explicit Forward(const NodeView& node)
      : p_(node),
        rows_(attention_rows()),
        gemm_(gemm_kernels()),
        packing_(gemm_packing()),
        copies_(row_copies(p_.dtype)) {
    slots_ = thread_count();
    one_query_ = p_.t == 1 && !p_.is_ragged();
    if (one_query_) heads_at_once_ = heads_of_one_query(p_, slots_);
    copy_v_ = !one_query_ && (!reads_in_place(p_.dtype, p_.dv) || p_.in_few_sets(p_.v));
    packed_ = PackedRowLayout(p_.sequence_kv_heads, p_.sequences, p_.s, p_.is_ragged(), kKeyBlock,
                              gemm_.nr);
    ScratchLayout layout;
    if (!one_query_) packed_k_ = layout.take_floats(packed_.rows() * p_.d);
    if (copy_v_) float_v_ = layout.take_floats(p_.key_rows() * padded(p_.dv));
    per_slot_ = layout.bytes();
    ScratchLayout slot;
    scores_ = slot.take_floats(kQueryBlock * kKeyBlock);
    sums_ = slot.take_floats(kQueryBlock * padded(p_.dv));
    q_ = slot.take_floats(kQueryBlock * padded(p_.d));
    row_sums_ = slot.take_floats(padded(p_.dv));
    tail_ = slot.take_floats(std::max(p_.d, kKeyBlock) * gemm_.nr);
    slot_bytes_ = slot.bytes();
  }

  int64_t scratch_bytes() const override { return per_slot_ + slots_ * slot_bytes_; }

  void run(const KernelArgs& args) override {
    const Run run{args, AttentionRun(p_, args)};
    prepare_keys(run);
    query_blocks_.divide(run.rows, p_.sequences, false, p_.sequence_heads / heads_at_once_,
                         kQueryBlock);
    parallel_pieces(query_blocks_.count(), slots_, [&](int64_t task, int slot) {
      // Under a causal mask the last queries have the most keys: they come first.
      const auto [head, index, blocks] = query_blocks_[task];
      query_block(run, head * heads_at_once_, (blocks - 1 - index) * kQueryBlock, slot);
    });
    run.rows.finish_queries_outside();
  }

 private:
  struct Run {
    const KernelArgs& args;
    AttentionRun rows;
    float* at(int64_t offset) const { return reinterpret_cast<float*>(args.scratch + offset); }
  };
  float* packed_keys(const Run& run, int64_t kv_head, int64_t k0) const {
    const int64_t first = run.rows.first(run.rows.kv_sequence(kv_head));
    return run.at(packed_k_) + packed_.at(kv_head, first, k0) * p_.d;
  }
  float* float_values(const Run& run, int64_t kv_head, int64_t k0) const {
    return run.at(float_v_) + run.rows.key_row(kv_head, k0) * padded(p_.dv);
  }
  float* in_slot(const Run& run, int slot, int64_t offset) const {
    return run.at(per_slot_ + slot * slot_bytes_ + offset);
  }
  const std::byte* keys(const Run& run, int64_t kv_head, int64_t k0) const {
    return static_cast<const std::byte*>(run.rows.in(p_.k, kv_head, k0));
  }
  const std::byte* values(const Run& run, int64_t kv_head, int64_t k0) const {
    return static_cast<const std::byte*>(run.rows.in(p_.v, kv_head, k0));
  }

  /// Packs the keys of every head, and converts its values, once.
  void prepare_keys(const Run& run) {
    if (one_query_ || p_.t == 0) return;  // one query reads them once: not worth it
    key_blocks_.divide(run.rows, p_.sequences, true, p_.sequence_kv_heads, kKeyBlock);
    parallel_pieces(key_blocks_.count(), slots_, [&](int64_t task, int) {
      const auto [kv_head, index, blocks] = key_blocks_[task];
      const int64_t k0 = index * kKeyBlock,
                    queries = run.rows.queries(run.rows.kv_sequence(kv_head));
      const KeyRange seen = run.rows.visible(kv_head * p_.group, 0, queries, kKeyBlock);
      const int64_t n = std::min(kKeyBlock, seen.end - k0);
      if (n <= 0 || k0 < seen.begin) return;
      packing_.pack_b(p_.dtype, keys(run, kv_head, k0), p_.k.row(), true, p_.d, n,
                      packed_keys(run, kv_head, k0));
      if (copy_v_)
        copies_.widen(values(run, kv_head, k0), p_.v.row(), p_.dv, n,
                      float_values(run, kv_head, k0), padded(p_.dv));
    });
  }

  /// Rows of a block: queries from t0 on of a head, or query 0 of heads that share their keys.
  FloatRows query_rows(const Run& run, int64_t head, int64_t t0, int64_t count, int slot) const {
    const void* q = run.rows.in(p_.q, head, t0);
    const int64_t row = one_query_ ? p_.q.step.head : p_.q.row();
    if (p_.dtype == DType::f32 && !p_.in_few_sets(p_.q))  // whose rows need no padding
      return {static_cast<const float*>(q), row};
    float* to = in_slot(run, slot, q_);
    copies_.widen(q, row, p_.d, count, to, padded(p_.d));
    return {to, padded(p_.d)};
  }

  /// scores: [count, kKeyBlock] = scale q kᵀ of n keys.
  void score(const Run& run, int64_t kv_head, const FloatRows& q, int64_t count, int64_t k0,
             int64_t n, int slot, float* scores) const {
    GemmBlock block;
    block.rows = count;
    block.cols = n;
    block.kc = p_.d;
    block.a = q.data;
    block.a_row = q.ld;
    block.a_panel = gemm_.mr * q.ld;
    block.a_k = 1;
    block.alpha = p_.scale;
    block.c = scores;
    block.ldc = kKeyBlock;
    if (!one_query_) {
      block.set_packed(packed_keys(run, kv_head, k0), gemm_.nr);
      return gemm_.multiply(block);
    }
    block.b = keys(run, kv_head, k0);
    block.b_dtype = p_.dtype;
    block.b_k = p_.k.row();
    block.b_trans = true;
    block.b_tail = tail(run, slot, block, keys(run, kv_head, k0 + n - n % gemm_.lanes));
    multiply_rows(block, count);
  }

  /// One row after the other: each reads B as it lies, from the cache after the first.
  void multiply_rows(GemmBlock block, int64_t count) const {
    block.rows = 1;
    for (int64_t r = 0; r < count; ++r) {
      gemm_.multiply(block);
      block.a += block.a_row;
      block.c += block.ldc;
    }
  }

  /// The columns of the block's B beyond the last whole vector, which begin at `from`.
  const float* tail(const Run& run, int slot, const GemmBlock& block, const void* from) const {
    const int64_t rest = block.cols % gemm_.lanes;
    if (rest == 0) return nullptr;
    float* to = in_slot(run, slot, tail_);
    packing_.pack_b(p_.dtype, from, block.b_k, block.b_trans, block.kc, rest, to);
    return to;
  }

  /// sums: [count, padded(dv)] = or += probabilities v of n keys.
  void weigh(const Run& run, int64_t kv_head, const float* probabilities, int64_t count, int64_t k0,
             int64_t n, bool add, int slot, float* sums) const {
    GemmBlock block;
    block.rows = count;
    block.cols = p_.dv;
    block.kc = n;
    block.a = probabilities;
    block.a_row = kKeyBlock;
    block.a_panel = gemm_.mr * kKeyBlock;
    block.a_k = 1;
    block.c = sums;
    block.ldc = padded(p_.dv);
    block.load_c = add;
    if (copy_v_) {
      block.b = float_values(run, kv_head, k0);
      block.b_k = padded(p_.dv);
    } else {
      block.b = values(run, kv_head, k0);
      block.b_dtype = p_.dtype;
      block.b_k = p_.v.row();
    }
    if (!one_query_) return multiply_unpacked(gemm_, block);
    block.b_tail =
        tail(run, slot, block, values(run, kv_head, k0) + p_.bytes(p_.dv - p_.dv % gemm_.lanes));
    block.row_sums = in_slot(run, slot, row_sums_);
    multiply_rows(block, count);
  }

  void query_block(const Run& run, int64_t head, int64_t t0, int slot) const {
    const int64_t queries = run.rows.queries(run.rows.sequence(head));
    const int64_t count = one_query_ ? heads_at_once_ : std::min(kQueryBlock, queries - t0);
    const int64_t kv_head = p_.kv_head(head), ld = padded(p_.dv);
    const auto [begin, end] = run.rows.visible(head, t0, one_query_ ? 1 : count, kKeyBlock);
    float* const scores = in_slot(run, slot, scores_);
    float* const sums = in_slot(run, slot, sums_);
    const FloatRows q = query_rows(run, head, t0, count, slot);
    RowState states[kQueryBlock];
    std::fill_n(states, count, RowState{-std::numeric_limits<float>::infinity(), 0});
    if (begin >= end) std::fill_n(sums, count * ld, 0.0f);
    AttentionRun::Space space;
    for (int64_t k0 = begin; k0 < end; k0 += kKeyBlock) {
      const int64_t n = std::min(kKeyBlock, end - k0);
      if (one_query_) fetch_keys(p_, run.rows, kv_head, k0, n);
      score(run, kv_head, q, count, k0, n, slot, scores);
      for (int64_t r = 0; r < count; ++r) {
        const ScoreRow row = run.rows.row(one_query_ ? head + r : head, one_query_ ? 0 : t0 + r, k0,
                                          n, scores + r * kKeyBlock, space);
        const float factor = rows_.forward(row, states[r]);
        if (k0 > begin && factor != 1.0f) rows_.scale(sums + r * ld, factor, p_.dv);
      }
      weigh(run, kv_head, scores, count, k0, n, k0 > begin, slot, sums);
    }
    if (!one_query_)
      return finish_queries(p_, run.args, run.rows, head, t0, count, states, sums, ld);
    for (int64_t r = 0; r < count; ++r)
      finish_queries(p_, run.args, run.rows, head + r, 0, 1, states + r, sums + r * ld, ld);
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  const GemmKernels& gemm_;
  const GemmPacking& packing_;
  const RowCopies& copies_;
  SequenceBlocks query_blocks_, key_blocks_;
  PackedRowLayout packed_;
  bool one_query_ = false, copy_v_ = false;
  int64_t heads_at_once_ = 1;  // of one query
  int64_t slots_ = 1, slot_bytes_ = 0;
  int64_t packed_k_ = 0, float_v_ = 0, per_slot_ = 0;                // in the scratch memory
  int64_t scores_ = 0, sums_ = 0, q_ = 0, row_sums_ = 0, tail_ = 0;  // in a slot
};

}  // namespace

std::unique_ptr<Kernel> attention_forward(const NodeView& node) {
  return std::make_unique<Forward>(node);
}

}  // namespace brrr::cpu
