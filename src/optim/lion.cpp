// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): the sign of a momentum.

#include "ops/op.h"
#include "optim/updates.h"

namespace brrr::optim {

void update_by_lion(Update& u, const Group& group) {
  u.append(Op::lion, group,
           [](const Trained& t) {
             return std::vector<Update::State>{{"lion_m", {DType::f32, t.param.shape()}}};
           },
           {{"beta1", u.options.beta1}, {"beta2", u.options.beta2}});
}

}  // namespace brrr::optim
