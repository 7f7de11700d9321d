// attention in bf16 on tiles; attention_forward.cpp with other products.

#include <limits>

#include "backend/cpu/attention/attention_tiles.h"

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
    k_block_ = kKeys / kTileRows * terms_ * kTileElements;
    v_block_ = columns_ * (kKeys / kTileBf16) * kTileElements;
    const int64_t blocks = p_.heads * blocks_of(p_.s, kKeys);
    ScratchLayout layout;
    packed_k_ = layout.take(blocks * k_block_ * 2);
    packed_v_ = layout.take(blocks * v_block_ * 2);
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
    const ScoreRules rules(p_, args);
    pack_keys(args, rules);
    const int64_t blocks = blocks_of(p_.t, kQueries);
    run_tasks(p_.heads * blocks, static_cast<int>(slots_), [&](int64_t task, int slot) {
      const int64_t block = blocks - 1 - task % blocks;  // the longest first
      query_block(args, rules, task / blocks, block * kQueries,
                  args.scratch + per_slot_ + slot * slot_bytes_);
    });
  }

 private:
  const uint16_t* rows_of(const KernelArgs& args, const HeadRows& operand, int64_t head,
                          int64_t begin) const {
    return static_cast<const uint16_t*>(p_.in(args, operand, head, begin));
  }
  uint16_t* packed(const KernelArgs& args, int64_t offset, int64_t head, int64_t k0,
                   int64_t block) const {
    return reinterpret_cast<uint16_t*>(args.scratch + offset) +
           (head * blocks_of(p_.s, kKeys) + k0 / kKeys) * block;
  }

  void pack_keys(const KernelArgs& args, const ScoreRules& rules) const {
    const int64_t blocks = blocks_of(p_.s, kKeys);
    run_tasks(p_.heads * blocks, static_cast<int>(slots_), [&](int64_t task, int) {
      const int64_t head = task / blocks, k0 = task % blocks * kKeys;
      const int64_t n = std::min(kKeys, rules.visible(head, p_.t - 1) - k0);
      if (n <= 0) return;
      pack_right(rows_of(args, p_.k, head, k0), p_.k.row, false, n, p_.d, terms_,
                 packed(args, packed_k_, head, k0, k_block_));
      pack_right(rows_of(args, p_.v, head, k0), p_.v.row, true, p_.dv, n, kKeys / kTileBf16,
                 packed(args, packed_v_, head, k0, v_block_));
    });
  }

  void query_block(const KernelArgs& args, const ScoreRules& rules, int64_t head, int64_t t0,
                   std::byte* slot) const {
    const int64_t count = std::min(kQueries, p_.t - t0), row_tiles = blocks_of(count, kTileRows);
    const int64_t keys_end = rules.visible(head, t0 + count - 1);
    const int64_t ld = columns_ * 16;
    int64_t q_ld = p_.q.row;
    const uint16_t* q = rows_of(args, p_.q, head, t0);
    auto* weights = reinterpret_cast<uint16_t*>(slot + weights_);  // [kQueries, kKeys]
    auto* scores = reinterpret_cast<float*>(slot + scores_);       // [kQueries, kKeys]
    auto* sums = reinterpret_cast<float*>(slot + sums_);           // [kQueries, ld]
    if (!q_in_place_) {
      auto* rows = reinterpret_cast<uint16_t*>(slot + q_);
      q_ld = terms_ * kTileBf16;
      pad_rows(q, p_.q.row, count, p_.d, rows, kQueries, q_ld);
      q = rows;
    }
    // Whole tiles are read.
    std::fill_n(weights + count * kKeys, (row_tiles * kTileRows - count) * kKeys, uint16_t{0});
    std::fill_n(sums, kQueries * ld, 0.0f);
    RowState states[kQueries];
    std::fill_n(states, count, RowState{-std::numeric_limits<float>::infinity(), 0});
    ScoreRules::Space space;
    Tiles tiles;
    for (int64_t k0 = 0; k0 < keys_end; k0 += kKeys) {
      const int64_t n = std::min(kKeys, keys_end - k0), terms = blocks_of(n, kTileBf16);
      tile_product(tiles, tiles_in_rows(q, q_ld),
                   packed_tiles(packed(args, packed_k_, head, k0, k_block_), terms_), row_tiles,
                   blocks_of(n, kTileRows), terms_, scores, kKeys, false);
      for (int64_t r = 0; r < count; ++r) {
        ScoreRow row = rules.row(head, t0 + r, k0, terms * kTileBf16, scores + r * kKeys, space);
        row.factor = p_.scale;
        const float factor = rows_.forward_narrow(row, states[r], weights + r * kKeys);
        if (k0 > 0 && factor != 1.0f) rows_.scale(sums + r * ld, factor, p_.dv);
      }
      tile_product(tiles, tiles_in_rows(weights, kKeys),
                   packed_tiles(packed(args, packed_v_, head, k0, v_block_), kKeys / kTileBf16),
                   row_tiles, columns_, terms, sums, ld, true);
    }
    finish_queries(p_, args, head, t0, count, states, sums, ld);
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  bool q_in_place_ = false;
  int64_t slots_ = 1, slot_bytes_ = 0, per_slot_ = 0;
  int64_t terms_ = 0, columns_ = 0;                      // tiles of d as terms, of dv as columns
  int64_t k_block_ = 0, v_block_ = 0;                    // elements of a packed block
  int64_t packed_k_ = 0, packed_v_ = 0;                  // in the scratch memory
  int64_t q_ = 0, scores_ = 0, weights_ = 0, sums_ = 0;  // in a slot
};

}  // namespace

std::unique_ptr<Kernel> attention_forward_tiles(const NodeView& node, TileUnit unit) {
  return with_tiles(unit, [&]<class Tiles>(std::type_identity<Tiles>) -> std::unique_ptr<Kernel> {
    return std::make_unique<TileForward<Tiles>>(node);
  });
}

}  // namespace brrr::cpu
