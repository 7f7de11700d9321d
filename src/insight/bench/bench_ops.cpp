// Times each op as a program of one node, interleaved with a copy of as many bytes.

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "base/threads/parallel.h"
#include "insight/bench/bench.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr::insight {
namespace {

/// Builds the graph of one op on one dtype. Throws UserError if the op does not accept the dtype.
class OpGraph {
 public:
  OpGraph(DType dtype, int64_t elements) : dtype_(dtype), elements_(elements) {}

  Graph& graph() { return graph_; }
  DType dtype() const { return dtype_; }
  int64_t columns() const { return std::min<int64_t>(1024, elements_); }
  int64_t rows() const { return std::max<int64_t>(1, elements_ / columns()); }
  /// A matrix of the wanted number of elements, as a read-only input.
  Value x(const char* name = "x") { return given(name, {rows(), columns()}, dtype_); }
  Value line(const char* name = "x") { return given(name, {rows() * columns()}, dtype_); }
  Value given(const char* name, Shape shape, DType dtype) {
    return graph_.input(name, std::move(shape), dtype, InputKind::state);
  }
  /// Indices below `end`, at random.
  Value ids(Shape shape, int64_t end) {
    end_of_ids_ = end;
    return given(kIds, std::move(shape), DType::i32);
  }
  /// A random element: a small positive integer, or a float inside the domain of every function.
  double number(std::string_view input, std::mt19937& random) const {
    if (input == kIds)
      return static_cast<double>(
          std::uniform_int_distribution<int64_t>(0, end_of_ids_ - 1)(random));
    if (input == kShift) return 1;
    if (dtype_ == DType::boolean || input == kCondition) return static_cast<double>(random() & 1);
    if (!is_float(dtype_)) return std::uniform_int_distribution<int>(1, 100)(random);
    return std::uniform_real_distribution<double>(0.05, 0.95)(random);
  }
  static constexpr const char *kIds = "ids", *kShift = "shift", *kCondition = "condition";

 private:
  Graph graph_;
  DType dtype_;
  int64_t elements_, end_of_ids_ = 1;
};

struct OpCase {
  std::string name;
  std::function<Value(OpGraph&)> build;
};

/// An image [1, C, 64, 64] of the wanted number of elements, rounded down to whole channels.
Value image(OpGraph& g) {
  constexpr int64_t kSide = 64;
  const int64_t channels = std::max<int64_t>(1, g.rows() * g.columns() / (kSide * kSide));
  return g.given("x", {1, channels, kSide, kSide}, g.dtype());
}

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> list;
#define BRRR_UNARY_CASE(name) list.push_back({#name, [](OpGraph& g) { return name(g.x()); }});
#define BRRR_BINARY_CASE(name) \
  list.push_back({#name, [](OpGraph& g) { return name(g.x("a"), g.x("b")); }});
  BRRR_UNARY_OPS(BRRR_UNARY_CASE)
  BRRR_BINARY_OPS(BRRR_BINARY_CASE)
#undef BRRR_UNARY_CASE
#undef BRRR_BINARY_CASE
  for (OpCase& c : list) {
    if (c.name == "shift_left")
      c.build = [](OpGraph& g) { return shift_left(g.x(), g.x(OpGraph::kShift)); };
    if (c.name == "shift_right")
      c.build = [](OpGraph& g) { return shift_right(g.x(), g.x(OpGraph::kShift)); };
  }
  list.push_back({"where", [](OpGraph& g) {
                    const Value condition =
                        g.given(OpGraph::kCondition, {g.rows(), g.columns()}, DType::boolean);
                    return where(condition, g.x("a"), g.x("b"));
                  }});
  list.push_back({"gelu", [](OpGraph& g) { return gelu(g.x()); }});
  list.push_back({"silu", [](OpGraph& g) { return silu(g.x()); }});
  list.push_back({"fused a * b + a", [](OpGraph& g) {
                    const Value a = g.x("a");
                    return a * g.x("b") + a;
                  }});
  for (const DType to : {DType::f32, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean})
    list.push_back({fmt::format("cast to {}", name_of(to)), [to](OpGraph& g) {
                      if (g.dtype() == to) user_error("nothing to cast");
                      return cast(g.x(), to);
                    }});
  return list;
}

std::vector<OpCase> reduction_cases() {
  std::vector<OpCase> list;
  using Reduction = Value (*)(Value, std::vector<int64_t>, bool);
  for (const auto& [name, reduce] : {std::pair<const char*, Reduction>{"sum", sum},
                                     {"max", max},
                                     {"min", min},
                                     {"product", product}}) {
    const auto add = [&, n = name, f = reduce](const char* of, std::vector<int64_t> axes) {
      list.push_back({fmt::format("{} of {}", n, of),
                      [f, axes](OpGraph& g) { return f(g.x(), axes, false); }});
    };
    add("rows", {1});
    add("columns", {0});
    add("everything", {0, 1});
  }
  list.push_back({"argmax of rows", [](OpGraph& g) { return argmax(g.x(), 1); }});
  list.push_back({"argmax of columns", [](OpGraph& g) { return argmax(g.x(), 0); }});
  list.push_back({"sort of rows", [](OpGraph& g) { return sort(g.x(), 1, false).values; }});
  list.push_back({"top 10 of rows", [](OpGraph& g) {
                    return sort(g.x(), 1, true, std::min<int64_t>(10, g.columns())).values;
                  }});
  list.push_back({"cumsum of rows", [](OpGraph& g) { return running_sum(g.x(), 1); }});
  list.push_back({"cumsum of columns", [](OpGraph& g) { return running_sum(g.x(), 0); }});
  list.push_back({"cumprod of rows", [](OpGraph& g) { return running_product(g.x(), 1); }});
  list.push_back({"softmax", [](OpGraph& g) { return softmax(g.x()); }});
  list.push_back({"layer_norm", [](OpGraph& g) {
                    return layer_norm(g.x(), g.given("w", {g.columns()}, g.dtype()),
                                      g.given("b", {g.columns()}, g.dtype()))
                        .y;
                  }});
  list.push_back({"rms_norm", [](OpGraph& g) {
                    return rms_norm(g.x(), g.given("w", {g.columns()}, g.dtype())).y;
                  }});
  const Windows windows{.strides = {2, 2}, .dilations = {1, 1}, .pads = {1, 1, 1, 1}};
  list.push_back({"max_pool 3x3", [windows](OpGraph& g) {
                    return max_pool(image(g), {3, 3}, windows).values;
                  }});
  list.push_back({"sum_pool 3x3", [windows](OpGraph& g) {
                    return sum_pool(image(g), {3, 3}, windows);
                  }});
  return list;
}

std::vector<OpCase> movement_cases() {
  std::vector<OpCase> list;
  list.push_back({"transpose", [](OpGraph& g) { return transpose(g.x(), {1, 0}); }});
  list.push_back({"transpose of images", [](OpGraph& g) {
                    return transpose(image(g), {0, 2, 3, 1});
                  }});
  list.push_back({"slice of rows", [](OpGraph& g) {
                    return slice(g.x(), 1, g.columns() / 4, std::max<int64_t>(1, g.columns() / 2));
                  }});
  list.push_back({"pad", [](OpGraph& g) { return pad(g.x(), 1, 1, 2); }});
  list.push_back({"concat of rows", [](OpGraph& g) {
                    const Value parts[] = {g.x("a"), g.x("b")};
                    return concat(parts, 1);
                  }});
  list.push_back(
      {"broadcast of a row", [](OpGraph& g) {
         return broadcast_to(g.given("x", {1, g.columns()}, g.dtype()), {g.rows(), g.columns()});
       }});
  list.push_back(
      {"broadcast of a column", [](OpGraph& g) {
         return broadcast_to(g.given("x", {g.rows(), 1}, g.dtype()), {g.rows(), g.columns()});
       }});
  list.push_back(
      {"gather of rows", [](OpGraph& g) { return gather(g.x(), g.ids({g.rows()}, g.rows()), 0); }});
  list.push_back({"gather of columns",
                  [](OpGraph& g) { return gather(g.x(), g.ids({g.columns()}, g.columns()), 1); }});
  list.push_back({"gather of elements", [](OpGraph& g) {
                    const int64_t n = g.rows() * g.columns();
                    return gather(g.line(), g.ids({n}, n), 0);
                  }});
  for (const int axis : {0, 1})
    list.push_back(
        {fmt::format("gather_elements of {}", axis == 0 ? "columns" : "rows"), [axis](OpGraph& g) {
           const Value x = g.x();
           return gather_elements(x, g.ids(x.shape(), x.shape().size(axis)), axis);
         }});
  for (const auto& [name, mode] :
       {std::pair{"set", ScatterMode::set}, {"add", ScatterMode::add}, {"max", ScatterMode::max}})
    list.push_back({fmt::format("scatter {} of elements", name), [mode = mode](OpGraph& g) {
                      const int64_t n = g.rows() * g.columns();
                      return scatter(g.given("x", {n, 1}, g.dtype()), g.ids({n}, n),
                                     g.given("updates", {n, 1}, g.dtype()), mode);
                    }});
  return list;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> list = elementwise_cases();
  for (std::vector<OpCase> more : {reduction_cases(), movement_cases()})
    std::ranges::move(more, std::back_inserter(list));
  return list;
}

/// The compiled program of an op with random inputs.
class OpRun {
 public:
  OpRun(OpGraph& op, Value y) : engine_(cpu::cpu_backend()) {
    op.graph().output("y", y);
    id_ = engine_.add(run_pipeline(op.graph(), engine_.backend().target(), {}));
    engine_.allocate();
    std::mt19937 random(7);
    const Graph& g = engine_.program(id_).graph();
    for (const NodeId id : g.inputs()) {
      const Type& type = g.type({id, 0});
      std::vector<std::byte> values(static_cast<size_t>(type.bytes()));
      fill_tensor(type, values.data(),
                  [&](int64_t) { return op.number(g.input_name(id), random); });
      engine_.write_state(g.input_name(id), values);
      count(type);
    }
    for (const Output& out : g.outputs()) count(g.type(out.value));
  }
  void run() { engine_.run(id_); }
  int64_t bytes() const { return bytes_; }
  int64_t elements() const { return elements_; }
  std::string kernels() const {
    std::string names;
    std::set<std::string> seen;
    for (const Dispatch& d : engine_.program(id_).dispatch())
      if (seen.insert(d.kernel).second) names += (names.empty() ? "" : ", ") + d.kernel;
    return names;
  }

 private:
  void count(const Type& type) {
    bytes_ += type.bytes();
    elements_ = std::max(elements_, type.shape.elements());
  }

  Engine engine_;
  size_t id_ = 0;
  int64_t bytes_ = 0, elements_ = 1;
};

}  // namespace

std::vector<OpRow> bench_ops(const OpsOptions& options) {
  std::vector<DType> dtypes = options.dtypes;
  if (dtypes.empty())
    std::ranges::copy_if(kAllDTypes, std::back_inserter(dtypes),
                         [](DType t) { return !is_fp8(t); });
  std::vector<OpRow> rows;
  for (const OpCase& c : all_cases()) {
    const auto is_part = [&](const std::string& part) { return c.name.find(part) != c.name.npos; };
    if (!options.ops.empty() && std::ranges::none_of(options.ops, is_part)) continue;
    for (const DType dtype : dtypes) {
      OpGraph graph(dtype, options.elements);
      std::unique_ptr<OpRun> run;
      try {
        run = std::make_unique<OpRun>(graph, c.build(graph));
      } catch (const UserError&) {
        continue;  // the op does not take the dtype
      }
      const auto half = run->bytes() / 2;
      std::vector<std::byte> from(static_cast<size_t>(half)), to(static_cast<size_t>(half));
      const auto copy = [&] {
        constexpr int64_t kGrain = 1 << 16;
        parallel_for(half, kGrain, [&](int64_t begin, int64_t end) {
          std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
        });
      };
      const std::vector<Timing> times =
          interleave({[&] { run->run(); }, copy}, options.seconds_per_row);
      rows.push_back({c.name, std::string(name_of(dtype)), run->kernels(), run->elements(),
                      times[0], times[1]});
    }
  }
  return rows;
}

}  // namespace brrr::insight
