#pragma once
// What the optimizers are made of: each takes a group of parameters with their gradients and
// appends its nodes and states. attach_optimizer has made the scalars before.

#include "ops/ops.h"
#include "optim/optimizer.h"

namespace brrr::optim {

struct Trained {
  Value param, grad;
  std::string name;
  bool decays = true;  // weight decay applies
  Value shard = {};    // `param` is the whole parameter, of which this rank keeps this shard
};
using Group = std::vector<Trained>;

struct Update {
  Graph& g;
  const Optimizer& options;
  Value learning_rate, step, scale;  // f32[], i32[], f32[]
  int64_t next_stream = 0;           // of the random bits that bf16 parameters are rounded by

  /// A state of one kind for one parameter.
  struct State {
    std::string kind;  // "adam_m": the state is "adam_m:<parameter>"
    Type type;
  };
  /// Appends the node `op` over the group: its operands are the scalars, the parameters, the
  /// gradients and `states(t)` for each of them, its results their next values (ops/update.h).
  template <typename StatesOf>
  void append(Op op, const Group& group, StatesOf&& states, Attrs attrs) {
    std::vector<std::vector<State>> kinds;
    for (const Trained& t : group) kinds.push_back(states(t));
    append_node(op, group, kinds, std::move(attrs));
  }
  void append_node(Op op, const Group& group, const std::vector<std::vector<State>>& kinds,
                   Attrs attrs);
  /// The state of that kind, f32 in the parameter's shape unless another type is given.
  Value state(const std::string& kind, const Trained& t, std::optional<Type> type = std::nullopt);
};

/// Whether the parameter is an input that holds a rank's shard (ops/ranks/collectives.h).
bool is_shard(Value parameter);
/// The shape of the whole parameter.
Shape whole_shape(Value parameter);
/// Among how many ranks the shard is one.
int64_t ranks_of_shard(Value parameter);

/// A gradient in f32: unrounded where rounding it was the last thing that was done.
Value in_f32(Value gradient);

void update_by_adamw(Update& u, const Group& group);
/// The same written out, tensor by tensor.
void update_by_plain_adamw(Update& u, const Group& group);
void update_by_adamw_8bit(Update& u, const Group& group);
void update_by_sgd(Update& u, const Group& group);
void update_by_lion(Update& u, const Group& group);
void update_by_adafactor(Update& u, const Group& group);
void update_by_muon(Update& u, const Group& group);

}  // namespace brrr::optim
