// GELU (Hendrycks and Gimpel 2016), in the tanh form that GPT-2 uses and in the exact erf form.

#include "ops/support.h"

namespace brrr {
namespace {

constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kInvSqrtTwoPi = 0.39894228040143267794;

bool is_tanh(const Attrs& attrs) { return attrs.get<std::string>("approximate") == "tanh"; }

void check_approximate(const InferContext& c) {
  const std::string& a = c.attr<std::string>("approximate");
  if (a != "tanh" && a != "none") c.fail("approximate must be \"tanh\" or \"none\"; got \"{}\"", a);
}

std::vector<Sample> gelu_samples(size_t operands) {
  std::vector<Sample> out;
  for (const char* a : {"tanh", "none"})
    for (const Shape& shape : {Shape{3, 37}, Shape{2, 4, 64}, Shape{}})
      out.push_back({std::vector<Sample::Operand>(operands, ops::tensor(shape, -4, 4)),
                     {{"approximate", std::string(a)}}});
  return out;
}

}  // namespace

Value gelu(Value x, Gelu approximation) {
  return call1(Op::gelu, {x},
               {{"approximate", std::string(approximation == Gelu::tanh ? "tanh" : "none")}});
}

namespace ops {

std::vector<OpDef> gelu_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "gelu";
    d.code = "gelu_{approximate}({0})";
    d.is_activation = true;
    d.doc =
        "y = x Phi(x). approximate=\"tanh\": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), "
        "\"none\": 0.5 x (1 + erf(x / sqrt 2)). x, y: [...]";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 1);
      expect_float(c, 0, "x");
      check_approximate(c);
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value x = c.in[0];
      Value inner = is_tanh(c.node.attrs) ? tanh(kSqrtTwoOverPi * (x + kCubic * (x * x * x)))
                                          : erf(kSqrtHalf * x);
      return std::vector<Value>{0.5 * x * (1.0 + inner)};
    };
    d.vjp = [](VjpContext& c) {
      c.set(0, call1(Op::gelu_grad, {c.grad(0), c.operand(0)}, c.attrs()));
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 8 * elements(in[0]));
    };
    d.samples = [] { return gelu_samples(1); };
    d.in_place = {{0, 0}};
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "gelu_grad";
    d.code = "gelu_grad_{approximate}({0}, {1})";
    d.is_gradient = true;
    d.doc = "dx = dy d gelu(x) / dx. dy, x, dx: [...]";
    d.infer = [](const InferContext& c) {
      expect_operands(c, 2);
      expect_float(c, 0, "dy");
      check_approximate(c);
      if (c.in[0] != c.in[1])
        c.fail("dy and x must agree; got {} and {}", c.in[0].str(), c.in[1].str());
      return std::vector<Type>{c.in[0]};
    };
    d.decompose = [](const DecomposeContext& c) {
      Value dy = c.in[0], x = c.in[1];
      if (is_tanh(c.node.attrs)) {
        Value t = tanh(kSqrtTwoOverPi * (x + kCubic * (x * x * x)));
        Value inner = kSqrtTwoOverPi * (1.0 + 3 * kCubic * (x * x));
        return std::vector<Value>{dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)};
      }
      Value density = kInvSqrtTwoPi * exp(-0.5 * (x * x));
      return std::vector<Value>{dy * (0.5 * (1.0 + erf(kSqrtHalf * x)) + x * density)};
    };
    d.cost = [](const Node& n, std::span<const Type> in) {
      return streaming_cost(n, in, 16 * elements(in[0]));
    };
    d.samples = [] { return gelu_samples(2); };
    d.in_place = {{0, 0}, {0, 1}};
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
