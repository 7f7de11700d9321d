#pragma once
// What the kernels of this build reach on this machine, measured: products over a grid of sizes,
// attention by length and width, element-wise and row-wise ops per element, memory by level.
// Predictions use these rates and not the peak of the registers, which no product of a model
// reaches: packing, small operands and the caches take their part, and more so where the units for
// 16 bits are fast.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace brrr::machine {

/// Rates of products y[m, n] = op(a) op(b) of one dtype and one way of reading the operands, over
/// kProductRows x kProductColumns x kProductTerms.
struct ProductSpeed {
  DType dtype = DType::f32;
  bool transpose_a = false, transpose_b = false;
  bool packed = false;        // b lies in panels (base/panels.h); i8: a is quantised by rows
  std::vector<double> flops;  // per second
  bool operator==(const ProductSpeed&) const = default;
};
inline constexpr int64_t kProductRows[] = {1, 16, 128, 768};
inline constexpr int64_t kProductColumns[] = {64, 768};
inline constexpr int64_t kProductTerms[] = {64, 768};

/// Rates of causal attention of one dtype, over kAttentionLengths x kAttentionWidths.
struct AttentionSpeed {
  DType dtype = DType::f32;
  bool gradient = false;
  std::vector<double> flops;  // per second, of what is visible
  double dropout = 1;         // the factor of time with dropout
  bool operator==(const AttentionSpeed&) const = default;
};
inline constexpr int64_t kAttentionLengths[] = {64, 512};
inline constexpr int64_t kAttentionWidths[] = {16, 64};

struct KernelSpeed {
  std::vector<ProductSpeed> products;
  std::vector<AttentionSpeed> attention;
  /// Seconds of an element of f32 by the name of the op, operands in the second-level caches.
  std::map<std::string, double> elements;
  double chained = 0;  // seconds of an addition or multiplication inside a fused kernel
  /// Bytes read and written per second by a simple kernel whose tensors lie in the second-level
  /// caches, in the third, in memory.
  double l2 = 0, l3 = 0, memory = 0;
  int64_t l2_bytes = 0, l3_bytes = 0;  // what the caches hold, all threads together
  double node_seconds = 0;             // to start a kernel
  double team_seconds = 0;             // to start the thread team
  double head = 1;                     // the time of a loss head over that of its three products

  bool operator==(const KernelSpeed&) const = default;
  /// Null where nothing was measured for the dtype.
  const ProductSpeed* find_product(DType dtype, bool ta, bool tb, bool packed) const;
  const AttentionSpeed* find_attention(DType dtype, bool gradient) const;
};

/// Runs small graphs through the CPU backend; a second or two. The largest tensors take
/// `memory_bytes` together.
KernelSpeed measure_kernels(int64_t memory_bytes);

/// As JSON, for the cache.
std::string to_json(const KernelSpeed& speed);
/// Throws an exception where the text is no such thing.
KernelSpeed kernel_speed_from_json(std::string_view text);

/// FLOP/s of a product of that size. Between the sizes that were measured the time of an operation
/// is linear in 1 / size, as it is where packing (1 / rows), stores (1 / terms) and the start of a
/// kernel add to the arithmetic; beyond them it is that of the nearest.
double product_flops(const ProductSpeed& speed, int64_t m, int64_t n, int64_t k);
double attention_flops(const AttentionSpeed& speed, int64_t length, int64_t width);

/// The dtype in which a contraction multiplies: i8 where the rows of its left operand are quantised
/// as it reads them, else the dtype of that operand.
DType factor_dtype(const Graph& graph, NodeId id);

/// Seconds of one node.
double kernel_seconds(const Graph& graph, NodeId id, const KernelSpeed& speed);

}  // namespace brrr::machine
