#include "models/greedy_decoder.h"

#include <algorithm>

#include "ops/control.h"
#include "ops/ops.h"

namespace brrr::models {

Graph greedy_decoder(const Model& model, int64_t capacity, std::span<const int32_t> ends_of_text) {
  const Graph step = model.decode({1, 1, capacity, DType::f32});
  Graph g;
  const Value prompt = g.input("prompt", {Dim::symbol("length")}, DType::i32);
  const Value asked = g.input("max_new_tokens", {}, DType::i32);
  const auto number = [](Graph& in, int64_t value) { return scalar(in, value, DType::i32); };
  const Value most = maximum(asked, number(g, 0));
  const Value prompt_length = sum(full(g, prompt.shape(), 1, DType::i32), {0});
  // Positions that are computed: the last of them gives the last token.
  const Value last = minimum(prompt_length + most - number(g, 1), number(g, capacity - 1));

  Graph body;
  size_t inputs = 0;
  const auto next_input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value i = next_input({DType::i32, {}});
  const Value token = next_input({DType::i32, {1, 1}});
  std::vector<Value> carried{full(g, {1, 1}, 0, DType::i32)}, captured;
  // Inputs of the step: caches are carried, parameters captured.
  std::vector<Value> given(step.size());
  for (const NodeId id : step.inputs(InputKind::state)) {
    const Type& type = step.type({id, 0});
    given[id] = next_input(type);
    carried.push_back(full(g, type.shape, 0, type.dtype));
  }
  const Value prompt_inside = next_input(prompt.type());
  const Value length_inside = next_input({DType::i32, {}}),
              last_inside = next_input({DType::i32, {}});
  captured = {prompt, prompt_length, last};
  for (const NodeId id : step.inputs(InputKind::parameter)) {
    const Type& type = step.type({id, 0});
    given[id] = next_input(type);
    captured.push_back(g.input(step.input_name(id), type, Role::parameter));
  }
  const Value one = number(body, 1);
  const Value of_prompt = gather(prompt_inside, minimum(i, length_inside - one), 0);
  const Value in = where(less(i, length_inside), reshape(of_prompt, {1, 1}), token);
  given[step.find_input("tokens")] = in;
  given[step.find_input("position")] = i;
  // The step's nodes, on these values.
  std::vector<std::vector<Value>> mapped(step.size());
  const auto value_of = [&](ValueId v) { return mapped[v.node][v.port]; };
  for (NodeId id = 0; id < step.size(); ++id) {
    if (step.is_input(id)) {
      mapped[id] = {given[id]};
      continue;
    }
    std::vector<ValueId> operands;
    for (const ValueId operand : step.node(id).operands) operands.push_back(value_of(operand).id);
    body.set_scope(step.path_of(id), step.phase(id));
    const NodeId copy = body.add_copy(step.node(id), operands);
    for (uint32_t port = 0; port < step.node(id).results.size(); ++port)
      mapped[id].push_back(body.value(copy, port));
  }
  body.set_scope("");
  const Value logits = value_of(step.find_output("logits")->value);
  const Value next = reshape(cast(argmax(logits, 1), DType::i32), {1, 1});
  Value ends = full(body, {1, 1}, 0, DType::boolean);
  for (const int32_t end : ends_of_text) ends = logical_or(ends, equal(next, number(body, end)));
  const Value behind_prompt = less_equal(length_inside, i + one);
  const Value stops = logical_and(reshape(ends, {}), behind_prompt);
  body.output("0", logical_and(less(i + one, last_inside), logical_not(stops)));
  size_t outputs = 1;
  body.output(std::to_string(outputs++), next);
  for (const NodeId id : step.inputs(InputKind::state)) {
    const auto update = std::ranges::find(step.outputs(), id, &Output::updates);
    BRRR_CHECK(update != step.outputs().end(), "a cache that no step changes");
    body.output(std::to_string(outputs++), value_of(update->value));
  }
  body.output(std::to_string(outputs++), reshape(next, {}));

  const LoopResults out =
      loop(less(number(g, 0), last), Region(body), carried, captured, {capacity, false});
  // Token k is that of the prompt, or what iteration k - 1 gave.
  const Value place = iota(g, {capacity}, 0, DType::i32);
  const Value count = out.iterations + number(g, 1);
  const Value from_prompt = gather(prompt, minimum(place, prompt_length - number(g, 1)), 0);
  const Value made = gather(out.stacked[0], maximum(place - number(g, 1), number(g, 0)), 0);
  const Value tokens = where(less(place, prompt_length), from_prompt, made);
  g.output("tokens", where(less(place, count), tokens, number(g, 0)));
  g.output("count", minimum(count, number(g, capacity)));
  return g;
}

}  // namespace brrr::models
