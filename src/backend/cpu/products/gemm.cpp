#include "backend/cpu/products/gemm.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "backend/cpu/isa.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "base/errors.h"
#include "base/panels.h"
#include "base/threads/thread_team.h"

namespace brrr::cpu {
namespace {

bool is_gemm_operand(DType t) { return is_compute_float(t) || t == DType::i8; }
bool is_result(DType t, DType operands) {
  if (operands == DType::i8) return t == DType::i32;
  return is_compute_float(t);
}

void check(const GemmArgs& g, int64_t batch) {
  BRRR_CHECK(g.m >= 0 && g.n >= 0 && g.k >= 0 && batch >= 0, "gemm: batch {} m {} n {} k {}", batch,
             g.m, g.n, g.k);
  BRRR_CHECK(is_gemm_operand(g.dtype) && is_result(g.c_dtype, g.dtype), "gemm: dtypes {} and {}",
             name_of(g.dtype), name_of(g.c_dtype));
  BRRR_CHECK(g.dtype != DType::i8 || (g.alpha == 1.0f && g.beta == 0.0f && g.bias == nullptr &&
                                      g.epilogue.run == nullptr),
             "gemm: products of int8 are stored as they are");
  BRRR_CHECK(g.beta == 0.0f || (g.beta == 1.0f && !needs_sums(g)),
             "gemm: beta must be 0, or 1 with C of f32; got {}", g.beta);
  BRRR_CHECK(g.c != nullptr || g.epilogue.run != nullptr || g.m * g.n * batch == 0,
             "gemm: neither C nor an epilogue");
  BRRR_CHECK(g.lda >= (g.trans_a ? g.m : g.k), "gemm: lda {} is shorter than a row", g.lda);
  BRRR_CHECK(g.ldb >= (g.trans_b ? g.k : g.n), "gemm: ldb {} is shorter than a row", g.ldb);
  BRRR_CHECK(!g.a_ends_in_zeros || (!g.trans_a && g.lda >= round_up(g.k, 32)),
             "gemm: no room for zeros behind {} terms of rows {} apart", g.k, g.lda);
  BRRR_CHECK(!g.panels || ((g.integers != nullptr || g.dtype == DType::f32 ||
                            (g.dtype == DType::bf16 && g.k % kPanelTerms == 0)) &&
                           !g.trans_b && batch == 1),
             "gemm: panels of {} x {} {}", g.k, g.n, name_of(g.dtype));
  BRRR_CHECK(
      g.sums.partials == nullptr ||
          (g.dtype == DType::bf16 && batch == 1 && g.k > 0 && !g.panels && g.sums.terms > 0 &&
           g.sums.terms % 8 == 0 && (g.sums.of_a ? g.trans_a : !g.trans_b)),
      "gemm: sums over the terms of an operand that is not packed by terms");
  BRRR_CHECK(g.ldc >= g.n || g.c == nullptr, "gemm: ldc {} is shorter than a row of {}", g.ldc,
             g.n);
}

GemmPath best_path(DType dtype) {
  for (const GemmPath path : {GemmPath::kAmx, GemmPath::kPairs, GemmPath::kVnni}) {
    if (gemm_refusal(path, dtype).empty()) return path;
  }
  return GemmPath::kVector;
}

/// k = 0: C = beta * C + bias.
void finish_without_terms(const GemmArgs& g, int64_t index) {
  constexpr int64_t kCols = 256;
  float row[kCols];
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j0 = 0; j0 < g.n; j0 += kCols) {
      const int64_t cols = std::min(kCols, g.n - j0);
      float* values = needs_sums(g) ? row : static_cast<float*>(g.c) + i * g.ldc + j0;
      for (int64_t j = 0; j < cols; ++j) {
        values[j] =
            (g.bias != nullptr ? g.bias[j0 + j] : 0.0f) + (g.beta != 0.0f ? values[j] : 0.0f);
      }
      finish_block(g, index, i, j0, 1, cols, values, kCols);
    }
  }
}

}  // namespace

GemmArgs GemmBatch::product(int64_t i) const {
  GemmArgs g = args;
  g.a = offset(g.a, g.dtype, starts.a != nullptr ? starts.a[i] : i * stride_a);
  g.b = offset(g.b, g.dtype, starts.b != nullptr ? starts.b[i] : i * stride_b);
  if (g.c != nullptr) g.c = offset(g.c, g.c_dtype, i * stride_c);
  return g;
}

namespace {
constexpr int64_t kHugePage = int64_t{1} << 21;
}
int64_t l2_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return int64_t{1} << 20;
}

int64_t streamed_columns(int64_t n, int64_t unit, int64_t column_bytes, int64_t threads) {
  const int64_t units = ceil_div(n, unit), unit_bytes = std::max<int64_t>(1, unit * column_bytes);
  const int64_t least = std::clamp<int64_t>(kStreamedBytes / unit_bytes, 1, units);
  // The number of units that the thread with the most tasks reads.
  const auto units_of_thread = [&](int64_t of_task) {
    return ceil_div(ceil_div(units, of_task), threads) * of_task;
  };
  int64_t best = least;
  for (int64_t tasks = ceil_div(units, least); tasks > 1; --tasks) {
    const int64_t of_task = ceil_div(units, tasks);
    if (units_of_thread(of_task) < units_of_thread(best)) best = of_task;
  }
  return best * unit;
}

int64_t PackBuffer::rounded(int64_t bytes) { return round_up(bytes, kHugePage); }
PackBuffer::PackBuffer(int64_t bytes)
    : memory_(std::aligned_alloc(kHugePage, static_cast<size_t>(rounded(bytes)))) {
  if (memory_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // A hint: failure costs only speed.
  madvise(memory_, static_cast<size_t>(rounded(bytes)), MADV_HUGEPAGE);
#endif
}
PackBuffer::~PackBuffer() { std::free(memory_); }

void finish_block(const GemmArgs& g, int64_t index, int64_t i0, int64_t j0, int64_t rows,
                  int64_t cols, float* values, int64_t ld, bool past_caches) {
  if (g.epilogue.run != nullptr) {
    g.epilogue.run(g.epilogue.context, index * g.m + i0, j0, rows, cols, values, ld);
  }
  if (g.c == nullptr) return;
  void* c = offset(g.c, g.c_dtype, i0 * g.ldc + j0);
  if (c == values) return;
  // Sums of int8 products are 32 bits, to be copied as they are.
  const DType as = g.c_dtype == DType::i32 ? DType::f32 : g.c_dtype;
  gemm_packing().store(values, ld, rows, cols, as, c, g.ldc, past_caches);
}

std::string gemm_refusal(GemmPath path, DType dtype) {
  if (!is_gemm_operand(dtype))
    return fmt::format("operands of {}: only f32, bf16, f16, i8", name_of(dtype));
  const bool bf16 = dtype == DType::bf16, int8 = dtype == DType::i8;
  switch (path) {
    case GemmPath::kBest:
    case GemmPath::kVector:
      return "";
    case GemmPath::kAmx:
      if (!bf16 && !int8) return fmt::format("operands of {}: only bf16 and i8", name_of(dtype));
      break;
    case GemmPath::kPairs:
      if (!bf16) return fmt::format("operands of {}: only bf16", name_of(dtype));
      break;
    case GemmPath::kVnni:
      if (!int8) return fmt::format("operands of {}: only i8", name_of(dtype));
      break;
  }
  const Isa needed = path == GemmPath::kAmx ? Isa::kAmx : Isa::kAvx512;
  if (machine_isa() < needed) return fmt::format("this machine has no {}", isa_name(needed));
  if (path == GemmPath::kPairs && !has_fast_bf16_pairs())
    return "this machine has no avx512_bf16 of full rate";
  if (path == GemmPath::kVnni && !has_vnni()) return "this machine has no avx512_vnni";
  if (current_isa() < needed) return fmt::format("limited to {}", isa_name(current_isa()));
  return "";
}

void gemm(const GemmArgs& args, GemmPath path) { gemm_batched(args, 1, 0, 0, 0, path); }

void gemm_batched(const GemmArgs& args, int64_t batch, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, GemmPath path, const GemmStarts& starts) {
  check(args, batch);
  if (args.m == 0 || args.n == 0 || batch == 0) return;
  [[maybe_unused]] static const Isa isa = best_isa();  // applies BRRR_ISA before the first dispatch
  const GemmBatch all{args, batch, stride_a, stride_b, stride_c, starts};
  if (args.k == 0) {
    for (int64_t i = 0; i < batch; ++i) finish_without_terms(all.product(i), i);
    return;
  }
  if (path == GemmPath::kBest) path = best_path(args.dtype);
  BRRR_CHECK(args.integers == nullptr || path == GemmPath::kVector,
             "gemm: integers are unpacked by the vector path alone");
  const std::string refusal = gemm_refusal(path, args.dtype);
  BRRR_CHECK(refusal.empty(), "gemm: {}", refusal);
  BRRR_CHECK(args.sums.partials == nullptr || path == GemmPath::kAmx || path == GemmPath::kPairs,
             "gemm: operands that are not packed into tiles are not summed");
  if (path == GemmPath::kAmx) return gemm_amx(all);
  if (path == GemmPath::kPairs) return gemm_pairs(all);
  if (path == GemmPath::kVnni) return gemm_vnni(all);
  if (args.dtype == DType::i8) return gemm_int8(all);
  gemm_vector(all);
}

int64_t gemm_workspace_bytes() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return gemm_workspace_bytes({gemm_threads(), kMost}, {gemm_threads(), kMost, kMost, kMost});
}

int64_t gemm_workspace_bytes(const GemmPanels& panels, const GemmTiles& tiles) {
  return gemm_vector_workspace_bytes(panels) + gemm_tiles_workspace_bytes(tiles);
}

int64_t gemm_threads() {
  constexpr int kAnywhere = 4;
  return std::min(thread_count(), std::max(usable_processors(), kAnywhere));
}

void GemmPanels::operator+=(const GemmPanels& other) {
  threads = std::max(threads, other.threads);
  left = std::max(left, other.left);
}

void GemmTiles::operator+=(const GemmTiles& other) {
  threads = std::max(threads, other.threads);
  left = std::max(left, other.left);
  right = std::max(right, other.right);
  sums = std::max(sums, other.sums);
}

GemmTiles gemm_tiles(const GemmArgs& args, int64_t batch) {
  [[maybe_unused]] static const Isa isa = best_isa();  // applies BRRR_ISA before the first dispatch
  if (args.m == 0 || args.n == 0 || args.k == 0 || batch == 0) return {};
  if (!gemm_packs_tiles(args.dtype)) return {};
  const GemmPath path = best_path(args.dtype);
  return gemm_tiles_packing(args, batch, path == GemmPath::kPairs || path == GemmPath::kVnni);
}

bool gemm_packs_tiles(DType dtype) {
  return dtype == DType::i8 || (dtype == DType::bf16 && best_path(dtype) != GemmPath::kVector);
}

GemmPanels gemm_panels(const GemmArgs& args, int64_t batch) {
  [[maybe_unused]] static const Isa isa = best_isa();  // applies BRRR_ISA before the first dispatch
  if (args.m == 0 || args.n == 0 || args.k == 0 || batch == 0) return {};
  return gemm_vector_panels(args, batch);
}

}  // namespace brrr::cpu
