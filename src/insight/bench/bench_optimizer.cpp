// The optimizers' updates, interleaved, beside a plain pass over as many bytes.

#include <cmath>

#include "backend/cpu/target.h"
#include "insight/bench/bench.h"
#include "insight/bench/number_check.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "passes/weights/derived_weight.h"
#include "runtime/engine.h"

namespace brrr::insight {
namespace {

using optim::OptimizerKind;

// Parameters as a transformer has them: matrices of [768, 3072], each with a bias.
struct Tensors {
  int64_t matrices;
  explicit Tensors(int64_t elements) : matrices(std::max<int64_t>(1, elements / (kIn * kOut))) {}
  int64_t elements() const { return matrices * (kIn + 1) * kOut; }
  static constexpr int64_t kIn = 768, kOut = 3072;
};

// The update alone. Gradients are states, so that they stay from one run to the next.
Graph update_graph(const Tensors& tensors, OptimizerKind kind) {
  Graph g;
  auto add = [&](const std::string& name, Shape shape) {
    const Value parameter = g.parameter(name, shape);
    g.gradient(parameter, g.input("g:" + name, shape, DType::f32, Role::gradient_sum));
  };
  for (int64_t i = 0; i < tensors.matrices; ++i) {
    add(fmt::format("w{}", i), {Tensors::kIn, Tensors::kOut});
    add(fmt::format("b{}", i), {Tensors::kOut});
  }
  optim::Optimizer o;
  o.kind = kind;
  optim::attach_optimizer(g, o);
  return g;
}

DerivedWeight in_bf16(const std::string& parameter, const Shape& shape) {
  Graph form;
  form.output("0", cast(form.input("a0", shape, DType::f32), DType::bf16));
  return {{parameter}, Region(std::move(form))};
}

// The same update, which also writes each new parameter in bf16.
Graph with_copies(const Graph& in) {
  return rewrite(in, [&](Rewriter& r, NodeId id) {
    const Node& node = in.node(id);
    if (!node.op->updates_parameters) return false;
    const size_t n = node.attrs.get<std::vector<int64_t>>("decays").size();
    Attrs attrs = node.attrs;
    attrs.set("copies", std::vector<int64_t>(n, 1));
    attrs.set("copy_dtype", DType::bf16);
    const auto results = call(*node.op, r.operands(id), std::move(attrs));
    for (uint32_t port = 0; port < node.results.size(); ++port) r.bind({id, port}, results[port]);
    for (size_t i = 0; i < n; ++i) {
      const Value copy = results[node.results.size() + i];
      const std::string& name = in.input_name(node.operands[3 + i].node);
      r.out().update(derived_input(r.out(), in_bf16(name, copy.shape())), copy);
    }
    return true;
  });
}

struct Traffic {
  double read = 0, written = 0;
};
Traffic traffic_of(const Graph& g) {
  Traffic t;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id) || g.node(id).op->op_class != OpClass::optimizer) continue;
    const Cost cost = cost_of(g, id);
    t.read += cost.bytes_read;
    t.written += cost.bytes_written;
  }
  return t;
}

// Reads and writes as many bytes with as little arithmetic as can be: x = 0.5 x over what is
// written, a sum of squares over what is only read.
Graph stream_graph(const Traffic& t, int64_t number) {
  Graph g;
  const auto changed = static_cast<int64_t>(t.written / 4);
  const auto only_read = std::max<int64_t>(1, static_cast<int64_t>((t.read - t.written) / 4));
  Value x = g.input(fmt::format("stream{}:x", number), {changed}, DType::f32, InputKind::state);
  Value y = g.input(fmt::format("stream{}:y", number), {only_read}, DType::f32, InputKind::state);
  g.update(x, x * 0.5);
  g.output("sum", global_norm(std::span(&y, 1)));
  return g;
}

double state_bytes(const Graph& g) {
  double bytes = 0;
  for (NodeId id : g.inputs())
    if (g.role(id) == Role::moment) bytes += static_cast<double>(g.type({id, 0}).bytes());
  return bytes;
}

void fill(std::span<std::byte> bytes, float size) {
  const std::span out(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = size * (static_cast<float>((i * 2654435761u) % 2001) - 1000.0f) * 1e-3f;
}

}  // namespace

std::vector<OptimizerRow> bench_optimizer(int64_t elements, double seconds) {
  const Tensors tensors(elements);
  Engine engine(cpu::cpu_backend());
  std::vector<OptimizerRow> rows;
  std::vector<size_t> programs;
  for (size_t i = 0; i < 2 * optim::optimizer_names().size(); ++i) {
    const optim::OptimizerName& name = optim::optimizer_names()[i / 2];
    const bool copies = i % 2 == 1;
    Graph g = update_graph(tensors, name.kind);
    if (copies) g = with_copies(g);
    const Traffic t = traffic_of(g);
    OptimizerRow row;
    row.name = name.spellings[0];
    row.copies = copies;
    row.parameters = tensors.elements();
    row.state_bytes_per_parameter = state_bytes(g) / static_cast<double>(tensors.elements());
    row.bytes = t.read + t.written;
    const Target target = engine.backend().target();
    programs.push_back(engine.add(run_pipeline(g, target, {})));
    programs.push_back(
        engine.add(run_pipeline(stream_graph(t, static_cast<int64_t>(rows.size())), target, {})));
    rows.push_back(row);
  }
  engine.allocate();
  for (const StateInfo& s : engine.states()) {
    const bool is_gradient = s.role == Role::gradient_sum;
    if (is_gradient || s.role == Role::parameter || s.role == Role::state)
      engine.fill_state(s.name,
                        [&](std::span<std::byte> out) { fill(out, is_gradient ? 1e-2f : 1.0f); });
  }
  std::vector<std::function<void()>> functions;
  for (size_t i = 0; i < programs.size(); ++i)
    functions.push_back([&engine, id = programs[i], is_update = i % 2 == 0] {
      if (is_update) {
        engine.set_scalar(id, "learning_rate", 1e-6f);
        engine.set_scalar(id, "optimizer_step", int32_t{10});
      }
      engine.run(id);
    });
  const auto timings = interleave(functions, seconds * static_cast<double>(rows.size()));
  check_states("optimizer", engine);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].ms = timings[2 * i];
    rows[i].stream_ms = timings[2 * i + 1];
  }
  return rows;
}

}  // namespace brrr::insight
