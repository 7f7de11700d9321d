// attention in bf16 on tiles; attention_forward.cpp with other products. One query alone reads keys
// and values where they lie, by vector code that does what tiles do: it has the bits that it has
// among others.

#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/products/flush_denormals.h"

namespace brrr::cpu {
namespace {

template <class Tiles>
class TileForward final : public Kernel {
  static constexpr int64_t kQueries = 64;  // of a block
  static constexpr int64_t kKeys = kKeyBlock;
  static_assert(kKeys % kTileBf16 == 0 && kQueries % kTileRows == 0);

 public:
  explicit TileForward(const NodeView& node) : p_(node), rows_(attention_rows()) {
    slots_ = thread_count();
    terms_ = blocks_of(p_.d, kTileBf16);
    columns_ = blocks_of(p_.dv, kTileRows);
    packed_ =
        PackedRowLayout(p_.sequence_kv_heads, p_.sequences, p_.s, p_.is_ragged(), kKeys, kTileBf16);
    ScratchLayout layout;
    packed_k_ = layout.take(packed_.rows() / kTileRows * terms_ * kTileElements * 2);
    packed_v_ = layout.take(packed_.rows() / kTileBf16 * columns_ * kTileElements * 2);
    per_slot_ = layout.bytes();
    ScratchLayout slot;
    q_in_place_ = rows_are_tiles(p_, p_.q, p_.d);
    q_ = slot.take(q_in_place_ ? 0 : kQueries * terms_ * kTileBf16 * 2);
    scores_ = slot.take_floats(kQueries * kKeys);
    weights_ = slot.take(kQueries * kKeys * 2);
    sums_ = slot.take_floats(kQueries * columns_ * 16);
    slot_bytes_ = slot.bytes();
  }

  int64_t scratch_bytes() const override { return per_slot_ + slots_ * slot_bytes_; }

  void run(const KernelArgs& args) override {
    const AttentionRun run(p_, args);
    pack_keys(args, run);
    query_blocks_.divide(run, p_.sequences, false, p_.sequence_heads, kQueries);
    parallel_pieces(query_blocks_.count(), slots_, [&](int64_t task, int slot) {
      const auto [head, index, blocks] = query_blocks_[task];
      const int64_t block = blocks - 1 - index;  // the longest first
      query_block(args, run, head, block * kQueries, args.scratch + per_slot_ + slot * slot_bytes_);
    });
    run.finish_queries_outside();
  }

 private:
  static const uint16_t* rows_of(const AttentionRun& run, const HeadRows& operand, int64_t head,
                                 int64_t begin) {
    return static_cast<const uint16_t*>(run.in(operand, head, begin));
  }
  /// Packed tiles of a block of keys and of its values.
  struct PackedKeys {
    uint16_t *k, *v;
    int64_t v_terms;  // tiles of keys that the block has room for
  };
  PackedKeys packed_keys(const KernelArgs& args, const AttentionRun& run, int64_t kv_head,
                         int64_t k0) const {
    const int64_t sequence = run.kv_sequence(kv_head);
    const int64_t row = packed_.at(kv_head, run.first(sequence), k0);
    const auto at = [&](int64_t offset, int64_t tiles) {
      return reinterpret_cast<uint16_t*>(args.scratch + offset) + tiles * kTileElements;
    };
    return {at(packed_k_, row / kTileRows * terms_), at(packed_v_, row / kTileBf16 * columns_),
            blocks_of(std::min(kKeys, run.keys(sequence) - k0), kTileBf16)};
  }

  void pack_keys(const KernelArgs& args, const AttentionRun& run) {
    if (p_.t == 0) return;
    key_blocks_.divide(run, p_.sequences, true, p_.sequence_kv_heads, kKeys);
    parallel_pieces(key_blocks_.count(), slots_, [&](int64_t task, int) {
      const auto [kv_head, index, blocks] = key_blocks_[task];
      const int64_t k0 = index * kKeys, queries = run.queries(run.kv_sequence(kv_head));
      const KeyRange seen = run.visible(kv_head * p_.group, 0, queries, kKeys);
      const int64_t n = std::min(kKeys, seen.end - k0);
      if (n <= 0 || k0 < seen.begin) return;
      const PackedKeys packed = packed_keys(args, run, kv_head, k0);
      pack_right(rows_of(run, p_.k, kv_head, k0), p_.k.row(), false, n, p_.d, terms_, packed.k);
      pack_right(rows_of(run, p_.v, kv_head, k0), p_.v.row(), true, p_.dv, n, packed.v_terms,
                 packed.v);
    });
  }

  void query_block(const KernelArgs& args, const AttentionRun& run, int64_t head, int64_t t0,
                   std::byte* slot) const {
    const int64_t count = std::min(kQueries, run.queries(run.sequence(head)) - t0);
    const int64_t row_tiles = blocks_of(count, kTileRows);
    const auto [begin, end] = run.visible(head, t0, count, kKeys);
    const int64_t kv_head = p_.kv_head(head), ld = columns_ * 16;
    int64_t q_ld = p_.q.row();
    const uint16_t* q = rows_of(run, p_.q, head, t0);
    auto* weights = reinterpret_cast<uint16_t*>(slot + weights_);  // [kQueries, kKeys]
    auto* scores = reinterpret_cast<float*>(slot + scores_);       // [kQueries, kKeys]
    auto* sums = reinterpret_cast<float*>(slot + sums_);           // [kQueries, ld]
    if (!q_in_place_) {
      auto* rows = reinterpret_cast<uint16_t*>(slot + q_);
      q_ld = terms_ * kTileBf16;
      pad_rows(q, p_.q.row(), count, p_.d, rows, kQueries, q_ld);
      q = rows;
    }
    // Whole tiles are read.
    std::fill_n(weights + count * kKeys, (row_tiles * kTileRows - count) * kKeys, uint16_t{0});
    std::fill_n(sums, kQueries * ld, 0.0f);
    RowState states[kQueries];
    std::fill_n(states, count, RowState{-std::numeric_limits<float>::infinity(), 0});
    AttentionRun::Space space;
    Tiles tiles;
    for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
      const int64_t n = std::min(kKeys, end - k0), terms = blocks_of(n, kTileBf16);
      const PackedKeys packed = packed_keys(args, run, kv_head, k0);
      tile_product(tiles, tiles_in_rows(q, q_ld), packed_tiles(packed.k, terms_), row_tiles,
                   blocks_of(n, kTileRows), terms_, scores, kKeys, false);
      for (int64_t r = 0; r < count; ++r) {
        ScoreRow row = run.row(head, t0 + r, k0, terms * kTileBf16, scores + r * kKeys, space);
        row.factor = p_.scale;
        const float factor = rows_.forward_narrow(row, states[r], weights + r * kKeys);
        if (k0 > begin && factor != 1.0f) rows_.scale(sums + r * ld, factor, p_.dv);
      }
      tile_product(tiles, tiles_in_rows(weights, kKeys), packed_tiles(packed.v, packed.v_terms),
                   row_tiles, columns_, terms, sums, ld, true);
    }
    finish_queries(p_, args, run, head, t0, count, states, sums, ld);
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  SequenceBlocks query_blocks_, key_blocks_;
  PackedRowLayout packed_;
  bool q_in_place_ = false;
  int64_t slots_ = 1, slot_bytes_ = 0, per_slot_ = 0;
  int64_t terms_ = 0, columns_ = 0;                      // tiles of d as terms, of dv as columns
  int64_t packed_k_ = 0, packed_v_ = 0;                  // in the scratch memory
  int64_t q_ = 0, scores_ = 0, weights_ = 0, sums_ = 0;  // in a slot
};

class OneQuery final : public Kernel {
 public:
  OneQuery(const NodeView& node, RowSums rule)
      : p_(node), rows_(attention_rows()), slots_(thread_count()), rule_(rule) {
    heads_at_once_ = heads_of_one_query(p_, slots_);
    ScratchLayout slot;
    scores_ = slot.take_floats(kKeyBlock);
    weights_ = slot.take(kKeyBlock * 2);
    sums_ = slot.take_floats(heads_at_once_ * padded(p_.dv));
    slot_bytes_ = slot.bytes();
  }

  int64_t scratch_bytes() const override { return slots_ * slot_bytes_; }

  void run(const KernelArgs& args) override {
    const AttentionRun run(p_, args);
    parallel_pieces(p_.heads / heads_at_once_, slots_, [&](int64_t task, int slot) {
      shared_keys(args, run, task * heads_at_once_, args.scratch + slot * slot_bytes_);
    });
  }

 private:
  static const uint16_t* words(const AttentionRun& run, const HeadRows& operand, int64_t head,
                               int64_t begin = 0) {
    return static_cast<const uint16_t*>(run.in(operand, head, begin));
  }
  static void multiply(const AmxRow& row) {
    const FlushDenormals flush;
    amx_kernels().row(row);
  }

  void shared_keys(const KernelArgs& args, const AttentionRun& run, int64_t first,
                   std::byte* slot) const {
    auto* scores = reinterpret_cast<float*>(slot + scores_);       // [kKeyBlock]
    auto* weights = reinterpret_cast<uint16_t*>(slot + weights_);  // [kKeyBlock]
    auto* sums = reinterpret_cast<float*>(slot + sums_);           // [heads, ld]
    const int64_t kv_head = p_.kv_head(first), ld = padded(p_.dv);
    RowState states[kQueryBlock];
    std::fill_n(states, heads_at_once_, RowState{-std::numeric_limits<float>::infinity(), 0});
    std::fill_n(sums, heads_at_once_ * ld, 0.0f);
    AttentionRun::Space space;
    const auto [begin, end] = run.visible(first, 0, 1, kKeyBlock);
    for (int64_t k0 = begin; k0 < end; k0 += kKeyBlock) {
      const int64_t n = std::min(kKeyBlock, end - k0);
      fetch_rows(p_, {run.in(p_.k, kv_head, k0), p_.k.row()}, n, p_.d);
      fetch_rows(p_, {run.in(p_.v, kv_head, k0), p_.v.row()}, n, p_.dv);
      for (int64_t h = 0; h < heads_at_once_; ++h) {
        float* const sum = sums + h * ld;
        multiply({.rule = rule_,
                  .a = words(run, p_.q, first + h),
                  .b = words(run, p_.k, kv_head, k0),
                  .ldb = p_.k.row(),
                  .k = p_.d,
                  .cols = n,
                  .trans_b = true,
                  .sums = scores});
        ScoreRow row = run.row(first + h, 0, k0, n, scores, space);
        row.factor = p_.scale;
        const float factor = rows_.forward_narrow(row, states[h], weights);
        if (k0 > begin && factor != 1.0f) rows_.scale(sum, factor, p_.dv);
        multiply({.rule = rule_,
                  .a = weights,
                  .b = words(run, p_.v, kv_head, k0),
                  .ldb = p_.v.row(),
                  .k = n,
                  .cols = p_.dv,
                  .sums = sum,
                  .add = true});
      }
    }
    for (int64_t h = 0; h < heads_at_once_; ++h)
      finish_queries(p_, args, run, first + h, 0, 1, states + h, sums + h * ld, ld);
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  int64_t slots_, heads_at_once_ = 1, slot_bytes_ = 0;
  RowSums rule_;
  int64_t scores_ = 0, weights_ = 0, sums_ = 0;  // in a slot
};

RowSums rule_of(TileUnit unit) {
  switch (unit) {
    case TileUnit::pairs:
      return RowSums::kPairs;
    case TileUnit::emulated_pairs:
      return RowSums::kEmulatedPairs;
    default:
      return RowSums::kAmx;
  }
}

}  // namespace

std::unique_ptr<Kernel> attention_forward_tiles(const NodeView& node, TileUnit unit) {
  const AttentionProblem problem(node);
  if (problem.t == 1 && !problem.is_ragged())
    return std::make_unique<OneQuery>(node, rule_of(unit));
  return with_tiles(unit, [&]<class Tiles>(std::type_identity<Tiles>) -> std::unique_ptr<Kernel> {
    return std::make_unique<TileForward<Tiles>>(node);
  });
}

}  // namespace brrr::cpu
