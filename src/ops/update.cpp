#include "ops/update.h"

#include <algorithm>

namespace brrr::ops {

UpdateLayout::UpdateLayout(const Attrs& attrs, size_t operands, size_t state_kinds)
    : has_key(attrs.find("stream") != nullptr), states(state_kinds) {
  n = operands < scalars() ? 0 : (operands - scalars()) / (2 + states);
  copies_ = attrs.get_or<std::vector<int64_t>>("copies", {});
  size_t next = (1 + states) * n;
  for (const int64_t layouts : copies_) {
    first_copy_.push_back(next);
    next += static_cast<size_t>(std::popcount(static_cast<uint64_t>(layouts)));
  }
}

bool UpdateLayout::has_copy(size_t i, Layout layout) const {
  return i < copies_.size() && (copies_[i] & copy_bit(layout)) != 0;
}

size_t UpdateLayout::new_copy(size_t i, Layout layout) const {
  const int64_t before = copies_[i] & (copy_bit(layout) - 1);
  return first_copy_[i] + static_cast<size_t>(std::popcount(static_cast<uint64_t>(before)));
}

namespace {

constexpr int64_t kAllLayouts = 7;

}  // namespace

Shape whole_shape(const Attrs& attrs, size_t i, const Shape& own) {
  const auto whole = attrs.get_or<std::vector<int64_t>>("whole_shapes", {});
  return whole.empty() ? own : Shape{whole[2 * i], whole[2 * i + 1]};
}

bool has_copies_in_panels(const Attrs& attrs) {
  const auto copies = attrs.get_or<std::vector<int64_t>>("copies", {});
  return std::any_of(copies.begin(), copies.end(),
                     [](int64_t layouts) { return layouts > copy_bit(Layout::rows); });
}

UpdateLayout check_update(const InferContext& c, size_t states,
                          const std::vector<std::string>& shares,
                          const std::vector<std::string>& positive_or_zero) {
  const UpdateLayout at(c.attrs, c.in.size(), states);
  if (c.in.size() != at.scalars() + at.n * (2 + states))
    c.fail("takes {} scalars and then {} tensors for each parameter; got {} operands", at.scalars(),
           2 + states, c.in.size());
  const Type wanted[] = {{DType::f32, {}}, {DType::i32, {}}, {DType::f32, {}}, {DType::i32, {2}}};
  for (size_t i = 0; i < at.scalars(); ++i)
    if (c.in[i] != wanted[i])
      c.fail("lr, t, scale (and key) must be f32[], i32[], f32[] (and i32[2]); operand {} is {}", i,
             c.in[i].str());
  for (size_t i = 0; i < at.n; ++i) {
    expect_float(c, at.param(i), "parameters");
    expect_float(c, at.grad(i), "gradients");
    const Type &p = c.in[at.param(i)], &g = c.in[at.grad(i)];
    if (p.shape != g.shape) c.fail("parameter {} is {}, its gradient {}", i, p.str(), g.str());
    if (p.dtype == DType::f16 || (p.dtype == DType::bf16 && !at.has_key))
      c.fail("parameter {} is {}: expected f32, or bf16 with a key to round by", i, p.str());
  }
  if (c.attr<std::vector<int64_t>>("decays").size() != at.n)
    c.fail("decays must have one entry for each of {} parameters", at.n);
  if (at.has_key && c.attr<int64_t>("stream") + static_cast<int64_t>(at.n) > int64_t{1} << 32)
    c.fail("the streams from {} on do not fit 32 bits", c.attr<int64_t>("stream"));
  for (const std::string& name : shares)
    if (!(c.attr<double>(name) >= 0 && c.attr<double>(name) < 1))
      c.fail("{} must be in [0, 1); got {}", name, c.attr<double>(name));
  for (const std::string& name : positive_or_zero)
    if (!(c.attr<double>(name) >= 0))
      c.fail("{} must not be negative; got {}", name, c.attr<double>(name));
  return at;
}

void append_copies(const InferContext& c, const UpdateLayout& at, std::vector<Type>& results) {
  if (c.attrs.find("copies") == nullptr) return;
  if (c.attr<std::vector<int64_t>>("copies").size() != at.n)
    c.fail("copies must have one entry for each of {} parameters", at.n);
  const DType dtype = c.attr<DType>("copy_dtype");
  if (dtype != DType::bf16 && dtype != DType::f16)
    c.fail("copy_dtype must be bf16 or f16; got {}", name_of(dtype));
  for (size_t i = 0; i < at.n; ++i) {
    const int64_t layouts = c.attr<std::vector<int64_t>>("copies")[i];
    if (layouts < 0 || layouts > kAllLayouts) c.fail("copies must be in [0, 7]; got {}", layouts);
    if (layouts == 0) continue;
    const Type& param = c.in[at.param(i)];
    if (param.dtype != DType::f32) c.fail("parameter {} is {}: a copy is of f32", i, param.str());
    for (const Layout layout : kCopyLayouts) {
      if (!at.has_copy(i, layout)) continue;
      if (layout != Layout::rows && param.shape.rank() != 2)
        c.fail("parameter {} is {}: only matrices lie in panels", i, param.str());
      results.push_back({dtype, param.shape, {layout}});
    }
  }
}

void store_copies(const EvalContext& c, const UpdateLayout& at) {
  for (size_t i = 0; i < at.n; ++i) {
    const RefTensor& param = c.out[at.new_param(i)];
    for (const Layout layout : kCopyLayouts)
      if (at.has_copy(i, layout)) c.out[at.new_copy(i, layout)].data = param.data;
  }
}

Sample with_copies(Sample s, DType dtype) {
  std::vector<int64_t> copies(s.attrs.get<std::vector<int64_t>>("decays").size());
  for (size_t i = 0; i < copies.size(); i += 2) copies[i] = 1;
  s.attrs.set("copies", std::move(copies));
  s.attrs.set("copy_dtype", dtype);
  return s;
}

Sample with_copies_in_panels(Sample s, DType dtype) {
  std::vector<int64_t> copies(s.attrs.get<std::vector<int64_t>>("decays").size());
  const size_t first = s.attrs.find("stream") != nullptr ? 4 : 3;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (s.in[first + i].type.shape.rank() == 2)
      copies[i] = kAllLayouts - static_cast<int64_t>(i % 4);
  }
  s.attrs.set("copies", std::move(copies));
  s.attrs.set("copy_dtype", dtype);
  return s;
}

std::function<std::vector<OpDef::InPlace>(const Node&)> update_in_place(size_t states) {
  return [states](const Node& node) {
    const UpdateLayout at(node.attrs, node.operands.size(), states);
    std::vector<OpDef::InPlace> pairs;
    auto pair = [&](size_t result, size_t operand) {
      pairs.push_back({static_cast<uint32_t>(result), static_cast<uint32_t>(operand)});
    };
    for (size_t i = 0; i < at.n; ++i) {
      pair(at.new_param(i), at.param(i));
      for (size_t k = 0; k < states; ++k) pair(at.new_state(k, i), at.state(k, i));
    }
    return pairs;
  };
}

void store_param(const EvalContext& c, const UpdateLayout& at, size_t i, size_t element,
                 double value) {
  double& to = c.out[at.new_param(i)].data[element];
  to = value;
  if (c.in[at.param(i)]->type.dtype != DType::bf16) return;
  const auto& key = c.in[UpdateLayout::kKey]->data;
  const auto word = [](double x) { return static_cast<uint32_t>(static_cast<int64_t>(x)); };
  const auto stream =
      static_cast<uint32_t>(c.node.attrs.get<int64_t>("stream")) + static_cast<uint32_t>(i);
  const uint32_t random = philox_u16({word(key[0]), word(key[1])}, stream, element);
  to = static_cast<double>(float_from_bf16(bf16_at_random(static_cast<float>(value), random)));
}

std::vector<Sample::Operand> update_scalars() {
  return {tensor({}, 1e-3, 1e-2), tensor({}, 1, 9, DType::i32), tensor({}, 0.1, 1)};
}

namespace {

void evaluate_update(const UpdateRule& r, const EvalContext& c) {
  const UpdateLayout at(c.node.attrs, c.in.size(), r.states);
  const double lr = c.in[UpdateLayout::kLearningRate]->data[0];
  const double t = c.in[UpdateLayout::kStep]->data[0];
  const double scale = c.in[UpdateLayout::kScale]->data[0];
  const auto& decays = c.node.attrs.get<std::vector<int64_t>>("decays");
  std::vector<double> state(r.states);
  for (size_t i = 0; i < at.n; ++i) {
    const RefTensor& param = *c.in[at.param(i)];
    const double decay = decays[i] ? c.node.attrs.get<double>("weight_decay") : 0;
    const ElementRule change =
        r.rule(c.node.attrs, lr, t, decay, whole_shape(c.node.attrs, i, param.type.shape));
    for (size_t j = 0; j < param.data.size(); ++j) {
      for (size_t k = 0; k < r.states; ++k) state[k] = c.in[at.state(k, i)]->data[j];
      double p = param.data[j];
      if (std::isnan(scale)) {
        c.out[at.new_param(i)].data[j] = p;
      } else {
        change(p, scale * c.in[at.grad(i)]->data[j], state.data());
        store_param(c, at, i, j, p);
      }
      for (size_t k = 0; k < r.states; ++k) c.out[at.new_state(k, i)].data[j] = state[k];
    }
  }
  store_copies(c, at);
}

}  // namespace

OpDef update_op(UpdateRule r) {
  OpDef d;
  d.name = r.name;
  d.doc = r.doc;
  d.updates_parameters = true;
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it consumes gradients";
  d.infer = [r](const InferContext& c) {
    const UpdateLayout at = check_update(c, r.states, r.shares, r.positive_or_zero);
    std::vector<Type> out;
    for (size_t i = 0; i < at.n; ++i) out.push_back(c.in[at.param(i)]);
    for (size_t k = 0; k < r.states; ++k)
      for (size_t i = 0; i < at.n; ++i) {
        const Type& state = c.in[at.state(k, i)];
        if (state.shape != c.in[at.param(i)].shape || state.dtype != DType::f32)
          c.fail("parameter {} is {}, its state must be f32 of that shape; got {}", i,
                 c.in[at.param(i)].str(), state.str());
        out.push_back(state);
      }
    append_copies(c, at, out);
    return out;
  };
  d.evaluate = [r](const EvalContext& c) { evaluate_update(r, c); };
  d.cost = [r](const Node& node, std::span<const Type> in) {
    const UpdateLayout at(node.attrs, in.size(), r.states);
    double count = 0;
    for (size_t i = 0; i < at.n; ++i) count += elements(in[at.param(i)]);
    return streaming_cost(node, in, r.flops * count);
  };
  d.samples = [r] {
    const auto sample_of = [&](std::initializer_list<Shape> shapes, double decay) {
      Sample s;
      s.in = update_scalars();
      for (size_t part = 0; part < 2 + r.states; ++part)
        for (const Shape& shape : shapes) s.in.push_back(tensor(shape, part == 3 ? 0.1 : -1, 1));
      std::vector<int64_t> decays(shapes.size());
      for (size_t i = 0; i < decays.size(); i += 2) decays[i] = 1;
      s.attrs = r.sample;
      s.attrs.set("weight_decay", decay);
      s.attrs.set("decays", std::move(decays));
      return s;
    };
    std::vector<Sample> out;
    for (double decay : {0.0, 0.1}) {
      const Sample s = sample_of({{3, 37}, {5}, {700, 101}}, decay);
      const DType low = decay == 0 ? DType::bf16 : DType::f16;
      out.push_back(s);
      out.push_back(with_copies(s, low));
      out.push_back(with_copies_in_panels(
          sample_of({{64, 96}, {32, 33}, {5}, {33, 64}, {3, 5}, {1, 4128}}, decay), low));
    }
    return out;
  };
  d.in_place_of = update_in_place(r.states);
  return d;
}

}  // namespace brrr::ops
