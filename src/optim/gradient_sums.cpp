#include "optim/gradient_sums.h"

#include <algorithm>
#include <utility>

#include "ops/ranks/collectives.h"

namespace brrr::optim {
namespace {

/// Bytes of gradients that are exchanged together: enough to hide the latency of a link, and
/// several exchanges in a step, so that all but the last travel while the backward pass goes on.
int64_t bucket_bytes(const Group& group) {
  constexpr int64_t kLeast = int64_t{256} << 10, kMost = int64_t{16} << 20, kExchanges = 8;
  int64_t all = 0;
  for (const Trained& t : group) all += t.grad.type().bytes();
  return std::clamp(all / kExchanges, kLeast, kMost);
}

/// Replaces gradients by their sums over all ranks, bucket by bucket in the order in which the
/// backward pass computes them.
void exchange(Group& group, const GradientSums& sums) {
  struct Bucket {
    std::vector<size_t> members;
    int64_t bytes = 0;
  };
  std::vector<size_t> order(group.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return group[i].grad.id.node; });
  const auto reduce = [&](const Bucket& bucket, bool in_shards) {
    std::vector<Value> grads;
    for (const size_t i : bucket.members) grads.push_back(group[i].grad);
    const auto summed =
        in_shards ? reduce_scatter(grads, sums.ranks) : all_reduce(grads, sums.ranks);
    for (size_t k = 0; k < summed.size(); ++k) group[bucket.members[k]].grad = summed[k];
  };
  const int64_t most = bucket_bytes(group);
  Bucket buckets[2];
  for (const size_t i : order) {
    const bool in_shards = is_shard(group[i].param);
    Bucket& bucket = buckets[in_shards];
    bucket.members.push_back(i);
    bucket.bytes += group[i].grad.type().bytes();
    if (bucket.bytes >= most) reduce(std::exchange(bucket, {}), in_shards);
  }
  for (const bool in_shards : {false, true})
    if (!buckets[in_shards].members.empty()) reduce(buckets[in_shards], in_shards);
}

/// The state in which a gradient waits for the others of its parameter.
Value sum_state(Graph& g, const Trained& t, const std::string& kind) {
  return g.input(kind + ":" + t.name, t.grad.shape(), DType::f32, Role::gradient_sum);
}

std::string level_name(int64_t level) { return fmt::format("grad_sum_{}", level); }

}  // namespace

bool is_shard(Value parameter) {
  return parameter.graph->node(parameter.id.node).attrs.find(kShardOf) != nullptr;
}

Shape whole_shape(Value parameter) {
  return parameter.graph->node(parameter.id.node).attrs.get_or<Shape>(kShardOf, parameter.shape());
}

int64_t ranks_of_shard(Value parameter) {
  return parameter.graph->node(parameter.id.node).attrs.get<int64_t>(kShardRanks);
}

// Sums are f32 whatever the gradients are. The first micro-batch overwrites: nothing is zeroed. The
// last sum of a slot, too, is written: nobody reads the state before it is overwritten, but in the
// state's memory it needs no other.
void sum_gradients(Graph& g, Group& group, const GradientSums& sums) {
  if (!sums.updates_buffers)
    std::erase_if(g.outputs(), [&](const Output& o) {
      return o.updates != kNoNode && g.role(o.updates) == Role::parameter;
    });
  const bool is_alone = sums.slots == 1 && sums.ranks == 1;
  const bool in_parts = sums.continues_slot || !sums.ends_slot;
  if (!is_alone || in_parts)
    for (Trained& t : group) t.grad = in_f32(t.grad);
  if (in_parts)
    for (Trained& t : group) {
      const Value sum = sum_state(g, t, "grad_sum");
      if (sums.continues_slot) t.grad = sum + t.grad;
      if (!sums.ends_slot || is_alone) g.update(sum, t.grad);
    }
  if (is_alone || !sums.ends_slot) return;
  const bool exchanges_slots = sums.zero >= 2 && sums.ranks > 1;
  if (exchanges_slots) exchange(group, sums);
  for (Trained& t : group) {
    Value state;
    for (int64_t level = 0; level < sums.merged; ++level) {
      state = sum_state(g, t, level_name(level));
      t.grad = state + t.grad;
    }
    if (sums.ends_step && sums.merged == 0) continue;
    // A state keeps the sum of its level; at the end of the step the last one lends its memory.
    if (!sums.ends_step) state = sum_state(g, t, level_name(sums.merged));
    g.update(state, t.grad);
  }
  if (sums.ends_step && !exchanges_slots && sums.ranks > 1) exchange(group, sums);
}

Value norm_of_shards(const Group& group, const GradientSums& sums) {
  std::vector<Value> grads;
  for (const Trained& t : group) grads.push_back(in_f32(t.grad));
  std::vector<Value> squares = block_squares(grads);
  std::vector<Value> own;  // of shards, to be gathered together
  for (size_t i = 0; i < group.size(); ++i)
    if (is_shard(group[i].param)) own.push_back(squares[i]);
  if (own.empty()) return block_norm(squares);
  const Value all = all_gather_rows(own.size() > 1 ? concat(own, 0) : own[0], sums.ranks);
  int64_t at = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (!is_shard(group[i].param)) continue;
    const int64_t blocks = squares[i].shape().elements();
    squares[i] = slice(all, 1, at, blocks);
    at += blocks;
  }
  return block_norm(squares);
}

}  // namespace brrr::optim
