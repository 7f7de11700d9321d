#pragma once
// clang-format off
// Every op as a function. Generated from the op table by tests/ops/docs_test.cpp; do not
// edit. Ops with attributes take them as text, "{axis=1, eps=1e-05}", as docs/ops.md names
// them; graph.h has friendlier functions for what models are usually written with.

#include <initializer_list>
#include <string>
#include <vector>

#include "brrr/graph.h"

namespace brrr::inline v1::ops {

/// y = value everywhere, an integer where {dtype} is one of integers. y: {shape} {dtype}.
inline std::vector<Value> full(Graph& graph, const std::string& attributes) {
  return call(graph.handle(), "full", {}, attributes);
}

/// y[i0, i1, ...] = i_axis. y: {shape} {dtype}.
inline std::vector<Value> iota(Graph& graph, const std::string& attributes) {
  return call(graph.handle(), "iota", {}, attributes);
}

/// y = {values}, in row-major order, integers where {dtype} is one of integers. y: {shape} {dtype},
/// at least one element.
inline std::vector<Value> literal(Graph& graph, const std::string& attributes) {
  return call(graph.handle(), "literal", {}, attributes);
}

/// y[i] = 16 random bits as an integer in [0, 65536): element i of stream {stream} of the
/// counter-based generator under key = (seed, step). key: [2] i32; y: {shape} i32.
inline std::vector<Value> random_bits(Graph& graph, const std::string& attributes) {
  return call(graph.handle(), "random_bits", {}, attributes);
}

/// y = -x. x, y: [...].
inline Value neg(const Value& x) { return call("neg", {x})[0]; }

/// y = e^x. x, y: [...].
inline Value exp(const Value& x) { return call("exp", {x})[0]; }

/// y = ln x. x, y: [...].
inline Value log(const Value& x) { return call("log", {x})[0]; }

/// y = x^(1/2). x, y: [...].
inline Value sqrt(const Value& x) { return call("sqrt", {x})[0]; }

/// y = x^(-1/2). x, y: [...].
inline Value rsqrt(const Value& x) { return call("rsqrt", {x})[0]; }

/// y = 1/x. x, y: [...].
inline Value reciprocal(const Value& x) { return call("reciprocal", {x})[0]; }

/// y = x^2. x, y: [...].
inline Value square(const Value& x) { return call("square", {x})[0]; }

/// y = |x|. x, y: [...].
inline Value abs(const Value& x) { return call("abs", {x})[0]; }

/// y = tanh x. x, y: [...].
inline Value tanh(const Value& x) { return call("tanh", {x})[0]; }

/// y = erf x. x, y: [...].
inline Value erf(const Value& x) { return call("erf", {x})[0]; }

/// y = 1 / (1 + e^-x). x, y: [...].
inline Value sigmoid(const Value& x) { return call("sigmoid", {x})[0]; }

/// y = max(x, 0); NaN stays NaN. x, y: [...].
inline Value relu(const Value& x) { return call("relu", {x})[0]; }

/// y = sin x. x, y: [...].
inline Value sin(const Value& x) { return call("sin", {x})[0]; }

/// y = cos x. x, y: [...].
inline Value cos(const Value& x) { return call("cos", {x})[0]; }

/// y = the greatest integer that is not above x. x, y: [...].
inline Value floor(const Value& x) { return call("floor", {x})[0]; }

/// y = the least integer that is not below x. x, y: [...].
inline Value ceil(const Value& x) { return call("ceil", {x})[0]; }

/// y = the nearest integer, halves to the even one. x, y: [...].
inline Value round(const Value& x) { return call("round", {x})[0]; }

/// y = tan x. x, y: [...].
inline Value tan(const Value& x) { return call("tan", {x})[0]; }

/// y = arcsin x. x, y: [...].
inline Value asin(const Value& x) { return call("asin", {x})[0]; }

/// y = arccos x. x, y: [...].
inline Value acos(const Value& x) { return call("acos", {x})[0]; }

/// y = arctan x. x, y: [...].
inline Value atan(const Value& x) { return call("atan", {x})[0]; }

/// y = sinh x. x, y: [...].
inline Value sinh(const Value& x) { return call("sinh", {x})[0]; }

/// y = cosh x. x, y: [...].
inline Value cosh(const Value& x) { return call("cosh", {x})[0]; }

/// y = arsinh x. x, y: [...].
inline Value asinh(const Value& x) { return call("asinh", {x})[0]; }

/// y = arcosh x. x, y: [...].
inline Value acosh(const Value& x) { return call("acosh", {x})[0]; }

/// y = artanh x. x, y: [...].
inline Value atanh(const Value& x) { return call("atanh", {x})[0]; }

/// y = ln(1 + x), exact near 0. x, y: [...].
inline Value log1p(const Value& x) { return call("log1p", {x})[0]; }

/// y = e^x - 1, exact near 0. x, y: [...].
inline Value expm1(const Value& x) { return call("expm1", {x})[0]; }

/// y = not x. x, y: [...].
inline Value logical_not(const Value& x) { return call("logical_not", {x})[0]; }

/// y = a + b, broadcast as in NumPy. a: [...], b: [...], y: [...]. Integers wrap around.
inline Value add(const Value& a, const Value& b) {
  return call("add", {a, b})[0];
}

/// y = a - b, broadcast as in NumPy. a: [...], b: [...], y: [...]. Integers wrap around.
inline Value sub(const Value& a, const Value& b) {
  return call("sub", {a, b})[0];
}

/// y = a * b, broadcast as in NumPy. a: [...], b: [...], y: [...]. Integers wrap around.
inline Value mul(const Value& a, const Value& b) {
  return call("mul", {a, b})[0];
}

/// y = a / b, broadcast as in NumPy. a: [...], b: [...], y: [...]. The quotient of integers is
/// truncated, as in C; the lowest integer divided by -1 wraps around, and a division by zero is an
/// error (0 on a GPU).
inline Value div(const Value& a, const Value& b) {
  return call("div", {a, b})[0];
}

/// y = the larger of a and b; NaN if either is; the gradient of a tie goes to a, broadcast as in
/// NumPy. a: [...], b: [...], y: [...].
inline Value maximum(const Value& a, const Value& b) {
  return call("maximum", {a, b})[0];
}

/// y = the smaller of a and b; NaN if either is; the gradient of a tie goes to a, broadcast as in
/// NumPy. a: [...], b: [...], y: [...].
inline Value minimum(const Value& a, const Value& b) {
  return call("minimum", {a, b})[0];
}

/// y = a^b, broadcast as in NumPy. a: [...], b: [...], y: [...]. Integers wrap around; a negative
/// power of one is truncated, of zero an error.
inline Value pow(const Value& a, const Value& b) {
  return call("pow", {a, b})[0];
}

/// y = a - b trunc(a / b), which has the sign of a, broadcast as in NumPy. a: [...], b: [...], y:
/// [...]. Of integers, a zero divisor is an error.
inline Value fmod(const Value& a, const Value& b) {
  return call("fmod", {a, b})[0];
}

/// y = the bits that both have, broadcast as in NumPy. a: [...], b: [...], y: [...] integers.
inline Value bit_and(const Value& a, const Value& b) {
  return call("bit_and", {a, b})[0];
}

/// y = the bits that either has, broadcast as in NumPy. a: [...], b: [...], y: [...] integers.
inline Value bit_or(const Value& a, const Value& b) {
  return call("bit_or", {a, b})[0];
}

/// y = the bits that one of them has, broadcast as in NumPy. a: [...], b: [...], y: [...] integers.
inline Value bit_xor(const Value& a, const Value& b) {
  return call("bit_xor", {a, b})[0];
}

/// y = a 2^b, what leaves the dtype is lost; 0 for b of 64 or more, broadcast as in NumPy. a:
/// [...], b: [...], y: [...] integers.
inline Value shift_left(const Value& a, const Value& b) {
  return call("shift_left", {a, b})[0];
}

/// y = a / 2^b, rounded down; b of 64 or more is as 63, broadcast as in NumPy. a: [...], b: [...],
/// y: [...] integers.
inline Value shift_right(const Value& a, const Value& b) {
  return call("shift_right", {a, b})[0];
}

/// y = a == b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value equal(const Value& a, const Value& b) {
  return call("equal", {a, b})[0];
}

/// y = a != b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value not_equal(const Value& a, const Value& b) {
  return call("not_equal", {a, b})[0];
}

/// y = a < b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value less(const Value& a, const Value& b) {
  return call("less", {a, b})[0];
}

/// y = a <= b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value less_equal(const Value& a, const Value& b) {
  return call("less_equal", {a, b})[0];
}

/// y = a > b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value greater(const Value& a, const Value& b) {
  return call("greater", {a, b})[0];
}

/// y = a >= b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value greater_equal(const Value& a, const Value& b) {
  return call("greater_equal", {a, b})[0];
}

/// y = a and b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value logical_and(const Value& a, const Value& b) {
  return call("logical_and", {a, b})[0];
}

/// y = a or b, broadcast as in NumPy. a: [...], b: [...], y: [...] bool.
inline Value logical_or(const Value& a, const Value& b) {
  return call("logical_or", {a, b})[0];
}

/// y = condition ? a : b, broadcast as in NumPy. condition: [...] bool; a, b: [...]; y: [...].
inline std::vector<Value> where(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("where", operands, attributes);
}

/// y = x as {dtype}. To a float: rounds to nearest even. A float to an integer: truncates, what is
/// out of range becomes the nearest end, NaN becomes 0. An integer to an integer: keeps the low
/// bits, so it wraps around. To bool: x != 0. x, y: [...].
inline std::vector<Value> cast(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("cast", operands, attributes);
}

/// y = x Phi(x). approximate="tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), "none": 0.5 x
/// (1 + erf(x / sqrt 2)). x, y: [...].
inline std::vector<Value> gelu(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gelu", operands, attributes);
}

/// dx = dy d gelu(x) / dx. dy, x, dx: [...].
inline std::vector<Value> gelu_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gelu_grad", operands, attributes);
}

/// y = x / (1 + e^-x). x, y: [...].
inline std::vector<Value> silu(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("silu", operands, attributes);
}

/// dx = dy d silu(x) / dx. dy, x, dx: [...].
inline std::vector<Value> silu_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("silu_grad", operands, attributes);
}

/// y = random_bits(key)[i] >= t ? x / (1 - t/65536) : 0 with t = round(65536 p): the keep
/// probability is exact, so the expectation is x. x, y: [...]; key: [2] i32.
inline std::vector<Value> dropout(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("dropout", operands, attributes);
}

/// y = op(a) op(b), op transposes the last two axes where asked; leading axes broadcast. a: [...,
/// M, K], b: [..., K, N], y: [..., M, N]; products accumulate in f32 or wider; y has {dtype} where
/// given, else that of a and b. {tf32}: f32 operands may be rounded to 11 bits. b may lie in any
/// storage. a and b may be i8: then y is i32 and exact, K at most 131071. Integers of 32 and 64
/// bits wrap around. Integers have no gradient. {left_bits} 8, where given: b is quantised along K,
/// and each row of a is rounded to 255 steps of its own (ops/quantized/quantized_rows.h) before it
/// is multiplied.
inline std::vector<Value> matmul(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("matmul", operands, attributes);
}

/// y = x w + b. x: [..., K], w: [K, N], b: [N] of any floating dtype, y: [..., N] of {dtype} where
/// given, else of x's; rounded once, after b was added. w may lie in any storage.
inline std::vector<Value> linear(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("linear", operands, attributes);
}

/// y = sum of x over {axes}; {keep} leaves them as 1. x: [...]; accumulates in f32 or wider;
/// integers wrap around.
inline std::vector<Value> sum(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("sum", operands, attributes);
}

/// y = the largest x over {axes}, over none -inf or the lowest integer; {keep} leaves them as 1.
/// The gradient is shared evenly by every x that equals y. x: [...].
inline std::vector<Value> max(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("max", operands, attributes);
}

/// y = the smallest x over {axes}, over none inf or the greatest integer; {keep} leaves them as 1.
/// The gradient is shared evenly by every x that equals y. x: [...].
inline std::vector<Value> min(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("min", operands, attributes);
}

/// y = product of x over {axes}, over none 1; {keep} leaves them as 1. The gradient is y / x, so
/// that no x may be 0. x: [...]; accumulates in f32 or wider; integers wrap around.
inline std::vector<Value> product(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("product", operands, attributes);
}

/// y = e^(x - max x) / sum e^(x - max x) over the last axis; a row of -inf gives NaN. x, y: [...,
/// N]; max and sum in f32.
inline std::vector<Value> softmax(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("softmax", operands, attributes);
}

/// dx = y (dy - sum(dy y)) over the last axis. dy, y, dx: [..., N]; sum in f32.
inline std::vector<Value> softmax_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("softmax_grad", operands, attributes);
}

/// s = {scale} q kᵀ, then: where a bool mask is false {masked}, or plus the added mask; -inf
/// unless key <= query + position ({causal}), key <= query + position + {window_after} (where it is
/// given, which {causal} excludes), key > query + position - {window} (where it is not 0) and key <
/// length. lse = log sum e^s over S, y = dropout(e^(s - lse)) v, where dropout takes element i of
/// the [..., H, T, S] probabilities as the op dropout does. A query that sees no key gives NaN, as
/// softmax does, and where {guarded} is given and true no gradient. Each of {q}, {k}, {v} is
/// (source, column, in_rows): the matrix lies in that of the distinct operands which come first,
/// from that column on; its heads lie side by side in the rows of a source [..., rows, columns]
/// (in_rows 1) or in front of the rows of a source [..., heads, rows, columns] (0). {heads} H query
/// heads of {width} D columns share {kv_heads} K key heads and value heads of {value_width} Dv
/// columns: query head h reads head h K / H. Sources of k and v alone may lie in int8 rows, with a
/// scale for each head. Then, each where an attribute says so: {position} i32 broadcasting to the
/// batch axes [...] (0 without it), {mask} broadcasting to [..., H, T, S], bool or added, or, where
/// {mask_by_distance}, [H, 2 L - 1], of which element key - query + L - 1 is added (sequences of at
/// most L), {lengths} i32 broadcasting to [...], {starts} i32 [R + 1], ascending, of a ragged
/// batch: sources have no batch axes, query i of sequence r, row {starts}[r] + i, sees keys of its
/// own sequence alone, and rows outside all sequences have y and lse 0 and no gradient; no sequence
/// has more than {longest} rows, if that is given; with {block_rows} > 0 a table i32 [R, M]: k and
/// v are pools [S, columns] of blocks of {block_rows} rows, {lengths} is i32 [R], key i <
/// {lengths}[r] of sequence r is row i mod {block_rows} of block table[r, i / {block_rows}], and
/// the queries are the last positions of their sequence; and with {p} > 0 the key [2] i32 of
/// dropout. y: [..., T, H Dv] where {y_in_rows}, else [..., H, T, Dv]; lse: [..., H, T] f32 (f64 of
/// f64); sums and statistics in f32 or wider.
inline std::vector<Value> attention(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("attention", operands, attributes);
}

/// With s as in attention, p = e^(s - lse), g = dropout(dy vᵀ) and delta = sum_Dv(dy y) - dlse:
/// ds = p (g - delta), 0 where a bool mask is false; dq = {scale} ds k, dk = {scale} dsᵀ q, dv =
/// dropout(p)ᵀ dy, the last two summed over the query heads that share a head. One gradient for
/// each source, of its shape; q, k and v must share out all columns of every source. Each of {q},
/// {k}, {v} is (source, column, in_rows): the matrix lies in that of the distinct operands which
/// come first, from that column on; its heads lie side by side in the rows of a source [..., rows,
/// columns] (in_rows 1) or in front of the rows of a source [..., heads, rows, columns] (0).
/// {heads} H query heads of {width} D columns share {kv_heads} K key heads and value heads of
/// {value_width} Dv columns: query head h reads head h K / H. Behind the sources y, lse and dy, as
/// attention gives them. Then, each where an attribute says so: {position} i32 broadcasting to the
/// batch axes [...] (0 without it), {mask} broadcasting to [..., H, T, S], bool or added, or, where
/// {mask_by_distance}, [H, 2 L - 1], of which element key - query + L - 1 is added (sequences of at
/// most L), {lengths} i32 broadcasting to [...], {starts} i32 [R + 1], ascending, of a ragged
/// batch: sources have no batch axes, query i of sequence r, row {starts}[r] + i, sees keys of its
/// own sequence alone, and rows outside all sequences have y and lse 0 and no gradient; no sequence
/// has more than {longest} rows, if that is given; with {block_rows} > 0 a table i32 [R, M]: k and
/// v are pools [S, columns] of blocks of {block_rows} rows, {lengths} is i32 [R], key i <
/// {lengths}[r] of sequence r is row i mod {block_rows} of block table[r, i / {block_rows}], and
/// the queries are the last positions of their sequence; and with {p} > 0 the key [2] i32 of
/// dropout, and {dlse} [..., H, T]; sums in f32 or wider.
inline std::vector<Value> attention_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("attention_grad", operands, attributes);
}

/// mean, rstd = 1 / sqrt(variance + eps) over the last axis; y = (x - mean) rstd weight + bias. x,
/// y: [..., C]; weight, bias: [C]; mean, rstd: [...]; statistics in f32.
inline std::vector<Value> layer_norm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("layer_norm", operands, attributes);
}

/// With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean_C(g) - h mean_C(g h)), dweight =
/// sum dy h, dbias = sum dy over all rows. dy, x, dx: [..., C]; weight, dweight, dbias: [C]; mean,
/// rstd: [...]; sums in f32.
inline std::vector<Value> layer_norm_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("layer_norm_grad", operands, attributes);
}

/// rstd = 1 / sqrt(mean of x^2 + eps) over the last axis; y = x rstd weight. x, y: [..., C];
/// weight: [C]; rstd: [...]; statistics in f32, and y is rounded once.
inline std::vector<Value> rms_norm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("rms_norm", operands, attributes);
}

/// With h = x rstd and g = dy weight: dx = rstd (g - h mean_C(g h)), dweight = sum dy h over all
/// rows. dy, x, dx: [..., C]; weight, dweight: [C]; rstd: [...]; sums in f32.
inline std::vector<Value> rms_norm_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("rms_norm_grad", operands, attributes);
}

/// Turns pairs (a, b) of the first R columns by the angle of the row's position p: a cos - b sin, b
/// cos + a sin; by its negative where {inverse}, which is the derivative. Pair i of the R / 2 is
/// columns i and i + R / 2, or, {interleaved}, 2 i and 2 i + 1. The other D - R columns stay as
/// they are, and so do heads from {heads} on, where given. x, y: [..., T, H, D]; positions: i32,
/// broadcast to [..., T]; cos, sin: [P, R / 2] f32, row p for position p. Computed in f32, rounded
/// once.
inline std::vector<Value> rotary(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("rotary", operands, attributes);
}

/// lse = log sum e^logits over the last axis; loss = lse - logits[target], 0 where target ==
/// {ignore_index}. logits: [..., V]; targets: [...] i32; losses, lse: [...]; f32 accumulation.
inline std::vector<Value> cross_entropy(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("cross_entropy", operands, attributes);
}

/// dlogits = dlosses (e^(logits - lse) - onehot(target)), 0 where target == {ignore_index}. Where
/// lse is so large that its last digit matters, kernels take it from the logits again. logits,
/// dlogits: [..., V]; targets: [...] i32; lse, dlosses: [...].
inline std::vector<Value> cross_entropy_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("cross_entropy_grad", operands, attributes);
}

/// cross_entropy of the logits x op(w), which are rounded to the dtype of x where {round_logits}
/// says so and need never be held at once. x: [..., K], w: [V, K] where {transpose_w}, else [K, V];
/// targets: [...] i32; losses, lse: [...] f32 (f64 of f64). w may lie in any storage.
inline std::vector<Value> linear_cross_entropy(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("linear_cross_entropy", operands, attributes);
}

/// The gradients of linear_cross_entropy, from logits computed again: with dlogits = dlosses
/// (e^(logits - lse) - onehot(target)), 0 where target == {ignore_index}, plus where {dlse} says so
/// dlse e^(logits - lse), dx = dlogits op(w)ᵀ and dw = xᵀ dlogits, transposed as w is. x: [...,
/// K], w: [V, K] where {transpose_w}, else [K, V]; targets: [...] i32; losses, lse: [...] f32 (f64
/// of f64). w may lie in any storage; dlosses, {dlse}: as lse; dx like x, dw like w, of {dx_dtype}
/// and {dw_dtype} where given; no dw where {dw} is false. dlogits are rounded to the dtype of x;
/// all else in f32 or wider. If w is not stored in rows, the last operand is a second copy of w in
/// the layout that the product of dlogits and w reads, possibly the same layout.
inline std::vector<Value> linear_cross_entropy_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("linear_cross_entropy_grad", operands, attributes);
}

/// linear_cross_entropy and its gradients together, where dlosses depends on neither of its
/// results: the logits are computed once. x: [..., K], w: [V, K] where {transpose_w}, else [K, V];
/// targets: [...] i32; losses, lse: [...] f32 (f64 of f64). w may lie in any storage; dlosses: as
/// losses; dx like x, dw like w, of {dx_dtype} and {dw_dtype} where given; no dw where {dw} is
/// false. dlogits are rounded to the dtype of x; all else in f32 or wider. If w is not stored in
/// rows, the last operand is a second copy of w in the layout that the product of dlogits and w
/// reads, possibly the same layout.
inline std::vector<Value> linear_cross_entropy_step(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("linear_cross_entropy_step", operands, attributes);
}

/// y has the elements of x in row-major order as {shape}. Costs nothing.
inline std::vector<Value> reshape(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("reshape", operands, attributes);
}

/// Axis i of y is axis permutation[i] of x.
inline std::vector<Value> transpose(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("transpose", operands, attributes);
}

/// y = x[..., start : start + size, ...] along {axis}. Costs nothing when all earlier axes have one
/// element.
inline std::vector<Value> slice(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("slice", operands, attributes);
}

/// y is x with {before} and {after} zeros along {axis}.
inline std::vector<Value> pad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("pad", operands, attributes);
}

/// y = the operands side by side along {axis}.
inline std::vector<Value> concat(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("concat", operands, attributes);
}

/// y = x repeated to {shape} as NumPy broadcasts.
inline std::vector<Value> broadcast_to(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("broadcast_to", operands, attributes);
}

/// y = x with y[..., position : position + n, ...] = part along {axis}; the position is clamped so
/// that the part fits. x, y: [..., N, ...]; part: [..., n, ...]; position: [] i32. x and part may
/// both lie in int8 rows, with {axis} before the last.
inline std::vector<Value> update_slice(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("update_slice", operands, attributes);
}

/// y = x with row slots[i] replaced by rows[i]; a slot of -1 replaces nothing. x, y: [N, C]; slots:
/// [M] i32, different ones in [0, N) or -1; rows: [M, C]. x and rows may both lie in int8 rows.
inline std::vector<Value> update_rows(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("update_rows", operands, attributes);
}

/// y has the bits of each element of x, read as {dtype}, which is as wide as x's dtype. x, y:
/// [...].
inline std::vector<Value> bitcast(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("bitcast", operands, attributes);
}

/// y = x with {axis} replaced by the axes of ids: y[o..., i..., r...] = x[o..., ids[i...], r...].
/// x: [O..., N, R...] of any dtype; ids: [I...] i32 or i64 in [-N, N), below 0 from the end; y:
/// [O..., I..., R...].
inline std::vector<Value> gather(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gather", operands, attributes);
}

/// y[o..., i, r...] = x[o..., ids[o..., i, r...], r...], i along {axis}. x: [O..., N, R...] of any
/// dtype; ids: of the rank of x, at most as large beside the axis, i32 or i64 in [-N, N), below 0
/// from the end; y: of the shape of ids.
inline std::vector<Value> gather_elements(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gather_elements", operands, attributes);
}

/// y is x, where row ids[i] takes row i of updates as {mode} says: set, add, mul, max or min; rows
/// that are named more than once take one update after the other. x, y: [N, C]; ids: [M] i32 or i64
/// in [-N, N), below 0 from the end; updates: [M, C]. Sums are in f32 or wider.
inline std::vector<Value> scatter(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("scatter", operands, attributes);
}

/// y[r] = the sum of the rows [starts[r], starts[r + 1]) of x, in their order; 0 without rows. x:
/// [N, C], starts: [R + 1] i32, ascending, y: [R, C]; sums in f32 or wider, rounded once.
inline std::vector<Value> segment_sum(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("segment_sum", operands, attributes);
}

/// y[r] = the maximum of the rows [starts[r], starts[r + 1]) of x; -inf without rows, NaN where a
/// row has it. x: [N, C], starts: [R + 1] i32, ascending, y: [R, C].
inline std::vector<Value> segment_max(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("segment_max", operands, attributes);
}

/// values = the first {count} of x in ascending order along {axis}, or in descending order if
/// {descending}; equal ones keep their order, NaN counts as the largest. indices: where they stood,
/// i64. x: [...]; values, indices: [...] with {count} along the axis.
inline std::vector<Value> sort(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("sort", operands, attributes);
}

/// y = where the largest x stands along {axis}, or the smallest if {smallest}; of equal ones the
/// first, or the last if {last}. The axis is left out. NaN counts as the largest and as the
/// smallest. x: [...]; y: [...] i64.
inline std::vector<Value> argmax(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("argmax", operands, attributes);
}

/// y[k] = the sum of x[0] to x[k] along {axis}; without x[k] itself if {exclusive}; from the end if
/// {reverse}. x, y: [...]; accumulates in f32 or wider, integers wrap around.
inline std::vector<Value> cumsum(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("cumsum", operands, attributes);
}

/// y[k] = the product of x[0] to x[k] along {axis}; without x[k] itself if {exclusive}; from the
/// end if {reverse}. x, y: [...]; accumulates in f32 or wider, integers wrap around.
inline std::vector<Value> cumprod(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("cumprod", operands, attributes);
}

/// y[n, m, o] = the sum over c and k of x[n, c, o stride - before + k dilation] w[m, c, k], plus
/// b[m] if {bias}; the channels of group g of y read those of group g of x. x: [N, C, in...], w:
/// [M, C/G, kernel...], b: [M] of any floating dtype, y: [N, M, out...]; {strides}, {dilations}:
/// one number for each spatial axis; {pads}: zeros before each axis, then zeros behind each;
/// {groups}: G; with {channels_last} pictures are [N, spatial..., C], and weights stay as they are.
/// With {kernel}, which then has the kernel's sizes, w is a matrix [M, kernel... C/G], channels
/// last, too, that may lie in panels. With {winograd} T as well, 2 or 4, the matrix is [M, S S C],
/// S = T + 2, of the kernels that Winograd's algorithm has transformed (ops/spatial/winograd.h),
/// and y is what the algorithm computes, tiles of T x T windows at a time. Sums are in f32 or
/// wider, rounded once; integers of 32 and 64 bits wrap around and have no bias. {left_bits} 8,
/// where given: the matrix is quantised along its terms, and each picture of x is rounded to 255
/// steps of its own (ops/quantized/quantized_rows.h) before it is multiplied.
inline std::vector<Value> conv(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("conv", operands, attributes);
}

/// x is what conv's derivative in its x makes of y: each y[n, m, o] w[m, c, k] is added to x[n, c,
/// o stride - before + k dilation], and what lies outside {sizes} is left out. y: [N, M, out...],
/// w: [M, C/G, kernel...], x: [N, C, sizes...], where a conv of x by w has the shape of y;
/// {strides}, {dilations}: one number for each spatial axis; {pads}: zeros before each axis, then
/// zeros behind each; {groups}: G; with {channels_last} pictures are [N, spatial..., C], and
/// weights stay as they are. Sums are in f32 or wider.
inline std::vector<Value> conv_transpose(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("conv_transpose", operands, attributes);
}

/// dw is the derivative of conv in its w: the sum over n and o of x[n, c, o stride - before + k
/// dilation] dy[n, m, o]. x: [N, C, in...], dy: [N, M, out...], dw: [M, C/G, kernel...], kernel as
/// {kernel} says; {strides}, {dilations}: one number for each spatial axis; {pads}: zeros before
/// each axis, then zeros behind each; {groups}: G; with {channels_last} pictures are [N,
/// spatial..., C], and weights stay as they are. Sums are in f32 or wider.
inline std::vector<Value> conv_weight_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("conv_weight_grad", operands, attributes);
}

/// y[m, p, c] = (G w[m, c] G')[p], the kernels as Winograd's algorithm multiplies them in tiles of
/// {tile} T, 2 or 4 (ops/spatial/winograd.h), for conv with {winograd}. Computed in double, rounded
/// once. w: [M, C, 3, 3], y: [M, S S C], S = T + 2.
inline std::vector<Value> winograd_weight(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("winograd_weight", operands, attributes);
}

/// values = the largest element of each window, of equal ones the first; NaN counts as the largest.
/// indices: where it stands in x, as a row-major index, i64. x: [N, C, in...]; values, indices: [N,
/// C, out...]; {kernel}, {strides}, {dilations}: one number for each spatial axis; {pads}: what
/// lies before each axis, then behind each; with {channels_last} pictures are [N, spatial..., C].
/// Padding is never the largest, and every window reads an element.
inline std::vector<Value> max_pool(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("max_pool", operands, attributes);
}

/// The derivative of max_pool: each dy is added to the largest element of its window, of equal ones
/// the first. x, dx: [N, C, in...], dy: [N, C, out...]; {kernel}, {strides}, {dilations}: one
/// number for each spatial axis; {pads}: what lies before each axis, then behind each; with
/// {channels_last} pictures are [N, spatial..., C].
inline std::vector<Value> max_pool_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("max_pool_grad", operands, attributes);
}

/// y = the sum of each window, in f32 or wider; padding counts as zero. x: [N, C, in...], y: [N, C,
/// out...]; {kernel}, {strides}, {dilations}: one number for each spatial axis; {pads}: what lies
/// before each axis, then behind each; with {channels_last} pictures are [N, spatial..., C].
inline std::vector<Value> sum_pool(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("sum_pool", operands, attributes);
}

/// mean and variance (biased) of each channel over the batch and the spatial axes; y = (x - mean) /
/// sqrt(variance + eps) weight + bias. x, y: [N, C, spatial...], with {channels_last} [N,
/// spatial..., C]; weight, bias, mean, variance: [C] f32 (f64 where x is); statistics and the
/// formula in f32, and y is rounded once.
inline std::vector<Value> batch_norm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("batch_norm", operands, attributes);
}

/// With rstd = 1 / sqrt(variance + eps), h = (x - mean) rstd and M elements in each channel: dbias
/// = sum dy, dweight = sum dy h, dx = weight rstd (dy - dbias / M - h dweight / M). dy, x, dx: [N,
/// C, spatial...], with {channels_last} [N, spatial..., C]; weight, mean, variance, dweight, dbias:
/// [C] f32 (f64 where x is); sums and the formula in f32, and dx is rounded once.
inline std::vector<Value> batch_norm_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("batch_norm_grad", operands, attributes);
}

/// The steps of an LSTM: i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of gates[t] + hidden
/// weight^T; cell = f cell + i g; hidden = o tanh(cell). gates: [T, B, 4 H], what the input gives,
/// with biases; weight: [4 H, H]; hidden, cell: [B, H]. Results: outputs, the hidden state of each
/// step, [T, B, H]; the last hidden and cell, [B, H]; and for the derivative the gates behind their
/// functions, [T, B, 4 H], and the cells, [T, B, H]. With {reverse} the steps run from T - 1 to 0.
/// Sums in f32.
inline std::vector<Value> lstm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("lstm", operands, attributes);
}

/// The gradients of lstm's gates, [T, B, 4 H], hidden and cell, [B, H]. Operands: lstm's
/// activations and cells; its first cell, [B, H]; weight: [4 H, H]; the gradients of its outputs,
/// [T, B, H], and of its last hidden and cell, [B, H]. The gradient of the weight is a product of
/// the gates' gradients and the outputs. Sums in f32.
inline std::vector<Value> lstm_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("lstm_grad", operands, attributes);
}

/// The steps of a GRU: r, z = sigmoid of gates[t] + hidden weight^T; n = tanh(gates[t] + r (hidden
/// weight^T + bias)); hidden = (1 - z) n + z hidden. gates: [T, B, 3 H] in the order r, z, n, what
/// the input gives, with biases; weight: [3 H, H]; bias: [H]; hidden: [B, H]. Results: outputs, the
/// hidden state of each step, [T, B, H]; the last hidden, [B, H]; and for the derivative r, z, n
/// and what r multiplies, [T, B, 4 H]. With {reverse} the steps run from T - 1 to 0. Sums in f32.
inline std::vector<Value> gru(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gru", operands, attributes);
}

/// The gradients of gru's gates and of its products with the state, the bias included, both [T, B,
/// 3 H], and of hidden, [B, H]. Operands: gru's activations, [T, B, 4 H], and outputs, [T, B, H];
/// its first hidden, [B, H]; weight: [3 H, H]; the gradients of its outputs, [T, B, H], and of its
/// last hidden, [B, H]. Sums in f32.
inline std::vector<Value> gru_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("gru_grad", operands, attributes);
}

/// y = x, floats or i8, in {storage} (base/storage.h). Panels hold the same numbers; integers and
/// their scales hold what is nearest; rows hold what x holds, in its dtype or, where x lies in
/// blocks, in {dtype} if given. x lies in rows, in blocks, or, where {storage} is rows, in int8
/// rows or quantised panels. Two or three operands: y = (x - zeros) * scales with the given
/// integers x, i8 or u8, in quantised panels; scales and zeros have one element for each group; y
/// has {dtype} where given, else that of scales.
inline std::vector<Value> store(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("store", operands, attributes);
}

/// y[i..., :] = table[ids[i...], :]. table: [V, C], in any storage; ids: [...] i32 or i64; y: [...,
/// C].
inline std::vector<Value> embedding(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("embedding", operands, attributes);
}

/// dtable[v, :] = sum of dy[i..., :] over ids[i...] == v, in the order of i. dy: [..., C]; ids:
/// [...] i32 or i64; dtable: [{rows}, C]; f32 accumulation.
inline std::vector<Value> embedding_grad(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("embedding_grad", operands, attributes);
}

/// y = sqrt(sum of x^2 over all elements of all operands). x: any shapes; y: []; f32 or wider.
inline std::vector<Value> global_norm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("global_norm", operands, attributes);
}

/// Decoupled weight decay (Loshchilov and Hutter 2019, alg. 2), for each parameter i with g = scale
/// grad: m' = beta1 m + (1-beta1) g; v' = beta2 v + (1-beta2) g^2; param' = param - lr decay_i
/// param - lr (m' / (1-beta1^t)) / (sqrt(v' / (1-beta2^t)) + eps). Operands: lr [] f32, t [] i32
/// (from 1), scale [] f32, then all params, all grads, all m, all v; results: all params, all m,
/// all v. {weight_decay} applies where {decays} is 1. A scale of NaN changes nothing: the gradients
/// were not finite. Parameters are f32, or bf16: then a key i32[2] follows scale, and param' is
/// rounded up or down at random, element j of parameter i by element j of the 16-bit stream
/// {stream} + i. With {copies}, copies of param' rounded to {copy_dtype} follow the states: for
/// each parameter those whose numbers are summed there, 1 in rows, 2 in panels, 4 in transposed
/// panels (base/storage.h).
inline std::vector<Value> adamw(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("adamw", operands, attributes);
}

/// Gradient descent with momentum, as torch.optim.SGD: g = scale grad + decay_i param; m' =
/// momentum m + g; param' = param - lr m'. Operands and results as of adamw, with one state m; t is
/// not used.
inline std::vector<Value> sgd(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("sgd", operands, attributes);
}

/// Sign updates (Chen et al. 2023, alg. 2), g = scale grad: param' = param - lr decay_i param - lr
/// sign(beta1 m + (1-beta1) g); m' = beta2 m + (1-beta2) g. Operands and results as of adamw, with
/// one state m; t is not used.
inline std::vector<Value> lion(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("lion", operands, attributes);
}

/// adamw with moments in 8 bits (Dettmers et al. 2022). m and v are u8 codes in the shape of the
/// parameter, with f32 [blocks] scales for blocks of 256 elements of the flattened tensor: a moment
/// is code book[code] scale, the signed dynamic book for m, the unsigned one for v
/// (ops/quantized/dynamic_code.h). param' is that of adamw with the moments before they are
/// rounded; each block's new scale is its largest magnitude, its codes the nearest. Operands: lr,
/// t, scale, (key,) all params, all grads, all m codes, all v codes, all m scales, all v scales;
/// results: params and the four states.
inline std::vector<Value> adamw_8bit(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("adamw_8bit", operands, attributes);
}

/// Adafactor (Shazeer and Stern 2018, alg. 4 and 8) for matrices [..., R, C], g = scale grad, beta
/// = 1 - t^decay_rate: row' = beta row + (1-beta) mean_C(g^2 + eps1), col' likewise over R; u = g /
/// sqrt(row' col' / mean_R(row')); param' = param - a (weight_decay decay_i param + u / max(1,
/// rms(u) / clip)) with a = lr, or lr max(eps2, rms(param)) with {scale_parameter}. Operands and
/// results as of adamw with the states row [..., R] and col [..., C].
inline std::vector<Value> adafactor(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("adafactor", operands, attributes);
}

/// adafactor for parameters with fewer than two axes: u = g / sqrt(v'), v' = beta v + (1-beta) (g^2
/// + eps1). One state v.
inline std::vector<Value> adafactor_vector(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("adafactor_vector", operands, attributes);
}

/// Nesterov's momentum as Muon has it: m' = momentum m + (1-momentum) g with g = scale grad, u =
/// momentum m' + (1-momentum) g. Operands: scale [] f32, all grads, all m; results: all u, all m'.
/// A scale of NaN keeps m and makes u zero.
inline std::vector<Value> muon_momentum(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("muon_momentum", operands, attributes);
}

/// y is near the orthogonal matrix that is nearest to x, its singular values between about 0.7 and
/// 1.2: X = x / max(|x|, 1e-7) in {dtype}, then {steps} times A = X Xᵀ, X = 3.4445 X + (-4.7750 A
/// + 2.0315 A A) X, on the shorter side of x. x, y: [R, C] f32.
inline std::vector<Value> newton_schulz(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("newton_schulz", operands, attributes);
}

/// A step of Muon along orthogonal matrices: param' = param - rate lr decay_i param - rate lr
/// sqrt(max(1, out / in)) grad for parameters [in, out], where grad is newton_schulz's result.
/// {rate} is the learning rate of these matrices in units of lr. Parameters that are shards are
/// flat: {whole_shapes} then holds in and out of each whole matrix. Operands and results as of
/// adamw, without states; t is not used.
inline std::vector<Value> muon(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("muon", operands, attributes);
}

/// y = the least power of two, 2^-100 at least, for which every |x| / y is in the range of {dtype}
/// (f8e4m3: 448, f8e5m2: 57344); 1 where x is all zeros, NaN where an x is not finite. x: [...], y:
/// [] f32.
inline std::vector<Value> quantize_scale(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("quantize_scale", operands, attributes);
}

/// y = x (1 / scale) as {dtype} (f8e4m3 or f8e5m2): to nearest even, the largest number where it is
/// larger than that, NaN where it is NaN. Exact but for that rounding where the scale is a power of
/// two. x, y: [...], scale: [] f32.
inline std::vector<Value> quantize(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("quantize", operands, attributes);
}

/// y = scale_a scale_b a b^T + bias, products accumulate in f32; {fast_accumulation}: in fewer
/// bits, where the target gains by that. a: [M, K], b: [N, K], each f8e4m3 or f8e5m2; scale_a,
/// scale_b: [] f32; bias: [N] of any floating dtype, an operand where {bias}; y: [M, N] of {dtype}.
inline std::vector<Value> scaled_matmul(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("scaled_matmul", operands, attributes);
}

/// y = scale round(x / scale), halves to even, where scale = max |x| / (2^({bits} - 1) - 1), 1e-30
/// at least, over {group} terms that follow one another along {axis} (-1 or -2), or over all of
/// them where {group} is 0: what symmetric integers of 4 or 8 bits hold of x. dx = dy, as if
/// nothing were rounded (straight-through estimator). x, y: [...].
inline std::vector<Value> fake_quantize(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("fake_quantize", operands, attributes);
}

/// The outputs "0", "1", ... of the graph {body} with its inputs a0, a1, ... in place of the
/// operands. Made by the pass `fuse`; what is rounded, and where, is as in the body.
inline std::vector<Value> fused(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("fused", operands, attributes);
}

/// y = x, but not before gate has been computed: what reads y runs after the gate. x, y: [...], in
/// any storage; gate: any tensor, whose values do not matter. Costs nothing.
inline std::vector<Value> after(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("after", operands, attributes);
}

/// y_i = the sum of x_i over {ranks} ranks, in one binary tree over the ranks. x_i, y_i: any
/// shapes, f32.
inline std::vector<Value> all_reduce(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("all_reduce", operands, attributes);
}

/// y_i = this rank's shard of the sum of x_i over {ranks} ranks: the elements of x_i in row-major
/// order, in whole blocks of 1024, zeros behind the last. Sums as all_reduce. x_i: any shapes, f32;
/// y_i: [ceil(elements / ranks) rounded up to 1024] f32.
inline std::vector<Value> reduce_scatter(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("reduce_scatter", operands, attributes);
}

/// y = the tensor of {shape} whose shards the ranks have, as reduce_scatter divides it, in whole
/// blocks of {block} elements. x: [elements of a shard], any dtype; y: {shape}. {kept}: y may stay
/// in memory until the parameters below it change.
inline std::vector<Value> all_gather(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("all_gather", operands, attributes);
}

/// y = this rank's shard of x, divided as reduce_scatter does. All {ranks} ranks hold x, so nothing
/// is sent. x: any shape, f32; y: [elements of a shard] f32.
inline std::vector<Value> own_shard(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("own_shard", operands, attributes);
}

/// y_i = the sums of squares of each 1024 elements of x_i in row-major order, rounded to f32. x_i:
/// any shapes, f32; y_i: [ceil(elements / 1024)] f32.
inline std::vector<Value> block_squares(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("block_squares", operands, attributes);
}

/// y = the square root of the sum of all elements of all operands, in order, in f64. x_i: any
/// shapes, f32; y: [] f32.
inline std::vector<Value> block_norm(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("block_norm", operands, attributes);
}

/// The outputs of the region {then} where condition: bool[] is true, else those of {else}.
/// Operands: the condition, then what both regions have as their inputs. Only one of them is
/// computed.
inline std::vector<Value> if_(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("if", operands, attributes);
}

/// Runs the region {body} as long as a condition holds, but {bound} iterations at most; that it
/// still holds then is an error if {fails_at_bound}. Operands: the condition of the first
/// iteration, bool[]; {carried} values that each iteration changes; what every iteration reads.
/// Body: (the iteration's number, i32[]; carried...; captured...) -> (the condition of the next,
/// bool[]; carried...; rows...). Results: the carried values; the rows, stacked to [bound, ...],
/// zeros behind the last iteration; the number of iterations, i32[].
inline std::vector<Value> loop(std::initializer_list<Value> operands,
                                const std::string& attributes = "") {
  return call("loop", operands, attributes);
}

}  // namespace brrr::inline v1::ops
