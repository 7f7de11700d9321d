// Rotary position embedding (Su et al. 2021): pairs of numbers turned by angles that grow with the
// position.

#include "ops/support.h"

namespace brrr {
namespace {

/// [B..., T] as which the positions are seen: x without its last two axes.
Shape token_shape(const Shape& x) { return ops::leading(ops::leading(x)); }

/// How many of the H heads turn.
int64_t turned_heads(const Attrs& attrs, const Shape& x) {
  return attrs.get_or<int64_t>("heads", x.size(-2));
}

/// The first and the second number of each pair in the columns that turn: [..., h, R / 2].
struct Pairs {
  Value first, second;
};
Pairs pairs_of(Value x, int64_t heads, int64_t half, bool interleaved) {
  x = slice(slice(x, -2, 0, heads), -1, 0, 2 * half);
  if (!interleaved) return {slice(x, -1, 0, half), slice(x, -1, half, half)};
  const Shape flat = x.shape();
  Shape split = flat;
  split[-1] = Dim(half);
  Shape pairs = split;
  pairs.push_back(Dim(2));
  x = reshape(x, pairs);
  return {reshape(slice(x, -1, 0, 1), split), reshape(slice(x, -1, 1, 1), split)};
}

Value joined(const Pairs& p, bool interleaved) {
  const Value halves[] = {p.first, p.second};
  if (!interleaved) return concat(halves, -1);
  Shape flat = p.first.shape();
  flat[-1] = Dim(2 * flat.size(-1));
  const Value columns[] = {ops::column(p.first), ops::column(p.second)};
  return reshape(concat(columns, -1), flat);
}

/// Rows of a table: [..., T, 1, R / 2] in the dtype of x.
Value angles(Value table, Value positions, Value x) {
  Shape rows = token_shape(x.shape());
  Value at = broadcast_to(positions, rows);
  rows.push_back(Dim(1));
  rows.push_back(table.shape()[-1]);
  return cast(reshape(embedding(table, at), rows), x.dtype());
}

Value widened(Value x) { return bytes_of(x.dtype()) < 4 ? cast(x, DType::f32) : x; }

/// The gradient of a table from those of its rows: [..., T, h, R / 2].
Value table_gradient(Value rows, Value positions, Value table) {
  const int heads = rows.shape().rank() - 2;
  Value of_tokens = cast(sum(rows, {heads}), table.dtype());
  Value at = broadcast_to(positions, ops::leading(of_tokens.shape()));
  return call1(Op::embedding_grad, {of_tokens, at}, {{"rows", table.shape().size(0)}});
}

std::vector<Type> infer_rotary(const InferContext& c) {
  ops::expect_operands(c, 4);
  ops::expect_float(c, 0, "x");
  const Shape& x = c.in[0].shape;
  if (x.rank() < 2) c.fail("x must be [..., H, D]; got {}", c.in[0].str());
  if (c.in[1].dtype != DType::i32) c.fail("positions must be i32; got {}", c.in[1].str());
  const Shape tokens = token_shape(x);
  if (!(ops::broadcast(c, c.in[1].shape, tokens) == tokens))
    c.fail("positions must broadcast to {}; got {}", tokens.str(), c.in[1].str());
  for (size_t i : {size_t{2}, size_t{3}})
    if (c.in[i].dtype != DType::f32 || c.in[i].shape.rank() != 2 || c.in[i] != c.in[2])
      c.fail("cos and sin must be [P, R / 2] f32; got {} and {}", c.in[2].str(), c.in[3].str());
  const int64_t columns = 2 * c.in[2].shape.size(1);
  if (columns == 0 || columns > x.size(-1))
    c.fail("{} of {} columns cannot turn", columns, x.size(-1));
  c.attr<bool>("interleaved");
  c.attr<bool>("inverse");
  if (c.attrs.find("heads") != nullptr) {
    const int64_t heads = c.attr<int64_t>("heads");
    if (heads < 1 || heads > x.size(-2)) c.fail("{} of {} heads cannot turn", heads, x.size(-2));
  }
  return {c.in[0]};
}

}  // namespace

Value rotary(Value x, Value positions, Value cos, Value sin, const RotaryOptions& options) {
  Attrs attrs{{"interleaved", options.interleaved}, {"inverse", options.inverse}};
  if (options.heads) attrs.set("heads", *options.heads);
  return call1(Op::rotary, {x, positions, cos, sin}, std::move(attrs));
}

namespace ops {

std::vector<OpDef> rotary_ops() {
  OpDef d;
  d.name = "rotary";
  d.doc =
      "Turns pairs (a, b) of the first R columns by the angle of the row's position p: a cos - b "
      "sin, b cos + a sin; by its negative where {inverse}, which is the derivative. Pair i of the "
      "R / 2 is columns i and i + R / 2, or, {interleaved}, 2 i and 2 i + 1. The other D - R "
      "columns "
      "stay as they are, and so do heads from {heads} on, where given. x, y: [..., T, H, D]; "
      "positions: i32, broadcast to [..., T]; cos, sin: [P, R / 2] f32, row p for position p. "
      "Computed in f32, rounded once";
  d.op_class = OpClass::movement;
  d.autocast_operands = 1;  // tables stay as they are
  d.infer = infer_rotary;
  d.decompose = [](const DecomposeContext& c) {
    Value x = widened(c.in[0]);
    const Attrs& attrs = c.node.attrs;
    const bool interleaved = attrs.get<bool>("interleaved");
    const int64_t half = c.in[2].shape().size(1), heads = turned_heads(attrs, x.shape());
    const int64_t all = x.shape().size(-2), width = x.shape().size(-1);
    Value cos = angles(c.in[2], c.in[1], x), sin = angles(c.in[3], c.in[1], x);
    if (attrs.get<bool>("inverse")) sin = -sin;
    const auto [a, b] = pairs_of(x, heads, half, interleaved);
    std::vector<Value> columns{joined({a * cos - b * sin, b * cos + a * sin}, interleaved)};
    if (2 * half < width)
      columns.push_back(slice(slice(x, -2, 0, heads), -1, 2 * half, width - 2 * half));
    std::vector<Value> parts{concat(columns, -1)};
    if (heads < all) parts.push_back(slice(x, -2, heads, all - heads));
    return std::vector<Value>{cast(concat(parts, -2), c.in[0].dtype())};
  };
  d.vjp = [](VjpContext& c) {
    Attrs attrs = c.attrs();
    const bool inverse = attrs.get<bool>("inverse"), interleaved = attrs.get<bool>("interleaved");
    Value dy = c.grad(0), x = c.operand(0), positions = c.operand(1);
    if (c.wants(2) || c.wants(3)) {
      const int64_t half = c.operand(2).shape().size(1), heads = turned_heads(attrs, x.shape());
      const auto [a, b] = pairs_of(widened(x), heads, half, interleaved);
      const auto [da, db] = pairs_of(widened(dy), heads, half, interleaved);
      if (c.wants(2)) c.set(2, table_gradient(da * a + db * b, positions, c.operand(2)));
      Value dsin = inverse ? da * b - db * a : db * a - da * b;
      if (c.wants(3)) c.set(3, table_gradient(dsin, positions, c.operand(3)));
    }
    attrs.set("inverse", !inverse);
    if (c.wants(0))
      c.set(0, call1(Op::rotary, {dy, positions, c.operand(2), c.operand(3)}, std::move(attrs)));
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    const double x = static_cast<double>(in[0].bytes()), pairs = elements(in[2]);
    const double positions = elements(in[1]), half = static_cast<double>(in[2].shape.size(1));
    const double rows = 8 * std::min(positions * half, pairs);  // of cos and sin
    const double turned = elements({DType::i32, token_shape(in[0].shape)}) * half *
                          static_cast<double>(turned_heads(n.attrs, in[0].shape));
    return Cost{6 * turned, x + rows + static_cast<double>(in[1].bytes()), x};
  };
  d.samples = [] {
    const auto make = [](Shape x, Shape positions, int64_t columns, Attrs attrs) {
      const Sample::Operand table = tensor({3, columns / 2});
      return Sample{
          {tensor(std::move(x)), tensor(std::move(positions), 0, 3, DType::i32), table, table},
          std::move(attrs)};
    };
    const auto how = [](bool interleaved, bool inverse) {
      return Attrs{{"interleaved", interleaved}, {"inverse", inverse}};
    };
    Attrs two = how(false, false), one = how(true, true);
    two.set("heads", int64_t{2});
    one.set("heads", int64_t{1});
    return std::vector<Sample>{make({2, 5, 3, 8}, {2, 5}, 8, how(false, false)),
                               make({2, 5, 3, 8}, {5}, 8, how(true, false)),
                               make({17, 4, 70}, {17}, 70, how(false, true)),
                               make({17, 4, 34}, {17}, 34, how(true, true)),
                               make({3, 4, 5, 70}, {3, 1}, 20, two),
                               make({2, 3, 40}, {}, 38, one)};
  };
  d.in_place = {{0, 0}};
  return {d};
}

}  // namespace ops
}  // namespace brrr
