// The vector path of gemm(): f32 register tiles over operands that packing widens to f32.

#include <algorithm>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/quantized/integer_kernels.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "base/threads/thread_local.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

// How the work is laid out. C is cut into tasks of rows x columns that share nothing, so any thread
// can take any of them and one that is held up delays nobody. A task packs its block of B (kc x
// columns, stays in the L2 cache) and multiplies all its rows by it, kc terms after kc terms. A is
// read where it lies if it is f32 and the caches like its layout; otherwise the team first packs a
// chunk of it into one shared buffer, in phases with a barrier between packing and multiplying; or,
// if it is narrower than f32, each task widens a few row panels at a time. Sums grow in C, or where
// C is no f32 memory in a block of the thread's own, which is why such a task runs over all terms.

namespace brrr::cpu {
namespace {

constexpr int64_t kMaxCols = 384;      // columns of a packed block of B
constexpr int64_t kManyTerms = 512;    // with more of them in a block, it is narrower
constexpr int64_t kMaxRowCols = 2048;  // columns of a task of a single row
constexpr int64_t kMaxNr = 32;         // no instruction set has wider tiles
constexpr int64_t kMaxMr = 16;         // or taller ones
constexpr int64_t kARowPad = 16;       // breaks the power of two between packed rows
constexpr int64_t kAPanels = 8;        // row panels of A that one thread packs at a time
constexpr int64_t kPackedB = kManyTerms * kMaxCols;
constexpr int64_t kPackedTail = kGemmBlockK * kMaxNr;
constexpr int64_t kPackedA = int64_t{1} << 21;  // floats of the shared chunk of A

constexpr int64_t kRowPanels = kAPanels * kMaxMr * (kManyTerms + kARowPad);
constexpr int64_t kSums = 512 * kMaxCols;

/// Row panels that are widened, or finished, at a time: as many as there is room for.
int64_t row_panels_at_once(int64_t mr, int64_t terms) {
  return std::min(kAPanels, kRowPanels / (mr * (terms + kARowPad)));
}
static_assert(kRowPanels >= kMaxMr * (kGemmBlockK + kARowPad));

/// What reading a term of a row of A again, or widening it, costs a task, in vector multiply-adds.
/// Measured where an L2 cache of 2 MB has an L3 behind a mesh (Emerald Rapids), and where one of
/// 1 MB or less has it beside it (Zen 3, Zen 4).
double cost_to_read_a(bool widen) {
  constexpr int64_t kMesh = int64_t{2} << 20;
  if (l2_cache_bytes() < kMesh) return 0.05;
  return widen ? 0.6 : 0.3;
}

/// One thread's memory: in all just under a huge page.
struct Workspace {
  float* packed_b;    // [kPackedB], then the tail of an unpacked B
  float* row_panels;  // of A, widened
  float* sums;        // where C is no f32 memory
};
constexpr int64_t kWorkspace = kPackedB + kPackedTail + kRowPanels + kSums;

Workspace workspace() {
  BRRR_THREAD_LOCAL PackBuffer buffer(kWorkspace * int64_t{sizeof(float)});
  float* p = buffer.data();
  return {p, p + kPackedB + kPackedTail, p + kPackedB + kPackedTail + kRowPanels};
}

/// The chunk of A that a team shares: it belongs to the thread that called gemm.
float* packed_a() {
  BRRR_THREAD_LOCAL PackBuffer buffer(kPackedA * int64_t{sizeof(float)});
  return buffer.data();
}

struct BlockPlan {
  int64_t rows = 0, cols = 0;  // of a task
  int64_t k_step = 0;          // terms of a block
  bool pack_a = false;         // the team, in phases
  bool widen_a = false;        // each task for itself
  bool pack_b = false;
  int64_t chunk_rows = 0, chunk_k = 0;  // of A in one phase
};

/// Whether A is read as fast where it lies: its rows do not collide in the cache, it does not have
/// to come from memory once per task, and, transposed, one panel does not touch more pages than the
/// address caches hold.
bool a_reads_well(const GemmArgs& g) {
  constexpr int64_t kFloat = 4, kLine = 64, kCached = int64_t{2} << 20;
  if (g.n <= 64) return true;  // read too few times to repay a copy
  if (g.trans_a) return g.lda <= 256;
  const int64_t offset = g.lda * kFloat % kSetsRepeat;
  return std::min(offset, kSetsRepeat - offset) >= kLine && g.m * g.k <= kCached;
}

/// The split with the least estimated time. Costs are in vector multiply-adds per term of the sum;
/// the constants are measured packing costs.
BlockPlan choose_plan(const GemmArgs& g, int64_t batch, int64_t threads,
                      const GemmKernels& kernels) {
  const int64_t mr = kernels.mr;
  const int64_t nr = g.panels ? std::max(kernels.nr, kPanelColumns) : kernels.nr;
  BlockPlan plan;
  // Equal blocks, so that none is so short that storing C dominates; whole tiles of panels.
  static_assert(kGemmBlockK % kPanelTerms == 0);
  plan.k_step = gemm_terms_of_block(g.k);
  // Packing B pays when its rows are read by several row panels.
  const bool reads_panels = g.panels && g.dtype == DType::f32 && g.integers == nullptr;
  plan.pack_b = g.integers != nullptr ||
                (!reads_panels && (g.panels ? g.m > 1 : g.m > (g.trans_b ? kGemmFewRows : mr)));
  constexpr double kSmallProduct = 1 << 22;
  const double work =
      static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  plan.pack_a = g.m > 4 * mr && !a_reads_well(g) && (batch == 1 || work > kSmallProduct);
  plan.chunk_rows = g.m;
  plan.chunk_k = g.k;
  plan.widen_a = g.dtype != DType::f32;
  if (plan.widen_a) plan.pack_a = false;
  if (plan.pack_a) {
    const int64_t row = plan.k_step + kARowPad;  // a packed row of one block
    plan.chunk_rows = std::min(round_up(g.m, mr), kPackedA / row / mr * mr);
    plan.chunk_rows = round_up(ceil_div(g.m, ceil_div(g.m, plan.chunk_rows)), mr);
    plan.chunk_k = kPackedA / (plan.chunk_rows * row) * plan.k_step;
    if (needs_sums(g) && plan.chunk_k < g.k) {  // sums do not outlive a task
      plan.pack_a = false;
      plan.widen_a = true;
      plan.chunk_rows = g.m;
      plan.chunk_k = g.k;
    }
  }
  const int64_t products = plan.pack_a ? 1 : batch;  // in one phase
  const int64_t m = std::min(g.m, plan.chunk_rows);
  // Panels of f32 are not packed, but they come from memory.
  const double provide_b_cost = reads_panels ? 0.3 : plan.pack_b ? (g.trans_b ? 0.6 : 0.4) : 0.0;
  const double read_a = cost_to_read_a(plan.widen_a);
  // A block of more terms is narrower: it is to leave room in the L2 cache.
  const int64_t most_cols =
      std::min(kMaxCols, kPackedB / std::max<int64_t>(1, plan.k_step) / nr * nr);
  if (g.m == 1 && !plan.pack_b) {
    // Bound by reading B: long runs of its rows, an equal share for each thread.
    plan.rows = 1;
    const int64_t share = round_up(ceil_div(g.n, threads), nr);
    const bool columns_contiguous = g.panels || g.trans_b;
    const int64_t cols =
        columns_contiguous
            ? streamed_columns(g.n, nr, g.k * static_cast<int64_t>(bytes_of(g.dtype)), threads)
            : share;
    plan.cols = std::min({kMaxRowCols / nr * nr, share, cols});
    return plan;
  }
  double best = 0;
  int64_t last_cols = -1;
  for (const int64_t target : {384, 256, 192, 128, 96, 64, 32}) {
    const int64_t cols = round_up(ceil_div(g.n, ceil_div(g.n, target)), nr);
    if (cols == last_cols || cols > most_cols) continue;
    last_cols = cols;
    const int64_t col_blocks = ceil_div(g.n, cols);
    int64_t last_rows = -1;
    const int64_t most = needs_sums(g) ? kSums / cols / mr * mr : m;
    const int64_t fewest = ceil_div(m, most);
    for (int64_t parts = fewest; parts <= 64 + fewest && parts <= ceil_div(m, mr);
         parts += (parts + 3) / 4) {
      const int64_t rows = round_up(ceil_div(m, parts), mr);
      if (rows == last_rows) continue;
      last_rows = rows;
      const double task = static_cast<double>(rows * cols) / static_cast<double>(kernels.lanes) +
                          read_a * static_cast<double>(rows) +
                          provide_b_cost * static_cast<double>(cols) +
                          500.0 / static_cast<double>(std::min(g.k, kGemmBlockK));
      const double turns =
          static_cast<double>(ceil_div(ceil_div(m, rows) * col_blocks * products, threads));
      // Tasks never end all at once: expect a quarter of one to be lost.
      const double time = (turns + (threads > 1 ? 0.25 : 0.0)) * task;
      if (plan.rows == 0 || time < best) {
        best = time;
        plan.rows = rows;
        plan.cols = cols;
      }
    }
  }
  return plan;
}

/// The threads that a product is worth.
int64_t vector_team(const GemmArgs& g, int64_t batch) {
  // Starting the team costs about as much as this many multiply-adds.
  constexpr double kSerial = 1 << 17;
  const double work = static_cast<double>(batch) * static_cast<double>(g.m) *
                      static_cast<double>(g.n) * static_cast<double>(g.k);
  return work < kSerial || thread_team::is_at_work() ? 1 : gemm_threads();
}

/// The tasks of one product in one phase.
int64_t tasks_of(const GemmArgs& g, const BlockPlan& plan) {
  return ceil_div(std::min(g.m, plan.chunk_rows), plan.rows) * ceil_div(g.n, plan.cols);
}

/// The part of A that one phase packs: rows [i0, i1), terms [k0, k1). Laid out by blocks of terms,
/// then by row panels.
struct PackedChunk {
  int64_t i0, i1, k0, k1;
  int64_t panels(const GemmKernels& kernels) const { return ceil_div(i1 - i0, kernels.mr); }
};

int64_t panel_floats(const BlockPlan& plan, const GemmKernels& kernels) {
  return kernels.mr * (plan.k_step + kARowPad);
}

const void* a_at(const GemmArgs& g, int64_t i, int64_t k) {
  return offset(g.a, g.dtype, g.trans_a ? k * g.lda + i : i * g.lda + k);
}
const void* b_at(const GemmArgs& g, int64_t k, int64_t j) {
  return offset(g.b, g.dtype, g.trans_b ? j * g.ldb + k : k * g.ldb + j);
}

/// Packs row panels [p, p + kAPanels) of block `kb` of the chunk.
void pack_a_group(const GemmArgs& g, const BlockPlan& plan, const GemmKernels& kernels,
                  const PackedChunk& chunk, int64_t kb, int64_t p, float* out) {
  const int64_t panel = panel_floats(plan, kernels);
  const int64_t i = chunk.i0 + p * kernels.mr, k = chunk.k0 + kb * plan.k_step;
  gemm_packing().pack_a(g.dtype, a_at(g, i, k), g.lda, g.trans_a,
                        std::min(plan.k_step, chunk.k1 - k),
                        std::min(kAPanels * kernels.mr, chunk.i1 - i), panel,
                        plan.k_step + kARowPad, out + (kb * chunk.panels(kernels) + p) * panel);
}

/// Sets the block's B: kc terms from k0 of its columns from j0.
void provide_b(const GemmArgs& g, const BlockPlan& plan, const GemmKernels& kernels, int64_t k0,
               int64_t j0, float* space, GemmBlock& block) {
  const GemmPacking& packing = gemm_packing();
  if (g.integers != nullptr) {
    const IntegerPanels& form = *g.integers;
    const auto* integers = static_cast<const uint8_t*>(g.b);
    const auto* scales = reinterpret_cast<const float*>(integers + form.integer_bytes());
    for (int64_t j = 0; j < block.cols; j += kPanelColumns) {
      const int64_t panel = (j0 + j) / kPanelColumns;
      integer_kernels().unpack(integers + panel * form.panel_bytes(),
                               scales + panel * form.groups() * kPanelColumns, form, k0, block.kc,
                               space + j * block.kc);
    }
    block.set_packed(space, kernels.nr);
    return;
  }
  if (g.panels && g.dtype == DType::f32) {
    block.b = static_cast<const float*>(g.b) + j0 * g.k + k0 * kPanelColumns;
    block.b_width = block.b_k = kPanelColumns;
    block.b_panel = kPanelColumns * g.k;
    block.b_far = true;
    return;
  }
  const auto* panels = static_cast<const uint16_t*>(g.b) + (g.panels ? j0 * g.k : 0);
  if (plan.pack_b) {
    if (g.panels) {
      packing.pack_b_panels(panels, g.k, k0, block.kc, block.cols, space);
    } else {
      packing.pack_b(g.dtype, b_at(g, k0, j0), g.ldb, g.trans_b, block.kc, block.cols, space);
    }
    block.set_packed(space, kernels.nr);
    return;
  }
  if (g.m == 1 && !g.trans_b) block.row_sums = space + kPackedTail;
  if (g.panels) {
    block.b = panels + k0 * kPanelColumns;
    block.b_panels = true;
    block.b_k = g.k;
    return;
  }
  block.b = b_at(g, k0, j0);
  block.b_dtype = g.dtype;
  block.b_k = g.ldb;
  block.b_trans = g.trans_b;
  const int64_t rest = block.cols % kernels.lanes;
  if (rest > 0) {
    packing.pack_b(g.dtype, b_at(g, k0, j0 + block.cols - rest), g.ldb, g.trans_b, block.kc, rest,
                   space);
    block.b_tail = space;
  }
}

/// Sets the block's A: kc terms from k0 of its rows from i0.
void provide_a(const GemmArgs& g, const BlockPlan& plan, const GemmKernels& kernels,
               const PackedChunk& chunk, const float* shared_a, float* row_panels, int64_t k0,
               int64_t i0, GemmBlock& block) {
  const int64_t panel = panel_floats(plan, kernels);
  if (!plan.pack_a && !plan.widen_a) {
    block.a = static_cast<const float*>(a_at(g, i0, k0));
    block.a_row = g.trans_a ? 1 : g.lda;
    block.a_k = g.trans_a ? g.lda : 1;
    block.a_panel = kernels.mr * block.a_row;
    return;
  }
  if (plan.pack_a) {
    const int64_t kb = (k0 - chunk.k0) / plan.k_step, p = (i0 - chunk.i0) / kernels.mr;
    block.a_far = true;
    block.a = shared_a + (kb * chunk.panels(kernels) + p) * panel;
  } else {
    gemm_packing().pack_a(g.dtype, a_at(g, i0, k0), g.lda, g.trans_a, block.kc, block.rows, panel,
                          plan.k_step + kARowPad, row_panels);
    block.a = row_panels;
  }
  block.a_row = g.trans_a ? 1 : plan.k_step + kARowPad;
  block.a_k = g.trans_a ? kernels.mr : 1;
  block.a_panel = panel;
}

/// Rows [i0, i1) x columns [j0, j1) of product `index`, over the terms of the chunk.
void run_task(const GemmArgs& g, int64_t index, const BlockPlan& plan, const GemmKernels& kernels,
              const PackedChunk& chunk, const float* shared_a, int64_t i0, int64_t i1, int64_t j0,
              int64_t j1) {
  const Workspace space = workspace();
  const bool own_sums = needs_sums(g);
  float* const sums = own_sums ? space.sums : static_cast<float*>(g.c) + i0 * g.ldc + j0;
  const int64_t ld = own_sums ? round_up(j1 - j0, kernels.nr) : g.ldc;
  for (int64_t k0 = chunk.k0; k0 < chunk.k1; k0 += plan.k_step) {
    GemmBlock block;
    block.kc = std::min(plan.k_step, chunk.k1 - k0);
    block.cols = j1 - j0;
    block.alpha = g.alpha;
    block.load_c = k0 > 0 || g.beta != 0.0f;
    block.bias = g.bias != nullptr && k0 == 0 ? g.bias + j0 : nullptr;
    block.ldc = ld;
    provide_b(g, plan, kernels, k0, j0, space.packed_b, block);
    const bool finish = needs_finish(g) && k0 + block.kc == g.k;
    // What is widened or finished should still be in the cache for the other half of the work.
    const int64_t group =
        plan.widen_a || finish ? row_panels_at_once(kernels.mr, plan.k_step) * kernels.mr : i1 - i0;
    for (int64_t i = i0; i < i1; i += group) {
      block.rows = std::min(group, i1 - i);
      block.c = sums + (i - i0) * ld;
      provide_a(g, plan, kernels, chunk, shared_a, space.row_panels, k0, i, block);
      kernels.multiply(block);
      if (finish) finish_block(g, index, i, j0, block.rows, block.cols, block.c, ld);
    }
  }
#if defined(__SSE2__)
  if (g.epilogue.run != nullptr) _mm_sfence();  // it may store around the caches
#endif
}

}  // namespace

int64_t gemm_terms_of_block(int64_t k) {
  return k <= kGemmBlockK ? k : round_up(ceil_div(k, ceil_div(k, kGemmBlockK)), kPanelTerms);
}

int64_t gemm_vector_workspace_bytes(const GemmPanels& panels) {
  return panels.threads * PackBuffer::rounded(kWorkspace * int64_t{sizeof(float)}) +
         PackBuffer::rounded(std::min(panels.left, kPackedA * int64_t{sizeof(float)}));
}

GemmPanels gemm_vector_panels(const GemmArgs& g, int64_t batch) {
  const GemmKernels& kernels = gemm_kernels();
  const int64_t team = vector_team(g, batch);
  const BlockPlan plan = choose_plan(g, batch, team, kernels);
  // Few rows read B as it lies, but for columns beyond its last whole vector. One page that is
  // touched makes all of a thread's memory resident, because it lies on a huge page.
  const bool has_tail = !g.panels && g.n % kernels.lanes > 0, has_row_sums = g.m == 1 && !g.trans_b;
  if (!plan.pack_a && !plan.pack_b && !plan.widen_a && !has_tail && !has_row_sums && !needs_sums(g))
    return {};
  const int64_t tasks = tasks_of(g, plan) * (plan.pack_a ? 1 : batch);
  if (!plan.pack_a) return {std::min(team, tasks), 0};
  const int64_t rows = round_up(std::min(g.m, plan.chunk_rows), kernels.mr);
  const int64_t blocks = ceil_div(std::min(g.k, plan.chunk_k), plan.k_step);
  return {std::min(team, tasks), rows * blocks * (plan.k_step + kARowPad) * int64_t{sizeof(float)}};
}

void gemm_vector(const GemmBatch& all) {
  const GemmArgs& args = all.args;
  const int64_t batch = all.batch;
  const GemmKernels& kernels = gemm_kernels();

  const int64_t threads = vector_team(args, batch);
  const BlockPlan plan = choose_plan(args, batch, threads, kernels);

  const int64_t row_blocks = ceil_div(std::min(args.m, plan.chunk_rows), plan.rows);
  const int64_t col_blocks = ceil_div(args.n, plan.cols);
  const int64_t tasks = tasks_of(args, plan);
  // Neighbouring tasks share the longer operand's block, which is then still in a cache.
  const bool rows_first = args.n >= args.m;
  const auto run = [&](int64_t index, const PackedChunk& chunk, const float* shared_a,
                       int64_t task) {
    const GemmArgs g = all.product(index);
    const int64_t row = rows_first ? task % row_blocks : task / col_blocks;
    const int64_t col = rows_first ? task / row_blocks : task % col_blocks;
    const int64_t i0 = chunk.i0 + row * plan.rows, j0 = col * plan.cols;
    if (i0 >= chunk.i1) return;
    run_task(g, index, plan, kernels, chunk, shared_a, i0, std::min(chunk.i1, i0 + plan.rows), j0,
             std::min(g.n, j0 + plan.cols));
  };
  const int team = static_cast<int>(
      std::min(threads, plan.pack_a ? std::max(tasks, ceil_div(args.m, kernels.mr * kAPanels))
                                    : tasks * batch));

  if (!plan.pack_a) {
    const PackedChunk whole{0, args.m, 0, args.k};
    parallel_pieces(tasks * batch, team,
                    [&](int64_t task, int) { run(task / tasks, whole, nullptr, task % tasks); });
    return;
  }

  float* const shared_a = packed_a();
  for (int64_t i = 0; i < batch; ++i) {
    const GemmArgs g = all.product(i);
    for (int64_t i0 = 0; i0 < g.m; i0 += plan.chunk_rows) {
      for (int64_t k0 = 0; k0 < g.k; k0 += plan.chunk_k) {
        const PackedChunk chunk{i0, std::min(g.m, i0 + plan.chunk_rows), k0,
                                std::min(g.k, k0 + plan.chunk_k)};
        const int64_t groups = ceil_div(chunk.panels(kernels), kAPanels);
        const int64_t blocks = ceil_div(chunk.k1 - chunk.k0, plan.k_step);
        // Each call returns when all its pieces are done: A is packed completely before products
        // read it, and they have finished before the next chunk overwrites it.
        parallel_pieces(groups * blocks, team, [&](int64_t part, int) {
          pack_a_group(g, plan, kernels, chunk, part / groups, part % groups * kAPanels, shared_a);
        });
        parallel_pieces(tasks, team, [&](int64_t task, int) { run(i, chunk, shared_a, task); });
      }
    }
  }
}

}  // namespace brrr::cpu
