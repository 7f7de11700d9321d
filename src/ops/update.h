#pragma once
// The frame of an optimizer's update: one node over all parameters, so that a kernel can make one
// pass over memory. What differs between optimizers is a rule for one element.
//
// Operands: lr f32[], t i32[] (the step, from 1), scale f32[] (of the gradients: unscaling and
// clipping), with {stream} also a key i32[2]; then all parameters, all gradients, all states of the
// first kind, all of the second, ... Results: all parameters, then all states; with {copies} and
// {copy_dtype} then the copies, rounded to those 16 bits, of each f32 parameter i that copies[i]
// asks for (copy_bit). A scale of NaN changes nothing: the gradients were not finite.

#include <bit>
#include <functional>

#include "base/rng.h"
#include "ops/support.h"

namespace brrr::ops {

/// How copies of a parameter may lie, those in panels of a matrix alone. copies[i] is a sum of the
/// bits of some of these, and the copies stand in this order.
inline constexpr Layout kCopyLayouts[] = {Layout::rows, Layout::panels, Layout::transposed_panels};
constexpr int64_t copy_bit(Layout layout) { return int64_t{1} << static_cast<int>(layout); }

/// Where things stand among the operands and results of an update of n parameters.
struct UpdateLayout {
  static constexpr size_t kLearningRate = 0, kStep = 1, kScale = 2, kKey = 3;
  bool has_key = false;  // parameters in bf16 are rounded at random
  size_t states = 0, n = 0;

  size_t scalars() const { return has_key ? 4 : 3; }
  size_t param(size_t i) const { return scalars() + i; }
  size_t grad(size_t i) const { return scalars() + n + i; }
  size_t state(size_t kind, size_t i) const { return scalars() + (2 + kind) * n + i; }
  size_t new_param(size_t i) const { return i; }
  size_t new_state(size_t kind, size_t i) const { return (1 + kind) * n + i; }
  bool has_copy(size_t i, Layout layout = Layout::rows) const;
  bool has_panels(size_t i) const {
    return has_copy(i, Layout::panels) || has_copy(i, Layout::transposed_panels);
  }
  size_t new_copy(size_t i, Layout layout = Layout::rows) const;

  /// Of a node whose op has `states` kinds of state.
  UpdateLayout(const Attrs& attrs, size_t operands, size_t states);

 private:
  std::vector<int64_t> copies_;     // {copies}
  std::vector<size_t> first_copy_;  // of parameter i, among the results
};

/// Whether {copies} asks for some in panels.
bool has_copies_in_panels(const Attrs& attrs);

/// The bf16 below or above x, the nearer the likelier: `random` are 16 uniform bits. What is exact
/// stays. Unbiased, so that updates smaller than a step of bf16 add up over the steps.
inline uint16_t bf16_at_random(float x, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bf16_from_float(x);
  return static_cast<uint16_t>((bits + random) >> 16);
}

/// One element: changes p and its states, given its gradient. Scale is applied, NaN is dealt with.
using ElementRule = std::function<void(double& p, double g, double* states)>;

struct UpdateRule {
  std::string name, doc;
  size_t states = 0;
  double flops = 0;                      // per element
  std::vector<std::string> shares = {};  // attributes in [0, 1)
  std::vector<std::string> positive_or_zero = {"weight_decay"};
  Attrs sample;  // attributes of a sample, without `decays`
  /// The rule for one parameter. decay: {weight_decay} where it applies, else 0.
  std::function<ElementRule(const Attrs&, double lr, double t, double decay, const Shape&)> rule;
};

/// The op of an element-wise optimizer.
OpDef update_op(UpdateRule rule);

/// Shared by the updates that are not element-wise: the checks of scalars, parameters, gradients
/// and attributes; pairs of every parameter and state; the new parameter as its dtype and {stream}
/// have it.
UpdateLayout check_update(const InferContext& c, size_t states,
                          const std::vector<std::string>& shares,
                          const std::vector<std::string>& positive_or_zero);
std::function<std::vector<OpDef::InPlace>(const Node&)> update_in_place(size_t states);
void store_param(const EvalContext& c, const UpdateLayout& at, size_t i, size_t element,
                 double value);
/// Appends the types of {copies} to those of parameters and states; fills them in when the
/// parameters are there.
void append_copies(const InferContext& c, const UpdateLayout& at, std::vector<Type>& results);
void store_copies(const EvalContext& c, const UpdateLayout& at);
/// The same sample with a copy of every other parameter as a result, or of all matrices in panels
/// or several orders.
Sample with_copies(Sample sample, DType dtype);
Sample with_copies_in_panels(Sample sample, DType dtype);
/// The shape of the whole parameter i. Shards are flat: {whole_shapes} then holds the rows and the
/// columns of each parameter. Without it the parameter's own shape is the whole.
Shape whole_shape(const Attrs& attrs, size_t i, const Shape& own);
/// How far muon steps in a matrix [in, out], by its shape: sqrt(max(1, out / in)).
double muon_scale(const Shape& shape);

/// The scalars lr, t and scale of a sample.
std::vector<Sample::Operand> update_scalars();

}  // namespace brrr::ops
