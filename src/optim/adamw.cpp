// AdamW (Loshchilov and Hutter 2019), its moments in f32 or in blocks of 8-bit codes.

#include "ops/dynamic_code.h"
#include "optim/updates.h"

namespace brrr::optim {
namespace {

Attrs attributes(const Optimizer& o) {
  return {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}};
}

}  // namespace

void update_by_adamw(Update& u, const Group& group) {
  u.append(
      "adamw", group,
      [](const Trained& t) {
        const Type moment{DType::f32, t.param.shape()};
        return std::vector<Update::State>{{"adam_m", moment}, {"adam_v", moment}};
      },
      attributes(u.options));
}

void update_by_adamw_8bit(Update& u, const Group& group) {
  constexpr int64_t kLeastElements = 4096;  // smaller tensors keep f32, as in bitsandbytes
  Group large, small;
  for (const Trained& t : group)
    (t.param.shape().elements() < kLeastElements ? small : large).push_back(t);
  u.append(
      "adamw_8bit", large,
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
