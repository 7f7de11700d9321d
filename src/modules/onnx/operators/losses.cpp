// Losses, the steps of optimisers, and choosing boxes.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

// -- losses
// ---------------------------------------------------------------------------------------

/// [N, C, d...] -> [N, C, D], and targets [N, d...] -> [N, 1, D], as i64.
struct Classes {
  Value x, targets;
  Shape target_shape;
};

Classes classes_of(Call& c) {
  const Shape x = c.in(0).shape(), t = c.in(1).shape();
  Shape wanted = x;
  if (x.rank() >= 2) wanted.erase(1);
  if (x.rank() < 2 || t != wanted)
    c.fail("targets {} do not fit {}", c.in(1).type().str(), c.in(0).type().str());
  int64_t rest = 1;
  for (int a = 2; a < x.rank(); ++a) rest *= x.size(a);
  const DType dtype = c.in(0).dtype();
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  return {reshape(cast(c.in(0), wide), {x.size(0), x.size(1), rest}),
          reshape(cast(c.in(1), DType::i64), {x.size(0), 1, rest}), t};
}

Value sum_of_all(Value x) {
  std::vector<int64_t> axes(static_cast<size_t>(x.shape().rank()));
  std::iota(axes.begin(), axes.end(), 0);
  return sum(x, axes);
}

/// The loss of log probabilities [N, C, D], reduced as the attributes say.
void likelihood_loss(Call& c, const Classes& k, Value log_probabilities) {
  const DType dtype = c.in(0).dtype();
  const Value& x = log_probabilities;
  const int64_t classes = x.shape().size(1);
  const Value zero = c.scalar_like(0.0, x);
  const Value hit = equal(iota(c.graph(), x.shape(), 1, DType::i64), k.targets);
  Value loss = zero - sum(where(hit, x, zero), {1}, true);
  std::optional<Value> weight;  // [N, 1, D]
  if (c.has(2)) {
    if (c.in(2).shape().elements() != classes)
      c.fail("{} weights for {} classes", c.in(2).shape().elements(), classes);
    const Value of_class = reshape(cast(c.in(2), x.dtype()), {classes, 1});
    weight = sum(where(hit, of_class, zero), {1}, true);
  }
  if (c.has_attribute("ignore_index")) {
    const Value ignored = equal(k.targets, c.scalar(c.integer("ignore_index"), DType::i64));
    weight = where(ignored, zero, weight ? *weight : c.scalar_like(1.0, x));
  }
  if (weight) loss = loss * *weight;
  const std::string how = c.text("reduction", "mean");
  if (how == "none") return c.out(cast(reshape(loss, k.target_shape), dtype));
  if (how != "mean" && how != "sum") c.fail("reduction = {}", how);
  Value total = sum_of_all(loss);
  if (how == "mean") {
    const auto count = static_cast<double>(k.target_shape.elements());
    total = weight ? total / sum_of_all(broadcast_to(*weight, loss.shape())) : total / count;
  }
  c.out(cast(total, dtype));
}

void negative_log_likelihood(Call& c) {
  const Classes k = classes_of(c);
  likelihood_loss(c, k, k.x);
}

void softmax_cross_entropy(Call& c) {
  const Classes k = classes_of(c);
  const Value centred = k.x - max(k.x, {1}, true);
  const Value y = centred - log(sum(exp(centred), {1}, true));
  likelihood_loss(c, k, y);
  if (c.wants(1)) c.out(1, cast(reshape(y, Shape(c.in(0).shape())), c.in(0).dtype()));
}

// -- steps of optimisers
// --------------------------------------------------------------------------

/// Operands: rate, step, then n tensors, n gradients and n of each state.
struct Stepped {
  Value rate, step;
  size_t tensors = 0;
};

Stepped stepped(Call& c, size_t states) {
  const size_t each = states + 2;
  if (c.inputs() < 2 + each || (c.inputs() - 2) % each != 0) c.fail("{} operands", c.inputs());
  return {reshape(c.in(0), {}), reshape(cast(c.in(1), DType::f32), {}), (c.inputs() - 2) / each};
}

Value regularised_gradient(Call& c, const Value& x, const Value& gradient) {
  return x * c.number("norm_coefficient", 0.0) + gradient;
}

void adagrad_step(Call& c) {
  const Stepped s = stepped(c, 1);
  const Value one = c.scalar(1.0, DType::f32);
  const Value decay = one + s.step * c.number("decay_factor", 0.0);
  const Value rate = s.rate / cast(decay, s.rate.dtype());
  for (size_t i = 0; i < s.tensors; ++i) {
    const Value x = c.in(2 + i);
    const Value g = regularised_gradient(c, x, c.in(2 + s.tensors + i));
    const Value h = c.in(2 + 2 * s.tensors + i) + g * g;
    c.out(i, x - rate * g / (sqrt(h) + c.number("epsilon", 1e-6)));
    c.out(s.tensors + i, h);
  }
}

void momentum_step(Call& c) {
  const Stepped s = stepped(c, 1);
  const double alpha = c.number("alpha"), beta = c.number("beta");
  const std::string mode = c.text("mode");
  if (mode != "standard" && mode != "nesterov") c.fail("mode = {}", mode);
  const Value zero = c.scalar(0.0, DType::f32), one = c.scalar_like(1.0, s.rate);
  const Value factor = where(greater(s.step, zero), c.scalar_like(beta, s.rate), one);
  for (size_t i = 0; i < s.tensors; ++i) {
    const Value x = c.in(2 + i);
    const Value g = regularised_gradient(c, x, c.in(2 + s.tensors + i));
    const Value v = c.in(2 + 2 * s.tensors + i) * alpha + factor * g;
    c.out(i, x - s.rate * (mode == "nesterov" ? g + v * alpha : v));
    c.out(s.tensors + i, v);
  }
}

void adam_step(Call& c) {
  const Stepped s = stepped(c, 2);
  const double alpha = c.number("alpha", 0.9), beta = c.number("beta", 0.999);
  const Value zero = c.scalar(0.0, DType::f32), one = c.scalar(1.0, DType::f32);
  const auto power = [&](double base) { return pow(c.scalar(base, DType::f32), s.step); };
  const Value corrected = sqrt(one - power(beta)) / (one - power(alpha));
  const Value factor = where(greater(s.step, zero), corrected, one);
  const Value rate = s.rate * cast(factor, s.rate.dtype());
  const size_t n = s.tensors;
  for (size_t i = 0; i < n; ++i) {
    const Value x = c.in(2 + i), g = regularised_gradient(c, x, c.in(2 + n + i));
    const Value v = c.in(2 + 2 * n + i) * alpha + g * (1 - alpha);
    const Value h = c.in(2 + 3 * n + i) * beta + g * g * (1 - beta);
    const Value y = x - rate * v / (sqrt(h) + c.number("epsilon", 1e-6));
    c.out(i, y * (1 - c.number("norm_coefficient_post", 0.0)));
    c.out(n + i, v);
    c.out(2 * n + i, h);
  }
}

// -- boxes
// ----------------------------------------------------------------------------------------

struct Box {
  float top = 0, left = 0, bottom = 0, right = 0;
  float area() const { return (bottom - top) * (right - left); }
};

Box box_at(const RefTensor& boxes, size_t i, bool has_centre) {
  const auto at = [&](size_t k) { return static_cast<float>(boxes.number(4 * i + k)); };
  if (has_centre)  // x, y, width, height
    return {at(1) - at(3) / 2, at(0) - at(2) / 2, at(1) + at(3) / 2, at(0) + at(2) / 2};
  return {std::min(at(0), at(2)), std::min(at(1), at(3)), std::max(at(0), at(2)),
          std::max(at(1), at(3))};
}

bool overlap(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top),
              width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (height <= 0 || width <= 0 || a.area() <= 0 || b.area() <= 0) return false;
  const float common = height * width;
  return common / (a.area() + b.area() - common) > threshold;
}

struct Suppression {
  int64_t most = 0;
  float overlap = 0;
  double score = -INFINITY;
};

/// The numbers of the boxes that stay, the best first; of equal scores the first box.
std::vector<int64_t> chosen(const std::vector<Box>& boxes, const std::vector<double>& scores,
                            const Suppression& rule) {
  std::vector<int64_t> order, kept;
  for (size_t i = 0; i < boxes.size(); ++i)
    if (scores[i] > rule.score) order.push_back(static_cast<int64_t>(i));
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int64_t i) { return scores[static_cast<size_t>(i)]; });
  for (const int64_t i : order) {
    if (std::ssize(kept) >= rule.most) break;
    const auto hides = [&](int64_t k) {
      return overlap(boxes[static_cast<size_t>(i)], boxes[static_cast<size_t>(k)], rule.overlap);
    };
    if (std::ranges::none_of(kept, hides)) kept.push_back(i);
  }
  return kept;
}

void non_max_suppression(Call& c) {
  const Shape boxes = c.in(0).shape(), scores = c.in(1).shape();
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes.size(2) != 4 || boxes[0] != scores[0] ||
      boxes[1] != scores[2])
    c.fail("expected boxes [B, N, 4] and scores [B, C, N]; got {} and {}", c.in(0).type().str(),
           c.in(1).type().str());
  Suppression rule;
  if (c.has(2)) rule.most = static_cast<int64_t>(c.known_number(2));
  if (c.has(3)) rule.overlap = static_cast<float>(c.known_number(3));
  if (c.has(4)) rule.score = c.known_number(4);
  const bool has_centre = c.integer("center_point_box", 0) != 0;
  const RefTensor &all_boxes = c.known(0), &all_scores = c.known(1);
  const auto n = static_cast<size_t>(boxes.size(1));
  std::vector<int64_t> rows;
  for (int64_t batch = 0; batch < scores.size(0); ++batch) {
    std::vector<Box> own;
    for (size_t i = 0; i < n; ++i)
      own.push_back(box_at(all_boxes, static_cast<size_t>(batch) * n + i, has_centre));
    for (int64_t k = 0; k < scores.size(1); ++k) {
      std::vector<double> of_class(n);
      const auto first = static_cast<size_t>(batch * scores.size(1) + k) * n;
      for (size_t i = 0; i < n; ++i) of_class[i] = all_scores.number(first + i);
      for (const int64_t i : chosen(own, of_class, rule)) rows.insert(rows.end(), {batch, k, i});
    }
  }
  RefTensor y(Type{DType::i64, {std::ssize(rows) / 3, 3}});
  y.signed_data = rows;
  c.out(c.lowering().constant(y));
}

constexpr std::string_view kTraining = "ai.onnx.preview.training";

const OperatorRow kLossRows[] = {
    {"", "NegativeLogLikelihoodLoss", negative_log_likelihood},
    {"", "SoftmaxCrossEntropyLoss", softmax_cross_entropy},
    {"", "NonMaxSuppression", non_max_suppression},
    {kTraining, "Adagrad", adagrad_step},
    {kTraining, "Momentum", momentum_step},
    {kTraining, "Adam", adam_step},
};

}  // namespace

std::span<const OperatorRow> loss_operators() { return kLossRows; }

}  // namespace brrr::onnx
