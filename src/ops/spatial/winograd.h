#pragma once
// Winograd's minimal filtering F(T x T, 3 x 3) (Lavin and Gray, "Fast algorithms for convolutional
// neural networks", 2015, equation 12): a tile of T x T neighbouring results of a 3 x 3 convolution
// with strides of 1 is
//   A' [sum over c of (G w_c G') * (B' d_c B)] A,
// where ' transposes, * multiplies element by element, and d_c is the S x S patch of channel c that
// the tile reads, S = T + 2. It takes S^2 products where the plain sum takes 9 T^2: 2.25 times
// fewer for T = 2, 4 times fewer for T = 4.
//
// The matrices evaluate polynomials at S - 1 points and at infinity (Toom and Cook). The points of
// T = 4 are 0, +-11/16 and +-3/2: of the symmetric pairs of multiples of 1/16 up to 2, they have
// the smallest mean error in f32, about twice that of the plain sum (0, +-1, +-2 have three times
// it and four times its largest). tests/backend/winograd_conv_test.cpp measures it.

#include <cstdint>
#include <vector>

#include "ir/ref_tensor.h"
#include "ops/spatial/windows.h"

namespace brrr::ops {

/// The positive points other than 0; the negative ones mirror them.
inline constexpr double kWinogradNear = 0.6875, kWinogradFar = 1.5;

/// Patch sizes S of tiles T.
constexpr int64_t winograd_size(int64_t tile) { return tile + 2; }
constexpr bool is_winograd_tile(int64_t tile) { return tile == 2 || tile == 4; }

/// The matrices for a tile, row-major.
struct WinogradMatrices {
  std::vector<double> input;   // B': [S, S]
  std::vector<double> weight;  // G: [S, 3]
  std::vector<double> output;  // A': [T, S]
};
WinogradMatrices winograd_matrices(int64_t tile);

/// to [S, S] = G w G', w: [3, 3], by a matrix G.
template <typename T>
void transform_winograd_kernel(const std::vector<double>& g, const T* w, double* to) {
  const size_t size = g.size() / 3;
  for (size_t i = 0; i < size; ++i) {
    double row[3];  // of G w
    for (size_t b = 0; b < 3; ++b)
      row[b] = g[i * 3] * w[b] + g[i * 3 + 1] * w[3 + b] + g[i * 3 + 2] * w[6 + b];
    for (size_t j = 0; j < size; ++j)
      to[i * size + j] = row[0] * g[j * 3] + row[1] * g[j * 3 + 1] + row[2] * g[j * 3 + 2];
  }
}

/// winograd_weight.
OpDef winograd_weight_op();

/// Tiles along an axis of so many results.
constexpr int64_t winograd_tiles(int64_t results, int64_t tile) {
  return (results + tile - 1) / tile;
}

/// Adds the convolution of x by w [M, S S C] to y, both with channels last, in double.
void add_winograd(const WindowGrid& grid, int64_t tile, const RefTensor& x, const RefTensor& w,
                  RefTensor& y);

}  // namespace brrr::ops
