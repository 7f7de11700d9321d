#include "infer/model_runnable.h"

#include <utility>

#include "base/human.h"
#include "models/exchange_names.h"
#include "runtime/attention_support.h"

namespace brrr::infer {
namespace {

/// A tensor whose sizes are open axes of these names.
Port port_with(const std::string& name, DType dtype, const std::vector<std::string>& sizes) {
  Port port = port_of(name, {dtype, {}});
  for (const std::string& size : sizes) port.dims.push_back({-1, size, -1});
  return port;
}

/// An output whose shape follows from the inputs.
Port output_port(const std::string& name, DType dtype = DType::f32) {
  Port port = port_of(name, {dtype, {}});
  port.has_shape = false;
  return port;
}

const Type& type_given(const std::map<std::string, Type>& inputs, const char* name) {
  const auto at = inputs.find(name);
  if (at == inputs.end()) user_error("the input '{}' is missing", name);
  return at->second;
}

std::string summary_of(const models::Model& model) {
  return fmt::format("{}, {}", model.architecture().title,
                     counted(model.parameter_count(), "parameter"));
}

}  // namespace

TextLayout text_layout(const models::Model& model, const Backend& backend) {
  return model.has_flat() && runs_ragged_attention(backend) ? TextLayout::flat : TextLayout::padded;
}

namespace {

std::vector<Port> flat_inputs(const models::Model& model) {
  std::vector<Port> inputs;
  for (const char* name : {"tokens", "types", "positions"})
    if (model.has_token_types() || name != std::string_view("types"))
      inputs.push_back(port_with(name, DType::i32, {"tokens"}));
  inputs.push_back(port_with("starts", DType::i32, {"texts + 1"}));
  return inputs;
}

Port picture_port(const models::Model& model, const char* name, const char* batch) {
  const models::PictureSizes picture = *model.sizes().picture;
  Port port = port_of(name, {DType::f32, {1, picture.channels, picture.height, picture.width}});
  port.dims[0] = {-1, batch, -1};
  return port;
}

std::vector<Port> padded_inputs(const models::Model& model) {
  if (model.sees_pictures()) return {picture_port(model, "pixels", "batch")};
  std::vector<Port> inputs = {port_with("tokens", DType::i32, {"batch", "length"})};
  if (model.task().head == models::Head::next_token) return inputs;
  if (model.has_token_types())
    inputs.push_back(port_with("types", DType::i32, {"batch", "length"}));
  inputs.push_back(port_with("lengths", DType::i32, {"batch"}));
  return inputs;
}

/// Builds the forward graph for the shapes of the given inputs.
Graph forward_graph(const models::Model& model, TextLayout layout,
                    const std::map<std::string, Type>& inputs) {
  if (model.sees_pictures()) return model.forward(type_given(inputs, "pixels").shape[0], Dim(1));
  const Shape& tokens = type_given(inputs, "tokens").shape;
  std::optional<int64_t> places;
  if (const auto given = inputs.find("places"); given != inputs.end())
    places = given->second.shape.size(0);
  if (layout == TextLayout::flat) {
    const int64_t ends = type_given(inputs, "starts").shape.size(0);
    if (ends < 2) user_error("the input 'starts' must name a text and the end; it has {}", ends);
    return model.flat({.tokens = tokens.size(0), .texts = ends - 1, .places = places});
  }
  if (places) return model.forward_at(tokens.size(0), tokens.size(1), *places);
  return model.forward(tokens.size(0), tokens.size(1));
}

}  // namespace

std::shared_ptr<const Runnable> forward_runnable(models::ModelPtr model,
                                                 std::shared_ptr<const WeightSource> weights,
                                                 TextLayout layout) {
  const models::Head head = model->task().head;
  GraphMaker maker;
  maker.inputs = layout == TextLayout::flat ? flat_inputs(*model) : padded_inputs(*model);
  if (head == models::Head::masked_token) {
    maker.inputs.push_back(port_with("places", DType::i32, {"places"}));
    maker.inputs.back().is_optional = true;
  }
  maker.outputs = {output_port(head == models::Head::embedding ? "embedding" : "logits")};
  maker.graph = [model, layout](const std::map<std::string, Type>& inputs) {
    return forward_graph(*model, layout, inputs);
  };
  maker.weights = std::move(weights);
  maker.summary = summary_of(*model);
  return make_runnable(std::move(maker));
}

std::shared_ptr<const Runnable> decode_runnable(models::ModelPtr model,
                                                std::shared_ptr<const WeightSource> weights,
                                                int64_t capacity, DType cache) {
  GraphMaker maker;
  Port tokens = port_with("tokens", DType::i32, {"batch", "length"});
  tokens.dims[0] = {1, "", -1};
  maker.inputs = {tokens, port_with("position", DType::i32, {})};
  maker.outputs = {output_port("logits")};
  maker.graph = [model, capacity, cache](const std::map<std::string, Type>& inputs) {
    return model->decode({.length = type_given(inputs, "tokens").shape.size(1),
                          .capacity = capacity,
                          .cache = cache});
  };
  maker.weights = std::move(weights);
  maker.summary = summary_of(*model);
  return make_runnable(std::move(maker));
}

std::shared_ptr<const Runnable> sequences_runnable(models::ModelPtr model,
                                                   std::shared_ptr<const WeightSource> weights,
                                                   int64_t blocks, DType cache,
                                                   bool chooses_adapters) {
  GraphMaker maker;
  if (chooses_adapters) maker.inputs.push_back(port_with("adapters", DType::i32, {"tokens"}));
  for (const char* name : {"tokens", "positions", "slots"})
    maker.inputs.push_back(port_with(name, DType::i32, {"tokens"}));
  maker.inputs.push_back(port_with("starts", DType::i32, {"sequences + 1"}));
  maker.inputs.push_back(port_with("lengths", DType::i32, {"sequences"}));
  maker.inputs.push_back(port_with("blocks", DType::i32, {"sequences", "table"}));
  maker.inputs.push_back(port_with("wanted", DType::i32, {"wanted"}));
  maker.outputs = {output_port("logits")};
  maker.graph = [model, blocks, cache,
                 chooses_adapters](const std::map<std::string, Type>& inputs) {
    const Shape& table = type_given(inputs, "blocks").shape;
    return model->decode_sequences({.tokens = type_given(inputs, "tokens").shape.size(0),
                                    .sequences = table.size(0),
                                    .wanted = type_given(inputs, "wanted").shape.size(0),
                                    .table = table.size(1),
                                    .blocks = blocks,
                                    .cache = cache,
                                    .chooses_adapters = chooses_adapters});
  };
  maker.weights = std::move(weights);
  maker.summary = summary_of(*model);
  return make_runnable(std::move(maker));
}

std::shared_ptr<const Runnable> exchange_runnable(models::ModelPtr model,
                                                  std::shared_ptr<const WeightSource> weights) {
  GraphMaker maker;
  const Graph smallest = model->exchange({});  // which inputs and outputs there are
  if (model->sees_pictures())
    maker.inputs = {picture_port(*model, models::exchange_names::kPixels, "batch_size")};
  for (const NodeId id : smallest.inputs(InputKind::data)) {
    if (model->sees_pictures()) break;
    maker.inputs.push_back(port_with(smallest.input_name(id), smallest.type({id, 0}).dtype,
                                     {"batch_size", "sequence_length"}));
    maker.inputs.back().dims[1].most = model->sizes().context;
  }
  for (const Output& out : smallest.outputs())
    maker.outputs.push_back(output_port(out.name, smallest.type(out.value).dtype));
  maker.graph = [model](const std::map<std::string, Type>& inputs) {
    const Shape& first = inputs.begin()->second.shape;
    if (model->sees_pictures()) return model->exchange({first.size(0), 1, std::nullopt});
    if (first.elements() == 0)
      user_error("texts of {} tokens; expected at least one text of one token", first.str());
    const int64_t context = model->sizes().context;
    if (first.size(1) > context)
      user_error("a text of {} tokens is longer than the model's limit of {}", first.size(1),
                 context);
    return model->exchange({first.size(0), first.size(1), std::nullopt});
  };
  maker.weights = std::move(weights);
  maker.summary = summary_of(*model);
  return make_runnable(std::move(maker));
}

}  // namespace brrr::infer
