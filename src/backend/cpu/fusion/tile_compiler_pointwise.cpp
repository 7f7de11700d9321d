// The element-wise ops of a body as instructions.

#include <cmath>

#include "backend/cpu/fusion/tile_compiler.h"

namespace brrr::cpu {
namespace {

struct UnaryName {
  const char* name;
  TileUnary op;
};
constexpr UnaryName kUnaryNames[] = {{"neg", TileUnary::kNeg},
                                     {"exp", TileUnary::kExp},
                                     {"log", TileUnary::kLog},
                                     {"sqrt", TileUnary::kSqrt},
                                     {"rsqrt", TileUnary::kRsqrt},
                                     {"reciprocal", TileUnary::kReciprocal},
                                     {"square", TileUnary::kSquare},
                                     {"abs", TileUnary::kAbs},
                                     {"tanh", TileUnary::kTanh},
                                     {"erf", TileUnary::kErf},
                                     {"sigmoid", TileUnary::kSigmoid},
                                     {"relu", TileUnary::kRelu},
                                     {"silu", TileUnary::kSilu},
                                     {"sin", TileUnary::kSin},
                                     {"cos", TileUnary::kCos},
                                     {"logical_not", TileUnary::kNot},
                                     {"gelu.tanh", TileUnary::kGeluTanh},
                                     {"gelu.none", TileUnary::kGeluErf}};

struct BinaryName {
  const char* name;
  DType dtype;  // f32 stands for the 16-bit floats too
  TileBinary op, reversed;
};
constexpr BinaryName kBinaryNames[] = {
    {"add", DType::f32, TileBinary::kAdd, TileBinary::kAdd},
    {"sub", DType::f32, TileBinary::kSub, TileBinary::kRSub},
    {"mul", DType::f32, TileBinary::kMul, TileBinary::kMul},
    {"div", DType::f32, TileBinary::kDiv, TileBinary::kRDiv},
    {"maximum", DType::f32, TileBinary::kMaximum, TileBinary::kRMaximum},
    {"minimum", DType::f32, TileBinary::kMinimum, TileBinary::kRMinimum},
    {"pow", DType::f32, TileBinary::kPow, TileBinary::kRPow},
    {"equal", DType::f32, TileBinary::kEqual, TileBinary::kEqual},
    {"not_equal", DType::f32, TileBinary::kNotEqual, TileBinary::kNotEqual},
    {"less", DType::f32, TileBinary::kLess, TileBinary::kGreater},
    {"less_equal", DType::f32, TileBinary::kLessEqual, TileBinary::kGreaterEqual},
    {"greater", DType::f32, TileBinary::kGreater, TileBinary::kLess},
    {"greater_equal", DType::f32, TileBinary::kGreaterEqual, TileBinary::kLessEqual},
    {"silu_grad", DType::f32, TileBinary::kSiluGrad, TileBinary::kRSiluGrad},
    {"gelu_grad.tanh", DType::f32, TileBinary::kGeluTanhGrad, TileBinary::kRGeluTanhGrad},
    {"gelu_grad.none", DType::f32, TileBinary::kGeluErfGrad, TileBinary::kRGeluErfGrad},
    {"add", DType::i32, TileBinary::kAddInt, TileBinary::kAddInt},
    {"sub", DType::i32, TileBinary::kSubInt, TileBinary::kRSubInt},
    {"mul", DType::i32, TileBinary::kMulInt, TileBinary::kMulInt},
    {"maximum", DType::i32, TileBinary::kMaximumInt, TileBinary::kMaximumInt},
    {"minimum", DType::i32, TileBinary::kMinimumInt, TileBinary::kMinimumInt},
    {"equal", DType::i32, TileBinary::kEqualInt, TileBinary::kEqualInt},
    {"not_equal", DType::i32, TileBinary::kNotEqualInt, TileBinary::kNotEqualInt},
    {"less", DType::i32, TileBinary::kLessInt, TileBinary::kGreaterInt},
    {"less_equal", DType::i32, TileBinary::kLessEqualInt, TileBinary::kGreaterEqualInt},
    {"greater", DType::i32, TileBinary::kGreaterInt, TileBinary::kLessInt},
    {"greater_equal", DType::i32, TileBinary::kGreaterEqualInt, TileBinary::kLessEqualInt},
    {"logical_and", DType::boolean, TileBinary::kAnd, TileBinary::kAnd},
    {"logical_or", DType::boolean, TileBinary::kOr, TileBinary::kOr}};

std::string key_of(const Node& node) {
  if (node.op->name == "gelu" || node.op->name == "gelu_grad")
    return node.op->name + "." + node.attrs.get<std::string>("approximate");
  return node.op->name;
}

}  // namespace

bool TileCompiler::pointwise(NodeId id) {
  const Node& node = body_.node(id);
  const std::string& name = node.op->name;
  if (node.results[0].shape.elements() != p_.elements_)
    return refuse(fmt::format("{} of {} elements beside {}", name, node.results[0].shape.elements(),
                              p_.elements_));
  if (!store_code(node.results[0].dtype))
    return refuse(fmt::format("{} of {}", name, name_of(node.results[0].dtype)));
  for (const ValueId& v : node.operands)
    if (!load_code(body_.type(v).dtype))
      return refuse(fmt::format("{} of {}", name, name_of(body_.type(v).dtype)));
  if (name == "where") return select(id);
  if (name == "cast") return cast(id);
  if (name == "dropout") return dropout(id);
  return node.operands.size() == 1 ? unary(id) : binary(id);
}

bool TileCompiler::unary(NodeId id) {
  const Node& node = body_.node(id);
  const std::string key = key_of(node);
  for (const UnaryName& row : kUnaryNames) {
    if (row.name != key) continue;
    const DType t = node.results[0].dtype;
    if ((t == DType::boolean) != (row.op == TileUnary::kNot) ||
        (t != DType::boolean && !is_lane_float(t)))
      return refuse(fmt::format("{} of {}", key, name_of(t)));
    load(root_of(id, 0));
    used(root_of(id, 0));
    save_accumulator();
    emit(tile_code(row.op));
    return define(id, false);
  }
  return refuse(fmt::format("no tile function for {}", key));
}

bool TileCompiler::binary(NodeId id) {
  const Node& node = body_.node(id);
  const std::string key = key_of(node);
  const ValueId a = root_of(id, 0), b = root_of(id, 1);
  const DType t = body_.type(a).dtype;
  const DType lanes = is_lane_float(t) ? DType::f32 : t;
  const Shape& out = node.results[0].shape;
  for (const BinaryName& row : kBinaryNames) {
    if (row.name != key || row.dtype != lanes) continue;
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
    emit(tile_code(reversed ? row.reversed : row.op, source.source), source.index);
    return define(id, node.results[0].dtype == DType::boolean);
  }
  return refuse(fmt::format("no tile function for {} of {}", key, name_of(t)));
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
  if (is_lane_float(from) && is_lane_float(to)) {
    exact = to == DType::f32 || to == from;
  } else if (from == DType::i32 && to == DType::f32) {
    convert = TileUnary::kIntToFloat;
  } else if (from == DType::boolean && is_lane_float(to)) {
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
