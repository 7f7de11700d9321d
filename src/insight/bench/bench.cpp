#include "insight/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/peaks.h"
#include "backend/cpu/target.h"
#include "base/clock.h"
#include "insight/bench/number_check.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr::insight {
namespace {

/// Inputs of this name hold numbers close to 1, by which others can be multiplied often without
/// becoming subnormal or infinite.
constexpr const char* kFactor = "factor";

// A compiled graph with random numbers in every input, ready to run.
class Runner {
 public:
  Runner(const Graph& graph, const PipelineOptions& options, Backend backend = cpu::cpu_backend())
      : engine_(std::move(backend)) {
    id_ = engine_.add(run_pipeline(graph, engine_.backend().target(), options));
    engine_.allocate();
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const Graph& g = engine_.program(id_).graph();
    for (NodeId id : g.inputs()) {
      const Type& type = g.type({id, 0});
      std::vector<std::byte> values(static_cast<size_t>(type.bytes()));
      fill_tensor(type, values.data(), [&](int64_t) -> double {
        if (g.input_name(id) == kFactor) return 1 + uniform(random) / 256;
        if (is_float(type.dtype)) return uniform(random);
        return type.dtype == DType::i8 ? std::round(127 * uniform(random)) : 1;
      });
      if (g.input_kind(id) == InputKind::data)
        engine_.set_input<std::byte>(id_, g.input_name(id), values);
      else
        engine_.write_state(g.input_name(id), values);
    }
  }
  void run() { engine_.run(id_); }
  /// After run(): UserError where the results are no usual numbers.
  void check(const std::string& what) { check_outputs(what, engine_, id_); }
  const Program& program() const { return engine_.program(id_); }
  int64_t temporary_bytes() const { return program().plan().temporary_bytes; }

 private:
  Engine engine_;
  size_t id_ = 0;
};

/// An input that keeps its numbers from one run to the next: a run may write over those that are
/// only lent to it, and what is multiplied again and again would vanish.
Value given(Graph& g, const char* name, Shape shape, DType dtype = DType::f32) {
  return g.input(name, std::move(shape), dtype, InputKind::state);
}

// The CPU backend with one kernel for the contractions.
Backend only(const std::string& kernel) {
  Backend b = cpu::cpu_backend();
  std::erase_if(b.kernels,
                [&](const KernelEntry& e) { return op(e.op).product && e.name != kernel; });
  return b;
}

Graph product_graph(const MatmulShape& s, DType dtype, InputKind b_kind = InputKind::state) {
  Graph g;
  Value a = given(g, "a", s.ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, dtype);
  Value b = g.input("b", s.tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, dtype, b_kind);
  g.output("c", matmul(a, b, s.ta, s.tb));
  return g;
}

/// The product with b packed beforehand, or quantised, as a constant of inference is; null: no pass
/// does either.
std::unique_ptr<Runner> runner_of_panels(const MatmulShape& s, DType dtype,
                                         const Quantization& quantization = {}) {
  PipelineOptions options;
  options.refresher = Refresher::loader;
  options.quantization = quantization;
  auto runner = std::make_unique<Runner>(product_graph(s, dtype, InputKind::parameter), options);
  const Graph& g = runner->program().graph();
  for (NodeId id : g.inputs())
    if (!g.type({id, 0}).storage.is_plain()) return runner;
  return nullptr;
}

PipelineOptions without(std::initializer_list<const char*> passes) {
  PipelineOptions p;
  const auto known = optional_passes();
  for (const char* pass : passes)
    if (std::find(known.begin(), known.end(), pass) != known.end()) p.disabled.insert(pass);
  return p;
}

/// Milliseconds of each round of each function, see interleave.
std::vector<std::vector<double>> interleaved_rounds(
    const std::vector<std::function<void()>>& functions, double seconds, size_t least_rounds = 3) {
  constexpr size_t kMostRounds = 1000;
  for (const auto& f : functions) f();
  std::vector<std::vector<double>> ms(functions.size());
  const Stopwatch watch;
  for (size_t round = 0; round < least_rounds || (round < kMostRounds && watch.seconds() < seconds);
       ++round)
    for (size_t i = 0; i < functions.size(); ++i) {
      const Stopwatch one;
      functions[i]();
      ms[i].push_back(one.milliseconds());
    }
  return ms;
}

}  // namespace

std::vector<Timing> interleave(const std::vector<std::function<void()>>& functions, double seconds,
                               size_t least_rounds) {
  std::vector<Timing> out;
  for (auto& samples : interleaved_rounds(functions, seconds, least_rounds))
    out.push_back(timing_of(std::move(samples)));
  return out;
}

std::vector<MatmulShape> default_products(int64_t rows) {
  struct Layer {
    const char* name;
    int64_t in, out;
    bool transposed;  // the head's weight is [out, in]
  };
  std::vector<MatmulShape> list;
  for (const Layer& l :
       {Layer{"attn.c_attn", 768, 2304, false}, Layer{"mlp.c_fc", 768, 3072, false},
        Layer{"mlp.c_proj", 3072, 768, false}, Layer{"lm_head", 768, 50257, true}}) {
    list.push_back({std::string(l.name) + " y", rows, l.out, l.in, false, l.transposed});
    list.push_back({std::string(l.name) + " dx", rows, l.in, l.out, false, !l.transposed});
    if (l.transposed)
      list.push_back({std::string(l.name) + " dw", l.out, l.in, rows, true, false});
    else
      list.push_back({std::string(l.name) + " dw", l.in, l.out, rows, true, false});
  }
  return list;
}

std::vector<MatmulRow> bench_matmul(const std::vector<MatmulShape>& shapes,
                                    const std::vector<DType>& dtypes, double seconds_per_product,
                                    const std::vector<Precision>& precisions) {
  const auto peaks = cpu::measure_compute_peaks(0.2);
  const Backend whole = cpu::cpu_backend();
  std::vector<MatmulRow> rows;
  for (DType dtype : dtypes)
    for (const MatmulShape& shape : shapes) {
      const Graph g = product_graph(shape, dtype);
      const NodeView view(g, static_cast<NodeId>(g.size() - 1));
      std::vector<std::unique_ptr<Runner>> runners;
      std::vector<std::function<void()>> functions;
      const size_t first = rows.size();
      for (const KernelEntry& entry : whole.kernels) {
        if (&op(entry.op) != view.node().op || !entry.refusal(view).empty()) continue;
        runners.push_back(
            std::make_unique<Runner>(g, PipelineOptions{}, only(std::string(entry.name))));
        functions.push_back([runner = runners.back().get()] { runner->run(); });
        MatmulRow row;
        row.shape = shape;
        row.dtype = name_of(dtype);
        row.kernel = entry.name;
        rows.push_back(std::move(row));
      }
      if (auto runner = runner_of_panels(shape, dtype)) {
        runners.push_back(std::move(runner));
        functions.push_back([runner = runners.back().get()] { runner->run(); });
        MatmulRow row = rows[first];
        row.kernel += ", b packed";
        rows.push_back(std::move(row));
      }
      for (const Precision precision : precisions) {
        const Quantization quantization = quantization_of_precision(precision);
        if (!is_float(dtype) || shape.ta || !is_quantized(precision)) continue;
        auto runner = runner_of_panels(shape, dtype, quantization);
        if (!runner) continue;
        runners.push_back(std::move(runner));
        functions.push_back([runner = runners.back().get()] { runner->run(); });
        MatmulRow row = rows[first];
        row.kernel = fmt::format("b {}", precision);
        row.multiplies_integers = quantization.of_rows;
        rows.push_back(std::move(row));
      }
      const auto timings = interleave(functions, seconds_per_product);
      for (const auto& runner : runners) runner->check("matmul: " + shape.name);
      const double flops = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                           static_cast<double>(shape.k);
      // A narrow product may be computed in f32, so the faster of the two is its ceiling.
      const auto peak_of = [&](bool integers) {
        return std::max(cpu::fastest_rate(peaks, integers ? "int8" : name_of(dtype)),
                        cpu::fastest_rate(peaks, "f32"));
      };
      for (size_t i = 0; i < timings.size(); ++i) {
        MatmulRow& row = rows[first + i];
        row.ms = timings[i];
        row.tflops = flops / timings[i].median * 1e-9;
        const double peak = peak_of(dtype == DType::i8 || row.multiplies_integers);
        row.peak_fraction = peak > 0 ? row.tflops * 1e12 / peak : 0;
      }
    }
  return rows;
}

namespace {

Graph multiplications(int64_t elements, int64_t n) {
  Graph g;
  Value x = given(g, "x", {elements}), a = given(g, kFactor, {});
  for (int64_t i = 0; i < n; ++i) x = x * a;
  g.output("y", x);
  return g;
}

FusionRow fused_against_unfused(std::string name, int64_t n, const Graph& g, double seconds) {
  Runner fused(g, {}), unfused(g, without({"fuse"}));
  const auto t = interleave({[&] { fused.run(); }, [&] { unfused.run(); }}, seconds);
  fused.check("fusion: " + name);
  unfused.check("fusion: " + name);
  return {std::move(name), n, t[0], t[1], {}};
}

// n of them, one kernel each, and one alone right before those that are fused.
FusionRow multiplications_over_one(int64_t elements, int64_t n, double seconds) {
  const Graph g = multiplications(elements, n);
  Runner one(multiplications(elements, 1), {}), fused(g, {}), unfused(g, without({"fuse"}));
  const auto ms = interleaved_rounds(
      {[&] { unfused.run(); }, [&] { one.run(); }, [&] { fused.run(); }}, seconds);
  for (Runner* runner : {&one, &fused, &unfused})
    runner->check(fmt::format("fusion: {} multiplications", n));
  std::vector<double> ratios;
  for (size_t round = 0; round < ms[1].size(); ++round)
    ratios.push_back(ms[2][round] / ms[1][round]);
  return {"x*a", n, timing_of(ms[2]), timing_of(ms[0]), timing_of(std::move(ratios))};
}

}  // namespace

FusionRow bench_multiplications(int64_t elements, int64_t n, double seconds) {
  return fused_against_unfused("x*a", n, multiplications(elements, n), seconds);
}

std::vector<FusionRow> bench_fusion(int64_t elements, double seconds_per_row) {
  std::vector<FusionRow> rows;
  auto measure = [&](std::string name, int64_t n, const std::function<void(Graph&)>& build) {
    Graph g;
    build(g);
    rows.push_back(fused_against_unfused(std::move(name), n, g, seconds_per_row));
  };
  for (int64_t n = 1; n <= 128; n *= 2)
    rows.push_back(multiplications_over_one(elements, n, seconds_per_row));
  measure("cos(cos x)", 2, [&](Graph& g) { g.output("y", cos(cos(given(g, "x", {elements})))); });
  measure("layer_norm(x + y), gelu", 3, [&](Graph& g) {
    constexpr int64_t kWidth = 768;
    const Shape shape{std::max<int64_t>(1, elements / kWidth), kWidth};
    Value x = given(g, "x", shape), y = given(g, "y", shape);
    Value w = g.parameter("w", {kWidth}), b = g.parameter("b", {kWidth});
    g.output("z", gelu(layer_norm(x + y, w, b).y));
  });
  return rows;
}

io::Plot fusion_plot(const std::vector<FusionRow>& rows) {
  io::Plot plot;
  plot.title = "x * a, repeated";
  plot.subtitle = "one pass over memory until arithmetic is the limit";
  plot.x_label = "multiplications";
  plot.y_label = "ms";
  plot.log_y = true;
  io::Series fused{"fused", {}, {}, io::LineStyle::line, 0};
  io::Series unfused{"one kernel each", {}, {}, io::LineStyle::line, 1};
  for (const FusionRow& row : rows) {
    if (row.name != "x*a") continue;
    for (auto [series, timing] : {std::pair{&fused, row.fused}, std::pair{&unfused, row.unfused}}) {
      series->x.push_back(static_cast<double>(row.n));
      series->y.push_back(timing.median);
    }
  }
  plot.series = {std::move(fused), std::move(unfused)};
  return plot;
}

std::vector<AttentionRow> bench_attention(const std::vector<int64_t>& lengths,
                                          const AttentionOptions& o, double seconds_per_row) {
  std::vector<AttentionRow> rows;
  for (int64_t t : lengths)
    for (bool backward : {false, true}) {
      if (backward && !o.backward) continue;
      Graph g;
      const Shape shape{o.batch, o.heads, t, o.head_width};
      auto operand = [&](const char* name) {
        return backward ? g.parameter(name, shape, o.dtype) : given(g, name, shape, o.dtype);
      };
      Value q = operand("q"), k = operand("k"), v = operand("v");
      Value visible = less_equal(iota(g, {1, t}, 1), iota(g, {t, 1}, 0));
      Value scores = matmul(q, k, false, true) * (1 / std::sqrt(static_cast<double>(o.head_width)));
      Value y = matmul(softmax(where(visible, scores, scalar(g, -INFINITY, o.dtype))), v);
      if (backward)
        g.output("loss", sum(cast(y, DType::f32), {0, 1, 2, 3}));
      else
        g.output("y", y);
      PipelineOptions plain = without({"match_attention"}), matched;
      if (backward) plain.loss = matched.loss = "loss";

      AttentionRow row;
      row.t = t;
      row.backward = backward;
      const Backend backend = cpu::cpu_backend();
      row.naive_bytes =
          Program(run_pipeline(g, backend.target(), plain), backend).plan().temporary_bytes;
      Runner flash(g, matched);
      row.flash_bytes = flash.temporary_bytes();
      std::vector<std::function<void()>> functions{[&] { flash.run(); }};
      std::unique_ptr<Runner> naive;
      if (row.naive_bytes <= o.naive_limit_bytes) {
        naive = std::make_unique<Runner>(g, plain);
        functions.push_back([&] { naive->run(); });
      }
      const auto timings = interleave(functions, seconds_per_row);
      flash.check("attention: flash");
      if (naive) naive->check("attention: naive");
      row.flash = timings[0];
      if (naive) row.naive = timings[1];
      rows.push_back(row);
    }
  return rows;
}

/// How many calls together take 20 microseconds at least, in which the clock's own cost and grain
/// are lost: a power of two. They have warmed up, too.
static int64_t calls_per_look(const std::function<void()>& call) {
  constexpr double kLeastMs = 0.02;
  for (int64_t calls = 1;; calls *= 2) {
    const Stopwatch watch;
    for (int64_t i = 0; i < calls; ++i) call();
    if (watch.milliseconds() >= kLeastMs) return calls;
  }
}

Overhead bench_overhead(double seconds) {
  constexpr int64_t kNodes = 1000;
  Graph chain, single;
  Value x = given(chain, "x", {kSmallOp}), a = given(chain, "a", {kSmallOp});
  for (int64_t i = 0; i < kNodes; ++i) x = x + a;
  chain.output("y", x);
  single.output("y", given(single, "x", {kSmallOp}) + given(single, "a", {kSmallOp}));
  Runner many(chain, without({"fuse"})), one(single, {}), fused(chain, {});
  std::vector<std::function<void()>> looks;
  std::vector<double> calls;
  for (Runner* runner : {&many, &one, &fused}) {
    runner->run();
    const int64_t n = calls_per_look([runner] { runner->run(); });
    calls.push_back(static_cast<double>(n));
    looks.push_back([runner, n] {
      for (int64_t i = 0; i < n; ++i) runner->run();
    });
  }
  const auto t = interleave(looks, seconds);
  for (Runner* runner : {&many, &one, &fused}) runner->check("overhead");
  const auto us = [&](size_t i) { return 1e3 * t[i].median / calls[i]; };  // of a call
  Overhead o;
  o.node_us = us(0) / static_cast<double>(kNodes);
  o.ops_per_second = 1e6 / o.node_us;
  o.program_us = us(1);
  o.compiled_us = us(2) / static_cast<double>(kNodes);
  return o;
}

}  // namespace brrr::insight
