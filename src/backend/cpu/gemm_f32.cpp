#include "backend/cpu/gemm_f32.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "backend/cpu/gemm_f32_kernels.h"
#include "backend/cpu/isa.h"
#include "base/errors.h"
#include "base/parallel.h"

// How the work is laid out. C is cut into tasks of rows x columns; a task packs its block of B
// (kc x columns, stays in the L2 cache) and a group of row panels of A, multiplies, and goes on to
// the next kc terms. Tasks share nothing, so they need no barrier, any thread can take any of them,
// and a thread that is held up delays nobody; the price, packing A once per column block and B once
// per row block, is a few percent and is what choose_plan weighs.

namespace brrr::cpu {
namespace {

constexpr int64_t kMaxCols = 512;  // columns of a packed block of B
constexpr int64_t kAPanels = 8;    // row panels of A packed at a time
constexpr int64_t kMaxMr = 16;     // no instruction set has taller panels
constexpr int64_t kARowPad = 16;   // breaks the power of two between packed rows
constexpr int64_t kPanelRow = kGemmBlockK + kARowPad;
constexpr int64_t kPackedB = kGemmBlockK * kMaxCols;
constexpr int64_t kPackedTail = kGemmBlockK * 32;
constexpr int64_t kPackedA = kAPanels * kMaxMr * kPanelRow;
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kWorkspaceBytes =
    (sizeof(float) * (kPackedA + kPackedB + kPackedTail) + kHugePage - 1) / kHugePage * kHugePage;

/// Packing buffers of one thread, on one huge page where the system has them.
class Workspace {
 public:
  Workspace() : memory_(static_cast<float*>(std::aligned_alloc(kHugePage, kWorkspaceBytes))) {
    if (memory_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    madvise(memory_, kWorkspaceBytes, MADV_HUGEPAGE);  // a hint: failure costs only speed
#endif
  }
  ~Workspace() { std::free(memory_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  float* b() const { return memory_; }
  float* tail() const { return memory_ + kPackedB; }
  float* a() const { return memory_ + kPackedB + kPackedTail; }

 private:
  float* memory_;
};

Workspace& workspace() {
  thread_local Workspace instance;
  return instance;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Plan {
  int64_t rows, cols;  // of a task
  int64_t row_blocks, col_blocks;
  bool pack_a, pack_b;
};

/// Reading A where it lies is as fast as packed, unless its rows (or, transposed, its columns)
/// collide in the cache sets or are spread over so many pages that the address caches miss.
bool a_reads_well(const GemmArgs& g) {
  constexpr int64_t kPageFloats = 1024;
  if (g.trans_a) return g.lda * std::min(g.k, kGemmBlockK) <= 32 * kPageFloats;
  return g.lda % 256 != 0 || g.lda <= 128;
}

/// The split with the least estimated time. Costs are in vector multiply-adds per term of the sum;
/// the constants are measured packing costs.
Plan choose_plan(const GemmArgs& g, int64_t batch, int64_t threads, const GemmKernels& kernels) {
  const int64_t mr = kernels.mr, nr = kernels.nr;
  Plan plan{};
  // Packing B pays when its rows are read by several row panels.
  plan.pack_b = g.trans_b || g.m > 4 * mr;
  plan.pack_a = !a_reads_well(g);
  const double pack_b_cost = plan.pack_b ? (g.trans_b ? 0.35 : 0.2) : 0.0;
  const double pack_a_cost = plan.pack_a ? 0.15 : 0.0;
  double best = 0;
  int64_t last_cols = -1;
  for (const int64_t target : {512, 384, 256, 192, 128, 96, 64, 32}) {
    const int64_t cols = round_up(ceil_div(g.n, ceil_div(g.n, target)), nr);
    if (cols == last_cols || cols > kMaxCols) continue;
    last_cols = cols;
    const int64_t col_blocks = ceil_div(g.n, cols);
    int64_t last_rows = -1;
    for (int64_t parts = 1; parts <= 64 && parts <= ceil_div(g.m, mr); parts += (parts + 3) / 4) {
      const int64_t rows = round_up(ceil_div(g.m, parts), mr);
      if (rows == last_rows) continue;
      last_rows = rows;
      const int64_t row_blocks = ceil_div(g.m, rows);
      const double area = static_cast<double>(rows * cols) / static_cast<double>(kernels.lanes);
      const double task = area + pack_a_cost * static_cast<double>(rows) +
                          pack_b_cost * static_cast<double>(cols) +
                          500.0 / static_cast<double>(std::min(g.k, kGemmBlockK));
      const double turns = static_cast<double>(ceil_div(row_blocks * col_blocks * batch, threads));
      // Tasks never end all at once: expect a quarter of one to be lost.
      const double time = (turns + (threads > 1 ? 0.25 : 0.0)) * task;
      if (plan.rows == 0 || time < best) {
        best = time;
        plan.rows = rows;
        plan.cols = cols;
        plan.row_blocks = row_blocks;
        plan.col_blocks = col_blocks;
      }
    }
  }
  return plan;
}

/// Rows [i0, i1) x columns [j0, j1) of C.
void run_task(const GemmArgs& g, const Plan& plan, const GemmKernels& kernels, int64_t i0,
              int64_t i1, int64_t j0, int64_t j1) {
  Workspace& space = workspace();
  const int64_t mr = kernels.mr, nr = kernels.nr;
  // Equal blocks, so that no block is so short that storing C dominates.
  const int64_t step = ceil_div(g.k, ceil_div(g.k, kGemmBlockK));
  for (int64_t k0 = 0; k0 < g.k; k0 += step) {
    GemmBlock block;
    block.kc = std::min(step, g.k - k0);
    block.cols = j1 - j0;
    block.alpha = g.alpha;
    block.load_c = k0 > 0 || g.beta != 0.0f;
    block.bias = g.bias != nullptr && k0 == 0 ? g.bias + j0 : nullptr;
    block.ldc = g.ldc;
    const float* b = g.trans_b ? g.b + j0 * g.ldb + k0 : g.b + k0 * g.ldb + j0;
    if (plan.pack_b) {
      kernels.pack_b(b, g.ldb, g.trans_b, block.kc, block.cols, space.b());
      block.b = space.b();
      block.b_packed = true;
      block.b_k = nr;
    } else {
      block.b = b;
      block.b_k = g.ldb;
      const int64_t rest = block.cols % kernels.lanes;
      if (rest > 0) {
        kernels.pack_b(b + block.cols - rest, g.ldb, false, block.kc, rest, space.tail());
        block.b_tail = space.tail();
      }
    }
    const int64_t group = plan.pack_a ? kAPanels * mr : i1 - i0;
    for (int64_t i = i0; i < i1; i += group) {
      block.rows = std::min(group, i1 - i);
      const float* a = g.trans_a ? g.a + k0 * g.lda + i : g.a + i * g.lda + k0;
      if (plan.pack_a) {
        block.a = space.a();
        block.a_panel = mr * kPanelRow;
        block.a_row = g.trans_a ? 1 : kPanelRow;
        block.a_k = g.trans_a ? mr : 1;
        kernels.pack_a(a, g.lda, g.trans_a, block.kc, block.rows, block.a_panel, block.a_row,
                       space.a());
      } else {
        block.a = a;
        block.a_row = g.trans_a ? 1 : g.lda;
        block.a_k = g.trans_a ? g.lda : 1;
        block.a_panel = mr * block.a_row;
      }
      block.c = g.c + i * g.ldc + j0;
      kernels.multiply(block);
    }
  }
}

/// k = 0: C = beta * C + bias.
void finish_without_terms(const GemmArgs& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      float& c = g.c[i * g.ldc + j];
      c = (g.bias != nullptr ? g.bias[j] : 0.0f) + (g.beta != 0.0f ? c : 0.0f);
    }
  }
}

void check(const GemmArgs& g, int64_t batch) {
  BRRR_CHECK(g.m >= 0 && g.n >= 0 && g.k >= 0 && batch >= 0, "gemm_f32: batch {} m {} n {} k {}",
             batch, g.m, g.n, g.k);
  BRRR_CHECK(g.beta == 0.0f || g.beta == 1.0f, "gemm_f32: beta must be 0 or 1, got {}", g.beta);
  BRRR_CHECK(g.lda >= (g.trans_a ? g.m : g.k), "gemm_f32: lda {} is shorter than a row", g.lda);
  BRRR_CHECK(g.ldb >= (g.trans_b ? g.k : g.n), "gemm_f32: ldb {} is shorter than a row", g.ldb);
  BRRR_CHECK(g.ldc >= g.n, "gemm_f32: ldc {} is shorter than a row of {}", g.ldc, g.n);
}

}  // namespace

int64_t gemm_workspace_bytes() { return thread_count() * static_cast<int64_t>(kWorkspaceBytes); }

void gemm_f32(const GemmArgs& args) { gemm_f32_batched(args, 1, 0, 0, 0); }

void gemm_f32_batched(const GemmArgs& args, int64_t batch, int64_t stride_a, int64_t stride_b,
                      int64_t stride_c) {
  check(args, batch);
  if (args.m == 0 || args.n == 0 || batch == 0) return;
  const auto product = [&](int64_t i) {
    GemmArgs g = args;
    g.a += i * stride_a;
    g.b += i * stride_b;
    g.c += i * stride_c;
    return g;
  };
  if (args.k == 0) {
    for (int64_t i = 0; i < batch; ++i) finish_without_terms(product(i));
    return;
  }
  [[maybe_unused]] static const Isa isa = best_isa();  // applies BRRR_ISA before the first dispatch
  const GemmKernels& kernels = gemm_kernels();

  // Starting the team costs about as much as this many multiply-adds.
  constexpr double kSerial = 1 << 17;
  const double work = static_cast<double>(batch) * static_cast<double>(args.m) *
                      static_cast<double>(args.n) * static_cast<double>(args.k);
  const int64_t threads = work < kSerial || omp_in_parallel() ? 1 : thread_count();
  const Plan plan = choose_plan(args, batch, threads, kernels);
  const int64_t per_product = plan.row_blocks * plan.col_blocks;
  const int64_t tasks = batch * per_product;
  // Neighbouring tasks share the longer operand's block, which is then still in a cache.
  const bool rows_first = args.n >= args.m;
  const auto run = [&](int64_t task) {
    const int64_t part = task % per_product;
    const int64_t row = rows_first ? part % plan.row_blocks : part / plan.col_blocks;
    const int64_t col = rows_first ? part / plan.row_blocks : part % plan.col_blocks;
    run_task(product(task / per_product), plan, kernels, row * plan.rows,
             std::min(args.m, (row + 1) * plan.rows), col * plan.cols,
             std::min(args.n, (col + 1) * plan.cols));
  };
  const int team = static_cast<int>(std::min(threads, tasks));
  if (team <= 1) {
    for (int64_t task = 0; task < tasks; ++task) run(task);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(team)
  {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) run(task);
  }
}

}  // namespace brrr::cpu
