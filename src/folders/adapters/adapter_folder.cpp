#include "folders/adapters/adapter_folder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.h"
#include "base/human.h"
#include "base/tell.h"
#include "base/threads/parallel.h"
#include "folders/adapters/adapter_tensors.h"
#include "folders/quantized/base_forms.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"

namespace brrr::io {
namespace {

using models::AdaptedLayer;
using models::AdaptedModel;
using models::Adapter;

constexpr const char* kFingerprint = "brrr_base_fingerprint";

bool exists_at(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<float> floats_of(const WeightSource& source, const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  read_as(source, tensor, DType::f32, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<float> floats_of(const WeightSource& source, const std::string& name) {
  const TensorView* const tensor = source.find(name);
  BRRR_CHECK(tensor != nullptr, "there is no tensor '{}'", name);
  return floats_of(source, *tensor);
}

/// Reads a matrix of an adapter. Refuses NaN and infinity, which would spoil the merged weights.
std::vector<float> finite_floats_of(const WeightSource& source, const std::string& name) {
  std::vector<float> values = floats_of(source, name);
  if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
    user_error("{}: {} holds numbers that are not finite, and cannot be merged", source.what(),
               name);
  return values;
}

/// Adds s B A to W, which `w` holds in its own layout. Products are summed in double precision.
void add_low_rank(std::span<float> w, const AdaptedLayer& adapted, std::span<const float> a,
                  std::span<const float> b, double scale) {
  const models::LinearLayer& layer = adapted.layer;
  const int64_t rank = adapted.rank, in = layer.in;
  parallel_for(layer.out, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(in));
    for (int64_t o = begin; o < end; ++o) {
      std::ranges::fill(row, 0.0);
      for (int64_t k = 0; k < rank; ++k) {
        const double left = static_cast<double>(b[static_cast<size_t>(o * rank + k)]) * scale;
        const float* const right = a.data() + k * in;
        for (int64_t i = 0; i < in; ++i)
          row[static_cast<size_t>(i)] += left * static_cast<double>(right[i]);
      }
      for (int64_t i = 0; i < in; ++i) {
        float& element = w[layer.element(o, i)];
        element = static_cast<float>(static_cast<double>(element) + row[static_cast<size_t>(i)]);
      }
    }
  });
}

/// Returns DoRA's factor for each output, its magnitude over the norm of its row of W + s B A,
/// which `w` holds.
std::vector<float> factors_of(std::span<const float> w, const models::LinearLayer& layer,
                              std::span<const float> magnitude) {
  std::vector<double> squares(static_cast<size_t>(layer.out));
  for (int64_t o = 0; o < layer.out; ++o)
    for (int64_t i = 0; i < layer.in; ++i) {
      const double x = w[layer.element(o, i)];
      squares[static_cast<size_t>(o)] += x * x;
    }
  std::vector<float> factors(squares.size());
  for (size_t o = 0; o < factors.size(); ++o)
    factors[o] = static_cast<float>(static_cast<double>(magnitude[o]) / std::sqrt(squares[o]));
  return factors;
}

/// Where the tensors of a model with adapters come from.
struct AdaptedParts {
  std::shared_ptr<const WeightList> base;
  std::vector<AdapterTensors> adapters;

  /// The source of a parameter that an adapter's file holds; null: the base has it.
  const AdapterTensors* holder_of(std::string_view parameter) const {
    for (const AdapterTensors& tensors : adapters)
      if (tensors.by_parameter.contains(parameter)) return &tensors;
    return nullptr;
  }
  void read_view(std::string_view name, DType dtype, std::span<std::byte> to) const {
    if (const AdapterTensors* holder = holder_of(name)) {
      read_as(*holder->file, holder->by_parameter.find(name)->second, dtype, to);
      return;
    }
    const TensorView* const tensor = base->find(name);
    BRRR_CHECK(tensor != nullptr, "there is no tensor '{}'", name);
    if (tensor->storage.is_blocks()) return base->read(*tensor, to);
    read_as(*base, *tensor, dtype, to);
  }
  std::vector<float> floats(const std::string& name) const {
    if (const AdapterTensors* holder = holder_of(name))
      return floats_of(*holder->file, holder->by_parameter.find(name)->second);
    return floats_of(*base, name);
  }
  /// W + s B A.
  std::vector<float> sum(const Adapter& adapter, const AdaptedLayer& layer,
                         std::vector<float> w) const {
    add_low_rank(w, layer, floats(adapter.a_of(layer.layer)), floats(adapter.b_of(layer.layer)),
                 adapter.scale_of(layer));
    return w;
  }
};

/// The weights of the base and those of the adapters, which take the place of saved parameters.
std::shared_ptr<const WeightList> joined_weights(const std::shared_ptr<const AdaptedParts>& parts,
                                                 const AdaptedModel& model) {
  struct Factor {
    const Adapter* adapter;
    const AdaptedLayer* layer;
  };
  const auto adapters = std::make_shared<std::vector<Adapter>>(model.adapters());
  const auto factors = std::make_shared<std::map<std::string, Factor, std::less<>>>();
  for (const Adapter& adapter : *adapters)
    for (const AdaptedLayer& layer : adapter.layers)
      if (layer.has_factor)
        factors->emplace(adapter.factor_of(layer.layer), Factor{&adapter, &layer});
  const auto make = [parts, adapters, factors](std::string_view name, std::span<float> to) {
    const auto factor = factors->find(name);
    if (factor == factors->end())
      return parts->read_view(name, DType::f32, std::as_writable_bytes(to));
    const AdaptedLayer& layer = *factor->second.layer;
    const std::vector<float> w =
        parts->sum(*factor->second.adapter, layer, parts->floats(layer.layer.weight));
    std::ranges::copy(factors_of(w, layer.layer, parts->floats(magnitude_name(layer.layer))),
                      to.begin());
  };
  const auto make_bytes = [parts](std::string_view name, std::span<std::byte> to) {
    if (const AdapterTensors* holder = parts->holder_of(name))
      return holder->file->read(holder->by_parameter.find(name)->second, to);
    parts->base->read(*parts->base->find(name), to);
  };
  const auto list =
      std::make_shared<WeightList>(parts->base->what(), parts->base, make, make_bytes);
  parts->base->each([&](const TensorView& tensor) {
    if (parts->holder_of(tensor.name) == nullptr) list->add(tensor);
  });
  for (const AdapterTensors& tensors : parts->adapters)
    for (const auto& [name, view] : tensors.by_parameter) {
      if (is_magnitude(name)) continue;
      TensorView renamed = view;
      renamed.name = name;
      list->add(std::move(renamed));
    }
  for (const auto& [name, factor] : *factors)
    list->add({name, DType::f32, {factor.layer->layer.out}, {}});
  return list;
}

/// The weights of a model that ties its head, for one that does not: the head is the table.
std::shared_ptr<const WeightList> with_head_of_table(
    const std::shared_ptr<const WeightList>& weights, const models::Model& tied_model) {
  const std::pair<std::string, std::string> tied = *tied_model.file_names().tied;
  const auto own = [tied](std::string_view name) {
    return std::string(name == tied.first ? tied.second : name);
  };
  const auto make = [weights, own](std::string_view name, std::span<float> to) {
    read_as(*weights, *weights->find(own(name)), DType::f32, std::as_writable_bytes(to));
  };
  const auto make_bytes = [weights, own](std::string_view name, std::span<std::byte> to) {
    weights->read(*weights->find(own(name)), to);
  };
  const auto list = std::make_shared<WeightList>(weights->what(), weights, make, make_bytes);
  weights->each([&](const TensorView& tensor) { list->add(tensor); });
  TensorView copy = *weights->find(tied.second);
  copy.name = tied.first;
  list->add(std::move(copy));
  return list;
}

/// The task that the folder's own model_config.json or its tensors say, where it is another than
/// the base's.
std::optional<models::Task> task_of(const fs::path& folder, const models::Model& base) {
  const fs::path own = folder / kModelConfig;
  if (exists_at(own)) {
    const models::Task task = models::parse_config(read_file(own), own.string())->task();
    return task == base.task() ? std::nullopt : std::optional(task);
  }
  const AdapterConfig config = read_adapter_config(folder);
  const bool of_texts = config.task_type == "SEQ_CLS", of_tokens = config.task_type == "TOKEN_CLS";
  if (!of_texts && !of_tokens) return std::nullopt;
  int64_t outputs = 0;
  open_adapter_file(folder)->each([&](const TensorView& t) {
    const std::string_view name = t.name;
    if (t.shape.rank() != 2 || name.find("lora_") != std::string_view::npos) return;
    if (name.ends_with("score.weight") || name.ends_with("classifier.weight") ||
        name.ends_with("classifier.out_proj.weight"))
      outputs = t.shape.size(0);
  });
  if (outputs == 0) return std::nullopt;
  models::Task task{.head = of_tokens      ? models::Head::token_classes
                            : outputs == 1 ? models::Head::values
                                           : models::Head::classes};
  if (task.head == base.task().head && std::ssize(base.task().labels) == outputs)
    return std::nullopt;
  for (int64_t i = 0; i < outputs; ++i) task.labels.push_back(fmt::format("LABEL_{}", i));
  return task;
}

}  // namespace

fs::path base_folder(const fs::path& adapter) {
  const std::string name = read_adapter_config(adapter).base;
  if (name.empty())
    user_error(
        "{}: \"base_model_name_or_path\" is empty: name the model, and this folder as --adapter",
        (adapter / kAdapterConfig).string());
  const fs::path folder = [&] {
    std::error_code ignored;
    const fs::path beside = adapter / name;
    if (fs::path(name).is_relative() && !fs::exists(name, ignored) && fs::exists(beside, ignored))
      return find_model(beside.string());
    try {
      return find_model(name);
    } catch (const UserError& e) {
      throw UserError(fmt::format("the base of the adapter {}: {}", adapter.string(), e.what()),
                      e.code());
    }
  }();
  if (holds_adapter(folder))
    user_error(
        "{}: its base, {}, is an adapter itself: merge that into a model first (`brrr merge`)",
        adapter.string(), folder.string());
  return folder;
}

namespace {

/// Returns the options for opening the base of the adapter in `folder`. They ask for the adapter's
/// task head, which the base's files may lack, unless another task is wanted.
OpenOptions for_base(const fs::path& folder, const OpenOptions& options, const fs::path& base) {
  OpenOptions own = options;
  own.adapters.clear();
  const models::ModelPtr of_base = read_definition(base);
  if (options.task && options.head == TaskHead::fresh) {
    // The adapter has another task; the base may have the one that is wanted.
    const models::Task known = of_base->task();
    if (known.head == options.task->head && known.labels == options.task->labels)
      own.head = TaskHead::of_files;
    return own;
  }
  const auto brought = task_of(folder, *of_base);
  if (!own.task) own.task = brought;
  if (brought) own.head = TaskHead::fresh;
  return own;
}

void check_base(const fs::path& adapter, const AdaptedParts& parts, const models::Model& base,
                const fs::path& base_at) {
  const AdapterBase recorded = base_of_adapter(adapter);
  if (!recorded.fingerprint.empty()) {
    if (recorded.fingerprint != fingerprint_of(*parts.base, base))
      tell(
          "warning: the adapter {} was trained over {}, and the weights of {} are others: results "
          "may be poor\n",
          adapter.string(), recorded.name, base_at.string());
    return;
  }
  // A name says little: the same model may lie under any name.
  const auto last = [](const std::string& name) { return fs::path(name).filename().string(); };
  if (!recorded.name.empty() && base_at.string().find(last(recorded.name)) == std::string::npos)
    tell("note: the adapter {} names {} as its base; it is used on {}\n", adapter.string(),
         recorded.name, base_at.string());
}

/// Continues a checksum with a tensor's name, dtype, shape and at most 16 pieces of its bytes.
uint32_t crc_with(uint32_t crc, std::string_view name, const TensorView& tensor,
                  std::span<const std::byte> bytes) {
  constexpr size_t kPieces = 16, kPiece = 4096;
  const std::string head = fmt::format("{} {}{}", name, name_of(tensor.dtype), tensor.shape.str());
  crc = crc32c(head.data(), head.size(), crc);
  if (bytes.size() <= kPieces * kPiece) return crc32c(bytes.data(), bytes.size(), crc);
  const size_t stride = (bytes.size() - kPiece) / (kPieces - 1);
  for (size_t i = 0; i < kPieces; ++i) crc = crc32c(bytes.data() + stride * i, kPiece, crc);
  return crc;
}

}  // namespace

bool holds_adapter(const fs::path& folder) {
  return exists_at(folder / kAdapterConfig) && exists_at(adapter_file(folder)) &&
         !exists_at(folder / kSingleWeights) && !exists_at(folder / kWeightIndex);
}

namespace {

/// The same for a tensor of a source that may compute its bytes when they are read.
uint32_t crc_with(uint32_t crc, std::string_view name, const WeightSource& weights,
                  const TensorView& tensor) {
  if (!tensor.bytes.empty()) {
    crc = crc_with(crc, name, tensor, tensor.bytes);
    weights.let_go(tensor.bytes);
    return crc;
  }
  std::vector<std::byte> made(
      static_cast<size_t>(stored_bytes(tensor.storage, tensor.dtype, tensor.shape)));
  weights.read(tensor, made);
  return crc_with(crc, name, tensor, made);
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(tokenizer_file_names(),
                             [&](std::string_view name) { return exists_at(folder / name); });
}

std::string fingerprint_of(const WeightSource& weights, const models::Model& base) {
  constexpr int64_t kMostComputed = int64_t{1} << 28;  // elements
  int64_t computed = 0;
  uint32_t crc = 0;
  for (const models::ParameterInfo& p : base.parameters()) {
    const TensorView* const t = weights.find(p.name);
    if (p.part != models::Part::trunk || t == nullptr) continue;
    if (t->bytes.empty()) computed += t->shape.elements();
    const bool is_sampled = !t->bytes.empty() || computed <= kMostComputed;
    crc = is_sampled ? crc_with(crc, p.name, weights, *t) : crc_with(crc, p.name, *t, {});
  }
  return crc_text(crc);
}

std::string fingerprint_of_all(const WeightList& weights) {
  uint32_t crc = 0;
  weights.each([&](const TensorView& t) { crc = crc_with(crc, t.name, weights, t); });
  return crc_text(crc);
}

AdapterBase base_of_adapter(const fs::path& folder) {
  AdapterBase base{.name = read_adapter_config(folder).base};
  const fs::path path = adapter_file(folder);
  if (path.filename() != kAdapterWeights) return base;  // PEFT's pickles have no metadata
  const SafetensorsFile file(path);
  if (const auto at = file.metadata().find(kFingerprint); at != file.metadata().end())
    base.fingerprint = at->second;
  return base;
}

AdapterBase base_of_model(const ModelFolder& model) {
  if (const AdaptedModel* adapted = model.definition->adapted()) {
    BRRR_CHECK(model.adapter_base != nullptr, "{} adapters without a base",
               adapted->adapters().size());
    return *model.adapter_base;
  }
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(model.folder, ignored);
  return {whole.empty() ? model.folder.string() : whole.string(),
          fingerprint_of(*model.weights, *model.definition)};
}

ModelFolder with_adapters(ModelFolder base, std::span<const ChosenAdapter> chosen, TaskHead head) {
  if (chosen.empty()) return base;
  if (base.definition->adapted() != nullptr)
    user_error("{} has an adapter already: name its base, and both adapters as --adapter",
               base.folder.string());
  auto origin = std::make_shared<AdapterBase>(base_of_model(base));
  const models::ModelPtr of_files = base.definition;
  for (const ChosenAdapter& adapter : chosen)
    base.definition = model_below(adapter.folder, base.definition);
  if (base.definition != of_files) base.weights = with_head_of_table(base.weights, *of_files);
  auto parts = std::make_shared<AdaptedParts>();
  parts->base = base.weights;
  std::vector<Adapter> adapters;
  for (const ChosenAdapter& adapter : chosen) {
    AdapterTensors tensors =
        read_adapter_tensors(adapter.folder, *base.definition,
                             chosen.size() == 1 ? "" : std::to_string(adapters.size() + 1), head);
    tensors.adapter.weight = adapter.weight;
    tensors.adapter.title = adapter.name.empty() ? last_part(adapter.folder) : adapter.name;
    adapters.push_back(tensors.adapter);
    parts->adapters.push_back(std::move(tensors));
    check_base(adapter.folder, *parts, *of_files, base.folder);
  }
  if (chosen.size() == 1) origin->name = base_of_adapter(chosen[0].folder).name;
  const auto model = std::make_shared<AdaptedModel>(
      base.definition, std::move(adapters), forms_of_files(*base.weights, base.quantized.get()));
  // The parameters that an adapter replaces, and those that the base must have.
  base.weights = joined_weights(parts, *model);
  const auto is_new = [&](const models::ParameterInfo& p) {
    return head == TaskHead::fresh && p.part != models::Part::trunk;
  };
  for (const models::ParameterInfo& p : model->parameters())
    if (base.weights->find(p.name) == nullptr && !is_new(p))
      user_error("{}: the tensor {} {} is missing: neither the base nor the adapter has it",
                 chosen[0].folder.string(), p.name, p.shape.str());
  base.definition = model;
  base.adapter_base = std::move(origin);
  return base;
}

ModelFolder open_adapter_folder(const fs::path& folder, const OpenOptions& options) {
  const fs::path base = base_folder(folder);
  const OpenOptions of_base = for_base(folder, options, base);
  ModelFolder model = open_model(base, of_base);
  std::vector<ChosenAdapter> adapters{{folder}};
  adapters.insert(adapters.end(), options.adapters.begin(), options.adapters.end());
  model = with_adapters(std::move(model), adapters, options.head);
  if (has_tokenizer(folder)) {
    if (options.reads_tokenizer) model.tokenizer = load_tokenizer(folder);
    model.folder = folder;
  } else if (exists_at(folder / kPreprocessorConfig)) {
    model.folder = folder;
  }
  return model;
}

ModelFolder open_with_adapters(const fs::path& folder, const OpenOptions& options) {
  return with_adapters(open_model(folder, for_base(options.adapters[0].folder, options, folder)),
                       options.adapters, options.head);
}

namespace {

/// The base of an adapter, for the adapter's task.
class AdapterBaseFiles {
 public:
  AdapterBaseFiles(const fs::path& adapter, const fs::path& base)
      : base_(base), definition_(read_definition(base)) {
    if (const auto task = task_of(adapter, *definition_)) {
      definition_ = definition_->with_task(*task);
      head_ = TaskHead::fresh;
    }
  }
  /// The model as the files have it: their head may be tied where that of model_below() is not.
  const models::ModelPtr& definition() const { return definition_; }
  /// The weights of `definition`, which is the files' own or one with the same tensors.
  std::shared_ptr<const WeightList> open(const models::Model& definition) const {
    return open_weights(base_, definition, head_);
  }

 private:
  fs::path base_;
  models::ModelPtr definition_;
  TaskHead head_ = TaskHead::of_files;
};

/// The base of an adapter as its files have it, with its weights.
struct OpenBase {
  models::ModelPtr definition;
  std::shared_ptr<const WeightList> weights;
  bool is_untied = false;  // the files tie the head, and the adapter's model does not
  std::string fingerprint() const { return fingerprint_of(*weights, *definition); }
};

OpenBase open_base(const fs::path& adapter, const AdaptedModel& model, const fs::path& base) {
  const AdapterBaseFiles files(adapter, base);
  OpenBase open{files.definition(), nullptr};
  open.is_untied = open.definition->file_names().tied && !model.base()->file_names().tied;
  if (!open.is_untied) open.definition = model.base();
  open.weights = files.open(*open.definition);
  return open;
}

}  // namespace

models::ModelPtr read_adapter_definition(const fs::path& folder, const fs::path& given) {
  const fs::path base = given.empty() ? base_folder(folder) : given;
  const AdapterBaseFiles files(folder, base);
  const models::ModelPtr definition = model_below(folder, files.definition());
  BaseForms forms;
  if (holds_integers(base)) forms = forms_of_files(*files.open(*files.definition()));
  return std::make_shared<AdaptedModel>(
      definition, std::vector{read_adapter_tensors(folder, *definition, "").adapter},
      std::move(forms));
}

std::shared_ptr<const WeightList> open_adapter_weights(const fs::path& folder,
                                                       const models::Model& model,
                                                       const fs::path& base) {
  const AdaptedModel* const adapted = model.adapted();
  BRRR_CHECK(adapted != nullptr, "the model of {} has no adapters", folder.string());
  const fs::path found = base.empty() ? base_folder(folder) : base;
  const OpenBase open = open_base(folder, *adapted, found);
  auto parts = std::make_shared<AdaptedParts>();
  parts->base = open.is_untied ? with_head_of_table(open.weights, *open.definition) : open.weights;
  parts->adapters.push_back(read_adapter_tensors(folder, *adapted->base(), ""));
  const AdapterBase recorded = base_of_adapter(folder);
  if (!recorded.fingerprint.empty() && recorded.fingerprint != open.fingerprint())
    user_error(
        "{}: its adapter was trained over other weights than {} has now; put the base back, or "
        "begin a run with --init-from",
        folder.string(), found.string());
  return joined_weights(parts, *adapted);
}

bool is_base_of(const fs::path& adapter, const fs::path& base) {
  const std::string recorded = base_of_adapter(adapter).fingerprint;
  if (recorded.empty()) return true;
  const models::ModelPtr model = read_adapter_definition(adapter, base);
  return open_base(adapter, *model->adapted(), base).fingerprint() == recorded;
}

ModelFolder merged(ModelFolder model) {
  const AdaptedModel* const adapted = model.definition->adapted();
  if (adapted == nullptr) return model;
  const auto keep = model.definition;  // the adapters below belong to it
  const auto source = model.weights;
  using Changes = std::vector<std::pair<const Adapter*, const AdaptedLayer*>>;
  const auto changes = std::make_shared<std::map<std::string, Changes, std::less<>>>();
  for (const Adapter& adapter : adapted->adapters())
    for (const AdaptedLayer& layer : adapter.layers)
      (*changes)[layer.layer.weight].emplace_back(&adapter, &layer);
  const auto make = [keep, source, changes](std::string_view name, std::span<float> to) {
    const TensorView* const tensor = source->find(name);
    const auto at = changes->find(name);
    if (at == changes->end()) return source->read(*tensor, std::as_writable_bytes(to));
    read_as(*source, *tensor, DType::f32, std::as_writable_bytes(to));
    for (const auto& [adapter, layer] : at->second) {
      add_low_rank(to, *layer, finite_floats_of(*source, adapter->a_of(layer->layer)),
                   finite_floats_of(*source, adapter->b_of(layer->layer)),
                   adapter->scale_of(*layer));
      if (!layer->has_factor) continue;
      const std::vector<float> factors = floats_of(*source, adapter->factor_of(layer->layer));
      const models::LinearLayer& l = layer->layer;
      for (int64_t o = 0; o < l.out; ++o)
        for (int64_t i = 0; i < l.in; ++i) to[l.element(o, i)] *= factors[static_cast<size_t>(o)];
    }
  };
  const auto make_bytes = [source](std::string_view name, std::span<std::byte> to) {
    source->read(*source->find(name), to);
  };
  const auto list = std::make_shared<WeightList>(source->what(), source, make, make_bytes);
  for (const models::ParameterInfo& p : adapted->base()->parameters()) {
    if (changes->contains(p.name))
      list->add({p.name, DType::f32, p.shape, {}});
    else
      list->add(*source->find(p.name));
  }
  model.definition = adapted->base();
  model.weights = list;
  model.adapter_base = nullptr;
  // What was quantised is floats now, as far as it has changed: nothing reads integers of it.
  model.quantization.reset();
  model.quantized.reset();
  model.blocks.reset();
  return model;
}

void write_adapter_files(const fs::path& folder, const AdaptedModel& model,
                         std::span<const TensorView> tensors, const TensorContent& content,
                         const AdapterBase& base) {
  BRRR_CHECK(model.adapters().size() == 1, "{} adapters in one folder", model.adapters().size());
  std::map<std::string, std::string> parameter_of;
  std::vector<TensorView> named;
  for (TensorView t : tensors) {
    BRRR_CHECK(model.trained().contains(t.name), "{} is no parameter of the adapter", t.name);
    std::string name = name_in_peft(t.name, *model.base());
    parameter_of[name] = t.name;
    t.name = std::move(name);
    named.push_back(std::move(t));
  }
  BRRR_CHECK(named.size() == model.trained().size(), "{} tensors, expected {}", named.size(),
             model.trained().size());
  Adapter adapter = model.adapters()[0];
  // PEFT leaves a tied head at the base's weights when only the embedding table is saved, so the
  // trained table is written as the head, too.
  if (const auto tied = model.base()->file_names().tied;
      tied && adapter.saved.contains(tied->second)) {
    TensorView head =
        *std::ranges::find(named, name_in_peft(tied->second, *model.base()), &TensorView::name);
    head.name = name_in_peft(tied->first, *model.base());
    parameter_of[head.name] = tied->second;
    named.push_back(std::move(head));
    adapter.saved.insert(tied->first);
  }
  Metadata metadata{{"format", "pt"}};
  if (!base.fingerprint.empty()) metadata[kFingerprint] = base.fingerprint;
  write_safetensors(folder / kAdapterWeights, named, metadata, [&](const TensorView& t) {
    TensorView own = t;
    own.name = parameter_of.at(t.name);
    return content(own);
  });
  write_file_atomically(folder / kAdapterConfig,
                        adapter_config_text(*model.base(), adapter, base.name));
  write_file_atomically(folder / kModelConfig, model.config_json(DType::f32));
}

}  // namespace brrr::io
