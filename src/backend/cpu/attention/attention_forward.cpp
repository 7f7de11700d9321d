// attention: for a block of queries, one block of keys after the other with a running softmax.
//
// An element of the result is computed by the same operations in the same order whatever the other
// queries are, how many keys lie beyond the visible ones and how many threads work: its products
// are gemm_f32's tiles, whose sums go over the terms in order, and blocks of keys begin at
// multiples of kKeyBlock: a block in which a query sees nothing changes nothing. So one query by
// itself (a decode step) equals the same query in a batch. It reads keys and values where they lie,
// once for all heads that share them where there are tasks enough without.
//
// Keys are packed for the products once for all blocks of queries. Keys in blocks of a KV cache are
// packed by each block of queries instead, so that scratch memory does not grow with the cache. A
// block of keys in int8 rows is converted and packed for a single query, too, whose heads that
// share it are the rows of one product.

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
    prepares_keys_ = !one_query_ && !p_.in_blocks();
    if (one_query_ || p_.in_blocks()) heads_at_once_ = heads_of_one_query(p_, slots_);
    copy_v_ = p_.has_int8_keys() ||
              (!one_query_ && (!reads_in_place(p_.dtype, p_.dv) || p_.in_few_sets(p_.v)));
    ScratchLayout layout, slot;
    if (prepares_keys_) {
      packed_ = PackedRowLayout(p_.sequence_kv_heads, p_.sequences, p_.s, p_.is_ragged(), kKeyBlock,
                                gemm_.nr);
      packed_k_ = layout.take_floats(packed_.rows() * p_.d);
      if (copy_v_) float_v_ = layout.take_floats(p_.key_rows() * padded(p_.dv));
    } else if (p_.in_blocks() || p_.has_int8_keys()) {
      packed_k_ = slot.take_floats(blocks_of(kKeyBlock, gemm_.nr) * gemm_.nr * p_.d);
      if (copy_v_) float_v_ = slot.take_floats(kKeyBlock * padded(p_.dv));
    }
    if (p_.has_int8_keys()) {
      gathered_k_ = slot.take_floats(gemm_.nr * p_.d);
    } else if (p_.in_blocks()) {
      gathered_k_ = slot.take(p_.bytes(kKeyBlock * p_.d));
      gathered_v_ = slot.take(p_.bytes(kKeyBlock * p_.dv));
    }
    per_slot_ = layout.bytes();
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
      const auto [heads, index, blocks] = query_blocks_[task];
      const int64_t head = heads * heads_at_once_, t0 = (blocks - 1 - index) * kQueryBlock;
      if (is_one_query(run, head)) return query_block(run, head, t0, heads_at_once_, slot);
      for (int64_t h = 0; h < heads_at_once_; ++h) query_block(run, head + h, t0, 0, slot);
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
  /// Whether the sequence of a head has a single query, which reads keys and values unpacked.
  bool is_one_query(const Run& run, int64_t head) const {
    return one_query_ || (p_.in_blocks() && run.rows.queries(run.rows.sequence(head)) == 1);
  }

  /// Operands for a block of keys: packed keys and f32 values, or, for a single query that reads
  /// rows, both unpacked in their own dtype.
  struct KeyBlock {
    const float* packed_k;
    FloatRows float_v;
    AttentionRun::Rows k, v;
  };
  /// Packs keys [k0, k0 + n) of a head for products. Keys in int8 rows are converted one panel at a
  /// time.
  void pack_keys(const Run& run, int64_t kv_head, int64_t k0, int64_t n, int slot,
                 float* to) const {
    float* const gathered = in_slot(run, slot, gathered_k_);
    if (!p_.has_int8_keys()) {
      const AttentionRun::Rows k = run.rows.key_rows(p_.k, kv_head, k0, n, p_.d, gathered);
      return packing_.pack_b(p_.dtype, k.data, k.row, true, p_.d, n, to);
    }
    for (int64_t j = 0; j < n; j += gemm_.nr) {
      const int64_t count = std::min(gemm_.nr, n - j);
      run.rows.widen_keys(p_.k, kv_head, k0 + j, count, p_.d, gathered, p_.d);
      packing_.pack_b(DType::f32, gathered, p_.d, true, p_.d, count, to + j * p_.d);
    }
  }
  /// Converts values [k0, k0 + n) of a head to f32 rows [n, padded(dv)].
  void widen_values(const Run& run, int64_t kv_head, int64_t k0, int64_t n, int slot,
                    float* to) const {
    if (p_.has_int8_keys())
      return run.rows.widen_keys(p_.v, kv_head, k0, n, p_.dv, to, padded(p_.dv));
    const AttentionRun::Rows v =
        run.rows.key_rows(p_.v, kv_head, k0, n, p_.dv, in_slot(run, slot, gathered_v_));
    copies_.widen(v.data, v.row, p_.dv, n, to, padded(p_.dv));
  }

  /// Packs the keys of every head, and converts its values, once.
  void prepare_keys(const Run& run) {
    if (!prepares_keys_ || p_.t == 0) return;
    key_blocks_.divide(run.rows, p_.sequences, true, p_.sequence_kv_heads, kKeyBlock);
    parallel_pieces(key_blocks_.count(), slots_, [&](int64_t task, int slot) {
      const auto [kv_head, index, blocks] = key_blocks_[task];
      const int64_t k0 = index * kKeyBlock,
                    queries = run.rows.queries(run.rows.kv_sequence(kv_head));
      const KeyRange seen = run.rows.visible(kv_head * p_.group, 0, queries, kKeyBlock);
      const int64_t n = std::min(kKeyBlock, seen.end - k0);
      if (n <= 0 || k0 < seen.begin) return;
      pack_keys(run, kv_head, k0, n, slot, packed_keys(run, kv_head, k0));
      if (copy_v_) widen_values(run, kv_head, k0, n, slot, float_values(run, kv_head, k0));
    });
  }

  KeyBlock key_block(const Run& run, int64_t kv_head, int64_t k0, int64_t n, bool reads_rows,
                     int slot) const {
    if (prepares_keys_) {
      const auto* v = static_cast<const float*>(run.rows.in(p_.v, kv_head, k0));
      return {packed_keys(run, kv_head, k0),
              copy_v_ ? FloatRows{float_values(run, kv_head, k0), padded(p_.dv)}
                      : FloatRows{v, p_.v.row()},
              {},
              {}};
    }
    KeyBlock block{};
    const auto rows = [&](const HeadRows& which, int64_t width, int64_t gathered) {
      return run.rows.key_rows(which, kv_head, k0, n, width, in_slot(run, slot, gathered));
    };
    if (reads_rows) {
      block.k = rows(p_.k, p_.d, gathered_k_);
      block.v = rows(p_.v, p_.dv, gathered_v_);
      fetch_rows(p_, block.k, n, p_.d);
      fetch_rows(p_, block.v, n, p_.dv);
      return block;
    }
    float* const packed = in_slot(run, slot, packed_k_);
    pack_keys(run, kv_head, k0, n, slot, packed);
    block.packed_k = packed;
    if (copy_v_) {
      float* const values = in_slot(run, slot, float_v_);
      widen_values(run, kv_head, k0, n, slot, values);
      block.float_v = {values, padded(p_.dv)};
    } else {
      const AttentionRun::Rows v = rows(p_.v, p_.dv, gathered_v_);
      block.float_v = {static_cast<const float*>(v.data), v.row};
    }
    return block;
  }

  /// Rows of a block: queries from t0 on of a head, or query 0 of heads that share their keys.
  FloatRows query_rows(const Run& run, int64_t head, int64_t t0, int64_t count, bool one_query,
                       int slot) const {
    const void* q = run.rows.in(p_.q, head, t0);
    const int64_t row = one_query ? p_.q.step.head : p_.q.row();
    if (p_.dtype == DType::f32 && !p_.in_few_sets(p_.q))  // whose rows need no padding
      return {static_cast<const float*>(q), row};
    float* to = in_slot(run, slot, q_);
    copies_.widen(q, row, p_.d, count, to, padded(p_.d));
    return {to, padded(p_.d)};
  }

  /// scores: [count, kKeyBlock] = scale q kᵀ of n keys.
  void score(const Run& run, const KeyBlock& keys, const FloatRows& q, int64_t count, int64_t n,
             bool reads_rows, int slot, float* scores) const {
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
    if (!reads_rows) {
      block.set_packed(keys.packed_k, gemm_.nr);
      return gemm_.multiply(block);
    }
    block.b = keys.k.data;
    block.b_dtype = p_.dtype;
    block.b_k = keys.k.row;
    block.b_trans = true;
    block.b_tail = tail(
        run, slot, block,
        static_cast<const std::byte*>(keys.k.data) + p_.bytes((n - n % gemm_.lanes) * keys.k.row));
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
  void weigh(const Run& run, const KeyBlock& keys, const float* probabilities, int64_t count,
             int64_t n, bool add, bool reads_rows, int slot, float* sums) const {
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
    if (!reads_rows) {
      block.b = keys.float_v.data;
      block.b_k = keys.float_v.ld;
      return multiply_unpacked(gemm_, block);
    }
    block.b = keys.v.data;
    block.b_dtype = p_.dtype;
    block.b_k = keys.v.row;
    block.b_tail =
        tail(run, slot, block,
             static_cast<const std::byte*>(keys.v.data) + p_.bytes(p_.dv - p_.dv % gemm_.lanes));
    block.row_sums = in_slot(run, slot, row_sums_);
    multiply_rows(block, count);
  }

  /// Computes the block of queries that begins at t0 of one head, or, with `shared_heads` > 0, the
  /// single query of that many heads, which share their keys.
  void query_block(const Run& run, int64_t head, int64_t t0, int64_t shared_heads, int slot) const {
    const bool one_query = shared_heads > 0, reads_rows = one_query && !p_.has_int8_keys();
    const int64_t queries = run.rows.queries(run.rows.sequence(head));
    const int64_t count = one_query ? shared_heads : std::min(kQueryBlock, queries - t0);
    const int64_t kv_head = p_.kv_head(head), ld = padded(p_.dv);
    const auto [begin, end] = run.rows.visible(head, t0, one_query ? 1 : count, kKeyBlock);
    float* const scores = in_slot(run, slot, scores_);
    float* const sums = in_slot(run, slot, sums_);
    const FloatRows q = query_rows(run, head, t0, count, one_query, slot);
    RowState states[kQueryBlock];
    std::fill_n(states, count, RowState{-std::numeric_limits<float>::infinity(), 0});
    if (begin >= end) std::fill_n(sums, count * ld, 0.0f);
    AttentionRun::Space space;
    for (int64_t k0 = begin; k0 < end; k0 += kKeyBlock) {
      const int64_t n = std::min(kKeyBlock, end - k0);
      const KeyBlock keys = key_block(run, kv_head, k0, n, reads_rows, slot);
      score(run, keys, q, count, n, reads_rows, slot, scores);
      for (int64_t r = 0; r < count; ++r) {
        const ScoreRow row = run.rows.row(one_query ? head + r : head, one_query ? 0 : t0 + r, k0,
                                          n, scores + r * kKeyBlock, space);
        const float factor = rows_.forward(row, states[r]);
        if (k0 > begin && factor != 1.0f) rows_.scale(sums + r * ld, factor, p_.dv);
      }
      weigh(run, keys, scores, count, n, k0 > begin, reads_rows, slot, sums);
    }
    if (!one_query)
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
  bool prepares_keys_ = true;  // all keys are packed before the first query is computed
  int64_t heads_at_once_ = 1;  // heads per task, which share their keys
  int64_t slots_ = 1, slot_bytes_ = 0, per_slot_ = 0;
  // Offsets in the scratch memory; with keys in blocks, offsets in a slot.
  int64_t packed_k_ = 0, float_v_ = 0;
  // Offsets in the slot of a thread.
  int64_t gathered_k_ = 0, gathered_v_ = 0;
  int64_t scores_ = 0, sums_ = 0, q_ = 0, row_sums_ = 0, tail_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> attention_forward(const NodeView& node) {
  return std::make_unique<Forward>(node);
}

}  // namespace brrr::cpu
