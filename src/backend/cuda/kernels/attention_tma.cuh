// Attention on sm_90 by groups of four warps that do nothing but multiply and a thread that does
// nothing but ask the copy engine for the next tiles (Shah 2024, "FlashAttention-3"). A block of
// threads stays on its multiprocessor and goes from one block of rows to the next, so the first
// tiles of the next are there when the last is done. Sums have one owner, as in attention_mma.cuh.

/// What a thread is: of the group that copies, or of one of the two that multiply 64 rows each.
struct Role {
  enum { kGroups = 2, kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1) };
  // The registers of a multiprocessor: 128 times these and no more than 65536.
  enum { kToCopy = 24, kToMultiply = 240 };
  BRRR_METHOD bool copies() { return threadIdx.x < 128; }
  /// Of the group's rows among those of the block. By a shuffle, so that the compiler knows that a
  /// warp has one number: all of its lanes ask.
  BRRR_METHOD int first_row() {
    return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128 - 1), 0) * 64;
  }
  /// Of the thread's two the first, within the group's.
  BRRR_METHOD int row() {
    return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
  }
  /// A warp is done with what its products read.
  BRRR_METHOD void release(Barrier& barrier) {
    if (threadIdx.x % 32 == 0) barrier.arrive();
  }
  /// What lanes have read into registers may be overwritten by the copy engine once the warp
  /// releases it.
  BRRR_METHOD void have_read() {
    ByGroups::publish();
    __syncwarp();
  }
  enum { kReleases = 4 * kGroups };
};

/// Blocks of kRows rows of heads, in the order in which they are begun: heads in sections whose
/// other side stays in L2, in a section the blocks with the most work first. The grid's blocks take
/// turns, there and back, so that none has the longest every time.
template <int kRows>
struct WorkList {
  int heads, section, rows;
  bool longest_last;  // of a head's blocks
  int head, first;    // of the present one
  BRRR_MEMBER bool find(int round) {
    const int blocks = (rows + kRows - 1) / kRows;
    const int grid = static_cast<int>(gridDim.x), me = static_cast<int>(blockIdx.x);
    const int at = round * grid + (round % 2 == 0 ? me : grid - 1 - me);
    if (at >= heads * blocks) return false;
    const int begin = at / (section * blocks) * section, rest = at - begin * blocks;
    const int together = section < heads - begin ? section : heads - begin;
    const int block = rest / together;
    head = begin + rest - block * together;
    first = (longest_last ? blocks - 1 - block : block) * kRows;
    return true;
  }
};

/// A tile from row `row` of a head on; heads of a batch entry lie on an axis of their own.
template <int kHeadsOfBatch, typename T, int D, int kRows>
BRRR_DEVICE void copy_tile(const Tile<T, D, kRows>& to, const TensorMap& map, Barrier& barrier,
                           int head, int row) {
#pragma unroll
  for (int panel = 0; panel < D / 64; ++panel)
    copy_box(to.base + panel * kRows * 64, map, barrier, panel * 64, row, head % kHeadsOfBatch,
             head / kHeadsOfBatch);
}

/// What the two sides wait for: the block's own rows, and stages of the other side's tiles, of
/// which each half has a barrier.
template <int kStages>
struct Barriers {
  Barrier own_full, own_empty, full[kStages][2], empty[kStages];
  BRRR_MEMBER void start() {
    if (threadIdx.x == 0) {
      own_full.start(1);
      own_empty.start(Role::kReleases);
      for (int k = 0; k < kStages; ++k) {
        full[k][0].start(1);
        full[k][1].start(1);
        empty[k].start(Role::kReleases);
      }
      publish_barriers();
    }
    __syncthreads();
  }
};
/// The n-th tile of all that a block of threads works on has a stage, and a phase there.
template <int kStages>
struct Turn {
  u32 n = 0;
  BRRR_MEMBER u32 stage() const { return n % kStages; }
  BRRR_MEMBER u32 phase() const { return n / kStages; }
};

/// Shared memory: kOwn matrices of the block's rows, then pairs of tiles of the other side, then
/// kNumbers floats to a stage, then barriers.
template <typename T, int D, int kOwn, int kTile, int kStages, int kNumbers>
struct Rooms {
  unsigned char* memory;
  enum {
    kOwnBytes = Role::kRows * D * static_cast<int>(sizeof(T)),
    kTileBytes = kTile * D * static_cast<int>(sizeof(T)),
    kNumberBytes = 4 * kNumbers,
    kNumbersAt = kOwn * kOwnBytes + 2 * kStages * kTileBytes
  };
  BRRR_MEMBER Tile<T, D, Role::kRows> own(int k) const {
    return {reinterpret_cast<T*>(memory + k * kOwnBytes)};
  }
  BRRR_MEMBER Tile<T, D, kTile> tile(u32 stage, int half) const {
    return {reinterpret_cast<T*>(memory + kOwn * kOwnBytes +
                                 (2 * static_cast<int>(stage) + half) * kTileBytes)};
  }
  BRRR_MEMBER float* numbers(u32 stage) const {
    return reinterpret_cast<float*>(memory + kNumbersAt + static_cast<int>(stage) * kNumberBytes);
  }
  BRRR_MEMBER Barriers<kStages>& barriers() const {
    return *reinterpret_cast<Barriers<kStages>*>(memory + kNumbersAt + kStages * kNumberBytes);
  }
};

/// The group's 64 rows of a matrix of the block's, as left operand: in registers where there is
/// room for them, otherwise in shared memory, which the unit then reads for each product.
template <typename T, int D, bool kHeld>
struct OwnRows {
  Tile<T, D, Role::kRows> tile;
  int first;
  u32 held[kHeld ? D / 16 : 1][4];
  BRRR_MEMBER void hold() {
    if constexpr (kHeld)
#pragma unroll
      for (int d = 0; d < D / 16; ++d)
        tile.left(held[d], first + static_cast<int>(threadIdx.x % 128 / 32) * 16, d * 16);
  }
  /// s = rows b^T.
  template <int kRows>
  BRRR_MEMBER void times(float (&s)[kRows / 8][4], const Tile<T, D, kRows>& b) {
    if constexpr (kHeld)
#pragma unroll
      for (int d = 0; d < D / 16; ++d) ByGroups::by_columns(s, held[d], b, d * 16, d);
    else
      ByGroups::of_shared(s, tile, first, b);
  }
};
/// Of the backward pass' two, whether registers hold both.
template <typename Options>
BRRR_DEVICE constexpr bool holds_own() {
  return Options::kWidth == 64 && !Options::kDrops;
}

/// Tiles of the keys that rows [first, first + Role::kRows) see.
template <typename Options, int kTile, typename Extra>
BRRR_DEVICE int tiles_of_keys(const Extra& extra, int first) {
  const int last = first + Role::kRows - 1;
  const int end =
      Options::last_key(extra, last < Options::kQueries - 1 ? last : Options::kQueries - 1);
  return (end + kTile - 1) / kTile;
}

/// Own rows of queries: the thread that copies, forward (q; then k, v) and backward (q, dy; then
/// k, v).
template <typename Options, int kHeadsOfBatch, int kOwn, int kTile, int kStages, typename R,
          typename Extra>
BRRR_DEVICE void copy_keys(const R& rooms, const TensorMap& q, const TensorMap& dy,
                           const TensorMap& k, const TensorMap& v, WorkList<Role::kRows> work,
                           const Extra& extra) {
  Barriers<kStages>& wait = rooms.barriers();
  Turn<kStages> turn;
  u32 blocks = 0;
  for (int round = 0; work.find(round); ++round) {
    const int tiles = tiles_of_keys<Options, kTile>(extra, work.first);
    if (tiles <= 0) continue;
    wait.own_empty.wait(blocks + 1);
    wait.own_full.arrive_expecting(kOwn * R::kOwnBytes);
    copy_tile<kHeadsOfBatch>(rooms.own(0), q, wait.own_full, work.head, work.first);
    if (kOwn == 2) copy_tile<kHeadsOfBatch>(rooms.own(1), dy, wait.own_full, work.head, work.first);
    ++blocks;
    for (int j = 0; j < tiles; ++j, ++turn.n) {
      const u32 stage = turn.stage();
      wait.empty[stage].wait(turn.phase() + 1);
      wait.full[stage][0].arrive_expecting(R::kTileBytes);
      copy_tile<kHeadsOfBatch>(rooms.tile(stage, 0), k, wait.full[stage][0], work.head, j * kTile);
      wait.full[stage][1].arrive_expecting(R::kTileBytes);
      copy_tile<kHeadsOfBatch>(rooms.tile(stage, 1), v, wait.full[stage][1], work.head, j * kTile);
    }
  }
}

/// While the unit multiplies probabilities and values, the next scores become probabilities.
template <typename Options, typename T, int kHeadsOfBatch, int kTile, int kStages, typename Extra>
BRRR_DEVICE void attention_tma_forward(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                       T* y, float* lse, int heads, int section,
                                       const Extra& extra) {
  constexpr int D = Options::kWidth;
  using Unit = ByGroups;
  BRRR_DYNAMIC_SHARED(memory);
  const Rooms<T, D, 1, kTile, kStages, 0> rooms{memory};
  Barriers<kStages>& wait = rooms.barriers();
  WorkList<Role::kRows> work{heads, section, Options::kQueries, Options::kCausal, 0, 0};
  wait.start();
  if (Role::copies()) {
    keep_registers<Role::kToCopy>();
    if (threadIdx.x == 0)
      copy_keys<Options, kHeadsOfBatch, 1, kTile, kStages>(rooms, q, q, k, v, work, extra);
  } else {
    take_registers<Role::kToMultiply>();
    const int t = threadIdx.x % 4;
    const Tile<T, D, Role::kRows> queries = rooms.own(0);
    Turn<kStages> turn;
    u32 blocks = 0;
    for (int round = 0; work.find(round); ++round) {
      const int first = work.first + Role::first_row(), row = first + Role::row();
      const int tiles = tiles_of_keys<Options, kTile>(extra, work.first);
      const int end_of_first = Options::last_key(extra, first);
      const u64 head = static_cast<u64>(work.head);
      RunningSoftmax softmax;
      float sum[D / 8][4] = {}, shrink[2];
      const auto soften = [&](float(&s)[kTile / 8][4], int j) {
        softmax.add<Options>(s, shrink,
                             needs_mask<Options, 64>(first, j * kTile, kTile, end_of_first), extra,
                             head, ByQueries{row, j * kTile + 2 * t});
      };
      if (tiles > 0) {
        float s[kTile / 8][4];
        wait.own_full.wait(blocks++);
        wait.full[turn.stage()][0].wait(turn.phase());
        Unit::begin(s);
        Unit::of_shared(s, queries, Role::first_row(), rooms.tile(turn.stage(), 0));
        Unit::end(s);
        soften(s, 0);
        for (int j = 1; j < tiles; ++j) {
          LeftFactor<T, kTile / 8> p(s);
          const Turn<kStages> next{turn.n + 1};
          wait.full[next.stage()][0].wait(next.phase());
          Unit::begin(s, p.words, sum);
          Unit::of_shared(s, queries, Role::first_row(), rooms.tile(next.stage(), 0));
          Unit::commit();
          wait.full[turn.stage()][1].wait(turn.phase());
          add_product<Unit>(sum, p, rooms.tile(turn.stage(), 1));
          Unit::commit();
          Unit::template wait<1>(s);
          soften(s, j);
          // The assembler moves the wait to before the exponentials, whose time it is to hide: they
          // end here, and no sum of them is negative.
          if (__any_sync(0xffffffffu, softmax.total[0] + softmax.total[1] < 0.0f)) stop();
          Unit::template wait<0>(sum, p.words);
          Role::release(wait.empty[turn.stage()]);
          shrink_rows(sum, shrink);
          turn = next;
        }
        Role::release(wait.own_empty);
        LeftFactor<T, kTile / 8> p(s);
        wait.full[turn.stage()][1].wait(turn.phase());
        Unit::begin(p.words, sum);
        add_product<Unit>(sum, p, rooms.tile(turn.stage(), 1));
        Unit::end(sum);
        Role::release(wait.empty[turn.stage()]);
        ++turn.n;
      }
      softmax.finish<Options>(sum, y, lse, head, row, t);
    }
  }
}

/// Of every query lse in units of log2 and delta = sum(dy y) - dlse, side by side; a head has
/// kRows of them, those behind the last query are as of queries whose probabilities are 0. A warp
/// to a query.
template <typename Options, typename T, int kRows, typename Extra>
BRRR_DEVICE void attention_tma_statistics(const T* y, const T* dy, const float* lse,
                                          const float* dlse, float* statistics, int heads,
                                          const Extra&) {
  const u64 at = blockIdx.x * 8ull + threadIdx.x / 32, head = at / kRows;
  const int lane = threadIdx.x % 32, i = static_cast<int>(at % kRows);
  if (head >= static_cast<u64>(heads)) return;
  float two[2] = {BRRR_INFINITY, 0.0f};
  if (i < Options::kQueries) {
    const u64 row = head * Options::kQueries + i;
    two[0] = lse[row] * BRRR_LOG2E;
    two[1] = delta_of<Options>(y, dy, head, i) - (dlse != nullptr ? dlse[row] : 0.0f);
  }
  if (lane == 0) store(statistics + 2 * at, two);
}

/// dq: scores and their gradients again, of the block's queries by tiles of keys.
template <typename Options, typename T, int kHeadsOfBatch, int kTile, int kStages, int kRows,
          typename Extra>
BRRR_DEVICE void attention_tma_queries(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                       const TensorMap& dy, const float* statistics, T* dq,
                                       int heads, int section, const Extra& extra) {
  constexpr int D = Options::kWidth;
  using Unit = ByGroups;
  BRRR_DYNAMIC_SHARED(memory);
  const Rooms<T, D, 2, kTile, kStages, 0> rooms{memory};
  Barriers<kStages>& wait = rooms.barriers();
  WorkList<Role::kRows> work{heads, section, Options::kQueries, Options::kCausal, 0, 0};
  wait.start();
  if (Role::copies()) {
    keep_registers<Role::kToCopy>();
    if (threadIdx.x == 0)
      copy_keys<Options, kHeadsOfBatch, 2, kTile, kStages>(rooms, q, dy, k, v, work, extra);
  } else {
    take_registers<Role::kToMultiply>();
    const int t = threadIdx.x % 4;
    Turn<kStages> turn;
    u32 blocks = 0;
    for (int round = 0; work.find(round); ++round) {
      const int first = work.first + Role::first_row(), row = first + Role::row();
      const int tiles = tiles_of_keys<Options, kTile>(extra, work.first);
      const int end_of_first = Options::last_key(extra, first);
      const u64 head = static_cast<u64>(work.head);
      float sum[D / 8][4] = {}, lse[2], delta[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float two[2];
        load(two, statistics + 2 * (head * kRows + row + h * 8));
        lse[h] = two[0];
        delta[h] = two[1];
      }
      constexpr bool kHeld = holds_own<Options>();
      OwnRows<T, D, kHeld> query{rooms.own(0), Role::first_row(), {}},
          dy_rows{rooms.own(1), Role::first_row(), {}};
      LeftFactor<T, kTile / 8> gradient;
      u32 last = 0;  // the stage that the products under way read
      if (tiles > 0) {
        wait.own_full.wait(blocks++);
        query.hold(), dy_rows.hold();
        if (kHeld) Role::have_read(), Role::release(wait.own_empty);
      }
      for (int j = 0; j < tiles; ++j, ++turn.n) {
        const u32 stage = turn.stage();
        float s[kTile / 8][4], ds[kTile / 8][4];
        wait.full[stage][0].wait(turn.phase());
        wait.full[stage][1].wait(turn.phase());
        Unit::begin(s, ds);
        query.times(s, rooms.tile(stage, 0));
        Unit::commit();
        dy_rows.times(ds, rooms.tile(stage, 1));
        Unit::commit();
        Unit::template wait<1>(s, sum, gradient.words);
        if (j > 0) Role::release(wait.empty[last]);
        const bool look = needs_mask<Options, 64>(first, j * kTile, kTile, end_of_first);
        const ByQueries at{row, j * kTile + 2 * t};
        to_probabilities<Options>(s, look, extra, head, at, [&](int, int e) { return lse[e / 2]; });
        Unit::template wait<0>(ds);
        if (!kHeld && j == tiles - 1) Role::release(wait.own_empty);
        to_gradients<Options>(s, ds, look, extra, head, at,
                              [&](int, int e) { return delta[e / 2]; });
        gradient = LeftFactor<T, kTile / 8>(ds);
        Unit::begin(gradient.words, sum);
        add_product<Unit>(sum, gradient, rooms.tile(stage, 0));
        Unit::commit();
        last = stage;
      }
      Unit::template wait<0>(sum, gradient.words);
      if (tiles > 0) Role::release(wait.empty[last]);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_row(Options::Q::row(dq, head, row + h * 8), sum, h, t, Options::scale(),
                  row + h * 8 < Options::kQueries);
    }
  }
}

/// Own rows of keys: the thread that copies (k, v; then q and dy with their statistics).
template <typename Options, int kHeadsOfBatch, int kTile, int kStages, int kRows, typename R,
          typename Extra>
BRRR_DEVICE void copy_queries(const R& rooms, const TensorMap& q, const TensorMap& k,
                              const TensorMap& v, const TensorMap& dy, const float* statistics,
                              WorkList<Role::kRows> work, const Extra& extra) {
  Barriers<kStages>& wait = rooms.barriers();
  Turn<kStages> turn;
  u32 blocks = 0;
  for (int round = 0; work.find(round); ++round) {
    const int begin = Options::first_query(extra, work.first) / kTile;
    const int end = (Options::kQueries + kTile - 1) / kTile;
    if (begin >= end) continue;
    wait.own_empty.wait(blocks + 1);
    wait.own_full.arrive_expecting(2 * R::kOwnBytes);
    copy_tile<kHeadsOfBatch>(rooms.own(0), k, wait.own_full, work.head, work.first);
    copy_tile<kHeadsOfBatch>(rooms.own(1), v, wait.own_full, work.head, work.first);
    ++blocks;
    for (int i = begin; i < end; ++i, ++turn.n) {
      const u32 stage = turn.stage();
      Barrier& full = wait.full[stage][0];
      wait.empty[stage].wait(turn.phase() + 1);
      full.arrive_expecting(2 * R::kTileBytes + R::kNumberBytes);
      copy_tile<kHeadsOfBatch>(rooms.tile(stage, 0), q, full, work.head, i * kTile);
      copy_tile<kHeadsOfBatch>(rooms.tile(stage, 1), dy, full, work.head, i * kTile);
      copy_bytes(rooms.numbers(stage),
                 statistics + 2 * (static_cast<u64>(work.head) * kRows + i * kTile),
                 R::kNumberBytes, full);
    }
  }
}

/// dk and dv: the transposed scores again, of the block's keys by tiles of queries. The last
/// products of a tile go on while the scores of the next are computed.
template <typename Options, typename T, int kHeadsOfBatch, int kTile, int kStages, int kRows,
          typename Extra>
BRRR_DEVICE void attention_tma_keys(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                    const TensorMap& dy, const float* statistics, T* dk, T* dv,
                                    int heads, int section, const Extra& extra) {
  constexpr int D = Options::kWidth;
  using Unit = ByGroups;
  BRRR_DYNAMIC_SHARED(memory);
  const Rooms<T, D, 2, kTile, kStages, 2 * kTile> rooms{memory};
  Barriers<kStages>& wait = rooms.barriers();
  WorkList<Role::kRows> work{heads, section, Options::kKeys, false, 0, 0};
  wait.start();
  if (Role::copies()) {
    keep_registers<Role::kToCopy>();
    if (threadIdx.x == 0)
      copy_queries<Options, kHeadsOfBatch, kTile, kStages, kRows>(rooms, q, k, v, dy, statistics,
                                                                  work, extra);
  } else {
    take_registers<Role::kToMultiply>();
    const int t = threadIdx.x % 4;
    Turn<kStages> turn;
    u32 blocks = 0;
    for (int round = 0; work.find(round); ++round) {
      const int first = work.first + Role::first_row(), row = first + Role::row();
      const int begin = Options::first_query(extra, work.first) / kTile;
      const int end = (Options::kQueries + kTile - 1) / kTile;
      const u64 head = static_cast<u64>(work.head);
      float sum[D / 8][4] = {}, sum_v[D / 8][4] = {};
      constexpr bool kHeld = holds_own<Options>();
      OwnRows<T, D, kHeld> key{rooms.own(0), Role::first_row(), {}},
          value{rooms.own(1), Role::first_row(), {}};
      if (begin < end) {
        wait.own_full.wait(blocks++);
        key.hold(), value.hold();
        if (kHeld) Role::have_read(), Role::release(wait.own_empty);
      }
      LeftFactor<T, kTile / 8> p, gradient;
      u32 last = 0;  // the stage that the products under way read
      for (int n = begin; n < end; ++n, ++turn.n) {
        const u32 stage = turn.stage();
        float s[kTile / 8][4], ds[kTile / 8][4];
        wait.full[stage][0].wait(turn.phase());
        Unit::begin(s, ds);
        key.times(s, rooms.tile(stage, 0));
        Unit::commit();
        value.times(ds, rooms.tile(stage, 1));
        Unit::commit();
        float numbers[kTile / 8][4];  // lse and delta of a thread's two queries of eight
#pragma unroll
        for (int c = 0; c < kTile / 8; ++c) load(numbers[c], rooms.numbers(stage) + 16 * c + 4 * t);
        Role::have_read();
        Unit::template wait<1>(s, sum, sum_v, p.words, gradient.words);
        if (n > begin) Role::release(wait.empty[last]);
        const bool look = !Options::kPlain || first + 64 > Options::kKeys ||
                          (Options::kCausal && first + 64 > Options::last_key(extra, n * kTile));
        const ByKeys at{row, n * kTile + 2 * t};
        to_probabilities<Options>(s, look, extra, head, at,
                                  [&](int c, int e) { return numbers[c][e % 2 * 2]; });
        Unit::template wait<0>(ds);
        if (!kHeld && n == end - 1) Role::release(wait.own_empty);
        to_gradients<Options>(s, ds, look, extra, head, at,
                              [&](int c, int e) { return numbers[c][e % 2 * 2 + 1]; });
        p = LeftFactor<T, kTile / 8>(s);
        gradient = LeftFactor<T, kTile / 8>(ds);
        Unit::begin(p.words, gradient.words, sum_v, sum);
        add_product<Unit>(sum_v, p, rooms.tile(stage, 1));
        add_product<Unit>(sum, gradient, rooms.tile(stage, 0));
        Unit::commit();
        last = stage;
      }
      Unit::template wait<0>(sum_v, sum, p.words, gradient.words);
      if (begin < end) Role::release(wait.empty[last]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int j = row + h * 8;
        store_row(Options::K::row(dk, head, j), sum, h, t, Options::scale(), j < Options::kKeys);
        store_row(Options::V::row(dv, head, j), sum_v, h, t, 1.0f, j < Options::kKeys);
      }
    }
  }
}
