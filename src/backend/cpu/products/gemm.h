#pragma once
// Matrix multiplication, row-major: C = epilogue(alpha * op(A) op(B) + beta * C + bias). A and B
// are f32, bf16 or f16, sums are f32, C is f32, bf16 or f16 or left to the epilogue. Or A and B are
// int8 and C is int32, exact modulo 2^32, with neither alpha, beta, bias nor epilogue.
//
// Promises of every path (GemmPath):
// - An element of C is computed by the same operations in the same order whatever the number of
//   threads and whatever m and n are: its bits depend on its row of op(A), its column of op(B), k,
//   alpha, beta, the bias, the dtypes, the path and (vector path) the instruction set alone. So one
//   row computed by itself (a decode step) equals the same row computed in a batch.
// - kVector: operands are widened to f32 exactly; sums are sequential over blocks of at most
//   kGemmBlockK terms, the block sums then added in order.
// - kAmx: the sum grows by 32 terms at a time, each group summed as TDPBF16PS does it (even and odd
//   terms apart; denormals count as zero).
// - kPairs: the sum grows by two terms at a time, as VDPBF16PS does it (denormals count as zero).
// - A 16-bit C is rounded once, from the f32 value after alpha, bias and epilogue.
// - No allocation after a thread's first call; gemm_workspace_bytes() bounds what is kept.
// - Any size (0 included), any leading dimension that is at least the row length. C must not
//   overlap A, B or the bias. With beta = 0, C is not read.
// - Callable from any thread; inside a piece of the team's work it runs on the calling thread
// alone.

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/integer_panels.h"

namespace brrr::cpu {

/// What to do with every finished block of C while it is in the cache: elements [row, row + rows) x
/// [column, column + columns), after bias and beta, as f32 in `block` with rows `ld` apart. Called
/// exactly once for each element of C, from several threads at once for different blocks. It may
/// overwrite the block (which is then stored as C, if C is stored) or store elsewhere, around the
/// caches too: a store fence follows. In a batch, row i of product p is row p * m + i.
struct GemmEpilogue {
  void (*run)(const void* context, int64_t row, int64_t column, int64_t rows, int64_t columns,
              float* block, int64_t ld) = nullptr;
  const void* context = nullptr;
};

/// Sums over k of the columns of B, or of the rows of op(A), made while the operand is packed: of
/// each chunk of `terms` terms (a multiple of eight), in the order of reduction_rows(). For bf16 by
/// kAmx and kPairs, one product, an operand whose lanes lie side by side (B, or A with trans_a).
struct GemmTermSums {
  float* partials = nullptr;  // [chunks of k, n or m], rows `ld` apart; null: none
  int64_t ld = 0, terms = 0;
  bool of_a = false;
};

struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;  // of A and B: f32, bf16, f16, i8
  const void* a = nullptr;   // [m, k], or [k, m] when trans_a
  int64_t lda = 0;           // leading dimensions count elements
  bool trans_a = false;
  bool a_ends_in_zeros = false;  // the rows of a go on with zeros up to a multiple of 32 terms
  const void* b = nullptr;       // [k, n], or [n, k] when trans_b
  int64_t ldb = 0;
  bool trans_b = false;
  // b lies in panels (base/panels.h): bf16 and k a multiple of 32, or f32; not in a batch.
  bool panels = false;
  // Set if b lies in panels of integers of this form, which are unpacked to f32. Requires kVector
  // and `panels`; A may have any float dtype. The form must outlive the call.
  const IntegerPanels* integers = nullptr;
  DType c_dtype = DType::f32;  // f32, bf16, f16; of i8 operands i32
  void* c = nullptr;           // [m, n]; null: not stored, the epilogue has it all
  int64_t ldc = 0;
  float alpha = 1.0f;
  float beta = 0.0f;            // 0 or 1; 1 only for an f32 C
  const float* bias = nullptr;  // [n], added to every row, or null
  GemmEpilogue epilogue = {};
  GemmTermSums sums = {};
};

inline constexpr int64_t kGemmBlockK = 768;
/// Returns the number of terms in each block of a sum over k terms, as kVector divides it.
int64_t gemm_terms_of_block(int64_t k);

/// kBest: the last of these that the machine and current_isa() have for the dtype. kVector: any
/// dtype, any machine; kPairs: bf16 by VDPBF16PS; kVnni: int8 by VPDPBUSD; kAmx: bf16 and int8.
enum class GemmPath { kBest, kVector, kPairs, kVnni, kAmx };

/// Why the path cannot multiply operands of the dtype on this machine; empty: it can.
std::string gemm_refusal(GemmPath path, DType dtype);

void gemm(const GemmArgs& args, GemmPath path = GemmPath::kBest);

/// Where the operands of each product of a batch begin, in elements; null: the stride says it.
struct GemmStarts {
  const int64_t *a = nullptr, *b = nullptr;  // [batch]
};

/// `batch` products; the operands of product i start i * stride elements further (a stride of 0
/// shares A or B among all of them; the bias is always shared), or where `starts` says.
void gemm_batched(const GemmArgs& args, int64_t batch, int64_t stride_a, int64_t stride_b,
                  int64_t stride_c, GemmPath path = GemmPath::kBest, const GemmStarts& starts = {});

/// Upper bound of the packing memory that the current number of threads keeps.
int64_t gemm_workspace_bytes();

/// What products of kVector keep: memory of so many threads, and bytes of A that the team shares.
struct GemmPanels {
  int64_t threads = 0, left = 0;
  void operator+=(const GemmPanels& other);  // the larger of each: they share the memory
};
/// What an f32 product keeps here.
GemmPanels gemm_panels(const GemmArgs& args, int64_t batch);
/// What products of tiles keep: memory of so many threads, and bytes that the team shares.
struct GemmTiles {
  int64_t threads = 0;
  int64_t left = 0, right = 0, sums = 0;
  void operator+=(const GemmTiles& other);  // the larger of each: they share the memory
};
/// What a product packs that goes by way of tiles here; nothing when it does not.
GemmTiles gemm_tiles(const GemmArgs& args, int64_t batch);
/// What becomes resident when no product keeps more than these.
int64_t gemm_workspace_bytes(const GemmPanels& panels, const GemmTiles& tiles);
/// Whether products of the dtype go by way of tiles here.
bool gemm_packs_tiles(DType dtype);
/// The most threads that products use. Each keeps megabytes, and threads beyond the processors only
/// wait for each other; a few more than those let results be compared between team sizes anywhere.
int64_t gemm_threads();

}  // namespace brrr::cpu
