#include "folders/adapters/adapter_tensors.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/human.h"
#include "folders/adapters/adapter_config.h"
#include "formats/pickle/torch_file.h"
#include "formats/safetensors.h"

namespace brrr::io {
namespace {

constexpr std::string_view kPeftRoot = "base_model.model.";
constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
constexpr size_t kMostFaults = 10;

std::string without_part(std::string text, std::string_view part) {
  if (const size_t at = text.find(part); at != std::string::npos) text.erase(at, part.size());
  return text;
}

class AdapterReader {
 public:
  AdapterReader(const fs::path& folder, const models::Model& base, const std::string& name,
                TaskHead head)
      : base_(base),
        head_(head),
        config_(read_adapter_config(folder)),
        layers_(models::linear_layers(base)) {
    for (const models::ParameterInfo& p : base.parameters()) {
      parameters_.emplace(p.name, p.shape);
      if (p.part == models::Part::head) head_parameters_.insert(p.name);
    }
    found_.file = open_adapter_file(folder);
    found_.adapter.name = name;
    found_.adapter.dropout = config_.dropout;
    found_.adapter.rslora = config_.rslora;
  }

  AdapterTensors read() {
    found_.file->each_foreign(
        [&](const ForeignTensor& t) { fault("the tensor {} is {}", t.name, t.dtype); });
    found_.file->each([&](const TensorView& t) { place(t); });
    for (const models::LinearLayer& layer : layers_) finish(layer);
    if (found_.adapter.layers.empty())
      for (const std::string& name : passed_over_) fault("the model has no linear layer {}", name);
    throw_if_faults();
    if (found_.adapter.layers.empty())
      user_error("{}: it has no tensors lora_A and lora_B", found_.file->what());
    return std::move(found_);
  }

 private:
  template <typename... T>
  void fault(fmt::format_string<T...> text, T&&... values) {
    std::string fault = fmt::format(text, std::forward<T>(values)...);
    if (std::ranges::find(faults_, fault) != faults_.end()) return;
    if (++fault_count_ <= kMostFaults) faults_.push_back(std::move(fault));
  }
  void throw_if_faults() const {
    if (fault_count_ == 0) return;
    if (parts_.empty() && passed_over_.empty() && !unknown_.empty())
      user_error(
          "{}: the model ({}) has none of its {}, such as {}: the adapter belongs to another model",
          found_.file->what(), base_.architecture().title, counted(std::ssize(unknown_), "layer"),
          *unknown_.begin());
    std::string text = fmt::format("{}: {}", found_.file->what(), fmt::join(faults_, "; "));
    if (fault_count_ > faults_.size())
      text += fmt::format("; and {} more", fault_count_ - faults_.size());
    throw UserError(text + fmt::format("; the adapter does not belong to this model ({})",
                                       base_.architecture().title));
  }

  /// A name with the prefix that the files of a trunk alone leave out.
  std::string completed(const std::string& name, const auto& is_known) const {
    if (is_known(name)) return name;
    const std::string prefix = base_.file_names().prefix;
    if (is_known(prefix + name)) return prefix + name;
    if (name.starts_with(prefix) && is_known(name.substr(prefix.size())))
      return name.substr(prefix.size());
    return "";
  }
  const models::LinearLayer* layer_of(const std::string& module) const {
    const auto find = [&](const std::string& name) {
      return std::ranges::find(layers_, name, &models::LinearLayer::module);
    };
    const std::string known =
        completed(module, [&](const std::string& name) { return find(name) != layers_.end(); });
    return known.empty() ? nullptr : &*find(known);
  }

  /// Whether a tensor is for a head that the model lacks: one that gives embeddings has neither the
  /// heads of tasks nor a pooler, and one with a new task has another head.
  bool is_passed_over(std::string_view name) const {
    if (base_.task().head != models::Head::embedding && head_ != TaskHead::fresh) return false;
    const models::FileNames names = base_.file_names();
    if (name.starts_with(names.prefix)) name.remove_prefix(names.prefix.size());
    return name.starts_with("pooler.") || std::ranges::none_of(names.trunk, [&](const auto& begin) {
             return name.starts_with(begin);
           });
  }

  /// Whether a parameter belongs to the new head, so that a tensor of its name is for the old one.
  bool is_of_other_head(const std::string& parameter) const {
    return head_ == TaskHead::fresh && head_parameters_.contains(parameter);
  }

  /// Refuses an adapter of a module that is no linear layer.
  void refuse_module(const std::string& module) {
    const std::string weight = completed(
        module + ".weight", [&](const std::string& name) { return parameters_.contains(name); });
    if (weight.empty()) {
      unknown_.insert(module);
      return fault("the model has no linear layer {}", module);
    }
    const Shape& shape = parameters_.at(weight);
    if (shape.rank() != 4) return fault("{} is no linear layer of the model", module);
    const bool is_pointwise = shape.size(2) == 1 && shape.size(3) == 1;
    user_error(
        "{}: {} is a convolution {}, and adapters are read for linear layers and for 1 x 1 "
        "convolutions without groups: merge the adapter in PEFT first (merge_and_unload)",
        found_.file->what(), module,
        is_pointwise ? "in groups"
                     : fmt::format("with kernels of {} x {}", shape.size(2), shape.size(3)));
  }

  void place(const TensorView& t) {
    const std::string_view name = t.name;
    if (!is_float(t.dtype)) return fault("the tensor {} holds {}", t.name, name_of(t.dtype));
    if (!name.starts_with(kPeftRoot))
      return fault("the tensor {} is called otherwise than {}...", t.name, kPeftRoot);
    std::string inner(name.substr(kPeftRoot.size()));
    if (inner.ends_with(".lora_magnitude_vector.weight")) inner = without_part(inner, ".weight");
    for (const std::string_view part : {kLoraA, kLoraB, kMagnitude}) {
      if (!inner.ends_with(part)) continue;
      const std::string module = inner.substr(0, inner.size() - part.size());
      const models::LinearLayer* layer = layer_of(module);
      if (layer != nullptr && is_of_other_head(layer->weight)) return;
      if (layer == nullptr && is_passed_over(module)) {
        passed_over_.insert(module);
        return;
      }
      if (layer == nullptr) return refuse_module(module);
      const auto [at, is_new] = parts_[layer->module].tensors.emplace(part, &t);
      if (!is_new) return fault("{} and {} are the same matrix", at->second->name, t.name);
      parts_[layer->module].name = module;
      return;
    }
    if (inner.find(".lora_embedding_") != std::string::npos)
      return fault("{} adapts a table of embeddings, which is not read: merge it in PEFT first",
                   t.name);
    if (inner.find(".lora_") != std::string::npos)
      return fault("{} adapts what is no linear layer", t.name);
    // Copies of the base's own weights.
    for (const char* of_base : {"original_module.", ".base_layer."})
      if (inner.find(of_base) != std::string::npos) return;
    inner = without_part(inner, "modules_to_save.");
    const std::string parameter =
        completed(inner, [&](const std::string& n) { return parameters_.contains(n); });
    // A copy of the table of embeddings, see model_below().
    if (const auto tied = base_.file_names().tied; tied && tied->first == inner) return;
    if (parameter.empty() && is_passed_over(inner)) return;
    if (parameter.empty()) return fault("the model has no parameter {}", inner);
    if (is_of_other_head(parameter)) return;
    if (parameters_.at(parameter) != t.shape)
      return fault("{} must be {}; it is {}", parameter, parameters_.at(parameter).str(),
                   t.shape.str());
    found_.adapter.saved.insert(parameter);
    found_.by_parameter.emplace(parameter, t);
  }

  void finish(const models::LinearLayer& layer) {
    const auto at = parts_.find(layer.module);
    if (at == parts_.end()) return;
    const auto part = [&](std::string_view name) -> const TensorView* {
      const auto found = at->second.tensors.find(name);
      return found == at->second.tensors.end() ? nullptr : found->second;
    };
    const TensorView *a = part(kLoraA), *b = part(kLoraB), *magnitude = part(kMagnitude);
    if (a == nullptr || b == nullptr)
      return fault("{}{} is missing", layer.module, a == nullptr ? kLoraA : kLoraB);
    const std::string& module = at->second.name;
    const auto rank = static_cast<int64_t>(config_.rank.of(module));
    const Shape a_shape = layer.a_shape(rank), b_shape = layer.b_shape(rank);
    if (a->shape != a_shape || b->shape != b_shape)
      return fault("lora_A and lora_B of {} must be {} and {}; they are {} and {}", layer.module,
                   a_shape.str(), b_shape.str(), a->shape.str(), b->shape.str());
    if (magnitude == nullptr && config_.dora)
      return fault("{}{} is missing", layer.module, kMagnitude);
    models::AdaptedLayer adapted{layer, rank, config_.alpha.of(module)};
    adapted.has_factor = config_.dora;
    found_.by_parameter.emplace(found_.adapter.a_of(layer), *a);
    found_.by_parameter.emplace(found_.adapter.b_of(layer), *b);
    if (adapted.has_factor) {
      // PEFT has had it as a row, too.
      if (magnitude->shape.elements() != layer.out)
        return fault("lora_magnitude_vector of {} must have {} elements; it is {}", layer.module,
                     layer.out, magnitude->shape.str());
      found_.by_parameter.emplace(magnitude_name(layer), *magnitude);
    }
    found_.adapter.layers.push_back(std::move(adapted));
  }

  const models::Model& base_;
  const TaskHead head_;
  const AdapterConfig config_;
  const std::vector<models::LinearLayer> layers_;
  std::map<std::string, Shape, std::less<>> parameters_;
  std::set<std::string> head_parameters_;
  /// The tensors of a layer's adapter.
  struct LayerParts {
    std::string name;  // of the module in the file, to which PEFT's patterns apply
    std::map<std::string_view, const TensorView*> tensors;  // by the end of their names
  };
  std::map<std::string, LayerParts> parts_;  // by LinearLayer::module
  std::set<std::string> unknown_;            // modules that the model does not have
  std::set<std::string> passed_over_;        // modules that a model for embeddings does not have
  AdapterTensors found_;
  std::vector<std::string> faults_;
  size_t fault_count_ = 0;
};

std::vector<std::byte> bytes_of_tensor(const WeightSource& source, const TensorView& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.shape.elements()) *
                               bytes_of(tensor.dtype));
  source.read(tensor, bytes);
  return bytes;
}

}  // namespace

fs::path adapter_file(const fs::path& folder) {
  std::error_code ignored;
  const fs::path pickle = folder / kAdapterPickle, plain = folder / kAdapterWeights;
  return fs::exists(plain, ignored) || !fs::exists(pickle, ignored) ? plain : pickle;
}

std::shared_ptr<const WeightSource> open_adapter_file(const fs::path& folder) {
  const fs::path path = adapter_file(folder);
  if (path.filename() == kAdapterPickle) return std::make_shared<const TorchFile>(path);
  return std::make_shared<const SafetensorsFile>(path);
}

AdapterTensors read_adapter_tensors(const fs::path& folder, const models::Model& base,
                                    const std::string& name, TaskHead head) {
  return AdapterReader(folder, base, name, head).read();
}

models::ModelPtr model_below(const fs::path& folder, models::ModelPtr base) {
  const auto tied = base->file_names().tied;
  if (!tied) return base;
  const std::shared_ptr<const WeightSource> file = open_adapter_file(folder);
  const auto trained_copy = [&](const std::string& parameter) {
    const TensorView* found = nullptr;
    file->each([&](const TensorView& t) {
      if (found == nullptr && t.name.starts_with(kPeftRoot) &&
          without_part(t.name.substr(kPeftRoot.size()), "modules_to_save.") == parameter)
        found = &t;
    });
    return found;
  };
  const TensorView *head = trained_copy(tied->first), *table = trained_copy(tied->second);
  if (head == nullptr && table == nullptr) return base;
  const bool are_equal =
      head != nullptr && table != nullptr && head->dtype == table->dtype &&
      head->shape == table->shape &&
      std::ranges::equal(bytes_of_tensor(*file, *head), bytes_of_tensor(*file, *table));
  return are_equal ? base : base->with_untied_head();
}

std::string magnitude_name(const models::LinearLayer& layer) {
  return layer.module + std::string(kMagnitude);
}
bool is_magnitude(std::string_view name) { return name.ends_with(kMagnitude); }

std::string name_in_peft(std::string_view parameter, const models::Model& base) {
  // transformers' class of a trunk alone has no prefix.
  const std::string prefix = base.file_names().prefix;
  if (base.task().head == models::Head::embedding && parameter.starts_with(prefix))
    parameter.remove_prefix(prefix.size());
  return std::string(kPeftRoot) + std::string(parameter);
}

}  // namespace brrr::io
