// Control flow: nodes that run graphs of their own, chosen by a value or again and again.

#include "ops/control.h"

#include <algorithm>
#include <limits>

#include "ir/evaluate.h"
#include "ops/backpropagate.h"
#include "ops/support.h"

namespace brrr {
namespace {

const Type kCondition{DType::boolean, {}};
const Type kIteration{DType::i32, {}};

std::vector<Value> results_of(Graph& g, Op kind, const std::vector<ValueId>& operands,
                              Attrs attrs) {
  const NodeId id = g.add(op(kind), operands, std::move(attrs));
  std::vector<Value> results;
  for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
    results.push_back(g.value(id, port));
  return results;
}

}  // namespace

std::vector<Value> branch(Value condition, const Region& then, const Region& otherwise,
                          std::span<const Value> captured) {
  std::vector<ValueId> operands{condition.id};
  for (const Value& v : captured) operands.push_back(v.id);
  return results_of(*condition.graph, Op::if_, operands, {{"then", then}, {"else", otherwise}});
}

LoopResults loop(Value condition, const Region& body, std::span<const Value> carried,
                 std::span<const Value> captured, LoopEnd end) {
  std::vector<ValueId> operands{condition.id};
  for (const auto values : {carried, captured})
    for (const Value& v : values) operands.push_back(v.id);
  const std::vector<Value> all = results_of(*condition.graph, Op::loop, operands,
                                            {{"body", body},
                                             {"bound", end.bound},
                                             {"carried", static_cast<int64_t>(carried.size())},
                                             {"fails_at_bound", end.fails_at_bound}});
  const auto first_stacked = all.begin() + static_cast<int64_t>(carried.size());
  return {{all.begin(), first_stacked}, {first_stacked, all.end() - 1}, all.back()};
}

LoopForm::LoopForm(const Node& node)
    : body(node.attrs.get<Region>("body").graph()),
      end{node.attrs.get<int64_t>("bound"), node.attrs.get<bool>("fails_at_bound")},
      carried(static_cast<size_t>(node.attrs.get<int64_t>("carried"))),
      stacked(node.results.size() - carried - 1) {}

void LoopForm::check_end(bool condition) const {
  if (condition && end.fails_at_bound)
    user_error("[loop] its condition still holds after {} iterations, its bound", end.bound);
}

namespace ops {
namespace {

bool is_true(const RefTensor& condition) { return condition.data[0] != 0; }

void expect_condition(const InferContext& c) {
  if (c.in[0] != kCondition) c.fail("the condition must be bool[]; got {}", c.in[0].str());
}

/// Operands from the second on against inputs from that of the same number on.
void expect_inputs(const InferContext& c, std::string_view region, const Graph& graph,
                   size_t first_input) {
  const std::vector<NodeId> inputs = graph.inputs();
  expect_operands(c, inputs.size() + 1 - first_input);
  for (size_t i = first_input; i < inputs.size(); ++i) {
    const Type& wanted = graph.type({inputs[i], 0});
    const size_t operand = i + 1 - first_input;
    if (c.in[operand] != wanted)
      c.fail("operand {} must be {} as the region '{}' says; got {}", operand, wanted.str(), region,
             c.in[operand].str());
  }
}

double flops_of(const Graph& graph) {
  double flops = 0;
  for (NodeId id = 0; id < graph.size(); ++id) flops += cost_of(graph, id).flops;
  return flops;
}

std::vector<Type> output_types(const Graph& graph) {
  std::vector<Type> types;
  for (const Output& o : graph.outputs()) types.push_back(graph.type(o.value));
  return types;
}

// -- if
// --------------------------------------------------------------------------------------------

std::vector<Type> infer_if(const InferContext& c) {
  const Graph &then = region_of(c, "then"), &otherwise = region_of(c, "else");
  expect_inputs(c, "then", then, 0);
  expect_inputs(c, "else", otherwise, 0);
  expect_condition(c);
  const std::vector<Type> types = output_types(then), others = output_types(otherwise);
  if (types.size() != others.size())
    c.fail("both regions must have as many results; got {} and {}", types.size(), others.size());
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] != others[i])
      c.fail("result {} must have one type in both regions; got {} and {}", i, types[i].str(),
             others[i].str());
  return types;
}

void evaluate_if(const EvalContext& c) {
  const Region& region = c.node.attrs.get<Region>(is_true(*c.in[0]) ? "then" : "else");
  std::ranges::move(evaluate_graph(region.graph(), c.in.subspan(1)), c.out.begin());
}

Sample if_sample(const std::vector<Type>& in, const Region& then, const Region& otherwise) {
  Sample sample{{{kCondition, 0, 2}}, {{"then", then}, {"else", otherwise}}};
  for (const Type& t : in) sample.in.push_back({t});
  return sample;
}

// Branches that compute different things of the same operands, one inside the other; and one that
// hands operands on.
std::vector<Sample> if_samples() {
  const Type x{DType::f32, {3, 5}}, b{DType::f32, {5}};
  const auto region = [&](auto make) {
    Graph g;
    const Value x0 = g.input("a0", x), b0 = g.input("a1", b);
    make(g, x0, b0);
    return Region(g);
  };
  const Region scaled = region([](Graph& g, Value x0, Value b0) {
    g.output("0", x0 * b0 + 1.0);
    g.output("1", sum(x0 * b0, {1}));
  });
  const Region shifted = region([](Graph& g, Value x0, Value b0) {
    g.output("0", gelu(x0 - b0));
    g.output("1", full(g, {3}, 2) * sum(x0 - b0, {1}));
  });
  const Region nested = region([&](Graph& g, Value x0, Value b0) {
    const Value positive = less(scalar(g, 0), sum(x0, {0, 1}));
    const Value captured[] = {tanh(x0), b0};
    const auto out = branch(positive, scaled, shifted, captured);
    g.output("0", out[0]);
    g.output("1", out[1]);
  });
  Graph swap, same;
  for (Graph* g : {&swap, &same}) {
    const Value in[] = {g->input("a0", b), g->input("a1", b)};
    for (const size_t i : {0u, 1u}) g->output(std::to_string(i), in[g == &swap ? 1 - i : i]);
  }
  return {if_sample({x, b}, scaled, shifted), if_sample({x, b}, nested, scaled),
          if_sample({b, b}, Region(swap), Region(same))};
}

// -- loop
// ------------------------------------------------------------------------------------------

std::vector<Type> infer_loop(const InferContext& c) {
  const Graph& body = region_of(c, "body");
  if (c.attrs.find("bound") == nullptr)
    c.fail("needs the attribute 'bound': a loop runs no more than so many iterations");
  const int64_t bound = c.attr<int64_t>("bound"), carried = c.attr<int64_t>("carried");
  c.attr<bool>("fails_at_bound");
  if (bound < 0 || bound > std::numeric_limits<int32_t>::max())
    c.fail("bound must be in [0, 2^31); got {}", bound);
  const std::vector<NodeId> inputs = body.inputs();
  const std::vector<Type> outputs = output_types(body);
  if (inputs.empty() || body.type({inputs[0], 0}) != kIteration)
    c.fail("body: its first input must be the number of the iteration, i32[]");
  if (outputs[0] != kCondition)
    c.fail("body: its first output must be the condition of the next iteration, bool[]; got {}",
           outputs[0].str());
  const int64_t most = static_cast<int64_t>(std::min(inputs.size(), outputs.size())) - 1;
  if (carried < 0 || carried > most)
    c.fail("carried must be in [0, {}], what the body takes and gives; got {}", most, carried);
  expect_inputs(c, "body", body, 1);
  expect_condition(c);
  const auto first_stacked = static_cast<size_t>(1 + carried);
  std::vector<Type> results;
  for (size_t i = 1; i < outputs.size(); ++i) {
    results.push_back(outputs[i]);
    if (i >= first_stacked)
      results.back().shape.insert(0, Dim(bound));
    else if (outputs[i] != c.in[i])
      c.fail("body: carried value {} must keep its type; got {} and then {}", i - 1, c.in[i].str(),
             outputs[i].str());
  }
  results.push_back(kIteration);
  return results;
}

void evaluate_loop(const EvalContext& c) {
  const LoopForm form(c.node);
  std::vector<RefTensor> carried;
  for (size_t k = 0; k < form.carried; ++k) carried.push_back(*c.in[1 + k]);
  RefTensor iteration{kIteration, {0}};
  bool condition = is_true(*c.in[0]);
  int64_t i = 0;
  for (; condition && i < form.end.bound; ++i) {
    iteration.data[0] = static_cast<double>(i);
    std::vector<const RefTensor*> in{&iteration};
    for (const RefTensor& t : carried) in.push_back(&t);
    for (const RefTensor* t : c.in.subspan(1 + form.carried)) in.push_back(t);
    std::vector<RefTensor> out = evaluate_graph(form.body, in);
    condition = is_true(out[0]);
    for (size_t s = 0; s < form.stacked; ++s) {
      RefTensor& all = c.out[form.carried + s];
      out[1 + form.carried + s].visit([&](const auto& row) {
        using T = typename std::decay_t<decltype(row)>::value_type;
        std::ranges::copy(row, all.template of<T>().begin() + i * std::ssize(row));
      });
    }
    for (size_t k = 0; k < form.carried; ++k) carried[k] = std::move(out[1 + k]);
  }
  form.check_end(condition);
  for (size_t k = 0; k < form.carried; ++k) c.out[k] = std::move(carried[k]);
  c.out.back().data[0] = static_cast<double>(i);
}

/// Appends a loop that runs as `node` does and stacks what its carried values are before each
/// iteration: [bound, ...] each.
std::vector<Value> states_before(VjpContext& c, const Node& node, const LoopForm& form) {
  if (form.carried == 0) return {};
  Graph body;
  std::vector<Value> inputs, operands;
  for (const NodeId id : form.body.inputs())
    inputs.push_back(body.input(fmt::format("a{}", inputs.size()), Type(form.body.type({id, 0}))));
  const std::vector<Value> outputs = inline_region(body, form.body, inputs);
  for (size_t i = 0; i <= form.carried; ++i) body.output(std::to_string(i), outputs[i]);
  for (size_t k = 1; k <= form.carried; ++k)
    body.output(std::to_string(form.carried + k), inputs[k]);
  for (size_t i = 0; i < node.operands.size(); ++i) operands.push_back(c.operand(i));
  const std::span<const Value> all(operands);
  return loop(operands[0], Region(std::move(body)), all.subspan(1, form.carried),
              all.subspan(1 + form.carried), form.end)
      .stacked;
}

/// The derivative is a loop that runs backwards. It carries the gradients of the carried values and
/// the sums of those of the captured ones; each iteration computes the body again from the carried
/// values that it began with.
void differentiate_loop(VjpContext& c) {
  const Node node = c.node();  // a copy: the graph grows
  const LoopForm form(node);
  Graph& g = c.graph;
  const size_t carried = form.carried, captured = node.operands.size() - 1 - carried;
  const auto float_type = [&](size_t operand) { return is_float(c.operand(operand).dtype()); };
  const auto zeros = [&](Value like) { return full(g, like.shape(), 0, like.dtype()); };
  if (form.end.bound == 0) {  // nothing ran
    for (size_t k = 0; k < carried; ++k)
      if (c.has_grad(k)) c.set(1 + k, c.grad(k));
    return;
  }
  const std::vector<Value> states = states_before(c, node, form);
  const Value iterations = c.result(static_cast<uint32_t>(node.results.size() - 1));

  // What the backward loop carries and reads, each in the graph and as an input of its body.
  Graph body;
  size_t inputs = 0;
  const auto input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value i = input(kIteration);
  std::vector<Value> changed, read, d_carried(carried), sums(captured);
  for (size_t k = 0; k < carried; ++k) {
    if (!float_type(1 + k)) continue;
    changed.push_back(c.has_grad(k) ? c.grad(k) : zeros(c.operand(1 + k)));
    d_carried[k] = input(changed.back().type());
  }
  for (size_t j = 0; j < captured; ++j) {
    if (!c.wants(1 + carried + j)) continue;
    changed.push_back(zeros(c.operand(1 + carried + j)));
    sums[j] = input(changed.back().type());
  }
  const auto reads = [&](Value v) {
    read.push_back(v);
    return input(v.type());
  };
  const Value count = reads(iterations);
  const Value t = count - scalar(body, 1, DType::i32) - i;
  std::vector<Value> in{t}, wanted;
  for (const Value& state : states) in.push_back(reads(state));
  for (size_t j = 0; j < captured; ++j) in.push_back(reads(c.operand(1 + carried + j)));
  std::vector<Value> d_rows(form.stacked);
  for (size_t s = 0; s < form.stacked; ++s)
    if (c.has_grad(carried + s)) d_rows[s] = reads(c.grad(carried + s));
  for (size_t k = 0; k < carried; ++k) {
    in[1 + k] = gather(in[1 + k], t, 0);
    if (d_carried[k].graph != nullptr) wanted.push_back(in[1 + k]);
  }
  for (size_t j = 0; j < captured; ++j)
    if (sums[j].graph != nullptr) wanted.push_back(in[1 + carried + j]);

  const auto first = static_cast<NodeId>(body.size());
  const std::vector<Value> out = inline_region(body, without_opaque_composites(form.body), in);
  std::vector<Seed> seeds;
  for (size_t k = 0; k < carried; ++k)
    if (d_carried[k].graph != nullptr) seeds.push_back({out[1 + k], d_carried[k]});
  for (size_t s = 0; s < form.stacked; ++s)
    if (d_rows[s].graph != nullptr)
      seeds.push_back({out[1 + carried + s], gather(d_rows[s], t, 0)});
  const std::vector<Value> gradients = backpropagate(body, first, seeds, wanted, "loop");
  body.output("0", less(i + scalar(body, 1, DType::i32), count));
  size_t at = 0;
  const auto gives = [&](Value v) { body.output(std::to_string(++at), v); };
  for (const Value& d : d_carried) {
    if (d.graph == nullptr) continue;
    const Value gradient = gradients[at];
    gives(gradient.graph != nullptr ? gradient : full(body, d.shape(), 0, d.dtype()));
  }
  for (const Value& sum : sums) {
    if (sum.graph == nullptr) continue;
    const Value gradient = gradients[at];
    gives(gradient.graph != nullptr ? sum + gradient : sum);
  }
  const LoopResults results =
      loop(less(scalar(g, 0, DType::i32), iterations), Region(std::move(body)), changed, read,
           {.bound = form.end.bound});
  at = 0;
  for (size_t k = 0; k < carried; ++k)
    if (d_carried[k].graph != nullptr) c.set(1 + k, results.carried[at++]);
  for (size_t j = 0; j < captured; ++j)
    if (sums[j].graph != nullptr) c.set(1 + carried + j, results.carried[at++]);
}

/// How many rounds of a loop at most, told by an operand i32[] that the body has as its last input.
Sample counted_sample(const Graph& body, int64_t bound, int64_t carried, int64_t most) {
  Sample sample{
      {{kCondition, 0, 2}},
      {{"body", Region(body)}, {"bound", bound}, {"carried", carried}, {"fails_at_bound", false}}};
  const std::vector<NodeId> inputs = body.inputs();
  for (size_t i = 1; i < inputs.size(); ++i) sample.in.push_back({body.type({inputs[i], 0})});
  sample.in.back().low = 0;
  sample.in.back().high = static_cast<double>(most);
  return sample;
}

/// More iterations while fewer than `limit` were run.
Value is_below(Value iteration, Value limit) {
  return less(iteration + scalar(*iteration.graph, 1, DType::i32), limit);
}

/// The inputs of a body that multiplies by `w` and counts up to `n`.
struct PowerInputs {
  explicit PowerInputs(Graph& g)
      : i(g.input("a0", {}, DType::i32)),
        x(g.input("a1", {3, 5}, DType::f32)),
        w(g.input("a2", {5, 5}, DType::f32)),
        n(g.input("a3", {}, DType::i32)) {}
  Value i, x, w, n;
};

// One that the operand or the bound ends, with rows to stack; one whose carried values change
// places; one that ends by itself and must; a loop in a loop.
std::vector<Sample> loop_samples() {
  std::vector<Sample> samples;
  Graph power;
  {
    const auto [i, x, w, n] = PowerInputs(power);
    const Value y = tanh(matmul(x, w)) + x;
    power.output("0", is_below(i, n));
    power.output("1", y);
    power.output("2", sum(y, {1}) * cast(i, DType::f32));
    power.output("3", x);
    samples.push_back(counted_sample(power, 4, 1, 6));
  }
  {
    Graph g;
    const Value i = g.input("a0", {}, DType::i32), x = g.input("a1", {4}, DType::f32);
    const Value y = g.input("a2", {4}, DType::f32), n = g.input("a3", {}, DType::i32);
    g.output("0", is_below(i, n));
    g.output("1", y);
    g.output("2", x);
    samples.push_back(counted_sample(g, 5, 2, 5));
  }
  {
    Graph g;
    g.input("a0", {}, DType::i32);
    const Value x = g.input("a1", {}, DType::f32);
    g.output("0", less(x + x, scalar(g, 10)));
    g.output("1", x + x);
    samples.push_back({{{kCondition, 0, 2}, {{DType::f32, {}}, 1, 2}},
                       {{"body", Region(g)},
                        {"bound", int64_t{20}},
                        {"carried", int64_t{1}},
                        {"fails_at_bound", true}}});
  }
  {
    Graph g;
    const auto [i, x, w, n] = PowerInputs(g);
    const Value carried[] = {x}, captured[] = {w * 0.5, n};
    const LoopResults inner = loop(is_below(i, n), Region(power), carried, captured, {.bound = 3});
    g.output("0", is_below(i, n));
    g.output("1", softmax(inner.carried[0]));
    g.output("2", inner.stacked[0]);
    g.output("3", inner.iterations);
    samples.push_back(counted_sample(g, 3, 1, 4));
  }
  return samples;
}

OpDef if_op() {
  OpDef d;
  d.name = "if";
  d.doc =
      "The outputs of the region {then} where condition: bool[] is true, else those of {else}. "
      "Operands: the condition, then what both regions have as their inputs. Only one of them is "
      "computed";
  d.op_class = OpClass::control;
  d.runs_regions = true;
  d.stored_operands = ~0u;
  d.autocast_operands = 0;
  d.no_gradient = "control flow is not differentiated";
  d.infer = infer_if;
  d.evaluate = evaluate_if;
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in,
                          std::max(flops_of(n.attrs.get<Region>("then").graph()),
                                   flops_of(n.attrs.get<Region>("else").graph())));
  };
  d.samples = if_samples;
  return d;
}

OpDef loop_op() {
  OpDef d;
  d.name = "loop";
  d.doc =
      "Runs the region {body} as long as a condition holds, but {bound} iterations at most; that "
      "it still holds then is an error if {fails_at_bound}. Operands: the condition of the first "
      "iteration, bool[]; {carried} values that each iteration changes; what every iteration "
      "reads. Body: (the iteration's number, i32[]; carried...; captured...) -> (the condition of "
      "the next, bool[]; carried...; rows...). Results: the carried values; the rows, stacked to "
      "[bound, ...], zeros behind the last iteration; the number of iterations, i32[]";
  d.op_class = OpClass::control;
  d.runs_regions = true;
  d.stored_operands = ~0u;
  d.autocast_operands = 0;
  d.vjp = differentiate_loop;
  d.infer = infer_loop;
  d.evaluate = evaluate_loop;
  d.cost = [](const Node& n, std::span<const Type> in) {
    const LoopForm form(n);
    return streaming_cost(n, in, static_cast<double>(form.end.bound) * flops_of(form.body));
  };
  d.samples = loop_samples;
  // A carried value lies where its result will be, from the first iteration on.
  d.in_place_of = [](const Node& n) {
    std::vector<OpDef::InPlace> pairs;
    for (uint32_t k = 0; k < LoopForm(n).carried; ++k) pairs.push_back({k, 1 + k});
    return pairs;
  };
  return d;
}

}  // namespace

std::vector<OpDef> control_ops() { return {if_op(), loop_op()}; }

}  // namespace ops
}  // namespace brrr
