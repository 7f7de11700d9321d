#pragma once
// What a model is written with: one function per op, and operators. Each appends to the graph of
// its operands and throws UserError "[op] ..." when shapes or dtypes do not fit. The meaning,
// shapes and numerics of every op stand in its OpDef (docs/ops.md is generated from them).

#include <cmath>
#include <concepts>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"
#include "ops/op.h"

namespace brrr {

/// Every op, in the order of docs/ops.md.
std::span<const OpDef* const> all_ops();
/// By name; nullptr when there is none.
const OpDef* find_op(std::string_view name);
const OpDef& op(Op id);
/// By name; InternalError when there is none.
const OpDef& op(std::string_view name);

/// Appends `op(operands) {attrs}` and returns its results.
std::vector<Value> call(const OpDef& op, std::span<const Value> operands, Attrs attrs = {});
std::vector<Value> call(Op op, std::span<const Value> operands, Attrs attrs = {});
Value call1(Op op, std::initializer_list<Value> operands, Attrs attrs = {});

/// A number as it was written: an integer stays one.
class Number {
 public:
  Number(double value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <std::integral T>
  Number(T value) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_signed_v<T>)
      value_ = static_cast<int64_t>(value);
    else
      value_ = static_cast<uint64_t>(value);
  }
  /// The attribute of a constant of that dtype: an integer of an integer dtype, otherwise a double.
  /// Throws UserError when an integer dtype does not hold the number.
  AttrValue as(DType dtype) const;

 private:
  std::variant<double, int64_t, uint64_t> value_;
};

// Leaves
Value full(Graph& g, Shape shape, Number value, DType dtype = DType::f32);
Value scalar(Graph& g, Number value, DType dtype = DType::f32);
Value iota(Graph& g, Shape shape, int axis, DType dtype = DType::i32);
/// As many values as the shape has elements.
Value literal(Graph& g, Shape shape, const std::vector<Number>& values, DType dtype = DType::f32);
/// The tensor as a `full` node where its elements are alike, else as a literal.
Value constant_in(Graph& g, const RefTensor& t);
/// The number that every element of a `full` node is; the nearest double of an integer.
double full_value(const Node& node);
/// The same as an integer; nothing where it is a double, or beyond an int64_t.
std::optional<int64_t> full_integer(const Node& node);
/// Element i of a `full` or `literal` node, stored at `to` in the node's dtype.
void store_constant(const Node& node, size_t i, void* to);
Value random_bits(Value key, Shape shape, int64_t stream);

// Element-wise, operands broadcast as in NumPy
#define BRRR_OF_ONE(name) Value name(Value x);
#define BRRR_OF_TWO(name) Value name(Value a, Value b);
BRRR_UNARY_OPS(BRRR_OF_ONE)
BRRR_BINARY_OPS(BRRR_OF_TWO)
#undef BRRR_OF_ONE
#undef BRRR_OF_TWO
Value where(Value condition, Value a, Value b);
Value cast(Value x, DType dtype);
Value store(Value x, const Storage& storage);
enum class Gelu { tanh, erf };
Value gelu(Value x, Gelu approximation = Gelu::tanh);
Value silu(Value x);
Value dropout(Value x, Value key, double p, int64_t stream);

// Contractions
Value matmul(Value a, Value b, bool transpose_a = false, bool transpose_b = false,
             std::optional<DType> dtype = std::nullopt);
Value linear(Value x, Value weight, Value bias);
struct Attention {
  Value y, lse;
};
struct AttentionOptions {
  double scale = 1;
  bool causal = false;
  int64_t window = 0;  // keys up to and with its position that a query sees; 0: all
  std::optional<int64_t>
      window_after;  // keys after its position that a query sees; not with causal
  std::optional<Value> position, lengths;  // i32, broadcasting to the batch axes
  std::optional<Value> starts;             // i32 [R + 1], for sources [N, columns] of R sequences
  int64_t longest = 0;                     // upper bound on the rows of a sequence; 0: N
  /// i32 [R, M], the block table of a KV cache: k and v are pools [S, columns], and key i <
  /// lengths[r] of sequence r is row i % block_rows of block blocks[r, i / block_rows]. The queries
  /// of a sequence have its last positions.
  std::optional<Value> blocks;
  int64_t block_rows = 0;
  std::optional<Value> mask;      // broadcasting to the scores
  bool mask_by_distance = false;  // it is [H, 2 L - 1], the bias of key - query + L - 1
  double masked = -INFINITY;      // what a score becomes where a boolean mask is false
  double p = 0;                   // dropout
  std::optional<Value> key;
  int64_t stream = 0;
};
/// q: [..., H, T, D], k: [..., K, S, D], v: [..., K, S, Dv] where K divides H; y: [..., H, T, Dv],
/// lse: [..., H, T]. Without heads q: [T, D], k: [S, D], v: [S, Dv].
Attention attention(Value q, Value k, Value v, const AttentionOptions& options);
/// Where q, k or v lies: in a source, from a column on. Its heads lie side by side in a row of a
/// source [..., rows, columns], or in front of the rows of a source [..., heads, rows, columns].
struct HeadPlace {
  int64_t source = 0, column = 0;
  bool in_rows = false;
  bool operator==(const HeadPlace&) const = default;
};
struct AttentionPlaces {
  int64_t heads = 1, kv_heads = 1, width = 0, value_width = 0;  // H, K, D, Dv
  HeadPlace q, k, v;
  bool y_in_rows = false;  // y: [..., T, H Dv] instead of [..., H, T, Dv]
};
/// The sources in the order in which q, k and v name them first.
Attention attention(std::span<const Value> sources, const AttentionPlaces& places,
                    const AttentionOptions& options);
/// How a node multiplies; nothing: it is no product, or one of 8 bits.
struct ProductForm {
  bool transpose_a = false, transpose_b = false;
  bool has_bias = false;  // operand 2
};
std::optional<ProductForm> product_form(const Node& node);
/// What v is a reshape of, through any number of them; else v.
ValueId behind_reshapes(const Graph& graph, ValueId v);

// Reductions and normalisations
Value sum(Value x, std::vector<int64_t> axes, bool keep = false);
Value max(Value x, std::vector<int64_t> axes, bool keep = false);
Value min(Value x, std::vector<int64_t> axes, bool keep = false);
Value product(Value x, std::vector<int64_t> axes, bool keep = false);
Value mean(Value x, std::vector<int64_t> axes, bool keep = false);
Value softmax(Value x);
struct LayerNorm {
  Value y, mean, rstd;
};
LayerNorm layer_norm(Value x, Value weight, Value bias, double eps = 1e-5);
struct RmsNorm {
  Value y, rstd;
};
RmsNorm rms_norm(Value x, Value weight, double eps = 1e-5);
/// Whether a normalisation, or its derivative, takes off the mean: layer_norm, not rms_norm.
bool is_centred(const Node& norm);
struct CrossEntropy {
  Value losses, lse;
};
CrossEntropy cross_entropy(Value logits, Value targets, int64_t ignore_index = -1);
CrossEntropy linear_cross_entropy(Value x, Value w, Value targets, bool transpose_w,
                                  int64_t ignore_index = -1, bool round_logits = false);

// Movement
Value bitcast(Value x, DType dtype);
Value reshape(Value x, Shape shape);
Value transpose(Value x, std::vector<int64_t> permutation);
Value slice(Value x, int axis, int64_t start, int64_t size);
Value pad(Value x, int axis, int64_t before, int64_t after);
Value concat(std::span<const Value> parts, int axis);
Value broadcast_to(Value x, Shape shape);
Value embedding(Value table, Value ids);
struct RotaryOptions {
  bool interleaved = false;      // pairs lie side by side, not half a row apart
  bool inverse = false;          // turns back
  std::optional<int64_t> heads;  // the first so many turn; nothing: all
};
Value rotary(Value x, Value positions, Value cos, Value sin, const RotaryOptions& options = {});
Value update_slice(Value x, Value part, Value position, int axis);
/// x: [N, C], slots: [M] i32, different ones in [0, N) or -1, rows: [M, C]. Returns x with row
/// slots[i] replaced by rows[i]; a slot of -1 replaces nothing.
Value update_rows(Value x, Value slots, Value rows);
/// x: [O..., N, R...] -> [O..., ids' axes..., R...]
Value gather(Value x, Value ids, int axis);
/// Returns, in the shape of ids, the elements of x that ids select along an axis; the other
/// coordinates are those of the id. ids has the rank of x and at most its sizes beside the axis.
Value gather_elements(Value x, Value ids, int axis);
/// Returns the row-major indices of those elements, i64. An id outside the axis becomes an index
/// that gather() and scatter() refuse.
Value element_index(const Shape& x, Value ids, int axis);
enum class ScatterMode { set, add, mul, max, min };
/// x: [N, C], ids: [M], updates: [M, C]
Value scatter(Value x, Value ids, Value updates, ScatterMode mode);

// Reductions over segments: segment r is rows [starts[r], starts[r + 1]).
/// x: [N, C], starts: [R + 1] i32, ascending; y: [R, C], 0 for an empty segment.
Value segment_sum(Value x, Value starts);
/// The same with the maximum, -inf for an empty segment.
Value segment_max(Value x, Value starts);

// Order along an axis
struct Sorted {
  Value values, indices;
};
/// The first `count` in that order; nothing: all of them.
Sorted sort(Value x, int axis, bool descending, std::optional<int64_t> count = std::nullopt);
Value argmax(Value x, int axis, bool smallest = false, bool last = false);
Value running_sum(Value x, int axis, bool exclusive = false, bool reverse = false);
Value running_product(Value x, int axis, bool exclusive = false, bool reverse = false);

// Windows over the spatial axes of pictures [N, C, spatial...] or, channels last, [N, spatial...,
// C]
struct Windows {
  std::vector<int64_t> strides, dilations;  // for each spatial axis
  std::vector<int64_t> pads;                // what lies before each, then what lies behind each
  bool channels_last = false;               // x and y are [N, spatial..., C]; weights are not
};
/// x: [N, C, in...], w: [M, C/G, kernel...], bias: [M] -> [N, M, out...]
Value conv(Value x, Value w, std::optional<Value> bias, const Windows& windows, int64_t groups);
/// y: [N, M, out...], w: [M, C/G, kernel...] -> [N, C, sizes...]
Value conv_transpose(Value y, Value w, std::vector<int64_t> sizes, const Windows& windows,
                     int64_t groups);
/// x: [N, C, in...], dy: [N, M, out...] -> [M, C/G, kernel...]
Value conv_weight_grad(Value x, Value dy, std::vector<int64_t> kernel, const Windows& windows,
                       int64_t groups);
struct MaxPool {
  Value values, indices;
};
MaxPool max_pool(Value x, std::vector<int64_t> kernel, const Windows& windows);
/// x: [N, C, in...], dy: [N, C, out...] -> [N, C, in...]: each dy added to the first largest
/// element of its window.
Value max_pool_grad(Value x, Value dy, std::vector<int64_t> kernel, const Windows& windows);
Value sum_pool(Value x, std::vector<int64_t> kernel, const Windows& windows);

struct BatchNorm {
  Value y, mean, variance;  // like x; [C] f32: of the batch, the variance biased
};
/// Normalises each channel over the batch and the spatial axes. x: [N, C, spatial...] or, channels
/// last, [N, spatial..., C]; weight, bias: [C].
BatchNorm batch_norm(Value x, Value weight, Value bias, double eps, bool channels_last = false);

// Products in 8 bits
Value quantize_scale(Value x, DType dtype);
Value quantize(Value x, Value scale, DType dtype);

/// Rounds x to symmetric integers of `bits` (4, 8) with a scale for each `group` terms along `axis`
/// (-1, -2; group 0: the whole axis). The gradient passes unchanged.
Value fake_quantize(Value x, int64_t bits, int64_t group, int64_t axis);

// Order
Value after(Value x, Value gate);

// Optimizer
Value global_norm(std::span<const Value> tensors);

// Collectives (ops/ranks/collectives.h): each rank gives its own operands.
std::vector<Value> all_reduce(std::span<const Value> x, int64_t ranks);
std::vector<Value> reduce_scatter(std::span<const Value> x, int64_t ranks);
Value all_gather(Value shard, const Shape& shape, int64_t ranks, bool kept);
/// This rank's shard of a tensor that all ranks have.
Value own_shard(Value whole, int64_t ranks);
/// [n] of each rank -> [ranks, n]
Value all_gather_rows(Value row, int64_t ranks);
/// Sums of squares of blocks, and the norm of what they are of: its bits are the same for any
/// number of ranks.
std::vector<Value> block_squares(std::span<const Value> x);
Value block_norm(std::span<const Value> squares);

// Helpers that are not ops
/// Sums a gradient over the axes along which `shape` was broadcast.
Value sum_to(Value grad, const Shape& shape);

inline Value operator+(Value a, Value b) { return add(a, b); }
inline Value operator-(Value a, Value b) { return sub(a, b); }
inline Value operator*(Value a, Value b) { return mul(a, b); }
inline Value operator/(Value a, Value b) { return div(a, b); }
inline Value operator-(Value a) { return neg(a); }
inline Value operator+(Value a, double b) { return add(a, scalar(*a.graph, b, a.dtype())); }
inline Value operator-(Value a, double b) { return sub(a, scalar(*a.graph, b, a.dtype())); }
inline Value operator*(Value a, double b) { return mul(a, scalar(*a.graph, b, a.dtype())); }
inline Value operator/(Value a, double b) { return div(a, scalar(*a.graph, b, a.dtype())); }
inline Value operator+(double a, Value b) { return add(scalar(*b.graph, a, b.dtype()), b); }
inline Value operator-(double a, Value b) { return sub(scalar(*b.graph, a, b.dtype()), b); }
inline Value operator*(double a, Value b) { return mul(scalar(*b.graph, a, b.dtype()), b); }
inline Value operator/(double a, Value b) { return div(scalar(*b.graph, a, b.dtype()), b); }

}  // namespace brrr
