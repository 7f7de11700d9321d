// attention_grad: for a block of keys, one block of queries after the other. The probabilities are
// computed again from lse. dk and dv of the block are complete at the end; dq is summed over the
// blocks of keys in their order. Heads that share keys add to dk and dv one after the other.

#include <algorithm>

#include "backend/cpu/attention/attention.h"

namespace brrr::cpu {
namespace {

class Backward final : public Kernel {
 public:
  explicit Backward(const NodeView& node)
      : p_(node),
        rows_(attention_rows()),
        gemm_(gemm_kernels()),
        packing_(gemm_packing()),
        copies_(row_copies(p_.dtype)) {
    slots_ = thread_count();
    wide_d_ = padded(p_.d);
    wide_dv_ = padded(p_.dv);
    copy_d_ = !reads_in_place(p_.dtype, p_.d) || p_.in_few_sets(p_.q);
    copy_dv_ = !reads_in_place(p_.dtype, p_.dv) || p_.in_few_sets(p_.dy);
    groups_ = grad_groups(p_, kGradKeyBlock);
    // The next head of a group adds to the key gradients of all blocks of the task: all are kept.
    if (p_.group > 1) blocks_kept_ = blocks_of(blocks_of(p_.most_keys(), kGradKeyBlock), groups_);
    dq_in_place_ = groups_ == 1 && p_.dtype == DType::f32 && !p_.in_few_sets(p_.q);
    ScratchLayout layout;
    if (!dq_in_place_) dq_ = layout.take_floats(groups_ * p_.query_rows() * p_.d);
    per_slot_ = layout.bytes();
    ScratchLayout slot;
    if (copy_d_) q_ = slot.take_floats(p_.most_queries() * wide_d_);
    if (copy_dv_) dy_ = slot.take_floats(p_.most_queries() * wide_dv_);
    delta_ = slot.take_floats(p_.most_queries());
    k_ = slot.take_floats(kGradKeyBlock * wide_d_);
    packed_k_ = slot.take_floats(kGradKeyBlock * p_.d);
    packed_v_ = slot.take_floats(kGradKeyBlock * p_.dv);
    scores_ = slot.take_floats(kGradQueryBlock * kGradKeyBlock);
    dp_ = slot.take_floats(kGradQueryBlock * kGradKeyBlock);
    dk_ = slot.take_floats(blocks_kept_ * kGradKeyBlock * wide_d_);
    dv_ = slot.take_floats(blocks_kept_ * kGradKeyBlock * wide_dv_);
    y_ = slot.take_floats(wide_dv_);
    slot_bytes_ = slot.bytes();
  }

  int64_t scratch_bytes() const override { return per_slot_ + slots_ * slot_bytes_; }

  void run(const KernelArgs& args) override {
    const AttentionRun run(p_, args);
    parallel_pieces(p_.kv_heads * groups_, slots_, [&](int64_t task, int slot) {
      Task t{args,
             run,
             task / groups_,
             run.queries(run.kv_sequence(task / groups_)),
             task % groups_,
             0,
             args.scratch + per_slot_ + slot * slot_bytes_};
      for (t.head = t.kv_head * p_.group; t.head < (t.kv_head + 1) * p_.group; ++t.head)
        group_of_keys(t);
    });
    if (!dq_in_place_) add_parts(args, run);
    run.clear_gradients_outside();
  }

 private:
  struct Task {
    const KernelArgs& args;
    const AttentionRun& run;
    int64_t kv_head, queries;  // of its sequence
    int64_t group;
    int64_t head;  // one of those that share kv_head
    std::byte* slot;
    FloatRows q = {}, dy = {};  // of the head: [T, d], [T, dv]
    float* dq = nullptr;        // [T, dq_ld]
    int64_t dq_ld = 0;
    float* at(int64_t offset) const { return reinterpret_cast<float*>(slot + offset); }
  };
  // A block of keys, and its results so far.
  struct Keys {
    int64_t begin, count;
    FloatRows k;     // [count, d]
    float *dk, *dv;  // [count, wide d], [count, wide dv]
  };

  /// Rows of an operand from `begin` on as f32: in place, or copied to `space`.
  FloatRows as_floats(const Task& t, const HeadRows& operand, int64_t head, int64_t begin,
                      int64_t rows, int64_t width, bool copy, float* space) const {
    const void* x = t.run.in(operand, head, begin);
    if (!copy) return {static_cast<const float*>(x), operand.row()};
    copies_.widen(x, operand.row(), width, rows, space, padded(width));
    return {space, padded(width)};
  }

  void group_of_keys(Task& t) const {
    t.q = as_floats(t, p_.q, t.head, 0, t.queries, p_.d, copy_d_, t.at(q_));
    t.dy = as_floats(t, p_.dy, t.head, 0, t.queries, p_.dv, copy_dv_, t.at(dy_));
    t.dq = dq_in_place_ ? static_cast<float*>(t.run.out(p_.q, t.head))
                        : dq_part(t.args, t.run, t.head, t.group);
    t.dq_ld = dq_in_place_ ? p_.q.row() : p_.d;
    for (int64_t i = 0; i < t.queries; ++i) std::fill_n(t.dq + i * t.dq_ld, p_.d, 0.0f);
    find_deltas(t);
    const int64_t all = t.run.keys(t.run.sequence(t.head));
    for (int64_t block = t.group; block * kGradKeyBlock < all; block += groups_) {
      const int64_t begin = block * kGradKeyBlock;
      key_block(t, begin, std::min(kGradKeyBlock, all - begin));
    }
  }

  /// delta = sum dy y - dlse, [T]
  void find_deltas(const Task& t) const {
    float* delta = t.at(delta_);
    const float* dlse = t.run.dlse_in(t.head);
    for (int64_t i = 0; i < t.queries; ++i) {
      const FloatRows y = as_floats(t, p_.y, t.head, i, 1, p_.dv, p_.dtype != DType::f32, t.at(y_));
      delta[i] = rows_.dot(t.dy.data + i * t.dy.ld, y.data, p_.dv);
      if (dlse != nullptr) delta[i] -= dlse[i];
    }
  }

  /// dk or dv of the block of keys that begins there.
  float* sums_of(const Task& t, int64_t offset, int64_t begin, int64_t wide) const {
    return t.at(offset) + begin / kGradKeyBlock / groups_ % blocks_kept_ * kGradKeyBlock * wide;
  }

  void key_block(const Task& t, int64_t begin, int64_t count) const {
    float *dk = sums_of(t, dk_, begin, wide_d_), *dv = sums_of(t, dv_, begin, wide_dv_);
    if (t.head % p_.group == 0) {
      std::fill_n(dk, count * wide_d_, 0.0f);
      std::fill_n(dv, count * wide_dv_, 0.0f);
    }
    const QueryRange seen = queries_of(t.run, t.head, begin, count);
    if (seen.begin < seen.end) {
      const Keys keys{begin, count,
                      as_floats(t, p_.k, t.kv_head, begin, count, p_.d, copy_d_, t.at(k_)), dk, dv};
      packing_.pack_b(DType::f32, keys.k.data, keys.k.ld, true, p_.d, count, t.at(packed_k_));
      packing_.pack_b(p_.dtype, t.run.in(p_.v, t.kv_head, begin), p_.v.row(), true, p_.dv, count,
                      t.at(packed_v_));
      for (int64_t t0 = seen.begin / kGradQueryBlock * kGradQueryBlock; t0 < seen.end;
           t0 += kGradQueryBlock)
        tile(t, keys, t0, std::min(kGradQueryBlock, t.queries - t0));
    }
    if ((t.head + 1) % p_.group != 0) return;
    copies_.narrow(dk, wide_d_, p_.d, count, t.run.out(p_.k, t.kv_head, begin), p_.k.row());
    copies_.narrow(dv, wide_dv_, p_.dv, count, t.run.out(p_.v, t.kv_head, begin), p_.v.row());
  }

  /// One block of queries with one block of keys.
  void tile(const Task& t, const Keys& keys, int64_t t0, int64_t count) const {
    float *s = t.at(scores_), *dp = t.at(dp_);
    const float *q = t.q.data + t0 * t.q.ld, *dy = t.dy.data + t0 * t.dy.ld;
    // Keys that any of the queries sees.
    const int64_t n = std::min(keys.count, t.run.visible(t.head, t0 + count - 1).end - keys.begin);
    rows_by_packed(q, t.q.ld, t.at(packed_k_), p_.d, count, n, p_.scale, s);
    rows_by_packed(dy, t.dy.ld, t.at(packed_v_), p_.dv, count, n, 1, dp);
    const float* lse = t.run.lse_in(t.head) + t0;
    const float* delta = t.at(delta_) + t0;
    AttentionRun::Space space;
    for (int64_t r = 0; r < count; ++r) {
      const ScoreRow row = t.run.row(t.head, t0 + r, keys.begin, n, s + r * kGradKeyBlock, space);
      rows_.backward(row, lse[r], delta[r], dp + r * kGradKeyBlock);
    }
    // dv += pᵀ dy, dk += scale dsᵀ q, dq += scale ds k
    add_product(s, true, n, count, {dy, t.dy.ld}, p_.dv, 1, keys.dv, wide_dv_);
    add_product(dp, true, n, count, {q, t.q.ld}, p_.d, p_.scale, keys.dk, wide_d_);
    add_product(dp, false, count, n, keys.k, p_.d, p_.scale, t.dq + t0 * t.dq_ld, t.dq_ld);
  }

  /// out: [rows, kGradKeyBlock] = alpha a bᵀ for a: [rows, width] and packed bᵀ of `cols` columns.
  void rows_by_packed(const float* a, int64_t lda, const float* b, int64_t width, int64_t rows,
                      int64_t cols, float alpha, float* out) const {
    GemmBlock block;
    block.rows = rows;
    block.cols = cols;
    block.kc = width;
    block.a = a;
    block.a_row = lda;
    block.a_panel = gemm_.mr * lda;
    block.a_k = 1;
    block.set_packed(b, gemm_.nr);
    block.alpha = alpha;
    block.c = out;
    block.ldc = kGradKeyBlock;
    gemm_.multiply(block);
  }

  /// c: [rows, cols] += alpha op(a) b with a: [rows, terms] or transposed, rows kGradKeyBlock
  /// apart.
  void add_product(const float* a, bool transposed, int64_t rows, int64_t terms, FloatRows b,
                   int64_t cols, float alpha, float* c, int64_t ldc) const {
    GemmBlock block;
    block.rows = rows;
    block.cols = cols;
    block.kc = terms;
    block.a = a;
    block.a_row = transposed ? 1 : kGradKeyBlock;
    block.a_k = transposed ? kGradKeyBlock : 1;
    block.a_panel = gemm_.mr * block.a_row;
    block.b = b.data;
    block.b_k = b.ld;
    block.alpha = alpha;
    block.c = c;
    block.ldc = ldc;
    block.load_c = true;
    multiply_unpacked(gemm_, block);
  }

  /// dq = the sum of the groups' parts, in order.
  void add_parts(const KernelArgs& args, const AttentionRun& run) const {
    parallel_pieces(p_.heads, slots_, [&](int64_t head, int) {
      const int64_t queries = run.queries(run.sequence(head)), n = queries * p_.d;
      float* sum = dq_part(args, run, head, 0);
      for (int64_t g = 1; g < groups_; ++g) {
        const float* part = dq_part(args, run, head, g);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += part[i];
      }
      copies_.narrow(sum, p_.d, p_.d, queries, run.out(p_.q, head), p_.q.row());
    });
  }
  /// Returns the partial sum of dq, [T, d], over the keys of a group.
  float* dq_part(const KernelArgs& args, const AttentionRun& run, int64_t head,
                 int64_t group) const {
    return reinterpret_cast<float*>(args.scratch + dq_) +
           (group * p_.query_rows() + run.query_row(head, 0)) * p_.d;
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  const GemmKernels& gemm_;
  const GemmPacking& packing_;
  const RowCopies& copies_;
  int64_t wide_d_ = 0, wide_dv_ = 0, groups_ = 1, blocks_kept_ = 1, slots_ = 1;
  bool copy_d_ = false, copy_dv_ = false, dq_in_place_ = false;
  int64_t dq_ = 0, per_slot_ = 0, slot_bytes_ = 0;  // in the scratch memory
  // In a slot:
  int64_t q_ = 0, dy_ = 0, delta_ = 0, k_ = 0, packed_k_ = 0, packed_v_ = 0;
  int64_t scores_ = 0, dp_ = 0, dk_ = 0, dv_ = 0, y_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> attention_backward(const NodeView& node) {
  return std::make_unique<Backward>(node);
}

}  // namespace brrr::cpu
