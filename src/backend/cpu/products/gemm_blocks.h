#pragma once
// What the paths of gemm() share: operands of product i of a batch, packing memory, and how a
// finished block of f32 sums leaves for C.

#include <cstdint>

#include "backend/cpu/products/gemm.h"
#include "base/integers.h"

namespace brrr::cpu {

/// `elements` elements of `dtype` further.
inline const void* offset(const void* p, DType dtype, int64_t elements) {
  return static_cast<const char*>(p) + elements * static_cast<int64_t>(bytes_of(dtype));
}
inline void* offset(void* p, DType dtype, int64_t elements) {
  return static_cast<char*>(p) + elements * static_cast<int64_t>(bytes_of(dtype));
}

/// `batch` products and the distances between their operands, in elements, or where each begins.
struct GemmBatch {
  GemmArgs args;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  GemmStarts starts = {};

  GemmArgs product(int64_t i) const;
};

/// Of a processor; 1 MiB where the system does not say.
int64_t l2_cache_bytes();
/// Rows so many bytes apart, or a multiple of it, fall into the same few sets of an L1 cache.
inline constexpr int64_t kSetsRepeat = 4096;

/// Returns how many of the n columns a task of a few rows takes, a multiple of `unit`: at least
/// about kStreamedBytes of the right operand, whose columns have `column_bytes` each, and such that
/// `threads` threads that take one task after another end together.
int64_t streamed_columns(int64_t n, int64_t unit, int64_t column_bytes, int64_t threads);
inline constexpr int64_t kStreamedBytes = int64_t{1} << 19;

/// Memory on huge pages where the system has them, never given back.
class PackBuffer {
 public:
  explicit PackBuffer(int64_t bytes);
  ~PackBuffer();
  PackBuffer(const PackBuffer&) = delete;
  PackBuffer& operator=(const PackBuffer&) = delete;
  float* data() const { return static_cast<float*>(memory_); }

  static int64_t rounded(int64_t bytes);

 private:
  void* memory_;
};

/// Whether sums must be kept in f32 memory other than C until they are complete.
inline bool needs_sums(const GemmArgs& g) { return g.c == nullptr || g.c_dtype != DType::f32; }
/// Whether something is left to do when they are.
inline bool needs_finish(const GemmArgs& g) { return needs_sums(g) || g.epilogue.run != nullptr; }

/// Complete values [i0, i0 + rows) x [j0, j0 + cols) of product `index`: runs the epilogue, then
/// stores C unless the values lie there already. With past_caches, whole lines go to memory
/// directly (where C is aligned): the caller ends with a store fence.
void finish_block(const GemmArgs& g, int64_t index, int64_t i0, int64_t j0, int64_t rows,
                  int64_t cols, float* values, int64_t ld, bool past_caches = false);

/// The paths. Sizes are checked and not 0.
void gemm_vector(const GemmBatch& batch);
/// bf16 or int8 operands. Only where best_isa() is kAmx; the emulation runs everywhere, for tests.
void gemm_amx(const GemmBatch& batch);
void gemm_amx_emulated(const GemmBatch& batch);
/// bf16, only where there is VDPBF16PS.
void gemm_pairs(const GemmBatch& batch);
void gemm_pairs_emulated(const GemmBatch& batch);
/// int8, only where there is VPDPBUSD of 512 bits; and everywhere.
void gemm_vnni(const GemmBatch& batch);
void gemm_vnni_emulated(const GemmBatch& batch);
void gemm_int8(const GemmBatch& batch);

int64_t gemm_vector_workspace_bytes(const GemmPanels& panels);
GemmPanels gemm_vector_panels(const GemmArgs& args, int64_t batch);
/// strips: by a path that multiplies strips (register_tiles.h).
GemmTiles gemm_tiles_packing(const GemmArgs& args, int64_t batch, bool strips);
int64_t gemm_tiles_workspace_bytes(const GemmTiles& tiles);

}  // namespace brrr::cpu
