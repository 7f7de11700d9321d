// AdamW whose moments are stored in 8 bits.

#include "ops/quantized/dynamic_code.h"
#include "ops/update.h"

namespace brrr::ops {
namespace {

constexpr size_t kStates = 4;  // codes of m and v, scales of m and v

std::vector<Type> infer_8bit(const InferContext& c) {
  const UpdateLayout at = check_update(c, kStates, {"beta1", "beta2"}, {"eps", "weight_decay"});
  std::vector<Type> out;
  for (size_t i = 0; i < at.n; ++i) out.push_back(c.in[at.param(i)]);
  for (size_t k = 0; k < kStates; ++k)
    for (size_t i = 0; i < at.n; ++i) {
      const Shape& shape = c.in[at.param(i)].shape;
      const Type wanted =
          k < 2 ? Type{DType::u8, shape} : Type{DType::f32, {code_blocks(shape.elements())}};
      const Type& state = c.in[at.state(k, i)];
      if (state != wanted)
        c.fail("state {} of parameter {}, {}, must be {}; got {}", k, i, c.in[at.param(i)].str(),
               wanted.str(), state.str());
      out.push_back(wanted);
    }
  append_copies(c, at, out);
  return out;
}

// Block `block` of codes as numbers, and back.
struct Codes {
  const CodeBook& book;
  std::vector<double> read(const std::vector<double>& codes, double scale, size_t begin,
                           size_t count) const {
    std::vector<double> x;
    for (size_t j = 0; j < count; ++j)
      x.push_back(static_cast<double>(book[static_cast<size_t>(codes[begin + j])]) * scale);
    return x;
  }
  void write(const std::vector<double>& x, std::vector<double>& codes, double& scale,
             size_t begin) const {
    scale = 0;
    for (double value : x) scale = std::max(scale, std::fabs(value));
    const double divisor = std::max(scale, static_cast<double>(kLeastScale));
    for (size_t j = 0; j < x.size(); ++j) codes[begin + j] = nearest_code(book, x[j] / divisor);
  }
};

void evaluate_8bit(const EvalContext& c) {
  const Attrs& a = c.node.attrs;
  const UpdateLayout at(a, c.in.size(), kStates);
  const double lr = c.in[UpdateLayout::kLearningRate]->data[0];
  const double t = c.in[UpdateLayout::kStep]->data[0];
  const double scale = c.in[UpdateLayout::kScale]->data[0];
  const double b1 = a.get<double>("beta1"), b2 = a.get<double>("beta2"), eps = a.get<double>("eps");
  const double c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
  const auto& decays = a.get<std::vector<int64_t>>("decays");
  const Codes m_codes{dynamic_codes(true)}, v_codes{dynamic_codes(false)};
  for (size_t i = 0; i < at.n; ++i) {
    auto old_state = [&](size_t k) -> const std::vector<double>& {
      return c.in[at.state(k, i)]->data;
    };
    auto new_state = [&](size_t k) -> std::vector<double>& {
      return c.out[at.new_state(k, i)].data;
    };
    const auto &p = c.in[at.param(i)]->data, &grad = c.in[at.grad(i)]->data;
    if (std::isnan(scale)) {
      c.out[at.new_param(i)].data = p;
      for (size_t k = 0; k < kStates; ++k) new_state(k) = old_state(k);
      continue;
    }
    const double decay = decays[i] ? a.get<double>("weight_decay") : 0;
    for (size_t begin = 0; begin < p.size(); begin += kCodeBlock) {
      const size_t block = begin / kCodeBlock,
                   count = std::min<size_t>(kCodeBlock, p.size() - begin);
      auto m = m_codes.read(old_state(0), old_state(2)[block], begin, count);
      auto v = v_codes.read(old_state(1), old_state(3)[block], begin, count);
      for (size_t j = 0; j < count; ++j) {
        const double g = scale * grad[begin + j];
        m[j] = b1 * m[j] + (1 - b1) * g;
        v[j] = b2 * v[j] + (1 - b2) * g * g;
        const double step = lr * (m[j] / c1) / (std::sqrt(v[j] / c2) + eps);
        store_param(c, at, i, begin + j, p[begin + j] - lr * decay * p[begin + j] - step);
      }
      m_codes.write(m, new_state(0), new_state(2)[block], begin);
      v_codes.write(v, new_state(1), new_state(3)[block], begin);
    }
  }
  store_copies(c, at);
}

}  // namespace

std::vector<OpDef> optimizer_8bit_ops() {
  OpDef d;
  d.name = "adamw_8bit";
  d.doc =
      "adamw with moments in 8 bits (Dettmers et al. 2022). m and v are u8 codes in the shape of "
      "the parameter, with f32 [blocks] scales for blocks of 256 elements of the flattened tensor: "
      "a moment is code book[code] scale, the signed dynamic book for m, the unsigned one for v "
      "(ops/quantized/dynamic_code.h). param' is that of adamw with the moments before they are "
      "rounded; "
      "each block's new scale is its largest magnitude, its codes the nearest. Operands: lr, t, "
      "scale, (key,) all params, all grads, all m codes, all v codes, all m scales, all v scales; "
      "results: params and the four states";
  d.op_class = OpClass::optimizer;
  d.updates_parameters = true;
  d.no_gradient = "it consumes gradients";
  d.infer = infer_8bit;
  d.evaluate = evaluate_8bit;
  d.cost = [](const Node& node, std::span<const Type> in) {
    const UpdateLayout at(node.attrs, in.size(), kStates);
    double count = 0;
    for (size_t i = 0; i < at.n; ++i) count += elements(in[at.param(i)]);
    constexpr double kDecode = 9, kEncode = 18, kUpdate = 14;  // operations on one number
    return streaming_cost(node, in, (2 * kDecode + 2 * kEncode + kUpdate) * count);
  };
  d.samples = [] {
    Sample s;
    s.in = update_scalars();
    const Shape shapes[] = {{3, 37}, {5}, {70, 101}};
    for (int part = 0; part < 2; ++part)
      for (const Shape& shape : shapes) s.in.push_back(tensor(shape));
    for (int part = 0; part < 2; ++part)
      for (const Shape& shape : shapes) s.in.push_back(tensor(shape, 0, 256, DType::u8));
    for (int part = 0; part < 2; ++part)
      for (const Shape& shape : shapes)
        s.in.push_back(tensor({code_blocks(shape.elements())}, 0.1, 1));
    s.attrs = {{"beta1", 0.9},
               {"beta2", 0.95},
               {"eps", 1e-8},
               {"weight_decay", 0.1},
               {"decays", std::vector<int64_t>{1, 0, 1}}};
    return std::vector<Sample>{s, with_copies(s, DType::bf16), with_copies(s, DType::f16)};
  };
  d.in_place_of = update_in_place(kStates);
  return {std::move(d)};
}

}  // namespace brrr::ops
