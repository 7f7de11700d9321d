// attention_grad in bf16 on tiles; attention_backward.cpp with other products: the queries of a
// head are packed once per task, the transposes of p and ds once per pair of blocks.

#include <algorithm>

#include "backend/cpu/attention/attention_tiles.h"

namespace brrr::cpu {
namespace {

template <class Tiles>
class TileBackward final : public Kernel {
  static constexpr int64_t kQueries = 64, kKeys = 128;  // of a block
  static constexpr int64_t kQueryTerms = kQueries / kTileBf16, kKeyTerms = kKeys / kTileBf16;
  static_assert(kKeys <= kKeyBlock);

 public:
  explicit TileBackward(const NodeView& node)
      : p_(node), rows_(attention_rows()), copies_(row_copies(DType::bf16)) {
    slots_ = thread_count();
    groups_ = grad_groups(p_, kKeys);
    // Heads that share keys add to the sums of all blocks of the task, one head after the other.
    if (p_.group > 1) blocks_kept_ = blocks_of(blocks_of(p_.most_keys(), kKeys), groups_);
    padded_t_ = blocks_of(p_.most_queries(), kQueries) * kQueries;
    dq_rows_ =
        PackedRowLayout(p_.sequence_heads, p_.sequences, p_.t, p_.is_ragged(), kQueries, kTileRows);
    ScratchLayout layout;
    dq_ = layout.take_floats(groups_ * dq_rows_.rows() * d_.ld());
    per_slot_ = layout.bytes();
    ScratchLayout slot;
    for (Side* side : {&d_, &dv_}) {
      side->in_place = rows_are_tiles(p_, *side->queries, side->width);
      side->rows = slot.take(side->in_place ? 0 : padded_t_ * side->row_ld() * 2);
      side->tiles = slot.take(padded_t_ * side->ld() * 2);
      side->keys = slot.take(kKeys * side->row_ld() * 2);
      side->sums = slot.take_floats(blocks_kept_ * kKeys * side->ld());
    }
    key_terms_ = slot.take(d_.columns * kKeyTerms * kTileElements * 2);
    delta_ = slot.take_floats(p_.most_queries());
    y_ = slot.take_floats(2 * padded(p_.dv));
    scores_ = slot.take_floats(kQueries * kKeys);
    dp_ = slot.take_floats(kQueries * kKeys);
    weights_ = slot.take(kQueries * kKeys * 2);
    ds_ = slot.take(kQueries * kKeys * 2);
    turned_ = slot.take(kQueries * kKeys * 2);
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
    add_parts(args, run);
    run.clear_gradients_outside();
  }

 private:
  // A width (d or dv) in tiles, and what a slot holds of that width.
  struct Side {
    int64_t width, terms, columns;
    const HeadRows *queries, *key_rows;  // q and k, dk; or dy and v, dv
    Side(int64_t w, const HeadRows& q, const HeadRows& k)
        : width(w),
          terms(blocks_of(w, kTileBf16)),
          columns(blocks_of(w, kTileRows)),
          queries(&q),
          key_rows(&k) {}
    int64_t ld() const { return columns * 16; }           // of f32 sums
    int64_t row_ld() const { return terms * kTileBf16; }  // of left operands
    bool in_place = false;                                // q or dy is read as it lies
    int64_t rows = 0;                                     // or from here: [padded T, row_ld]
    int64_t tiles = 0;  // q or dy, queries as terms: for each query block right tiles
    int64_t keys = 0;   // k or v of a block of keys: right tiles with the width as terms
    int64_t sums = 0;   // dk or dv of the kept blocks of keys: [kKeys, ld] each
  };
  struct Task {
    const KernelArgs& args;
    const AttentionRun& run;
    int64_t kv_head, queries;  // of its sequence
    int64_t group;
    int64_t head;  // one of those that share kv_head
    std::byte* slot;
    float* floats(int64_t offset) const { return reinterpret_cast<float*>(slot + offset); }
    uint16_t* halves(int64_t offset) const { return reinterpret_cast<uint16_t*>(slot + offset); }
  };

  const uint16_t* of_head(const Task& t, const HeadRows& rows, int64_t begin = 0) const {
    return static_cast<const uint16_t*>(t.run.in(rows, t.head, begin));
  }
  const uint16_t* of_keys(const Task& t, const HeadRows& rows, int64_t begin) const {
    return static_cast<const uint16_t*>(t.run.in(rows, t.kv_head, begin));
  }
  float* sums_of(const Task& t, const Side& side, int64_t begin) const {
    const int64_t kept = begin / kKeys / groups_ % blocks_kept_;
    return t.floats(side.sums) + kept * kKeys * side.ld();
  }
  float* dq_of(const KernelArgs& args, const AttentionRun& run, int64_t head, int64_t group) const {
    const int64_t row = dq_rows_.at(head, run.first(run.sequence(head)), 0);
    return reinterpret_cast<float*>(args.scratch + dq_) + (group * dq_rows_.rows() + row) * d_.ld();
  }

  void group_of_keys(const Task& t) const {
    pack_queries(t, d_);
    pack_queries(t, dv_);
    find_deltas(t);
    std::fill_n(dq_of(t.args, t.run, t.head, t.group),
                blocks_of(t.queries, kTileRows) * kTileRows * d_.ld(), 0.0f);
    Tiles tiles;
    const int64_t keys = t.run.keys(t.run.sequence(t.head));
    for (int64_t block = t.group; block * kKeys < keys; block += groups_)
      key_block(t, tiles, block * kKeys, std::min(kKeys, keys - block * kKeys));
  }

  void pack_queries(const Task& t, const Side& side) const {
    const uint16_t* from = of_head(t, *side.queries);
    const int64_t ld = side.queries->row(), padded = blocks_of(t.queries, kQueries) * kQueries;
    if (!side.in_place)
      pad_rows(from, ld, t.queries, side.width, t.halves(side.rows), padded, side.row_ld());
    // Terms beyond the last query must be zero: they meet probabilities that are.
    if (t.queries % kQueries != 0) {
      const int64_t last = padded - kQueries;
      std::fill_n(t.halves(side.tiles) + last * side.ld(), kQueries * side.ld(), uint16_t{0});
    }
    for (int64_t t0 = 0; t0 < t.queries; t0 += kQueries)
      pack_right(from + t0 * ld, ld, true, side.width, std::min(kQueries, t.queries - t0),
                 kQueryTerms, t.halves(side.tiles) + t0 * side.ld());
  }

  /// delta = sum dy y - dlse, [T]
  void find_deltas(const Task& t) const {
    float *delta = t.floats(delta_), *y = t.floats(y_), *dy = y + padded(p_.dv);
    const float* dlse = t.run.dlse_in(t.head);
    for (int64_t i = 0; i < t.queries; ++i) {
      copies_.widen(of_head(t, p_.y, i), p_.y.row(), p_.dv, 1, y, p_.dv);
      copies_.widen(of_head(t, p_.dy, i), p_.dy.row(), p_.dv, 1, dy, p_.dv);
      delta[i] = rows_.dot(dy, y, p_.dv) - (dlse != nullptr ? dlse[i] : 0);
    }
  }

  void key_block(const Task& t, Tiles& tiles, int64_t begin, int64_t count) const {
    const bool is_first = t.head % p_.group == 0, is_last = (t.head + 1) % p_.group == 0;
    if (is_first)
      for (const Side* side : {&d_, &dv_})
        std::fill_n(sums_of(t, *side, begin), kKeys * side->ld(), 0.0f);
    const QueryRange seen = queries_of(t.run, t.head, begin, count);
    if (seen.begin < seen.end) {
      for (const Side* side : {&d_, &dv_})
        pack_right(of_keys(t, *side->key_rows, begin), side->key_rows->row(), false, count,
                   side->width, side->terms, t.halves(side->keys));
      pack_right(of_keys(t, p_.k, begin), p_.k.row(), true, p_.d, count, kKeyTerms,
                 t.halves(key_terms_));
      for (int64_t t0 = seen.begin / kQueries * kQueries; t0 < seen.end; t0 += kQueries)
        tile(t, tiles, begin, count, t0, std::min(kQueries, t.queries - t0));
    }
    if (!is_last) return;
    rows_.scale(sums_of(t, d_, begin), p_.scale, count * d_.ld());
    for (const Side* side : {&d_, &dv_})
      copies_.narrow(sums_of(t, *side, begin), side->ld(), side->width, count,
                     t.run.out(*side->key_rows, t.kv_head, begin), side->key_rows->row());
  }

  /// One block of queries with one block of keys.
  void tile(const Task& t, Tiles& tiles, int64_t begin, int64_t count, int64_t t0,
            int64_t queries) const {
    // Keys that any of the queries sees.
    const int64_t n = std::min(count, t.run.visible(t.head, t0 + queries - 1).end - begin);
    const int64_t terms = blocks_of(n, kTileBf16), key_tiles = 2 * terms;
    const int64_t row_tiles = blocks_of(queries, kTileRows);
    float *s = t.floats(scores_), *dp = t.floats(dp_);
    for (const auto& [side, out] : {std::pair{&d_, s}, std::pair{&dv_, dp}}) {
      const int64_t ld = side->in_place ? side->queries->row() : side->row_ld();
      const uint16_t* from =
          side->in_place ? of_head(t, *side->queries, t0) : t.halves(side->rows) + t0 * ld;
      tile_product(tiles, tiles_in_rows(from, ld), packed_tiles(t.halves(side->keys), side->terms),
                   row_tiles, blocks_of(n, kTileRows), side->terms, out, kKeys, false);
    }
    const float* lse = t.run.lse_in(t.head) + t0;
    const float* delta = t.floats(delta_) + t0;
    uint16_t *weights = t.halves(weights_), *ds = t.halves(ds_), *turned = t.halves(turned_);
    AttentionRun::Space space;
    for (int64_t r = 0; r < queries; ++r) {
      ScoreRow row = t.run.row(t.head, t0 + r, begin, terms * kTileBf16, s + r * kKeys, space);
      row.factor = p_.scale;
      rows_.backward_narrow(row, lse[r], delta[r], dp + r * kKeys, weights + r * kKeys,
                            ds + r * kKeys);
    }
    // dv += pᵀ dy, dk += dsᵀ q, dq += ds k; the scale of the last two follows at the end.
    for (const auto& [side, from] : {std::pair{&dv_, weights}, std::pair{&d_, ds}}) {
      // Queries beyond the last are terms, too.
      std::fill_n(from + queries * kKeys, (kQueries - queries) * kKeys, uint16_t{0});
      pack_left_transposed(from, kKeys, key_tiles * kTileRows, kQueries, turned);
      tile_product(tiles, packed_tiles(turned, kQueryTerms),
                   packed_tiles(t.halves(side->tiles) + t0 * side->ld(), kQueryTerms), key_tiles,
                   side->columns, kQueryTerms, sums_of(t, *side, begin), side->ld(), true);
    }
    tile_product(tiles, tiles_in_rows(ds, kKeys), packed_tiles(t.halves(key_terms_), kKeyTerms),
                 row_tiles, d_.columns, terms, dq_of(t.args, t.run, t.head, t.group) + t0 * d_.ld(),
                 d_.ld(), true);
  }

  /// dq = scale times the sum of the groups' parts, in order.
  void add_parts(const KernelArgs& args, const AttentionRun& run) const {
    parallel_pieces(p_.heads, slots_, [&](int64_t head, int) {
      float* sum = dq_of(args, run, head, 0);
      const int64_t queries = run.queries(run.sequence(head)), n = queries * d_.ld();
      for (int64_t g = 1; g < groups_; ++g) {
        const float* part = dq_of(args, run, head, g);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sum[i] += part[i];
      }
      rows_.scale(sum, p_.scale, n);
      copies_.narrow(sum, d_.ld(), p_.d, queries, run.out(p_.q, head), p_.q.row());
    });
  }

  AttentionProblem p_;
  const AttentionRows& rows_;
  const RowCopies& copies_;
  Side d_{p_.d, p_.q, p_.k}, dv_{p_.dv, p_.dy, p_.v};
  PackedRowLayout dq_rows_;
  int64_t slots_ = 1, groups_ = 1, blocks_kept_ = 1, padded_t_ = 0;
  int64_t dq_ = 0, per_slot_ = 0, slot_bytes_ = 0;  // in the scratch memory
  // In a slot:
  int64_t key_terms_ = 0, delta_ = 0, y_ = 0, scores_ = 0, dp_ = 0, weights_ = 0, ds_ = 0,
          turned_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> attention_backward_tiles(const NodeView& node, TileUnit unit) {
  return with_tiles(unit, [&]<class Tiles>(std::type_identity<Tiles>) -> std::unique_ptr<Kernel> {
    return std::make_unique<TileBackward<Tiles>>(node);
  });
}

}  // namespace brrr::cpu
