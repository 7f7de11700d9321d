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

ParameterSet linear_weights(const models::Model& model) {
  const auto uses = uses_of_matrices(model);
  ParameterSet names;
  for (const models::ParameterInfo& p : model.parameters())
    if (is_of_a_linear_layer(p, uses)) names.insert(p.name);
  return names;
}

void refuse_conv1d(const models::Model& model, const QuantizedWeights& found,
                   const std::string& what) {
  const models::FileNames names = model.file_names();
  for (const auto& [parameter, use] : uses_of_matrices(model)) {
    if (!use.multiplied || use.transposed_only) continue;
    const bool has_prefix = std::string_view(parameter).starts_with(names.prefix);
    const std::string inner = has_prefix ? parameter.substr(names.prefix.size()) : parameter;
    if (found.weights.contains(parameter) || found.weights.contains(inner))
      user_error(
          "{}: {} is quantised as [outputs, inputs], and {} multiplies by [inputs, outputs] "
          "(Conv1D), which is not read; use the folder that it was made from",
          what, parameter, model.architecture().title);
  }
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
                               const std::vector<LinearLayer>& layers, QuantizingOptions options)
    : model_(model),
      options_(std::move(options)),
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
    options_.changes.apply(l.parameter, weight, l.inputs);
    QuantizedLayer q;
    q.layer = l;
    const auto other = options_.forms.find(l.tensor);
    if (other != options_.forms.end() &&
        other->second != IntegerGrid{quantization.bits, quantization.group})
      quantization_.others[l.name()] = other->second;
    const IntegerGrid grid = quantization_.grid_of(l.name());
    const IntegerForm form{l.outputs, l.inputs, grid.bits, grid.group};
    q.matrix = options_.quantizer ? options_.quantizer(l, weight, form) : quantize(weight, form);
    dequantize(q.matrix.form, q.matrix.integers, q.matrix.scales, back);
    q.error = relative_error(weight, back);
    layers_.push_back(std::move(q));
    quantised.insert(l.tensor);
  }
  quantization_.ignore = kept_layers(*model.definition, *files_, quantised);
}

bool QuantizedModel::is_narrowed(const TensorView& kept) const {
  if (kept.storage.is_blocks()) return true;
  return options_.kept == QuantizingOptions::Kept::matrices_in_bf16 && kept.dtype == DType::f32 &&
         kept.shape.rank() == 2;
}

int64_t QuantizedModel::stored_bytes() const {
  std::map<std::string, const QuantizedLayer*> by_tensor;
  for (const QuantizedLayer& q : layers_) by_tensor[q.layer.tensor] = &q;
  int64_t bytes = 0;
  files_->each([&](const TensorView& t) {
    const auto at = by_tensor.find(t.name);
    const DType dtype = is_narrowed(t) ? DType::bf16 : t.dtype;
    bytes += at == by_tensor.end() ? t.shape.elements() * static_cast<int64_t>(bytes_of(dtype))
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
  folder.products = {{quantization_.bits, quantization_.group}, true};
  for (const auto& [layer, grid] : quantization_.others)
    folder.products.grid.bits = std::max(folder.products.grid.bits, grid.bits);
  auto names = std::make_shared<ParameterSet>();
  const auto make = [this](std::string_view parameter, std::span<float> to) {
    if (const auto vector = options_.changes.vectors.find(parameter);
        vector != options_.changes.vectors.end()) {
      std::ranges::copy(vector->second, to.begin());
      return;
    }
    const auto at = std::ranges::find_if(
        layers_, [&](const QuantizedLayer& q) { return q.layer.parameter == parameter; });
    if (at == layers_.end()) return model_.read(parameter, to);
    dequantize(at->matrix.form, at->matrix.integers, at->matrix.scales, to);
  };
  const auto list = std::make_shared<WeightList>(model_.weights->what(), model_.weights, make);
  for (const QuantizedLayer& q : layers_) {
    names->insert(q.layer.parameter);
    const Shape shape({q.layer.outputs, q.layer.inputs});
    list->add({q.layer.parameter, DType::f32, shape, {}});
    list->add({integers_name(q.layer.parameter, static_cast<int>(q.matrix.form.bits)), DType::i8,
               shape, std::as_bytes(std::span(q.matrix.integers))});
    list->add({scales_name(q.layer.parameter), DType::f32,
               Shape({q.layer.outputs, q.matrix.form.groups()}),
               std::as_bytes(std::span(q.matrix.scales))});
  }
  for (const auto& [name, values] : options_.changes.vectors)
    list->add({name, DType::f32, Shape({std::ssize(values)}), {}});
  model_.weights->each([&](const TensorView& t) {
    if (list->find(t.name) == nullptr) list->add(t);
  });
  folder.weights = list;
  folder.quantized = std::move(names);
  return folder;
}

std::map<std::string, const std::vector<float>*> QuantizedModel::changed_tensors() const {
  std::map<std::string, const std::vector<float>*> tensors;
  for (const auto& [parameter, values] : options_.changes.vectors)
    tensors[find_parameter(*files_, model_.definition->file_names(), parameter)->name] = &values;
  return tensors;
}

void QuantizedModel::write(const fs::path& folder) const {
  const std::map<std::string, const std::vector<float>*> changed = changed_tensors();
  std::map<std::string, const QuantizedLayer*> by_tensor;
  for (const QuantizedLayer& q : layers_) by_tensor[q.layer.tensor] = &q;
  std::vector<TensorView> tensors;
  std::deque<std::vector<int32_t>> words;
  std::deque<std::vector<int64_t>> shapes;
  std::deque<std::vector<std::byte>> converted;
  files_->each([&](const TensorView& t) {
    const auto at = by_tensor.find(t.name);
    if (at == by_tensor.end()) {
      TensorView kept = t;
      const auto room = [&](DType dtype) -> std::vector<std::byte>& {
        return converted.emplace_back(static_cast<size_t>(t.shape.elements()) * bytes_of(dtype));
      };
      if (const auto values = changed.find(t.name); values != changed.end()) {
        std::vector<std::byte>& bytes = room(t.dtype);
        convert(DType::f32, std::as_bytes(std::span(*values->second)).data(), t.dtype, bytes.data(),
                t.shape.elements());
        kept.bytes = bytes;
      } else if (is_narrowed(t) || t.bytes.empty()) {
        if (is_narrowed(t)) kept.dtype = DType::bf16;
        kept.storage = {};
        std::vector<std::byte>& bytes = room(kept.dtype);
        read_as(*files_, t, kept.dtype, bytes);
        kept.bytes = bytes;
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
