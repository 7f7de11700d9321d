// Programs over one arena: the plan changes no bit, state is carried, accumulation is the large
// batch. Everything runs on the reference backend and on the CPU's.

#include "runtime/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/cpu/target.h"
#include "ir/text.h"
#include "models/gpt2/gpt2_config.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/random_graph.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using reference::Tensors;

void write(std::byte* to, const RefTensor& t) { write_tensor(t, to); }
RefTensor read(const std::byte* from, const Type& type) { return read_tensor(type, from); }

void set_data(Engine& engine, size_t program, const Tensors& in) {
  const Graph& g = engine.program(program).graph();
  for (NodeId id : g.inputs(InputKind::data))
    write(engine.input(program, g.input_name(id)), in.at(g.input_name(id)));
}
void set_states(Engine& engine, const Tensors& in) {
  for (const StateInfo& s : engine.states())
    if (in.contains(s.name)) write(engine.state_data(s.name), in.at(s.name));
}
Tensors outputs(Engine& engine, size_t program) {
  const Graph& g = engine.program(program).graph();
  Tensors out;
  for (const Output& o : g.outputs())
    if (o.updates == kNoNode) out[o.name] = read(engine.output(program, o.name), g.type(o.value));
  return out;
}
Tensors states(Engine& engine) {
  Tensors out;
  for (const StateInfo& s : engine.states()) out[s.name] = read(engine.state_data(s.name), s.type);
  return out;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, t] : a) {
    const auto at = b.find(name);
    if (at == b.end() || at->second.data.size() != t.data.size() ||
        std::memcmp(at->second.data.data(), t.data.data(), t.data.size() * sizeof(double)) != 0)
      return false;
  }
  return true;
}

class OnBackend : public testing::TestWithParam<bool> {
 protected:
  Backend backend() const { return GetParam() ? cpu::cpu_backend() : reference::backend(); }
  Graph compile(const Graph& g) const { return decompose(g, backend().target()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, OnBackend, testing::Bool(),
                         [](const auto& row) { return row.param ? "cpu" : "reference"; });

ProgramOptions with_reuse(bool reuse) {
  ProgramOptions o;
  o.reuse_memory = reuse;
  o.verify_memory = true;
  return o;
}

TEST_P(OnBackend, ReuseChangesNoBitOfRandomGraphs) {
  double worst = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomGraph(seed).graph();
    Tensors in = test::random_inputs(g, seed, -1, 1, 5);
    for (auto& [name, t] : in)  // both sides start from the same f32 numbers
      for (double& x : t.data) x = static_cast<float>(x);
    Tensors first[2], second[2], state[2];
    for (bool reuse : {false, true}) {
      Engine engine(backend());
      const size_t p = engine.add(compile(g), with_reuse(reuse));
      engine.allocate();
      set_states(engine, in);
      set_data(engine, p, in);
      engine.run(p);
      first[reuse] = outputs(engine, p);
      set_data(engine, p, in);
      engine.run(p);
      second[reuse] = outputs(engine, p);
      state[reuse] = states(engine);
    }
    ASSERT_TRUE(same_bits(first[0], first[1])) << "the first run\n" << print(g);
    ASSERT_TRUE(same_bits(second[0], second[1])) << "the second run\n" << print(g);
    ASSERT_TRUE(same_bits(state[0], state[1])) << "the states\n" << print(g);

    // Against the interpreter: outputs of the first run, and the states after two.
    Tensors expected = reference::evaluate(g, in), after = in;
    for (int run = 0; run < 2; ++run) {
      const Tensors result = reference::evaluate(g, after);
      for (NodeId id : g.inputs())
        if (auto at = result.find("update:" + g.input_name(id)); at != result.end())
          after[g.input_name(id)] = at->second;
    }
    std::erase_if(expected, [](const auto& item) { return item.first.starts_with("update:"); });
    Tensors expected_states;
    for (const auto& [name, t] : state[1]) expected_states[name] = after.at(name);
    const double gap =
        std::max(test::difference(expected, first[1]), test::difference(expected_states, state[1]));
    ASSERT_LT(gap, 1e-3) << print(g);
    worst = std::max(worst, gap);
  }
  RecordProperty("worst_relative_difference", fmt::format("{}", worst));
}

// -- training
// ----------------------------------------------------------------------------------------

struct Training {
  models::Gpt2Config config = test::tiny_gpt2(true, 0.1);
  optim::Optimizer adamw;
  int64_t batch = 2, length = 6;
  Graph build(const Target& target, optim::Accumulation accumulation, int64_t rows) const {
    PipelineOptions options;
    options.loss = "loss";
    options.verify = true;
    options.optimizer = [&](Graph& g) { optim::attach_optimizer(g, adamw, accumulation); };
    return run_pipeline(config.model()->loss(rows, length), target, options);
  }
};

// Rows [from, from + count) of a batch.
RefTensor rows_of(const RefTensor& t, int64_t from, int64_t count) {
  const int64_t width = t.type.shape.size(1);
  RefTensor out;
  out.type = {t.type.dtype, {count, width}};
  out.data.assign(t.data.begin() + from * width, t.data.begin() + (from + count) * width);
  return out;
}

void set_step(Tensors& in, int step) {
  in["optimizer_step"] = {{i32, {}}, {static_cast<double>(step)}};
  in["learning_rate"] = {{f32, {}}, {static_cast<float>(1e-2)}};
  in["rng_key"] = {{i32, {2}}, {5, static_cast<double>(step)}};
}

TEST_P(OnBackend, TrainingIsTheSameWithoutReuse) {
  const Training t;
  Tensors state[2];
  std::vector<double> losses[2];
  for (bool reuse : {false, true}) {
    Engine engine(backend());
    const size_t p = engine.add(
        t.build(engine.backend().target(), optim::Accumulation::none, t.batch), with_reuse(reuse));
    engine.allocate();
    const Graph& g = engine.program(p).graph();
    Tensors in = test::gpt2_inputs(g, t.config, 9);
    for (auto& [name, x] : in)
      if (name.starts_with("adam_")) std::fill(x.data.begin(), x.data.end(), 0.0);
    set_states(engine, in);
    for (int step = 1; step <= 5; ++step) {
      set_step(in, step);
      set_data(engine, p, in);
      engine.run(p);
      losses[reuse].push_back(engine.output_scalar(p, "loss"));
      EXPECT_GT(engine.output_scalar(p, "grad_norm"), 0);
    }
    state[reuse] = states(engine);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(same_bits(state[0], state[1]));
  EXPECT_LT(losses[0].back(), losses[0].front());
}

// k micro-batches of b are one batch of k b: first, middle (k - 2 times), last.
TEST_P(OnBackend, AccumulationIsTheLargeBatch) {
  Training t;
  t.config = test::tiny_gpt2(true, 0);  // masks depend on the position in the batch
  // With the usual 1e-8 AdamW makes whole steps of the rounding of gradients that are zero (a key
  // bias).
  t.adamw.eps = 1e-3;
  for (int64_t parts : {2, 3, 5}) {
    SCOPED_TRACE(fmt::format("{} micro-batches; {}", parts, test::rerun()));
    Engine whole(backend()), split(backend());
    const Target target = whole.backend().target();
    const size_t one = whole.add(t.build(target, optim::Accumulation::none, parts * t.batch));
    const size_t first = split.add(t.build(target, optim::Accumulation::first, t.batch));
    const size_t middle = split.add(t.build(target, optim::Accumulation::middle, t.batch));
    const size_t last = split.add(t.build(target, optim::Accumulation::last, t.batch));
    whole.allocate();
    split.allocate();
    Tensors in = test::gpt2_inputs(whole.program(one).graph(), t.config, 21);
    for (auto& [name, x] : in)
      if (name.starts_with("adam_")) std::fill(x.data.begin(), x.data.end(), 0.0);
    set_states(whole, in);
    set_states(split, in);
    for (int step = 1; step <= 4; ++step) {
      set_step(in, step);
      in["loss_scale"].data = {1.0 / static_cast<double>(parts * t.batch * t.length)};
      set_data(whole, one, in);
      whole.run(one);
      double loss = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const size_t p = part == 0 ? first : part + 1 == parts ? last : middle;
        Tensors micro = in;
        for (const char* name : {"tokens", "targets"})
          micro[name] = rows_of(in[name], part * t.batch, t.batch);
        set_data(split, p, micro);
        split.run(p);
        loss += split.output_scalar(p, "loss");
      }
      EXPECT_NEAR(loss, whole.output_scalar(one, "loss"), 1e-6 * loss);
      EXPECT_NEAR(split.output_scalar(last, "grad_norm"), whole.output_scalar(one, "grad_norm"),
                  1e-5 * whole.output_scalar(one, "grad_norm"));
    }
    Tensors a = states(whole), b = states(split);
    std::erase_if(b, [](const auto& item) { return item.first.starts_with("grad_sum:"); });
    for (const auto& [name, x] : a) {
      double top = 0;
      for (double v : x.data) top = std::max(top, std::fabs(v));
      for (size_t i = 0; i < x.data.size(); ++i)
        ASSERT_NEAR(x.data[i], b.at(name).data[i], 1e-5 * std::max(top, 1e-6)) << name;
    }
  }
}

// -- states, copies, outputs
// ---------------------------------------------------------------------------

// Runs the graph `runs` times on engines with and without reuse; both must agree with the
// interpreter.
void check_states(const Backend& backend, const Graph& graph, int runs = 3) {
  SCOPED_TRACE(print(graph));
  const Graph g = decompose(graph, backend.target());
  const Tensors in = [&] {
    Tensors t = test::random_inputs(g, 4, -1, 1, 5);
    for (auto& [name, x] : t)
      for (double& v : x.data) v = static_cast<float>(v);
    return t;
  }();
  for (bool reuse : {false, true}) {
    SCOPED_TRACE(reuse ? "reuse" : "no reuse");
    Engine engine(backend);
    const size_t p = engine.add(g, with_reuse(reuse));
    engine.allocate();
    set_states(engine, in);
    Tensors expected_in = in;
    for (int run = 0; run < runs; ++run) {
      set_data(engine, p, in);
      engine.run(p);
      const Tensors expected = reference::evaluate(graph, expected_in);
      for (const auto& [name, t] : outputs(engine, p))
        for (size_t i = 0; i < t.data.size(); ++i)
          ASSERT_NEAR(t.data[i], expected.at(name).data[i], 1e-5) << name << ", run " << run;
      for (NodeId id : graph.inputs())
        if (auto at = expected.find("update:" + graph.input_name(id)); at != expected.end())
          expected_in[graph.input_name(id)] = at->second;
      for (const auto& [name, t] : states(engine))
        for (size_t i = 0; i < t.data.size(); ++i)
          ASSERT_NEAR(t.data[i], expected_in.at(name).data[i], 1e-5) << name << ", run " << run;
    }
  }
}

struct States {
  Graph g;
  Value x = g.input("x", {40}, f32);
  Value s = g.input("s", {40}, f32, InputKind::state);
  Value t = g.input("t", {40}, f32, InputKind::state);
};

TEST_P(OnBackend, AStateIsReadAfterItsNextValueIsKnown) {
  States c;
  Value next = c.s * 0.5;
  c.g.update(c.s, next);
  c.g.output("y", tanh(next) + c.s);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AnOutputIsTheOldState) {
  States c;
  c.g.output("old", c.s);
  c.g.output("old as rows", reshape(c.s, {4, 10}));
  c.g.output("part of old", slice(c.s, 0, 7, 9));
  c.g.update(c.s, c.s + c.x);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AnOutputIsTheNewState) {
  States c;
  Value next = c.s + c.x;
  c.g.output("new", next);
  c.g.update(c.s, next);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, TwoStatesChangePlaces) {
  States c;
  c.g.update(c.s, c.t);
  c.g.update(c.t, c.s);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AStateTakesAnothersOldValue) {
  States c;
  c.g.update(c.s, c.s * 0.5);
  c.g.update(c.t, c.s);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, TwoStatesTakeOneNextValue) {
  States c;
  Value next = c.s * 0.5 + c.x;
  c.g.update(c.s, next);
  c.g.update(c.t, next);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AStateTakesAnInputAConstantAViewOrItself) {
  for (int which = 0; which < 5; ++which) {
    States c;
    Value values[] = {c.x, full(c.g, {40}, 3), exp(full(c.g, {40}, 0.5)),
                      slice(concat(std::vector<Value>{c.x, c.t * 2.0}, 0), 0, 13, 40), c.s};
    c.g.update(c.s, values[which]);
    c.g.output("y", c.s + c.t);
    check_states(backend(), c.g);
  }
}
TEST_P(OnBackend, AnOutputIsAnInputOrAConstant) {
  States c;
  c.g.output("x", c.x);
  c.g.output("s", c.s);
  c.g.output("constant", full(c.g, {3}, 2));
  Value y = exp(c.x);
  c.g.output("sum", tanh(y) + tanh(y) + c.x);
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AddsAValueToItselfAndToItsViews) {
  States c;
  Value y = exp(c.x);
  c.g.output("double", y + y);
  Value z = exp(c.s);
  c.g.output("halves", slice(z, 0, 0, 20) + slice(z, 0, 20, 20));
  Value w = tanh(c.t);
  c.g.output("whole and view", w * reshape(reshape(w, {5, 8}), {40}));
  check_states(backend(), c.g);
}
TEST_P(OnBackend, AConstantIsComputedOnceAndStays) {
  States c;
  Value constant = exp(full(c.g, {40}, 0.25)) * 2.0;
  c.g.output("y", tanh(constant) + constant * c.x);
  c.g.update(c.s, constant + c.s);
  check_states(backend(), c.g, 4);
}

// -- the engine itself
// -------------------------------------------------------------------------------

TEST(Engine, ForecastIsTheArena) {
  const Training t;
  Engine engine(reference::backend());
  engine.add(t.build(Target{}, optim::Accumulation::none, 2));
  engine.add(decompose(inference(t.config.model()->loss(2, t.length)), Target{}));
  const MemoryForecast f = engine.forecast();
  engine.allocate();
  EXPECT_EQ(engine.arena_bytes(), f.total());
  int64_t parameters = 0;
  for (const StateInfo& s : engine.states())
    if (s.kind() == InputKind::parameter) parameters += s.type.bytes();
  EXPECT_EQ(parameters, 4 * t.config.model()->parameter_count());
  EXPECT_GE(f.parameter_bytes, parameters);
  EXPECT_GE(f.state_bytes, 2 * parameters);
}

TEST(Engine, AProgramAddedLaterSharesTheState) {
  Graph a, b;
  Value s = a.input("s", {4}, f32, InputKind::state);
  a.update(s, s + 1.0);
  b.output("twice", b.input("s", {4}, f32, InputKind::state) * b.input("f", {}, f32));
  Engine engine(reference::backend());
  const size_t pa = engine.add(a);
  engine.allocate();
  const size_t pb = engine.add(b);
  for (int i = 0; i < 3; ++i) engine.run(pa);
  engine.set_scalar(pb, "f", 2.0f);
  engine.run(pb);
  EXPECT_EQ(engine.output_scalar(pb, "twice"), 6.0f);
}

TEST(Engine, RefusesWhatDoesNotFitTogether) {
  Graph a, b;
  a.output("y", a.input("s", {4}, f32, InputKind::state) * 2.0);
  b.output("y", b.input("s", {5}, f32, InputKind::state) * 2.0);
  Engine engine(reference::backend());
  engine.add(a);
  EXPECT_THROW(engine.add(b), InternalError);
  engine.allocate();
  EXPECT_THROW(engine.input(0, "absent"), InternalError);
  EXPECT_THROW(engine.output(0, "absent"), InternalError);
  EXPECT_THROW(engine.state_f32("absent"), InternalError);
}

TEST(Engine, AnIdOutsideTheTableNamesThePlace) {
  const auto config = test::tiny_gpt2();
  Engine engine(reference::backend());
  const size_t p = engine.add(decompose(config.model()->forward(1, 4), Target{}));
  engine.allocate();
  load_parameters(engine,
                  [](std::string_view, std::span<float> out) { std::ranges::fill(out, 0.0f); });
  const int32_t tokens[] = {1, 2, 13, 3};
  engine.set_input<int32_t>(p, "tokens", tokens);
  try {
    engine.run(p);
    ADD_FAILURE() << "no error";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()),
              "[embedding] id 13 lies outside the table of 13 rows (at embed)");
  }
}

}  // namespace
}  // namespace brrr
