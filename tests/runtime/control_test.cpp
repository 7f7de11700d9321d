// Branches and loops: on the CPU against their meaning, and bit for bit against the same
// computation written out; what their memory is; what is refused.

#include "ops/control.h"

#include <gtest/gtest.h>
#include <cmath>
#include <functional>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "base/threads/thread_team.h"
#include "ir/evaluate.h"
#include "ir/rewriter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "support/each_isa.h"
#include "support/engine_run.h"
#include "support/gpt2.h"
#include "support/judge.h"
#include "support/long_proof.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

using test::run_on_cpu;

/// Writes out what a graph with branches and loops computes for certain inputs.
class WrittenOut {
 public:
  WrittenOut(const Graph& g, const reference::Tensors& in) {
    std::vector<Known> inputs;
    for (NodeId id : g.inputs()) {
      const Type& t = g.type({id, 0});
      inputs.push_back({graph_.input(g.input_name(id), t, g.role(id)), in.at(g.input_name(id))});
      by_name_[g.input_name(id)] = inputs.back().value;
    }
    const std::vector<Known> outputs = write(g, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Output& o = g.outputs()[i];
      if (o.updates == kNoNode)
        graph_.output(o.name, outputs[i].value);
      else
        graph_.update(by_name_.at(g.input_name(o.updates)), outputs[i].value);
    }
  }
  const Graph& graph() const { return graph_; }
  int branches() const { return branches_; }
  int iterations() const { return iterations_; }

 private:
  struct Known {
    Value value;
    RefTensor content;
  };

  std::vector<Known> write(const Graph& g, const std::vector<Known>& inputs) {
    std::vector<std::vector<Known>> values(g.size());
    size_t next_input = 0;
    for (NodeId id = 0; id < g.size(); ++id) {
      const Node& node = g.node(id);
      std::vector<Known> in;
      for (const ValueId& v : node.operands) in.push_back(values[v.node][v.port]);
      if (g.is_input(id))
        values[id] = {inputs[next_input++]};
      else if (is(node, Op::if_))
        values[id] = write_branch(node, in);
      else if (is(node, Op::loop))
        values[id] = write_loop(node, in);
      else
        values[id] = write_node(g, id, in);
    }
    std::vector<Known> out;
    for (const Output& o : g.outputs()) out.push_back(values[o.value.node][o.value.port]);
    return out;
  }
  std::vector<Known> write_node(const Graph& g, NodeId id, const std::vector<Known>& in) {
    std::vector<ValueId> operands;
    std::vector<const RefTensor*> contents;
    for (const Known& k : in) {
      operands.push_back(k.value.id);
      contents.push_back(&k.content);
    }
    const NodeId copy = graph_.add(*g.node(id).op, operands, g.node(id).attrs);
    std::vector<RefTensor> results = evaluate_node(g, id, contents);
    std::vector<Known> out;
    for (uint32_t i = 0; i < results.size(); ++i)
      out.push_back({graph_.value(copy, i), std::move(results[i])});
    return out;
  }
  static bool holds(const Known& condition) { return condition.content.data[0] != 0; }

  std::vector<Known> write_branch(const Node& node, const std::vector<Known>& in) {
    ++branches_;
    return write(node.attrs.get<Region>(holds(in[0]) ? "then" : "else").graph(),
                 {in.begin() + 1, in.end()});
  }
  Known constant(const Shape& shape, double value, DType dtype) {
    const Value v = full(graph_, shape, value, dtype);
    return {v, evaluate_node(graph_, v.id.node, {})[0]};
  }
  std::vector<Known> write_loop(const Node& node, const std::vector<Known>& in) {
    const LoopForm form(node);
    const auto carried_end = in.begin() + 1 + static_cast<int64_t>(form.carried);
    std::vector<Known> carried(in.begin() + 1, carried_end);
    std::vector<std::vector<Known>> rows(form.stacked);
    bool condition = holds(in[0]);
    int64_t i = 0;
    for (; condition && i < form.end.bound; ++i, ++iterations_) {
      std::vector<Known> inputs{constant({}, static_cast<double>(i), DType::i32)};
      inputs.insert(inputs.end(), carried.begin(), carried.end());
      inputs.insert(inputs.end(), carried_end, in.end());
      const std::vector<Known> out = write(form.body, inputs);
      condition = holds(out[0]);
      for (size_t k = 0; k < form.carried; ++k) carried[k] = out[1 + k];
      for (size_t s = 0; s < form.stacked; ++s) rows[s].push_back(out[1 + form.carried + s]);
    }
    std::vector<Known> results = carried;
    for (size_t s = 0; s < form.stacked; ++s)
      results.push_back(stacked(rows[s], node.results[form.carried + s]));
    results.push_back(constant({}, static_cast<double>(i), DType::i32));
    return results;
  }
  Known stacked(const std::vector<Known>& rows, const Type& type) {
    std::vector<Value> parts;
    RefTensor content{type, {}};
    for (const Known& row : rows) {
      Shape shape = row.value.shape();
      shape.insert(0, Dim(1));
      parts.push_back(reshape(row.value, shape));
      content.data.insert(content.data.end(), row.content.data.begin(), row.content.data.end());
    }
    Shape rest = type.shape;
    rest[0] = Dim(type.shape.size(0) - static_cast<int64_t>(rows.size()));
    if (rest.size(0) > 0 || rows.empty()) parts.push_back(full(graph_, rest, 0, type.dtype));
    content.data.resize(static_cast<size_t>(type.shape.elements()), 0);
    return {parts.size() == 1 ? parts[0] : concat(parts, 0), std::move(content)};
  }

  Graph graph_;
  std::map<std::string, Value> by_name_;
  int branches_ = 0, iterations_ = 0;
};

/// The pass on the graph and on all regions in it.
Graph inside_and_out(const Graph& g, const std::function<Graph(const Graph&)>& pass) {
  return pass(change_regions(g, pass));
}

reference::Tensors rounded(reference::Tensors in, double factor = 1) {
  for (auto& [name, t] : in)
    if (is_float(t.type.dtype))
      for (double& x : t.data) x = static_cast<float>(x * factor);
  return in;
}

reference::Tensors as_tensors(const Graph& g, const test::Bytes& bytes) {
  reference::Tensors out;
  for (const Output& o : g.outputs()) {
    const std::string name = o.updates == kNoNode ? o.name : g.input_name(o.updates);
    const std::byte* data = bytes.at((o.updates == kNoNode ? "" : "state:") + name).data();
    out[(o.updates == kNoNode ? "" : "update:") + name] = read_tensor(g.type(o.value), data);
  }
  return out;
}

/// Whether what is computed is no small difference of large numbers, nor made chaotic by a loop:
/// inputs that differ in their last bits give results that are as close.
bool is_steady(const reference::Tensors& wanted, const Graph& g, const reference::Tensors& in) {
  for (const auto& [name, t] : wanted)
    for (const double x : t.data)
      if (!std::isfinite(x)) return false;
  const reference::Tensors near = reference::evaluate(g, rounded(in, 1 + 0x1p-22));
  return test::difference(wanted, near) < 1e-5;
}

class Control : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, Control, test::every_isa(), test::isa_of);

TEST_P(Control, RandomGraphsMeanWhatTheirRegionsSay) {
  const auto given = env::get("BRRR_FUZZ_GRAPHS");
  const int graphs =
      given ? std::stoi(*given) : test::rounds(10'000, test::is_sanitized() ? 50 : 150);
  const Backend backend = cpu::cpu_backend();
  PipelineOptions options;
  options.verify = true;
  int branches = 0, iterations = 0, judged = 0;
  for (int i = 0; i < graphs; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomGraph(seed, 25, false, 2).graph();
    verify(g);
    EXPECT_EQ(print(parse(print(g), find_op)), print(g));
    EXPECT_EQ(parse(print(g), find_op), g);
    const reference::Tensors in = rounded(test::random_inputs(g, seed, -1, 1, 5));
    const Graph plain = inside_and_out(
        g, [&](const Graph& part) { return simplify(decompose(part, backend.target())); });
    const WrittenOut written(plain, in);
    branches += written.branches();
    iterations += written.iterations();
    const test::Bytes expected = run_on_cpu(written.graph(), in);
    const Graph fused = inside_and_out(plain, [&](const Graph& part) {
      return fuse_epilogues(fuse(part, backend.target()), backend.target());
    });
    verify(fused);
    for (const Graph* same : {&plain, &fused}) {
      set_thread_count(same == &plain ? 1 : 3);
      const test::Bytes got = run_on_cpu(*same, in, same == &fused || seed % 2 == 0);
      for (const auto& [name, bytes] : expected)
        EXPECT_TRUE(got.at(name) == bytes) << name << (same == &fused ? ", fused" : "") << "\n"
                                           << print(*same);
    }
    set_thread_count(usable_processors());
    const reference::Tensors wanted = reference::evaluate(g, in);
    EXPECT_EQ(test::difference(wanted, reference::evaluate(written.graph(), in)), 0);
    if (is_steady(wanted, g, in)) {
      test::judge(written.graph(), in, expected);
      test::judge(written.graph(), in, run_on_cpu(run_pipeline(g, backend.target(), options), in));
      ++judged;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(branches, graphs);
  EXPECT_GT(iterations, 2 * graphs);
  EXPECT_GT(judged, graphs / 2);
}

/// x -> tanh(x w), so often as the bound says.
Region multiplying(int64_t rows, int64_t width) {
  Graph g;
  const Value i = g.input("a0", {}, i32), x = g.input("a1", {rows, width}, f32);
  const Value w = g.input("a2", {width, width}, f32);
  g.output("0", less(scalar(g, -1, i32), i));
  g.output("1", tanh(matmul(x, w)));
  return Region(g);
}

TEST(ControlMemory, ARegionIsOneTemporaryAndCarriedValuesStayInPlace) {
  constexpr int64_t kRows = 100, kWidth = 96;
  Graph g;
  const Value x = g.input("x", {kRows, kWidth}, f32), w = g.input("w", {kWidth, kWidth}, f32);
  const Value carried[] = {x * 0.5}, captured[] = {w};
  const LoopResults out = loop(less(scalar(g, 0), scalar(g, 1)), multiplying(kRows, kWidth),
                               carried, captured, {.bound = 5});
  g.output("y", out.carried[0]);
  ProgramOptions options;
  options.verify_memory = true;
  const Program program(g, cpu::cpu_backend(), options);
  const MemoryPlan& plan = program.plan();
  EXPECT_EQ(plan.buffer(out.carried[0].id), plan.buffer(carried[0].id)) << "not in place";
  // x, w, what is carried, the count; and the scratch memory of the loop, which holds the product
  // in an iteration and the number of that.
  const int64_t outside = 2 * kRows * kWidth * 4 + kWidth * kWidth * 4 + 64;
  ASSERT_GE(plan.scratch_of[out.iterations.id.node], 0);
  const Buffer& scratch =
      plan.buffers[static_cast<size_t>(plan.scratch_of[out.iterations.id.node])];
  EXPECT_GE(scratch.bytes, kRows * kWidth * 4);
  EXPECT_LE(plan.temporary_bytes, outside + scratch.bytes);
  EXPECT_LE(scratch.bytes, 4 * kRows * kWidth * 4 + 4 * kWidth * kWidth) << "more than it needs";
}

/// A captured value is read where it lies, however often; only what changes has memory of its own.
TEST(ControlMemory, CapturedValuesAreNotCopied) {
  constexpr int64_t kWide = 4096;
  Graph body;
  body.input("a0", {}, i32);
  const Value sum_so_far = body.input("a1", {}, f32), big = body.input("a2", {kWide, 64}, f32);
  body.output("0", less(sum_so_far, scalar(body, 1e9)));
  body.output("1", sum_so_far + sum(big, {0, 1}));
  Graph g;
  const Value carried[] = {g.input("x", {}, f32)};
  const Value captured[] = {g.parameter("table", {kWide, 64})};
  const LoopResults out =
      loop(less(scalar(g, 0), scalar(g, 1)), Region(body), carried, captured, {.bound = 3});
  g.output("y", out.carried[0]);
  EXPECT_LT(Program(g, cpu::cpu_backend()).plan().temporary_bytes, kWide * 64 * 4 / 8);
}

TEST(ControlPasses, EqualLoopsBecomeOne) {
  Graph g;
  const Value x = g.input("x", {3, 4}, f32), w = g.input("w", {4, 4}, f32);
  const Value carried[] = {x}, captured[] = {w};
  const Value first = less(scalar(g, 0), scalar(g, 1));
  for (const int64_t bound : {2, 2, 3})
    g.output(fmt::format("y{}", g.outputs().size()),
             loop(first, multiplying(3, 4), carried, captured, {.bound = bound}).carried[0]);
  const Graph simple = simplify(g);
  int loops = 0;
  for (const Node& node : simple.nodes()) loops += is(node, Op::loop);
  EXPECT_EQ(loops, 2);
}

/// In mixed precision the products of a body are in 16 bits, and its values keep their types.
TEST(ControlPasses, MixedPrecisionStaysInsideARegion) {
  Graph g;
  const Value x = g.input("x", {8, 16}, f32), w = g.parameter("w", {16, 16});
  const Value carried[] = {matmul(x, w)}, captured[] = {w};
  g.output("y", loop(less(scalar(g, 0), scalar(g, 1)), multiplying(8, 16), carried, captured,
                     {.bound = 3})
                    .carried[0]);
  const Backend backend = cpu::cpu_backend();
  PipelineOptions options;
  options.verify = true;
  options.precision = bf16;
  const Graph low = run_pipeline(g, backend.target(), options);
  EXPECT_NE(print(low).find("bf16[8,16] = matmul("), std::string::npos) << print(low);
  const auto in = rounded(test::random_inputs(g, 4, -0.5, 0.5, 2));
  const double gap =
      test::difference(reference::evaluate(g, in), as_tensors(low, run_on_cpu(low, in)));
  EXPECT_LT(gap, 0.05);
  EXPECT_GT(gap, 1e-5) << "nothing was rounded";
}

TEST(ControlPasses, SymbolsAreBoundInRegions) {
  const Dim batch = Dim::symbol("batch");
  Graph body;
  body.input("a0", {}, i32);
  const Value y = body.input("a1", {batch, 4}, f32);
  body.output("0", less(scalar(body, 0), scalar(body, 1)));
  body.output("1", tanh(y));
  body.output("2", sum(y, {1}));
  Graph g;
  const Value carried[] = {g.input("x", {batch, 4}, f32)};
  const LoopResults out =
      loop(less(scalar(g, 0), scalar(g, 1)), Region(body), carried, {}, {.bound = 3});
  g.output("y", out.carried[0]);
  g.output("rows", out.stacked[0]);
  EXPECT_EQ(out.stacked[0].type().str(), "f32[3,batch]");
  const Graph bound = specialize(g, {{"batch", 5}});
  verify(bound);
  EXPECT_EQ(bound.type(bound.find_output("rows")->value).str(), "f32[3,5]");
  const auto in = rounded(test::random_inputs(bound, 1, -1, 1, 2));
  EXPECT_LT(
      test::difference(reference::evaluate(bound, in), as_tensors(bound, run_on_cpu(bound, in))),
      1e-5);
}

}  // namespace
}  // namespace brrr
