#include "folders/quantized/quantized_model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "base/human.h"
#include "base/options.h"
#include "folders/quantized/folder_files.h"
#include "ops/ops.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {
namespace {

constexpr int64_t kGroups[] = {32, 64, 128};

/// How a graph multiplies by a parameter.
struct ParameterUse {
  bool multiplied = false;  // x wᵀ, as linear layers do
  bool is_other = false;    // in any other way
  bool transposed_only = true;
};

/// Every matrix among the parameters by how the forward pass reads it.
std::map<std::string, ParameterUse, std::less<>> uses_of_matrices(const models::Model& model) {
  const int64_t length = std::min<int64_t>(model.sizes().context, 8);
  const Graph graph = model.forward(Dim(1), Dim(length));
  std::map<std::string, ParameterUse, std::less<>> uses;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (graph.is_input(id)) continue;
    const Node& node = graph.node(id);
    const std::optional<ProductForm> form = product_form(node);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const ValueId v = node.operands[i];
      if (!graph.is_input(v.node) || graph.role(v.node) != Role::parameter) continue;
      ParameterUse& use = uses[graph.input_name(v.node)];
      if (!form || i != 1 || form->transpose_a) {
        use.is_other = true;
      } else {
        use.multiplied = true;
        use.transposed_only = use.transposed_only && form->transpose_b;
      }
    }
  }
  return uses;
}

/// Whether a parameter is the weight of a linear layer of a block, large enough to be quantised.
bool is_of_a_linear_layer(const models::ParameterInfo& p,
                          const std::map<std::string, ParameterUse, std::less<>>& uses) {
  if (!is_worth_quantizing(p.shape) || !p.place.starts_with("h.") || p.part != models::Part::trunk)
    return false;
  const auto use = uses.find(p.name);
  return use != uses.end() && use->second.multiplied && !use->second.is_other;
}

bool is_named(const LinearLayer& layer, const std::string& name) {
  if (layer.place == name || layer.tensor == name || layer.parameter == name) return true;
  return ("." + layer.name() + ".").find("." + name + ".") != std::string::npos;
}

std::vector<std::string> names_of(const std::vector<LinearLayer>& layers) {
  std::vector<std::string> names;
  for (const LinearLayer& l : layers) names.push_back(l.name());
  return names;
}

bool divides_all(const std::vector<LinearLayer>& layers, int64_t group) {
  return std::ranges::all_of(layers, [&](const LinearLayer& l) { return l.inputs % group == 0; });
}

void check_groups(const std::vector<LinearLayer>& layers, int64_t group, const std::string& what) {
  const auto at =
      std::ranges::find_if(layers, [&](const LinearLayer& l) { return l.inputs % group != 0; });
  if (at == layers.end()) return;
  std::vector<std::string> better;
  for (const int64_t size : kGroups)
    if (divides_all(layers, size)) better.push_back(std::to_string(size));
  std::vector<std::string> others;
  for (const LinearLayer& l : layers)
    if (l.inputs % kGroups[0] != 0) others.push_back(l.name());
  const std::string advice =
      better.empty()
          ? fmt::format("no group size divides it: use --bits 8, or --keep {}", listed(others, 3))
          : fmt::format("expected --group-size {}", fmt::join(better, " or "));
  user_error("{}: {} has {} inputs, which groups of {} do not divide; {}", what, at->name(),
             at->inputs, group, advice);
}

void check_finite(std::span<const float> numbers, const std::string& tensor,
                  const std::string& what) {
  if (!std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); }))
    user_error(
        "{}: the tensor {} contains NaN or infinity; the file is damaged, or its run diverged: "
        "use an earlier checkpoint",
        what, tensor);
}

}  // namespace

std::string LinearLayer::name() const {
  return tensor.ends_with(kWeightSuffix) ? tensor.substr(0, tensor.size() - kWeightSuffix.size())
                                         : tensor;
}

WeightSizes weight_sizes(const models::Model& model) {
  constexpr int64_t kGroup = 32;
  const auto uses = uses_of_matrices(model);
  int64_t elements = 0, outputs = 0;  // of linear layers
  for (const models::ParameterInfo& p : model.parameters()) {
    if (!is_of_a_linear_layer(p, uses)) continue;
    elements += p.shape.elements();
    outputs += p.shape.size(uses.find(p.name)->second.transposed_only ? 0 : 1);
  }
  const int64_t all = model.parameter_count(), others = 2 * (all - elements);
  constexpr auto kScale = static_cast<int64_t>(sizeof(float));
  return {4 * all, 2 * all, elements + kScale * outputs + others,
          elements / 2 + kScale * (elements / kGroup) + others};
}

std::vector<LinearLayer> linear_layers(const ModelFolder& model) {
  const std::string what = model.folder.string();
  if (model.quantization)
    user_error(
        "{} is quantised already ({}): quantise the folder that it was made from, because "
        "errors would add up",
        what, description(*model.quantization));
  const auto uses = uses_of_matrices(*model.definition);
  const std::shared_ptr<const WeightSource> files = open_weight_source(model.folder);
  std::vector<LinearLayer> layers;
  bool has_transposed = false;
  for (const models::ParameterInfo& p : model.definition->parameters()) {
    if (!is_of_a_linear_layer(p, uses)) continue;
    if (!uses.find(p.name)->second.transposed_only) {
      has_transposed = true;
      continue;
    }
    LinearLayer layer;
    layer.parameter = p.name;
    layer.tensor = find_parameter(*files, model.definition->file_names(), p.name)->name;
    layer.place = p.place;
    layer.outputs = p.shape.size(0);
    layer.inputs = p.shape.size(1);
    layers.push_back(std::move(layer));
  }
  if (has_transposed)
    user_error(
        "{}: {} has its weights as [inputs, outputs] (Conv1D), which compressed-tensors does not "
        "know; quantise while loading instead: `brrr generate --precision int8`",
        what, model.definition->architecture().title);
  if (layers.empty())
    user_error(
        "{}: no linear layer of a block has {} elements and {} inputs and outputs: in smaller "
        "ones, quantising saves neither memory nor time",
        what, with_commas(kLeastQuantizedElements), kLeastQuantizedSize);
  return layers;
}

void check_method(const FolderQuantization& q) {
  if (q.bits == 4 && q.dynamic)
    usage_error(
        "--bits 4: the method dynamic has weights of 8 bits; expected --bits 8, or --method "
        "weight-only");
  if (q.bits == 4 && std::ranges::find(kGroups, q.group) == std::end(kGroups))
    usage_error("--group-size {}: expected 32, 64 or 128", q.group);
  if (q.bits == 8 && q.group != 0)
    usage_error(
        "--group-size: weights of 8 bits have a scale for each output; leave it out, or use "
        "--bits 4");
}

std::vector<LinearLayer> chosen_layers(const std::vector<LinearLayer>& layers,
                                       const std::vector<std::string>& keep, int64_t group,
                                       const std::string& what) {
  for (const std::string& name : keep) {
    if (std::ranges::any_of(layers, [&](const LinearLayer& l) { return is_named(l, name); }))
      continue;
    const std::vector<std::string> names = names_of(layers);
    const std::string likely = nearest(name, names);
    usage_error(
        "--keep {}: {} has no such layer to quantise; {}", name, what,
        likely.empty() ? "it has " + listed(names, 4) : fmt::format("did you mean {}?", likely));
  }
  std::vector<LinearLayer> chosen;
  for (const LinearLayer& l : layers)
    if (std::ranges::none_of(keep, [&](const std::string& name) { return is_named(l, name); }))
      chosen.push_back(l);
  if (chosen.empty()) usage_error("--keep: all layers of {} are kept; expected fewer", what);
  if (group > 0) check_groups(chosen, group, what);
  return chosen;
}

int64_t QuantizedLayer::stored_bytes(bool is_packed) const {
  const IntegerForm& form = matrix.form;
  const int64_t scales = form.rows * form.groups() * int64_t{sizeof(float)};
  if (!is_packed) return form.rows * form.columns + scales;
  return form.rows * form.words_of_row() * 4 + 2 * int64_t{sizeof(int64_t)} + scales;
}

QuantizedModel::QuantizedModel(const ModelFolder& model, const FolderQuantization& quantization,
                               const std::vector<LinearLayer>& layers, Kept kept)
    : model_(model),
      kept_(kept),
      quantization_(quantization),
      files_(open_weight_source(model.folder)) {
  // compressed-tensors has weights alone in packed form, whatever their bits.
  quantization_.packed = !quantization.dynamic;
  std::set<std::string> quantised;
  std::vector<float> weight, back;
  for (const LinearLayer& l : layers) {
    weight.resize(static_cast<size_t>(l.outputs * l.inputs));
    back.resize(weight.size());
    model.read(l.parameter, weight);
    check_finite(weight, l.tensor, model.folder.string());
    QuantizedLayer q;
    q.layer = l;
    q.matrix = quantize(weight, {l.outputs, l.inputs, quantization.bits, quantization.group});
    dequantize(q.matrix.form, q.matrix.integers, q.matrix.scales, back);
    q.error = relative_error(weight, back);
    layers_.push_back(std::move(q));
    quantised.insert(l.tensor);
  }
  quantization_.ignore = kept_layers(*model.definition, *files_, quantised);
}

bool QuantizedModel::is_narrowed(const TensorView& kept) const {
  return kept_ == Kept::matrices_in_bf16 && kept.dtype == DType::f32 && kept.shape.rank() == 2;
}

int64_t QuantizedModel::stored_bytes() const {
  std::map<std::string, const QuantizedLayer*> by_tensor;
  for (const QuantizedLayer& q : layers_) by_tensor[q.layer.tensor] = &q;
  int64_t bytes = 0;
  files_->each([&](const TensorView& t) {
    const auto at = by_tensor.find(t.name);
    bytes += at == by_tensor.end() ? static_cast<int64_t>(t.bytes.size()) / (is_narrowed(t) ? 2 : 1)
                                   : at->second->stored_bytes(quantization_.packed);
  });
  return bytes;
}

ModelFolder QuantizedModel::as_read_back() const {
  ModelFolder folder;
  folder.folder = model_.folder;
  folder.definition = model_.definition;
  folder.generation = model_.generation;
  folder.quantization = quantization_;
  auto names = std::make_shared<ParameterSet>();
  const auto make = [this](std::string_view parameter, std::span<float> to) {
    const auto at = std::ranges::find_if(
        layers_, [&](const QuantizedLayer& q) { return q.layer.parameter == parameter; });
    dequantize(at->matrix.form, at->matrix.integers, at->matrix.scales, to);
  };
  const auto list = std::make_shared<WeightList>(model_.weights->what(), model_.weights, make);
  for (const QuantizedLayer& q : layers_) {
    names->insert(q.layer.parameter);
    list->add({q.layer.parameter, DType::f32, Shape({q.layer.outputs, q.layer.inputs}), {}});
  }
  model_.weights->each([&](const TensorView& t) {
    if (!names->contains(t.name)) list->add(t);
  });
  folder.weights = list;
  folder.quantized = std::move(names);
  return folder;
}

void QuantizedModel::write(const fs::path& folder) const {
  std::map<std::string, const QuantizedLayer*> by_tensor;
  for (const QuantizedLayer& q : layers_) by_tensor[q.layer.tensor] = &q;
  std::vector<TensorView> tensors;
  std::deque<std::vector<int32_t>> words;
  std::deque<std::vector<int64_t>> shapes;
  std::deque<std::vector<std::byte>> narrowed;
  files_->each([&](const TensorView& t) {
    const auto at = by_tensor.find(t.name);
    if (at == by_tensor.end()) {
      TensorView kept = t;
      if (is_narrowed(t)) {
        kept.dtype = DType::bf16;
        kept.bytes = narrowed.emplace_back(t.bytes.size() / 2);
        convert(t.dtype, t.bytes.data(), kept.dtype, narrowed.back().data(), t.shape.elements());
      }
      return tensors.push_back(std::move(kept));
    }
    const IntegerMatrix& m = at->second->matrix;
    const std::string layer = at->second->layer.name();
    if (quantization_.packed) {
      words.push_back(packed(m));
      shapes.push_back({m.form.rows, m.form.columns});
      tensors.push_back({layer + ".weight_packed", DType::i32,
                         Shape({m.form.rows, m.form.words_of_row()}),
                         std::as_bytes(std::span(words.back()))});
      tensors.push_back({layer + ".weight_shape", DType::i64, Shape({2}),
                         std::as_bytes(std::span(shapes.back()))});
    } else {
      tensors.push_back({layer + ".weight", DType::i8, Shape({m.form.rows, m.form.columns}),
                         std::as_bytes(std::span(m.integers))});
    }
    tensors.push_back({layer + ".weight_scale", DType::f32, Shape({m.form.rows, m.form.groups()}),
                       std::as_bytes(std::span(m.scales))});
  });
  write_quantized_folder(folder, model_.folder, tensors, quantization_);
}

}  // namespace brrr::io
