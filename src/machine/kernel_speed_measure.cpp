// Measures KernelSpeed: small graphs, run by the same engine and kernels as a model's.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "machine/kernel_speed.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr::machine {
namespace {

constexpr int kLeastRuns = 2, kMostRuns = 9;
constexpr double kEnoughSeconds = 0.001;  // for the runs of one graph

/// What is shortest was disturbed least: a kernel is shorter than a time slice, so some of its runs
/// go without other work, and a median would not be of this machine alone.
double least_of(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

/// A graph that is compiled and filled: floats from 0.5 to 1.5, so that none becomes subnormal.
class SpeedTrial {
 public:
  explicit SpeedTrial(const Graph& graph) : engine_(cpu::cpu_backend()) {
    id_ = engine_.add(graph);
    engine_.allocate();
    const Graph& g = this->graph();
    for (NodeId id : g.inputs()) {
      const Type& type = g.type({id, 0});
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      // The same thousand numbers again and again, panels as they lie: which number stands where is
      // of no consequence.
      const size_t width = bytes_of(type.dtype);
      const size_t once = std::min<size_t>(bytes.size() / width, 997);
      for (size_t e = 0; e < once; ++e)
        store_from_double(type.dtype, bytes.data(), static_cast<int64_t>(e),
                          is_float(type.dtype) ? 0.5 + static_cast<double>(e) / 997.0
                                               : static_cast<double>(e % 7));
      for (size_t at = once * width; at < bytes.size(); at += once * width)
        std::memcpy(bytes.data() + at, bytes.data(), std::min(once * width, bytes.size() - at));
      // Inputs are states: a run may write over what is only lent to it.
      engine_.write_state(g.input_name(id), bytes);
    }
  }
  const Graph& graph() const { return engine_.program(id_).graph(); }
  /// Seconds of each node, the shortest of a few runs after the first.
  std::vector<double> seconds_of_nodes() {
    engine_.run(id_);
    std::vector<std::vector<double>> times(graph().size());
    const Stopwatch watch;
    for (int run = 0; run < kMostRuns && (run < kLeastRuns || watch.seconds() < kEnoughSeconds);
         ++run) {
      Timeline timeline;
      engine_.run(id_, &timeline);
      for (const TimelineRecord& r : timeline.records)
        if (!graph().is_input(r.node)) times[r.node].push_back(r.seconds);
    }
    std::vector<double> least;
    for (const auto& of_node : times) least.push_back(least_of(of_node));
    return least;
  }
  /// The sum over the nodes that `is_one` picks.
  double seconds(const std::function<bool(const Node&)>& is_one) {
    const std::vector<double> all = seconds_of_nodes();
    double sum = 0;
    for (NodeId id = 0; id < all.size(); ++id)
      if (!graph().is_input(id) && is_one(graph().node(id))) sum += all[id];
    return sum;
  }

 private:
  Engine engine_;
  size_t id_ = 0;
};

Graph as_compiled(const Graph& g, const PipelineOptions& options = {}) {
  return run_pipeline(g, cpu::cpu_backend().target(), options);
}

// -- products

ProductSpeed product_speed(DType dtype, bool ta, bool tb, bool packed) {
  ProductSpeed speed{dtype, ta, tb, packed, {}};
  for (const int64_t m : kProductRows)
    for (const int64_t n : kProductColumns)
      for (const int64_t k : kProductTerms) {
        Graph g;
        const Value a = g.input("a", {dtype, ta ? Shape{k, m} : Shape{m, k}}, Role::state);
        Type right{dtype, tb ? Shape{n, k} : Shape{k, n}};
        if (packed) right.storage.layout = right_layout(tb);
        const Value b = g.input("b", right, Role::state);
        g.output("y", matmul(a, b, ta, tb));
        SpeedTrial trial(g);
        const double seconds =
            trial.seconds([](const Node& node) { return node.op->product.has_value(); });
        speed.flops.push_back(2e0 * static_cast<double>(m * n * k) / std::max(seconds, 1e-9));
      }
  return speed;
}

/// The rate of a product with a weight in integer panels, whose left operand is quantised by rows.
ProductSpeed quantized_product_speed() {
  ProductSpeed speed{DType::i8, false, false, true, {}};
  for (const int64_t m : kProductRows)
    for (const int64_t n : kProductColumns)
      for (const int64_t k : kProductTerms) {
        Graph g;
        const Value a = g.input("a", {DType::bf16, {m, k}}, Role::state);
        Type right{DType::bf16, {k, n}};
        right.storage = {right_layout(false), {.bits = 8, .axis = 0, .group = 0}};
        const std::vector<Value> operands{a, g.input("b", right, Role::state)};
        g.output(
            "y",
            call(Op::matmul, operands,
                 {{"transpose_a", false}, {"transpose_b", false}, {"left_bits", int64_t{8}}})[0]);
        SpeedTrial trial(g);
        const double seconds =
            trial.seconds([](const Node& node) { return node.op->product.has_value(); });
        speed.flops.push_back(2e0 * static_cast<double>(m * n * k) / std::max(seconds, 1e-9));
      }
  return speed;
}

/// The time of a loss head over that of its products.
double head_factor(const KernelSpeed& speed) {
  constexpr int64_t kRows = 256, kWidth = 256, kClasses = 2048;
  Graph g;
  const Value x = g.parameter("x", {kRows, kWidth}), w = g.parameter("w", {kClasses, kWidth});
  const Value targets = g.input("targets", {DType::i32, {kRows}}, Role::state);
  g.output("loss", sum(linear_cross_entropy(x, w, targets, true).losses, {0}));
  PipelineOptions options;
  options.loss = "loss";
  SpeedTrial trial(as_compiled(g, options));
  double products = 0;
  for (NodeId id = 0; id < trial.graph().size(); ++id)
    if (!trial.graph().is_input(id) && trial.graph().node(id).op->loss)
      products += kernel_seconds(trial.graph(), id, speed);
  const double seconds = trial.seconds([](const Node& n) { return n.op->loss.has_value(); });
  return products > 0 ? std::clamp(seconds / products, 0.5, 4.0) : 1;
}

// -- attention

struct AttentionSeconds {
  double forward = 0, backward = 0;
};

AttentionSeconds attention_seconds(DType dtype, int64_t heads, int64_t length, int64_t width,
                                   double dropout) {
  Graph g;
  const Shape shape{1, heads, length, width};
  const Value q = g.parameter("q", shape, dtype), k = g.parameter("k", shape, dtype),
              v = g.parameter("v", shape, dtype);
  AttentionOptions o;
  o.scale = 0.1;
  o.causal = true;
  if (dropout > 0) {
    o.p = dropout;
    o.key = g.input("key", {DType::i32, {2}}, Role::state);
  }
  const Value y = attention(q, k, v, o).y;
  g.output("loss", sum(cast(y, DType::f32), {0, 1, 2, 3}));
  PipelineOptions options;
  options.loss = "loss";
  SpeedTrial trial(as_compiled(g, options));
  AttentionSeconds seconds;
  const std::vector<double> all = trial.seconds_of_nodes();
  for (NodeId id = 0; id < all.size(); ++id) {
    if (trial.graph().is_input(id) || !trial.graph().node(id).op->is_attention) continue;
    (trial.graph().node(id).op->is_gradient ? seconds.backward : seconds.forward) += all[id];
  }
  return seconds;
}

void measure_attention(KernelSpeed& s, DType dtype) {
  const auto heads = static_cast<int64_t>(2 * thread_count());
  AttentionSpeed forward{dtype, false, {}, 1}, backward{dtype, true, {}, 1};
  for (const int64_t length : kAttentionLengths)
    for (const int64_t width : kAttentionWidths) {
      const AttentionSeconds t = attention_seconds(dtype, heads, length, width, 0);
      const double flops =
          static_cast<double>(heads * width) * static_cast<double>(length * (length + 1));
      forward.flops.push_back(2 * flops / std::max(t.forward, 1e-9));
      backward.flops.push_back(5 * flops / std::max(t.backward, 1e-9));
    }
  const AttentionSeconds with = attention_seconds(dtype, heads, 256, 64, 0.1);
  const AttentionSeconds without = attention_seconds(dtype, heads, 256, 64, 0);
  if (without.forward > 0) forward.dropout = std::max(1.0, with.forward / without.forward);
  if (without.backward > 0) backward.dropout = std::max(1.0, with.backward / without.backward);
  s.attention.push_back(std::move(forward));
  s.attention.push_back(std::move(backward));
}

// -- element by element, row by row

/// Ops one by one over tensors that the second-level caches hold: forward and backward.
void measure_elements(KernelSpeed& speed) {
  Graph g;
  const Shape shape{64 * thread_count(), 512};
  const Value x = g.parameter("x", shape), w = g.parameter("w", {512}), b = g.parameter("b", {512});
  const Value key = g.input("key", {DType::i32, {2}}, Role::state);
  std::vector<Value> results{gelu(x),
                             gelu(x, Gelu::erf),
                             silu(x),
                             exp(x),
                             tanh(x),
                             erf(x),
                             log(x),
                             sqrt(x),
                             sigmoid(x),
                             rsqrt(x),
                             x / (x + 1.0),
                             maximum(x, x * 0.5),
                             where(less(x, x * 0.5), x, neg(x)),
                             layer_norm(x, w, b).y,
                             rms_norm(x, w).y,
                             softmax(x),
                             cast(cast(x, DType::bf16), DType::f32),
                             transpose(x, {1, 0}),
                             dropout(x, key, 0.1, 0)};
  Value total = sum(results[0], {0, 1});
  for (size_t i = 1; i < results.size(); ++i) total = total + sum(results[i] * 0.5, {0, 1});
  g.output("loss", total);
  PipelineOptions options;
  options.loss = "loss";
  options.disabled = {"fuse"};
  SpeedTrial trial(as_compiled(g, options));
  const std::vector<double> seconds = trial.seconds_of_nodes();
  struct Sum {
    double seconds = 0, elements = 0;
  };
  std::map<std::string, Sum> sums;
  for (NodeId id = 0; id < seconds.size(); ++id) {
    if (trial.graph().is_input(id) || seconds[id] <= 0) continue;
    const Node& node = trial.graph().node(id);
    int64_t elements = 0;
    for (const Type& t : operand_types(trial.graph(), node))
      elements = std::max(elements, t.shape.elements());
    for (const Type& t : node.results) elements = std::max(elements, t.shape.elements());
    if (elements < shape.elements() || is(node, Op::fused)) continue;
    Sum& sum = sums[node.op->name];
    sum.seconds += seconds[id];
    sum.elements += static_cast<double>(elements);
  }
  for (const auto& [name, sum] : sums) speed.elements[name] = sum.seconds / sum.elements;
}

/// What one more cheap operation costs inside a fused kernel.
double chained_seconds() {
  const Shape shape{64 * thread_count(), 512};
  const auto chain = [&](int links) {
    Graph g;
    Value x = g.input("x", {DType::f32, shape}, Role::state);
    const Value a = g.input("a", {DType::f32, shape}, Role::state);
    for (int i = 0; i < links; ++i) x = i % 2 == 0 ? x + a : x - a;
    g.output("y", x);
    SpeedTrial trial(as_compiled(g));
    return trial.seconds([](const Node&) { return true; });
  };
  const double apart = chain(34) - chain(2);
  return std::max(apart, 0.0) / (32 * static_cast<double>(shape.elements()));
}

/// Bytes per second of y = x + 1 over so many bytes of x and y together.
double streamed_bytes(int64_t bytes) {
  Graph g;
  const Value x = g.input("x", {DType::f32, {std::max<int64_t>(bytes / 8, 1024)}}, Role::state);
  g.output("y", x + 1.0);
  SpeedTrial trial(as_compiled(g));
  const double seconds = trial.seconds([](const Node&) { return true; });
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

double seconds_of_small_node() {
  constexpr int kNodes = 200;
  Graph g;
  Value x = g.input("x", {DType::f32, {16}}, Role::state);
  const Value a = g.input("a", {DType::f32, {16}}, Role::state);
  for (int i = 0; i < kNodes; ++i) x = i % 2 == 0 ? x + a : x - a;
  g.output("y", x);
  PipelineOptions options;
  options.disabled = {"fuse"};
  SpeedTrial trial(as_compiled(g, options));
  return trial.seconds([](const Node&) { return true; }) / kNodes;
}

double seconds_of_team() {
  if (thread_count() == 1) return 0;
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    const Stopwatch watch;
    parallel_pieces(thread_count(), thread_count(), [](int64_t, int) {});
    times.push_back(watch.seconds());
  }
  return least_of(times);
}

}  // namespace

KernelSpeed measure_kernels(int64_t memory_bytes) {
  KernelSpeed s;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    s.products.push_back(product_speed(dtype, false, false, false));
    s.products.push_back(product_speed(dtype, false, true, false));
    s.products.push_back(product_speed(dtype, true, false, false));
    s.products.push_back(product_speed(dtype, false, false, true));
  }
  s.products.push_back(product_speed(DType::i8, false, false, false));
  s.products.push_back(quantized_product_speed());
  for (const DType dtype : {DType::f32, DType::bf16}) measure_attention(s, dtype);
  measure_elements(s);
  s.chained = chained_seconds();
  const int64_t threads = thread_count();
  const int64_t l2 = std::max<int64_t>(::sysconf(_SC_LEVEL2_CACHE_SIZE), 256 << 10);
  const int64_t l3 = std::max<int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  s.l2_bytes = l2 * threads;
  s.l3_bytes = std::max(l3, s.l2_bytes);
  s.l2 = streamed_bytes(s.l2_bytes / 2);
  s.l3 = l3 > 2 * s.l2_bytes ? streamed_bytes(l3 / 2) : s.l2;
  s.memory =
      streamed_bytes(std::min(memory_bytes, std::max<int64_t>(4 * s.l3_bytes, int64_t{64} << 20)));
  s.node_seconds = seconds_of_small_node();
  s.team_seconds = seconds_of_team();
  s.head = head_factor(s);
  return s;
}

}  // namespace brrr::machine
