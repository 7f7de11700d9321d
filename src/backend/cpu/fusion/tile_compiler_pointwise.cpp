// The element-wise ops of a body as instructions.

#include <algorithm>
#include <cmath>

#include "backend/cpu/fusion/tile_compiler.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

struct UnaryCode {
  Op op;
  TileUnary code;
};
constexpr UnaryCode kUnaryCodes[] = {
    {Op::neg, TileUnary::kNeg},       {Op::sqrt, TileUnary::kSqrt},
    {Op::rsqrt, TileUnary::kRsqrt},   {Op::reciprocal, TileUnary::kReciprocal},
    {Op::square, TileUnary::kSquare}, {Op::abs, TileUnary::kAbs},
    {Op::relu, TileUnary::kRelu},     {Op::logical_not, TileUnary::kNot}};

struct BinaryCode {
  Op op;
  DType dtype;  // f32 stands for the 16-bit floats too
  TileBinary code, reversed;
};
constexpr BinaryCode kBinaryCodes[] = {
    {Op::add, DType::f32, TileBinary::kAdd, TileBinary::kAdd},
    {Op::sub, DType::f32, TileBinary::kSub, TileBinary::kRSub},
    {Op::mul, DType::f32, TileBinary::kMul, TileBinary::kMul},
    {Op::div, DType::f32, TileBinary::kDiv, TileBinary::kRDiv},
    {Op::maximum, DType::f32, TileBinary::kMaximum, TileBinary::kRMaximum},
    {Op::minimum, DType::f32, TileBinary::kMinimum, TileBinary::kRMinimum},
    {Op::equal, DType::f32, TileBinary::kEqual, TileBinary::kEqual},
    {Op::not_equal, DType::f32, TileBinary::kNotEqual, TileBinary::kNotEqual},
    {Op::less, DType::f32, TileBinary::kLess, TileBinary::kGreater},
    {Op::less_equal, DType::f32, TileBinary::kLessEqual, TileBinary::kGreaterEqual},
    {Op::greater, DType::f32, TileBinary::kGreater, TileBinary::kLess},
    {Op::greater_equal, DType::f32, TileBinary::kGreaterEqual, TileBinary::kLessEqual},
    {Op::add, DType::i32, TileBinary::kAddInt, TileBinary::kAddInt},
    {Op::sub, DType::i32, TileBinary::kSubInt, TileBinary::kRSubInt},
    {Op::mul, DType::i32, TileBinary::kMulInt, TileBinary::kMulInt},
    {Op::maximum, DType::i32, TileBinary::kMaximumInt, TileBinary::kMaximumInt},
    {Op::minimum, DType::i32, TileBinary::kMinimumInt, TileBinary::kMinimumInt},
    {Op::equal, DType::i32, TileBinary::kEqualInt, TileBinary::kEqualInt},
    {Op::not_equal, DType::i32, TileBinary::kNotEqualInt, TileBinary::kNotEqualInt},
    {Op::less, DType::i32, TileBinary::kLessInt, TileBinary::kGreaterInt},
    {Op::less_equal, DType::i32, TileBinary::kLessEqualInt, TileBinary::kGreaterEqualInt},
    {Op::greater, DType::i32, TileBinary::kGreaterInt, TileBinary::kLessInt},
    {Op::greater_equal, DType::i32, TileBinary::kGreaterEqualInt, TileBinary::kLessEqualInt},
    {Op::logical_and, DType::boolean, TileBinary::kAnd, TileBinary::kAnd},
    {Op::logical_or, DType::boolean, TileBinary::kOr, TileBinary::kOr}};

}  // namespace

bool TileCompiler::pointwise(NodeId id) {
  const Node& node = body_.node(id);
  if (node.results[0].shape.elements() != p_.elements_)
    return refuse(fmt::format("{} of {} elements beside {}", node.op->name,
                              node.results[0].shape.elements(), p_.elements_));
  if (!store_code(node.results[0].dtype))
    return refuse(fmt::format("{} of {}", node.op->name, name_of(node.results[0].dtype)));
  for (const ValueId& v : node.operands)
    if (!load_code(body_.type(v).dtype))
      return refuse(fmt::format("{} of {}", node.op->name, name_of(body_.type(v).dtype)));
  if (is(node, Op::where)) return select(id);
  if (is(node, Op::cast)) return cast(id);
  if (is(node, Op::dropout)) return dropout(id);
  return node.operands.size() == 1 ? unary(id) : binary(id);
}

/// Emits a call of the row function; false where there is none for these dtypes.
bool TileCompiler::call(const Node& node, DType dtype, Source source, uint16_t accumulator) {
  const DType lanes = is_compute_float(dtype) ? DType::f32 : dtype;
  // Rows of booleans have a byte of each element, tiles a lane.
  const bool is_bool = dtype == DType::boolean || node.results[0].dtype == DType::boolean;
  const RowFunction function =
      is_bool || may_divide_by_zero(node, lanes) ? nullptr : row_function(node, lanes);
  if (function == nullptr)
    return refuse(fmt::format("no row function for {} of {}", node.op->name, name_of(dtype)));
  emit(TileCode::kCall, source.index, accumulator);
  code_.back().source = source.source;
  code_.back().call = function;
  return true;
}

bool TileCompiler::unary(NodeId id) {
  const Node& node = body_.node(id);
  const auto* row = std::ranges::find(kUnaryCodes, node.op->id, &UnaryCode::op);
  load(root_of(id, 0));
  used(root_of(id, 0));
  save_accumulator();
  if (row != std::end(kUnaryCodes))
    emit(tile_code(row->code));
  else if (!call(node, node.results[0].dtype, {TileSource::kNone}, 0))
    return false;
  return define(id, false);
}

bool TileCompiler::binary(NodeId id) {
  const Node& node = body_.node(id);
  const ValueId a = root_of(id, 0), b = root_of(id, 1);
  const DType t = body_.type(a).dtype;
  const DType lanes = is_compute_float(t) ? DType::f32 : t;
  const Shape& out = node.results[0].shape;
  const auto* row = std::ranges::find_if(
      kBinaryCodes, [&](const BinaryCode& c) { return is(node, c.op) && c.dtype == lanes; });
  used(a);
  used(b);
  // Whichever is in the accumulator stays there.
  const bool reversed = accumulator_ == b && !(a == b);
  const ValueId first = reversed ? b : a, second = reversed ? a : b;
  Source source;
  if (accumulator_ == first) {
    save_accumulator();
    // Its conversion would take the accumulator: then `first` is loaded again.
    const bool lives = place(first).kind != Place::nowhere;
    const Place& other = place(second);
    const bool converts =
        first == second ||
        (other.kind != Place::scalar &&
         (other.drawn || other.stored == DType::f16 || other.stored == DType::boolean));
    if (converts && !lives) keep(first);
  }
  if (!source_of(second, out, source, lanes == DType::f32)) return false;
  const Place& at = place(first);
  if (!(accumulator_ == first)) {
    save_accumulator();
    if (at.kind == Place::scalar) {
      emit(TileCode::kLoadScalar, at.index);
    } else {
      emit(at.drawn ? TileCode::kLoadU16 : *load_code(at.stored), *memory_of(at, out));
    }
  }
  if (row != std::end(kBinaryCodes))
    emit(tile_code(reversed ? row->reversed : row->code, source.source), source.index);
  else if (!call(node, t, source, reversed ? 1 : 0))
    return false;
  return define(id, node.results[0].dtype == DType::boolean);
}

bool TileCompiler::select(NodeId id) {
  const Node& node = body_.node(id);
  const ValueId c = root_of(id, 0), a = root_of(id, 1), b = root_of(id, 2);
  const Shape& out = node.results[0].shape;
  Source yes, no;
  for (const ValueId& v : {c, a, b}) used(v);
  // The condition goes into the accumulator last; before, a and b may be converted there.
  for (const ValueId& v : {c, a, b}) keep(v);
  if (!source_of(a, out, yes, false) || !source_of(b, out, no, false)) return false;
  if (!(accumulator_ == c)) {
    save_accumulator();
    const Place& at = place(c);
    if (at.kind == Place::scalar) {
      emit(TileCode::kLoadScalar, at.index);
    } else {
      emit(*load_code(at.stored), *memory_of(at, out));
    }
  }
  const bool yes_scalar = yes.source == TileSource::kScalar;
  const bool no_scalar = no.source == TileSource::kScalar;
  emit(yes_scalar ? (no_scalar ? TileCode::kSelectScalars : TileCode::kSelectScalar32)
                  : (no_scalar ? TileCode::kSelect32Scalar : TileCode::kSelect32s),
       yes.index, no.index);
  return define(id, true);
}

bool TileCompiler::cast(NodeId id) {
  const Node& node = body_.node(id);
  const ValueId x = root_of(id, 0);
  const DType from = body_.type(x).dtype, to = node.results[0].dtype;
  std::optional<TileUnary> convert;
  bool exact = true;
  if (is_compute_float(from) && is_compute_float(to)) {
    exact = to == DType::f32 || to == from;
  } else if (from == DType::i32 && to == DType::f32) {
    convert = TileUnary::kIntToFloat;
  } else if (from == DType::boolean && is_compute_float(to)) {
    convert = TileUnary::kMaskToFloat;
  } else if (from == DType::boolean && to == DType::i32) {
    convert = TileUnary::kMaskToInt;
  } else if (from != to) {
    return refuse(fmt::format("cast from {} to {}", name_of(from), name_of(to)));
  }
  load(x);
  used(x);
  save_accumulator();
  if (convert) emit(tile_code(*convert));
  return define(id, exact);
}

bool TileCompiler::dropout(NodeId id) {
  const Node& node = body_.node(id);
  const DType t = node.results[0].dtype;
  if (t != DType::f32 && t != DType::bf16) return refuse(fmt::format("dropout of {}", name_of(t)));
  const Place& key = place(node.operands[1]);
  if (key.kind != Place::operand) return refuse("a random key that is computed");
  used(root_of(id, 1));
  load(root_of(id, 0));
  used(root_of(id, 0));
  save_accumulator();
  const double threshold = std::min(65535.0, std::nearbyint(node.attrs.get<double>("p") * 65536));
  emit(TileCode::kDropout, draw(node, key.number));
  code_.back().bits = static_cast<int32_t>(threshold);
  code_.back().value = static_cast<float>(65536.0 / (65536.0 - threshold));
  return define(id, false);
}

}  // namespace brrr::cpu
