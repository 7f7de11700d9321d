// Adafactor (Shazeer and Stern 2018): the second moment of a matrix as the product of its row and
// column means, steps clipped by their size. The maths is that of transformers.Adafactor.

#include "ops/update.h"

namespace brrr::ops {
namespace {

// States of a parameter: row and column means of a matrix [..., R, C], or the moment of a vector.
std::vector<Type> state_types(bool factored, const Shape& shape) {
  if (!factored) return {{DType::f32, shape}};
  std::vector<Dim> rows(shape.dims().begin(), shape.dims().end()), columns = rows;
  rows.pop_back();
  columns.erase(columns.end() - 2);
  return {{DType::f32, Shape(rows)}, {DType::f32, Shape(columns)}};
}

std::vector<Type> infer(const InferContext& c, bool factored) {
  const size_t states = factored ? 2 : 1;
  const UpdateLayout at = check_update(c, states, {}, {"weight_decay", "eps1", "eps2", "clip"});
  if (!(c.attr<double>("decay_rate") <= 0)) c.fail("decay_rate must not be positive");
  c.attr<bool>("scale_parameter");
  if (at.has_key) c.fail("rounds no parameters: expected f32");
  std::vector<Type> out;
  for (size_t i = 0; i < at.n; ++i) out.push_back(c.in[at.param(i)]);
  for (size_t k = 0; k < states; ++k)
    for (size_t i = 0; i < at.n; ++i) {
      const Type& param = c.in[at.param(i)];
      if (factored && param.shape.rank() < 2)
        c.fail("parameter {} is {}: no matrix", i, param.str());
      const Type wanted = state_types(factored, param.shape)[k];
      if (c.in[at.state(k, i)] != wanted)
        c.fail("state {} of parameter {} must be {}; got {}", k, i, wanted.str(),
               c.in[at.state(k, i)].str());
      out.push_back(wanted);
    }
  append_copies(c, at, out);
  return out;
}

double rms(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return x.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.size()));
}

// u = g / sqrt(second moment), and the next moments. Rows and columns: [B, R, C], B matrices.
std::vector<double> factored_update(const std::vector<double>& g, const Shape& shape, double beta,
                                    double eps, const std::vector<double>& old_rows,
                                    const std::vector<double>& old_columns,
                                    std::vector<double>& rows, std::vector<double>& columns) {
  const auto R = static_cast<size_t>(shape.size(-2)), C = static_cast<size_t>(shape.size(-1));
  const size_t B = R * C == 0 ? 0 : g.size() / (R * C);
  std::vector<double> u(g.size());
  for (size_t b = 0; b < B; ++b) {
    std::vector<double> row(R), column(C);
    for (size_t r = 0; r < R; ++r)
      for (size_t k = 0; k < C; ++k) {
        const double x = g[(b * R + r) * C + k];
        row[r] += (x * x + eps) / static_cast<double>(C);
        column[k] += (x * x + eps) / static_cast<double>(R);
      }
    double mean = 0;
    for (size_t r = 0; r < R; ++r) {
      rows[b * R + r] = beta * old_rows[b * R + r] + (1 - beta) * row[r];
      mean += rows[b * R + r] / static_cast<double>(R);
    }
    for (size_t k = 0; k < C; ++k)
      columns[b * C + k] = beta * old_columns[b * C + k] + (1 - beta) * column[k];
    for (size_t r = 0; r < R; ++r)
      for (size_t k = 0; k < C; ++k)
        u[(b * R + r) * C + k] =
            g[(b * R + r) * C + k] / std::sqrt(rows[b * R + r] / mean * columns[b * C + k]);
  }
  return u;
}

void evaluate(const EvalContext& c, bool factored) {
  const Attrs& a = c.node.attrs;
  const UpdateLayout at(a, c.in.size(), factored ? 2 : 1);
  const double lr = c.in[UpdateLayout::kLearningRate]->data[0];
  const double t = c.in[UpdateLayout::kStep]->data[0];
  const double scale = c.in[UpdateLayout::kScale]->data[0];
  const double beta = 1 - std::pow(t, a.get<double>("decay_rate"));
  const double eps1 = a.get<double>("eps1"), eps2 = a.get<double>("eps2");
  const auto& decays = a.get<std::vector<int64_t>>("decays");
  for (size_t i = 0; i < at.n; ++i) {
    const auto& p = c.in[at.param(i)]->data;
    if (std::isnan(scale) || p.empty()) {
      c.out[at.new_param(i)].data = p;
      for (size_t k = 0; k < at.states; ++k)
        c.out[at.new_state(k, i)].data = c.in[at.state(k, i)]->data;
      continue;
    }
    std::vector<double> g = c.in[at.grad(i)]->data, u;
    for (double& x : g) x *= scale;
    auto& first = c.out[at.new_state(0, i)].data;
    if (factored) {
      u = factored_update(g, c.in[at.param(i)]->type.shape, beta, eps1, c.in[at.state(0, i)]->data,
                          c.in[at.state(1, i)]->data, first, c.out[at.new_state(1, i)].data);
    } else {
      u = g;
      for (size_t j = 0; j < g.size(); ++j) {
        first[j] = beta * c.in[at.state(0, i)]->data[j] + (1 - beta) * (g[j] * g[j] + eps1);
        u[j] /= std::sqrt(first[j]);
      }
    }
    const double size = a.get<bool>("scale_parameter") ? std::max(eps2, rms(p)) : 1;
    const double decay = decays[i] ? a.get<double>("weight_decay") : 0;
    const double clip = std::max(1.0, rms(u) / a.get<double>("clip"));
    for (size_t j = 0; j < p.size(); ++j)
      c.out[at.new_param(i)].data[j] = p[j] - lr * size * (decay * p[j] + u[j] / clip);
  }
  store_copies(c, at);
}

OpDef adafactor(bool factored) {
  const size_t states = factored ? 2 : 1;
  OpDef d;
  d.name = factored ? "adafactor" : "adafactor_vector";
  d.doc =
      factored
          ? "Adafactor (Shazeer and Stern 2018, alg. 4 and 8) for matrices [..., R, C], g = scale "
            "grad, beta = 1 - t^decay_rate: row' = beta row + (1-beta) mean_C(g^2 + eps1), col' "
            "likewise over R; u = g / sqrt(row' col' / mean_R(row')); param' = param - a "
            "(weight_decay decay_i param + u / max(1, rms(u) / clip)) with a = lr, or lr max(eps2, "
            "rms(param)) with {scale_parameter}. Operands and results as of adamw with the states "
            "row [..., R] and col [..., C]"
          : "adafactor for parameters with fewer than two axes: u = g / sqrt(v'), v' = beta v + "
            "(1-beta) (g^2 + eps1). One state v";
  d.op_class = OpClass::optimizer;
  d.updates_parameters = true;
  d.no_gradient = "it consumes gradients";
  d.infer = [factored](const InferContext& c) { return infer(c, factored); };
  d.evaluate = [factored](const EvalContext& c) { evaluate(c, factored); };
  d.cost = [states](const Node& node, std::span<const Type> in) {
    const UpdateLayout at(node.attrs, in.size(), states);
    double count = 0, grads = 0, params = 0;
    for (size_t i = 0; i < at.n; ++i) {
      count += elements(in[at.param(i)]);
      grads += static_cast<double>(in[at.grad(i)].bytes());
      params += static_cast<double>(in[at.param(i)].bytes());
    }
    Cost cost = streaming_cost(node, in, 14 * count);
    cost.bytes_read += 2 * grads + params;  // three passes; the parameter's size comes first
    return cost;
  };
  d.samples = [factored, states] {
    std::vector<Sample> out;
    for (bool scaled : {false, true}) {
      Sample s;
      s.in = update_scalars();
      const std::vector<Shape> shapes = factored
                                            ? std::vector<Shape>{{3, 37}, {2, 5, 7}, {301, 200}}
                                            : std::vector<Shape>{{5}, {}, {3001}};
      for (int part = 0; part < 2; ++part)
        for (const Shape& shape : shapes) s.in.push_back(tensor(shape));
      for (size_t k = 0; k < states; ++k)
        for (const Shape& shape : shapes)
          s.in.push_back(tensor(state_types(factored, shape)[k].shape, 0.1, 1));
      s.attrs = {{"decay_rate", -0.8},
                 {"eps1", 1e-30},
                 {"eps2", 1e-3},
                 {"clip", 1.0},
                 {"weight_decay", 0.1},
                 {"decays", std::vector<int64_t>{1, 0, 1}},
                 {"scale_parameter", scaled}};
      out.push_back(s);
      out.push_back(with_copies(std::move(s), scaled ? DType::bf16 : DType::f16));
    }
    return out;
  };
  d.in_place_of = update_in_place(states);
  return d;
}

}  // namespace

std::vector<OpDef> adafactor_ops() { return {adafactor(true), adafactor(false)}; }

}  // namespace brrr::ops
