#pragma once
// 3 x 3 convolutions of f32 pictures with channels last by Winograd's algorithm
// (ops/spatial/winograd.h), whose weights the pass `winograd` has transformed and put in panels.
//
// The tiles of all pictures are numbered one after the other. A block of tiles is transformed into
// a buffer that stays in the L2 cache: S S matrices [tiles of the block, C]. Each is multiplied by
// its matrix of weights, a panel of 32 output channels at a time, and the products are transformed
// back into results, to which bias, residual and relu are applied in registers. Few blocks are
// transformed for all threads together, which then share the panels.
//
// Sums are in f32: for each of the S S places, products are added channel after channel within
// blocks of gemm_terms_of_block(), the block sums in order. The bits of a result depend neither on
// the number of threads nor on the other tiles and pictures.

#include <cstdint>
#include <string>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/spatial/channels_last_conv.h"
#include "backend/cpu/spatial/conv_sizes.h"

namespace brrr::cpu {

class WinogradConv {
 public:
  explicit WinogradConv(const NodeView& v);
  int64_t scratch_bytes() const;
  /// in: x, w and the bias if there is one; y: the result. An epilogue is called for each finished
  /// block of the result as a matrix [n out..., m]; y is then null.
  void run(const void* const* in, void* y, std::byte* scratch, GemmEpilogue epilogue = {}) const;
  void run(const void* const* in, void* y, std::byte* scratch, const ConvFinish& finish) const;

  /// The reason for which a node is refused, or "".
  static std::string refusal(const NodeView& v);

 private:
  struct Memory;
  struct Block {
    int64_t first = 0, tiles = 0;
  };
  struct Place {
    int64_t image = 0, top = 0, left = 0;  // of a tile's first result
  };

  void run(Memory memory, const void* const* in) const;
  Block block(int64_t index) const;
  Place place_of(int64_t tile) const;
  /// Transforms tiles [begin, end) of a block.
  void transform(const Memory& memory, const Block& block, int64_t begin, int64_t end,
                 float* patches) const;
  void multiply(const Memory& memory, const Block& block, const float* patches, int64_t panel,
                float* products) const;
  void write_results(const Memory& memory, const Block& block, int64_t panel, const float* products,
                     float* sums) const;
  void write_to_epilogue(const Memory& memory, const Block& block, int64_t panel,
                         const float* products, float* sums) const;

  int64_t n_ = 0, c_ = 0, m_ = 0, tile_ = 0, size_ = 0;
  int64_t high_in_ = 0, wide_in_ = 0, high_ = 0, wide_ = 0;  // of pictures and of results
  int64_t before_[2] = {0, 0};
  ConvBias bias_;
  int64_t workers_ = 1;
  int64_t tiles_high_ = 0, tiles_wide_ = 0;
  int64_t block_tiles_ = 1, blocks_ = 1, splits_ = 1;
  int64_t panels_ = 1;
  // Floats from a tile's patches to the next tile's, and from place to place.
  int64_t pitch_ = 0, patch_place_ = 0, product_place_ = 0;
  int64_t patch_bytes_ = 0, product_bytes_ = 0, sums_bytes_ = 0, zero_bytes_ = 0;
};

/// winograd_weight of f32.
KernelEntry winograd_weight_kernel();

}  // namespace brrr::cpu
