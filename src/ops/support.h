#pragma once
// What the op files share: checks that read like sentences, broadcasting, and index loops for the
// naive reference.

#include <cmath>
#include <functional>
#include <numeric>

#include "ir/op_def.h"
#include "ops/ops.h"

namespace brrr::ops {

/// Throws "[op] takes N operands; got M".
void expect_operands(const InferContext& c, size_t count);
/// Throws unless operand i has a floating dtype.
void expect_float(const InferContext& c, size_t i, const char* what);
void expect_integer(const InferContext& c, size_t i, const char* what);
/// Throws unless the attribute "stream" fits the 32 bits of the generator's counter.
void expect_stream(const InferContext& c);
/// The graph of a region attribute; throws unless the attribute is one and closed.
const Graph& region_of(const InferContext& c, std::string_view name);
void expect_same_dtype(const InferContext& c, size_t i, size_t j);
/// The NumPy broadcast of two shapes; fails naming both.
Shape broadcast(const InferContext& c, const Shape& a, const Shape& b);
/// Accumulation dtype of a composite over floating `t`: f64 for f64, otherwise f32.
inline DType work_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
/// Axis in [0, rank), negative counted from the end.
int64_t normal_axis(int64_t axis, int rank);

/// For every element of `shape`, in row-major order: body(flat index, multi-index).
void for_each_index(const Shape& shape,
                    const std::function<void(int64_t, const std::vector<int64_t>&)>& body);
/// The flat index into `from` of the broadcast multi-index `index` of a larger shape.
int64_t broadcast_index(const Shape& from, const std::vector<int64_t>& index);

/// The shape without its last axis.
Shape leading(const Shape& x);
/// [...] -> [..., 1]
Value column(Value v);
/// [..., R, C] -> [... R, C]
Value rows_of(Value x);

/// A sample operand, f32 unless said otherwise.
Sample::Operand tensor(Shape shape, double low = -1, double high = 1, DType dtype = DType::f32);
/// A right operand [k, n], or [n, k] where `transposed`, in the panels that products read.
Sample::Operand stored_right(int64_t k, int64_t n, bool transposed, DType dtype);

/// Reads of every operand and writes of every result once, and `flops`.
Cost streaming_cost(const Node& node, std::span<const Type> in, double flops);
inline double elements(const Type& t) { return static_cast<double>(t.shape.elements()); }
/// The elements of all of them together.
inline double elements(std::span<const Type> types) {
  double count = 0;
  for (const Type& t : types) count += elements(t);
  return count;
}

/// The groups of ops; all_ops.cpp joins them.
std::vector<OpDef> leaf_ops();
std::vector<OpDef> elementwise_ops();
std::vector<OpDef> gelu_ops();
std::vector<OpDef> silu_ops();
std::vector<OpDef> dropout_ops();
std::vector<OpDef> matmul_ops();
std::vector<OpDef> attention_ops();
std::vector<OpDef> reduction_ops();
std::vector<OpDef> softmax_ops();
std::vector<OpDef> layer_norm_ops();  // rms_norm, too
std::vector<OpDef> batch_norm_ops();
std::vector<OpDef> rotary_ops();
std::vector<OpDef> cross_entropy_ops();
std::vector<OpDef> linear_cross_entropy_ops();
std::vector<OpDef> movement_ops();
std::vector<OpDef> gather_ops();  // gather_elements and scatter, too
std::vector<OpDef> segment_ops();
std::vector<OpDef> sorting_ops();  // sort, argmax, cumsum, cumprod
std::vector<OpDef> conv_ops();     // conv_transpose, conv_weight_grad, too
std::vector<OpDef> pool_ops();     // max_pool, sum_pool
std::vector<OpDef> store_ops();
std::vector<OpDef> embedding_ops();
std::vector<OpDef> optimizer_ops();
std::vector<OpDef> optimizer_8bit_ops();
std::vector<OpDef> adafactor_ops();
std::vector<OpDef> muon_ops();
std::vector<OpDef> fp8_ops();
std::vector<OpDef> fake_quantize_ops();
std::vector<OpDef> fused_ops();
std::vector<OpDef> order_ops();
std::vector<OpDef> collective_ops();
std::vector<OpDef> control_ops();  // if, loop

}  // namespace brrr::ops
