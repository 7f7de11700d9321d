// AdamW (Loshchilov and Hutter 2019), its moments in f32 or in blocks of 8-bit codes.

#include <cmath>

#include "ops/op.h"
#include "ops/quantized/dynamic_code.h"
#include "optim/updates.h"

namespace brrr::optim {
namespace {

Attrs attributes(const Optimizer& o) {
  return {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}};
}

}  // namespace

void update_by_adamw(Update& u, const Group& group) {
  u.append(
      Op::adamw, group,
      [](const Trained& t) {
        const Type moment{DType::f32, t.param.shape()};
        return std::vector<Update::State>{{"adam_m", moment}, {"adam_v", moment}};
      },
      attributes(u.options));
}

// What one node of "adamw" does (ops/optimizer.cpp), as a trainer without such a kernel does it.
void update_by_plain_adamw(Update& u, const Group& group) {
  Graph& g = u.g;
  const Optimizer& o = u.options;
  const Value t = cast(u.step, DType::f32);
  const Value c1 = 1.0 - pow(scalar(g, o.beta1), t), c2 = 1.0 - pow(scalar(g, o.beta2), t);
  const Value finite = less(u.scale, scalar(g, INFINITY));  // false of NaN: nothing changes
  for (size_t i = 0; i < group.size(); ++i) {
    const Value param = group[i].param, grad = in_f32(group[i].grad) * u.scale;
    const Value m = u.state("adam_m", group[i]), v = u.state("adam_v", group[i]);
    const Value new_m = m * o.beta1 + grad * (1 - o.beta1);
    const Value new_v = v * o.beta2 + square(grad) * (1 - o.beta2);
    const Value move = (new_m / c1) / (sqrt(new_v / c2) + o.eps);
    const Value kept = group[i].decays ? param * (1.0 - u.learning_rate * o.weight_decay) : param;
    g.update(param, where(finite, kept - u.learning_rate * move, param));
    g.update(m, where(finite, new_m, m));
    g.update(v, where(finite, new_v, v));
  }
}

void update_by_adamw_8bit(Update& u, const Group& group) {
  constexpr int64_t kLeastElements = 4096;  // smaller tensors keep f32, as in bitsandbytes
  Group large, small;
  for (const Trained& t : group)
    (whole_shape(t.param).elements() < kLeastElements ? small : large).push_back(t);
  u.append(
      Op::adamw_8bit, large,
      [](const Trained& t) {
        const Shape& shape = t.param.shape();
        const Type codes{DType::u8, shape};
        const Type scales{DType::f32, {ops::code_blocks(shape.elements())}};
        return std::vector<Update::State>{{"adam_m_code", codes},
                                          {"adam_v_code", codes},
                                          {"adam_m_scale", scales},
                                          {"adam_v_scale", scales}};
      },
      attributes(u.options));
  update_by_adamw(u, small);
}

}  // namespace brrr::optim
