// Stochastic gradient descent with momentum, as torch.optim.SGD: no dampening, and weight decay is
// part of the gradient.

#include "ops/op.h"
#include "optim/updates.h"

namespace brrr::optim {

void update_by_sgd(Update& u, const Group& group) {
  u.append(Op::sgd, group,
           [](const Trained& t) {
             return std::vector<Update::State>{{"momentum", {DType::f32, t.param.shape()}}};
           },
           {{"momentum", u.options.momentum}});
}

}  // namespace brrr::optim
