#include "models/adapters/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.h"
#include "base/options.h"
#include "models/causal_lm.h"
#include "ops/ops.h"
#include "passes/adapters/add_adapters.h"
#include "text/patterns/split_pattern.h"

namespace brrr::models {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";
constexpr const char* kAllLinear = "all-linear";

std::string module_of(std::string_view parameter) {
  for (const std::string_view end : {kWeight, kBias})
    if (parameter.ends_with(end)) parameter.remove_suffix(end.size());
  return std::string(parameter);
}

/// Whether the name ends with `part`, which begins where a part of the name begins.
bool ends_with_part(std::string_view name, std::string_view part) {
  if (name == part) return true;
  return name.size() > part.size() && name.ends_with(part) &&
         name[name.size() - part.size() - 1] == '.';
}

/// Whether the module, or one that it is in, is named by `part`.
bool is_in_module(std::string_view module, std::string_view part) {
  for (size_t end = module.size(); end != std::string_view::npos && end > 0;
       end = module.rfind('.', end - 1))
    if (ends_with_part(module.substr(0, end), part)) return true;
  return false;
}

/// "mlp.c_proj" of "transformer.h.1.mlp.c_proj": what follows the last part that is a number.
std::string behind_last_number(const std::string& module) {
  size_t begin = 0;
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string_view part = std::string_view(module).substr(at, end - at);
    if (end < module.size() && part.find_first_not_of("0123456789") == std::string_view::npos)
      begin = end + 1;
    at = end + 1;
  }
  return module.substr(begin);
}

bool is_regex(std::string_view text) {
  return text.find_first_of("*+?[](){}|^$\\") != std::string_view::npos;
}

/// The last parts of names, each once.
std::string short_names(std::span<const LinearLayer> layers) {
  std::vector<std::string> names;
  for (const LinearLayer& layer : layers) {
    std::string name = layer.module.substr(layer.module.rfind('.') + 1);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<bool> chosen_by(const std::string& target, std::span<const LinearLayer> layers) {
  std::vector<bool> chosen;
  if (target == kAllLinear) {
    for (const LinearLayer& layer : layers) chosen.push_back(!layer.is_head);
    return chosen;
  }
  for (const LinearLayer& layer : layers) chosen.push_back(ends_with_part(layer.module, target));
  if (std::ranges::find(chosen, true) != chosen.end() || !is_regex(target)) return chosen;
  io::SplitPattern::regex(target, "--lora-targets");  // an error shows the pattern as it was given
  const auto pattern = io::SplitPattern::regex("\\A(?:" + target + ")\\z", "--lora-targets");
  for (size_t i = 0; i < layers.size(); ++i)
    chosen[i] = pattern.find(layers[i].module, 0).has_value();
  return chosen;
}

[[noreturn]] void refuse_target(const std::string& target, std::span<const LinearLayer> layers) {
  std::vector<std::string> names{kAllLinear};
  for (const LinearLayer& layer : layers)
    names.push_back(layer.module.substr(layer.module.rfind('.') + 1));
  const std::string likely = nearest(target, names);
  usage_error(
      "--lora-targets: no linear layer matches '{}'{}; expected {}, or of these names, or a "
      "regular expression for whole names such as {}: {}",
      target, likely.empty() ? "" : fmt::format("; did you mean '{}'?", likely), kAllLinear,
      layers.front().module, short_names(layers));
}

std::set<std::string> parameters_in(const Model& model, const std::string& name) {
  std::set<std::string> found;
  for (const ParameterInfo& p : model.parameters())
    if (!p.is_buffer && is_in_module(module_of(p.name), name)) found.insert(p.name);
  return found;
}

[[noreturn]] void refuse_saved(const Model& model, const std::string& name) {
  if (const auto tied = model.file_names().tied; tied && is_in_module(module_of(tied->first), name))
    usage_error(
        "--lora-modules-to-save {}: the head of this model is the table of embeddings, {}; name "
        "that table to train both",
        name, module_of(tied->second));
  std::vector<std::string> names;
  for (const ParameterInfo& p : model.parameters()) {
    const std::string module = module_of(p.name);
    std::string last = module.substr(module.rfind('.') + 1);
    if (std::ranges::find(names, last) == names.end()) names.push_back(std::move(last));
  }
  usage_error("--lora-modules-to-save: the model has no module '{}'; there are: {}", name,
              fmt::join(names, ", "));
}

bool is_task_head(Head head) {
  return head == Head::classes || head == Head::values || head == Head::token_classes;
}

}  // namespace

std::vector<LinearLayer> linear_layers(const Model& model) {
  std::map<std::string, ParameterInfo> by_name;
  for (const ParameterInfo& p : model.parameters()) by_name.emplace(p.name, p);
  const Graph graph = model.forward(Dim(1), Dim(1));
  std::vector<LinearLayer> layers;
  std::set<std::string> seen;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const NodeId weight = multiplied_parameter(graph, id);
    if (weight == kNoNode || !seen.insert(graph.input_name(weight)).second) continue;
    const Shape& shape = graph.type({weight, 0}).shape;
    const ParameterInfo& p = by_name.at(graph.input_name(weight));
    // A head that is tied to the table of embeddings: PEFT's adapter of it changes lookups alone.
    if (const auto tied = model.file_names().tied; tied && p.name == tied->second) continue;
    LinearLayer layer;
    layer.module = module_of(p.name);
    layer.weight = p.name;
    if (is(graph.node(id), Op::conv))
      layer.form = WeightForm::convolution;
    else if (!product_form(graph.node(id))->transpose_b)
      layer.form = WeightForm::conv1d;
    const bool is_transposed = layer.form == WeightForm::conv1d;
    layer.in = shape.size(is_transposed ? 0 : 1);
    layer.out = shape.size(is_transposed ? 1 : 0);
    layer.is_head = p.part == Part::head ||
                    (p.part == Part::trunk && (p.place == "head" || p.place == "embed"));
    layers.push_back(std::move(layer));
  }
  return layers;
}

double Adapter::scale_of(const AdaptedLayer& layer) const {
  const auto rank = static_cast<double>(layer.rank);
  return weight * layer.alpha / (rslora ? std::sqrt(rank) : rank);
}

std::string Adapter::part_of(const LinearLayer& layer, const char* part) const {
  return fmt::format("{}.{}{}{}.weight", layer.module, part, name.empty() ? "" : ".", name);
}

bool is_of_adapter(std::string_view parameter) {
  return parameter.find(".lora_") != std::string_view::npos;
}

Adapter make_adapter(const Model& model, const AdapterRequest& request,
                     const std::set<std::string>& trained) {
  if (is_recurrent(model.sizes()))
    user_error(
        "--lora-r: an adapter would reach the inputs of the recurrent layers of a {} alone, not "
        "their states; leave it out to train the whole model",
        model.architecture().title);
  Adapter adapter{.dropout = request.dropout, .rslora = request.rslora};
  adapter.saved = trained;
  if (is_task_head(model.task().head))
    for (const ParameterInfo& p : model.parameters())
      if (p.part == Part::head) adapter.saved.insert(p.name);
  for (const std::string& name : request.saved) {
    const std::set<std::string> found = parameters_in(model, name);
    if (found.empty()) refuse_saved(model, name);
    adapter.saved.insert(found.begin(), found.end());
  }
  const std::vector<LinearLayer> layers = linear_layers(model);
  if (std::ranges::all_of(layers, &LinearLayer::is_head))
    user_error("--lora-r: a {} has no linear layers besides its head that could be adapted",
               model.architecture().title);
  std::vector<bool> chosen(layers.size());
  for (const std::string& target : request.targets) {
    const std::vector<bool> by_this = chosen_by(target, layers);
    bool matches = false;
    for (size_t i = 0; i < layers.size(); ++i) {
      matches = matches || by_this[i];
      // A layer that is trained as a whole needs no adapter.
      const bool is_saved = adapter.saved.contains(layers[i].weight);
      if (by_this[i] && is_saved && target != kAllLinear)
        usage_error("--lora-targets {}: {} is trained as a whole already", target,
                    layers[i].module);
      chosen[i] = chosen[i] || (by_this[i] && !is_saved);
    }
    if (!matches) refuse_target(target, layers);
  }
  const auto width = [](const AdaptedLayer& a) { return std::min(a.layer.in, a.layer.out); };
  for (size_t i = 0; i < layers.size(); ++i)
    if (chosen[i]) adapter.layers.push_back({layers[i], request.rank, request.alpha});
  const auto narrowest = std::ranges::min_element(adapter.layers, {}, width);
  if (narrowest != adapter.layers.end() && request.rank > width(*narrowest))
    usage_error("--lora-r: expected a rank from 1 to {}, the width of {}; got {}",
                width(*narrowest), narrowest->layer.module, request.rank);
  if (adapter.layers.empty())
    usage_error("--lora-modules-to-save {} leaves no linear layer to adapt",
                fmt::join(request.saved, ","));
  return adapter;
}

std::vector<std::string> target_names(const Model& model, std::span<const AdaptedLayer> layers) {
  std::set<std::string> adapted, names;
  for (const AdaptedLayer& layer : layers) adapted.insert(layer.layer.module);
  const std::vector<LinearLayer> all = linear_layers(model);
  for (const AdaptedLayer& layer : layers) {
    const std::string& module = layer.layer.module;
    const std::string inner = behind_last_number(module);
    const bool finds_others = std::ranges::any_of(all, [&](const LinearLayer& other) {
      return ends_with_part(other.module, inner) && !adapted.contains(other.module);
    });
    // PEFT knows convolutions with larger kernels, too.
    names.insert(layer.layer.form == WeightForm::convolution || finds_others ? module : inner);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> saved_modules(const std::set<std::string>& parameters) {
  std::set<std::string> names;
  for (const std::string& p : parameters) {
    const std::string module = module_of(p);
    // A head is saved as a whole: "classifier" of "classifier.dense".
    names.insert(module.starts_with("classifier.") ? "classifier" : module);
  }
  return {names.begin(), names.end()};
}

}  // namespace brrr::models
