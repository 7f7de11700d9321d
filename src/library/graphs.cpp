// Graphs of one's own by the C interface.

#include "library/graphs.h"

#include <algorithm>
#include <atomic>

#include "ir/text.h"
#include "library/modules.h"
#include "models/initialise.h"
#include "ops/backpropagate.h"
#include "ops/ops.h"

using namespace brrr;
using namespace brrr::library;

namespace brrr::library {
namespace {

Value value_in(Graph& graph, const brrr_value& value) {
  if (value.node >= graph.size() || value.port >= graph.node(value.node).results.size())
    usage_error("the graph has no value %{}.{}; is it a value of another graph?", value.node,
                value.port);
  return graph.value(ValueId{value.node, value.port});
}
brrr_value to_c(const Value& value) { return {value.id.node, value.id.port}; }

models::Fill fill_of(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string number = colon == std::string::npos ? "" : text.substr(colon + 1);
  using Kind = models::Fill::Kind;
  if (text == "zeros") return {Kind::zeros};
  if (text == "ones") return {Kind::ones};
  if (kind == "normal" || kind == "uniform")
    return {kind == "normal" ? Kind::normal : Kind::uniform,
            parse_real(number, {.low = 0, .high = 1e30})};
  usage_error("init must be zeros, ones, normal:DEVIATION or uniform:BOUND; got '{}'", text);
}

const OpDef& op_named(const std::string& name) {
  if (const OpDef* found = find_op(name)) return *found;
  std::vector<std::string> names;
  for (const OpDef* op : all_ops()) names.push_back(op->name);
  const std::string near = nearest(name, names);
  usage_error("there is no op '{}'{}; docs/ops.md lists them", name,
              near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

/// A source of the graph's parameters: tensors that were given, and initial values of the others.
std::shared_ptr<const WeightSource> weights_of(
    const brrr_graph& graph, const std::vector<std::pair<std::string, const brrr_tensor*>>& given,
    uint32_t seed) {
  struct Kept final : WeightSource {
    explicit Kept(const brrr_graph& graph, uint32_t seed)
        : list("the graph's weights", nullptr, initial_weights(graph, seed)) {}
    const std::string& what() const override { return list.what(); }
    const TensorView* find(std::string_view name) const override { return list.find(name); }
    void each(const std::function<void(const TensorView&)>& see) const override { list.each(see); }
    void read(const TensorView& tensor, std::span<std::byte> to) const override {
      list.read(tensor, to);
    }
    WeightList list;
    std::vector<std::shared_ptr<void>> keep;
  };
  auto source = std::make_shared<Kept>(graph, seed);
  std::map<std::string, const brrr_tensor*> left(given.begin(), given.end());
  for (const NodeId id : graph.graph.inputs(InputKind::parameter)) {
    const Type& type = graph.graph.type({id, 0});
    TensorView view{graph.graph.input_name(id), type.dtype, type.shape, {}, {}};
    if (const auto at = left.find(view.name); at != left.end()) {
      const brrr_tensor& tensor = *at->second;
      if (Shape(tensor.sizes) != type.shape)
        usage_error("the weight '{}' is {}; got {}", view.name, type.str(),
                    Type{tensor.dtype, Shape(tensor.sizes)}.str());
      view.dtype = tensor.dtype;
      view.bytes = library::bytes_of(tensor);
      source->keep.push_back(tensor.keep);
      left.erase(at);
    }
    source->list.add(std::move(view));
  }
  if (!left.empty()) usage_error("the graph has no parameter '{}'", left.begin()->first);
  return source;
}

}  // namespace

uint64_t new_graph_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

FloatWeights initial_weights(const brrr_graph& graph, uint32_t seed) {
  return [fills = graph.fills, shapes = graph.shapes, seed](std::string_view name,
                                                            std::span<float> to) {
    models::ParameterInfo info;
    info.name = name;
    const auto at = shapes.find(name);
    if (at != shapes.end()) info.shape = at->second;
    if (const auto fill = fills.find(name); fill != fills.end()) info.fill = fill->second;
    models::initialise(info, seed, to);
  };
}

}  // namespace brrr::library

brrr_status brrr_graph_create(brrr_graph** graph) {
  return guarded([&] {
    brrr_graph*& out = checked(graph, "graph");
    out = new brrr_graph;
  });
}

brrr_status brrr_graph_parse(const char* text, brrr_graph** graph) {
  return guarded([&] {
    brrr_graph*& out = checked(graph, "graph");
    auto made = std::make_unique<brrr_graph>();
    made->graph = parse(text_of(text, "text"), [](std::string_view name) { return find_op(name); });
    for (const NodeId id : made->graph.inputs(InputKind::parameter))
      made->shapes.emplace(made->graph.input_name(id), made->graph.type({id, 0}).shape);
    out = made.release();
  });
}

void brrr_graph_free(brrr_graph* graph) { delete graph; }

brrr_status brrr_graph_text(const brrr_graph* graph, char** text) {
  return guarded([&] {
    char*& out = checked(text, "text");
    out = copy_of(print(checked(graph, "graph").graph));
  });
}

brrr_status brrr_graph_input(brrr_graph* graph, const char* name, brrr_dtype dtype,
                             const int64_t* sizes, int rank, brrr_value* value) {
  return guarded([&] {
    brrr_value& out = checked(value, "value");
    out = to_c(checked(graph, "graph")
                   .graph.input(text_of(name, "name"), shape_of(sizes, rank), dtype_of(dtype)));
  });
}

brrr_status brrr_graph_parameter(brrr_graph* graph, const char* name, const int64_t* sizes,
                                 int rank, const char* init, brrr_value* value) {
  return guarded([&] {
    brrr_value& out = checked(value, "value");
    brrr_graph& g = checked(graph, "graph");
    const std::string named = text_of(name, "name");
    const models::Fill fill = fill_of(text_of(init, "init"));
    const Shape shape = shape_of(sizes, rank);
    Attrs attrs;
    if (shape.rank() < 2) attrs.set(kDecays, false);
    out = to_c(g.graph.input(named, Type{DType::f32, shape}, Role::parameter, attrs));
    g.fills[named] = fill;
    g.shapes[named] = shape;
  });
}

brrr_status brrr_graph_constant(brrr_graph* graph, brrr_dtype dtype, const int64_t* sizes, int rank,
                                double number, brrr_value* value) {
  return guarded([&] {
    brrr_value& out = checked(value, "value");
    const DType type = dtype_of(dtype);
    const Number written = is_float(type) ? Number(number) : Number(static_cast<int64_t>(number));
    out = to_c(full(checked(graph, "graph").graph, shape_of(sizes, rank), written, type));
  });
}

brrr_status brrr_graph_call(brrr_graph* graph, const char* op, const brrr_value* operands,
                            size_t operand_count, const char* attributes, brrr_value* results,
                            size_t capacity, size_t* result_count) {
  return guarded([&] {
    brrr_graph& g = checked(graph, "graph");
    if (capacity > 0) checked(results, "the list of results");
    std::vector<ValueId> ids;
    for (size_t i = 0; i < operand_count; ++i)
      ids.push_back(value_in(g.graph, checked(operands + i, "the list of operands")).id);
    const NodeId made = g.graph.add(op_named(text_of(op, "op")), ids,
                                    parse_attrs(attributes == nullptr ? "" : attributes));
    const size_t count = g.graph.node(made).results.size();
    if (result_count != nullptr) *result_count = count;
    for (size_t i = 0; i < std::min(count, capacity); ++i)
      results[i] = {made, static_cast<uint32_t>(i)};
  });
}

brrr_status brrr_graph_mean(brrr_graph* graph, brrr_value x, const int64_t* axes, size_t axis_count,
                            brrr_value* value) {
  return guarded([&] {
    brrr_value& out = checked(value, "value");
    const Value v = value_in(checked(graph, "graph").graph, x);
    std::vector<int64_t> chosen;
    for (size_t i = 0; i < axis_count; ++i) {
      int64_t axis = checked(axes + i, "the list of axes");
      if (axis < 0) axis += v.shape().rank();
      chosen.push_back(axis);
    }
    if (axis_count == 0)
      for (int axis = 0; axis < v.shape().rank(); ++axis) chosen.push_back(axis);
    out = to_c(mean(v, chosen));
  });
}

brrr_status brrr_graph_dropout(brrr_graph* graph, brrr_value x, double p, brrr_value* value) {
  return guarded([&] {
    brrr_value& out = checked(value, "value");
    brrr_graph& g = checked(graph, "graph");
    const Value v = value_in(g.graph, x);
    if (!(p >= 0 && p < 1)) usage_error("dropout: p must be from 0 to below 1; got {}", p);
    const NodeId known = g.graph.find_input("rng_key");
    const Value key =
        known == kNoNode ? g.graph.input("rng_key", {2}, DType::i32) : g.graph.value(known);
    out = p == 0 ? x : to_c(dropout(v, key, p, g.next_stream++));
  });
}

brrr_status brrr_graph_output(brrr_graph* graph, const char* name, brrr_value value) {
  return guarded([&] {
    Graph& g = checked(graph, "graph").graph;
    const std::string named = text_of(name, "name");
    if (g.find_output(named) != nullptr) usage_error("the graph has an output '{}' already", named);
    g.output(named, value_in(g, value));
  });
}

brrr_status brrr_graph_type(const brrr_graph* graph, brrr_value value, brrr_dtype* dtype, int* rank,
                            int64_t* sizes, size_t capacity) {
  return guarded([&] {
    Graph& g = const_cast<brrr_graph&>(checked(graph, "graph")).graph;  // a Value is a handle
    const Type& type = value_in(g, value).type();
    if (dtype != nullptr) *dtype = brrr::library::to_c(type.dtype);
    if (rank != nullptr) *rank = type.shape.rank();
    for (int axis = 0; axis < type.shape.rank() && static_cast<size_t>(axis) < capacity; ++axis)
      checked(sizes + axis, "the list of sizes") =
          type.shape[axis].is_symbol() ? -1 : type.shape.size(axis);
  });
}

brrr_status brrr_graph_gradient(brrr_graph* graph, brrr_value loss, const brrr_value* of,
                                size_t count, brrr_value* gradients) {
  return guarded([&] {
    Graph& g = checked(graph, "graph").graph;
    const Value scalar_loss = value_in(g, loss);
    if (scalar_loss.shape().elements() != 1)
      usage_error("a gradient is of a number; the loss is {}", scalar_loss.type().str());
    std::vector<Value> wanted;
    for (size_t i = 0; i < count; ++i)
      wanted.push_back(value_in(g, checked(of + i, "the list of values")));
    const ops::Seed seed{scalar_loss, full(g, scalar_loss.shape(), 1.0, scalar_loss.dtype())};
    const std::vector<Value> made =
        ops::backpropagate(g, 0, std::span(&seed, 1), wanted, "gradient");
    for (size_t i = 0; i < count; ++i)
      checked(gradients + i, "the list of gradients") = to_c(
          made[i].graph != nullptr ? made[i] : full(g, wanted[i].shape(), 0.0, wanted[i].dtype()));
  });
}

brrr_status brrr_graph_compile(const brrr_graph* graph, const char* const* names,
                               brrr_tensor* const* weights, size_t weight_count, uint32_t seed,
                               const brrr_option* options, size_t count, brrr_module** module) {
  return guarded([&] {
    brrr_module*& out = checked(module, "module");
    const brrr_graph& g = checked(graph, "graph");
    if (g.graph.outputs().empty()) usage_error("the graph has no output");
    const ModuleOptions o = module_options(key_values(options, count));
    out =
        make_module({runnable_of(g.graph, weights_of(g, named(names, weights, weight_count), seed)),
                     std::nullopt},
                    o)
            .release();
  });
}
