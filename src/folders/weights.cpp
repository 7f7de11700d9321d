#include "folders/weights.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/human.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/model_tensors.h"
#include "folders/quantized/quantized_folder.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr size_t kMostNamed = 10;  // faults that one message names
constexpr const char* kShardAdvice = "copy or download the folder again";

/// The shards that an index names, in order, and which tensor it expects in which.
struct Index {
  std::map<std::string, std::string> file_of;  // by tensor
  std::set<std::string> files;
};

Index read_index(const fs::path& path) {
  const std::string what = path.string();
  const Json root = parse_json(read_file(path), what);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (!root.is_object() || map == root.end() || !map->is_object() || map->empty())
    user_error("{}: expected an object with a \"weight_map\" from tensors to files", what);
  Index index;
  for (const auto& [tensor, file] : map->items()) {
    // A file beside the index: a path could lead anywhere.
    if (!file.is_string() ||
        fs::path(file.get<std::string>()).filename() != file.get<std::string>())
      user_error("{}: {} must be in a file of this folder; found {}", what, in_quotes(tensor),
                 describe(file));
    index.file_of.emplace(tensor, file.get<std::string>());
    index.files.insert(file.get<std::string>());
  }
  return index;
}

std::string_view without_prefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// Faults of a file, of which a message names the first ten.
class Faults {
 public:
  void add(std::string text) {
    if (++count_ <= kMostNamed) texts_.push_back(std::move(text));
  }
  void throw_if_any(const std::string& what, const char* advice) const {
    if (count_ == 0) return;
    std::string text = fmt::format("{}: {}", what, fmt::join(texts_, "; "));
    if (count_ > texts_.size()) text += fmt::format("; and {} more", count_ - texts_.size());
    throw UserError(text + "; " + advice);
  }

 private:
  std::vector<std::string> texts_;
  size_t count_ = 0;
};

}  // namespace

WeightFiles::WeightFiles(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / kSingleWeights, ignored) || !fs::exists(folder / kWeightIndex, ignored)) {
    refuse_pickled(folder);
    files_.emplace_back(folder / kSingleWeights);
    what_ = files_.back().what();
    return;
  }
  what_ = (folder / kWeightIndex).string();
  const Index index = read_index(folder / kWeightIndex);
  Faults faults;
  for (const std::string& name : index.files)
    if (!fs::exists(folder / name, ignored))
      faults.add(fmt::format("the shard {} is missing", name));
  faults.throw_if_any(what_, kShardAdvice);
  for (const std::string& name : index.files) {
    const SafetensorsFile& file = files_.emplace_back(folder / name);
    for (const TensorView& t : file.tensors()) {
      if (!shard_tensors_.emplace(t.name, &t).second)
        faults.add(
            fmt::format("the tensor {} is in two shards, one of them {}", in_quotes(t.name), name));
      else if (const auto at = index.file_of.find(t.name);
               at == index.file_of.end() || at->second != name)
        faults.add(fmt::format("the tensor {} is in {}, the index says {}", in_quotes(t.name), name,
                               at == index.file_of.end() ? "nothing of it" : at->second));
    }
  }
  for (const auto& [tensor, file] : index.file_of) {
    if (shard_tensors_.contains(tensor)) continue;
    bool is_foreign = false;
    for (const SafetensorsFile& f : files_)
      for (const ForeignTensor& t : f.foreign()) is_foreign = is_foreign || t.name == tensor;
    if (!is_foreign) faults.add(fmt::format("the tensor {} is not in {}", in_quotes(tensor), file));
  }
  faults.throw_if_any(what_, kShardAdvice);
}

const TensorView* WeightFiles::find(std::string_view name) const {
  if (files_.size() == 1 && shard_tensors_.empty()) return files_.front().find(name);
  const auto at = shard_tensors_.find(name);
  return at == shard_tensors_.end() ? nullptr : at->second;
}

void WeightFiles::each(const std::function<void(const TensorView&)>& see) const {
  for (const SafetensorsFile& file : files_) file.each(see);
}

void WeightFiles::each_foreign(const std::function<void(const ForeignTensor&)>& see) const {
  for (const SafetensorsFile& file : files_) file.each_foreign(see);
}

void WeightFiles::let_go(std::span<const std::byte> bytes) const {
  for (const SafetensorsFile& file : files_) file.let_go(bytes);
}

std::set<std::string> shards_of_index(const fs::path& index) { return read_index(index).files; }

bool holds_model(const fs::path& folder) {
  std::error_code ignored;
  return (fs::exists(folder / "config.json", ignored) &&
          (fs::exists(folder / kSingleWeights, ignored) ||
           fs::exists(folder / kWeightIndex, ignored))) ||
         holds_adapter(folder);
}

void refuse_pickled(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (has(kSingleWeights) || has(kWeightIndex)) return;
  const bool in_shards = has("pytorch_model.bin.index.json");
  if (!in_shards && !has("pytorch_model.bin")) return;
  user_error(
      "{} holds its weights as {}, which are Python pickles: reading them may run code. Convert "
      "them once (needs torch and safetensors): {}",
      folder.string(), in_shards ? "pytorch_model-*.bin" : "pytorch_model.bin",
      conversion_command(folder.string()));
}

std::string conversion_command(const std::string& folder) {
  // A tensor that two names share is written twice: safetensors has no sharing.
  return fmt::format(
      "python3 -c \"import sys, glob, torch; from "
      "safetensors.torch import save_file; d = sys.argv[1]; w = {{}}; [w.update(torch.load(f, "
      "'cpu', weights_only=True)) for f in sorted(glob.glob(glob.escape(d) + "
      "'/pytorch_model*.bin'))]; save_file({{k: v.clone().contiguous() for k, v in w.items()}}, "
      "d + '/{}', {{'format': 'pt'}})\" {}",
      kSingleWeights, shell_word(folder));
}

const TensorView* find_parameter(const WeightSource& files, const models::FileNames& names,
                                 const std::string& parameter) {
  if (const TensorView* tensor = files.find(parameter)) return tensor;
  if (const TensorView* tensor = files.find(without_prefix(parameter, names.prefix))) return tensor;
  for (const auto& [older, now] : names.renamed)
    if (now == parameter)
      if (const TensorView* tensor = files.find(older)) return tensor;
  return nullptr;
}

namespace {

bool is_zero(const TensorView* tensor) {
  return tensor != nullptr && !tensor->bytes.empty() &&
         std::all_of(tensor->bytes.begin(), tensor->bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

std::shared_ptr<const WeightList> match_tensors(std::shared_ptr<const WeightSource> source,
                                                const models::Model& model, TaskHead head) {
  const WeightSource& files = *source;
  const models::FileNames names = model.file_names();
  // The tensor of a parameter by its name in the files, for tensors that are made when they are
  // read.
  const auto names_in_files = std::make_shared<std::map<std::string, std::string, std::less<>>>();
  const auto make = [source, names_in_files](std::string_view parameter, std::span<float> to) {
    const TensorView* const tensor = source->find(names_in_files->find(parameter)->second);
    source->read(*tensor, std::as_writable_bytes(to));
  };
  const auto make_bytes = [source, names_in_files](std::string_view name, std::span<std::byte> to) {
    const TensorView* const tensor = source->find(names_in_files->find(name)->second);
    if (tensor != nullptr) return source->read(*tensor, to);
    std::ranges::fill(to, std::byte{0});  // a counter that the files lack
  };
  const auto out = std::make_shared<WeightList>(files.what(), source, make, make_bytes);
  const auto add = [&](TensorView view, const std::string& name) {
    if (view.bytes.empty()) names_in_files->emplace(name, view.name);
    view.name = name;
    out->add(std::move(view));
  };
  // Messages name a tensor as the file does, where its names are older ones.
  const bool has_older_names = std::ranges::any_of(
      names.renamed, [&](const auto& pair) { return files.find(pair.first) != nullptr; });
  const auto spelling = [&](const std::string& parameter) {
    if (has_older_names)
      for (const auto& [older, now] : names.renamed)
        if (now == parameter) return older;
    return parameter;
  };
  Faults faults;
  for (const models::ParameterInfo& p : model.parameters()) {
    const TensorView* tensor = find_parameter(files, names, p.name);
    if (head == TaskHead::fresh && p.part == models::Part::head) continue;
    if (head == TaskHead::fresh && p.part == models::Part::pooler && tensor == nullptr) continue;
    const bool is_counter = !is_float(p.dtype);
    if (tensor == nullptr && is_counter) {
      add({p.name, p.dtype, p.shape, {}}, p.name);  // it begins as 0
      continue;
    }
    if (tensor == nullptr)
      faults.add(fmt::format("the tensor {} {} is missing", spelling(p.name), p.shape.str()));
    else if (tensor->shape != p.shape)
      faults.add(fmt::format("the tensor {} must have the shape {} by config.json; the file has {}",
                             p.name, p.shape.str(), tensor->shape.str()));
    else if (is_counter && tensor->dtype != p.dtype)
      faults.add(fmt::format("the tensor {} must hold a count as {}; the file has {}", p.name,
                             name_of(p.dtype), name_of(tensor->dtype)));
    else if (!is_counter && !is_float(tensor->dtype))
      faults.add(fmt::format("the tensor {} must hold floating-point weights; the file has {}",
                             p.name, name_of(tensor->dtype)));
    if (tensor == nullptr) continue;
    add(*tensor, p.name);
    const std::string in_file = tensor->name;
    for (const auto& [from, to] : {std::pair(integers_name(in_file, 8), integers_name(p.name, 8)),
                                   {integers_name(in_file, 4), integers_name(p.name, 4)},
                                   {io::blocks_name(in_file), io::blocks_name(p.name)},
                                   {scales_name(in_file), scales_name(p.name)}})
      if (const TensorView* const part = files.find(from)) add(*part, to);
  }
  const auto check_unexpected = [&](const std::string& name, const Shape& shape) {
    const std::string_view inner = without_prefix(name, names.prefix);
    const std::string canonical = names.prefix + std::string(inner);
    const auto is_known = [&](std::string_view n) { return out->find(n) != nullptr; };
    if (is_known(name) || (is_known(canonical) && files.find(canonical) == nullptr)) return;
    if (names.is_buffer && names.is_buffer(name)) return;
    if (is_part_of_integers(name)) return;
    for (const auto& [older, now] : names.renamed)
      if (name == older && is_known(now)) return;
    for (const auto& [absent, its_shape] : names.zeros)
      if (canonical == absent && is_zero(files.find(name))) return;
    // AutoGPTQ writes biases of zeros for quantised layers that have none.
    constexpr std::string_view kBias = ".bias", kWeight = ".weight";
    if (name.ends_with(kBias) && is_zero(files.find(name))) {
      const TensorView* const weight =
          out->find(canonical.substr(0, canonical.size() - kBias.size()) + std::string(kWeight));
      if (weight != nullptr && weight->bytes.empty()) return;
    }
    if (std::none_of(names.trunk.begin(), names.trunk.end(),
                     [&](const std::string& start) { return inner.starts_with(start); }))
      return;
    faults.add(fmt::format("config.json does not know the tensor {} {} of the file",
                           in_quotes(name), shape.str()));
  };
  files.each([&](const TensorView& t) { check_unexpected(t.name, t.shape); });
  files.each_foreign([&](const ForeignTensor& t) { check_unexpected(t.name, t.shape); });
  faults.throw_if_any(files.what(), "the file does not belong to its config.json");
  return out;
}

std::shared_ptr<const WeightList> open_weights(const fs::path& folder, const models::Model& model,
                                               TaskHead head, const fs::path& base) {
  if (holds_adapter(folder)) return open_adapter_weights(folder, model, base);
  return match_tensors(open_weight_source(folder), model, head);
}

bool has_other_head(const WeightSource& files, const models::Model& model) {
  const models::FileNames names = model.file_names();
  if (!names.tied) return false;
  const TensorView* head = find_parameter(files, names, names.tied->first);
  const TensorView* table = find_parameter(files, names, names.tied->second);
  if (head == nullptr || table == nullptr || head->shape != table->shape) return false;
  if (head->bytes.empty() || table->bytes.empty()) return true;  // one of them is quantised
  return head->dtype != table->dtype || head->storage != table->storage ||
         std::memcmp(head->bytes.data(), table->bytes.data(), head->bytes.size()) != 0;
}

ModelTensors model_tensors(const models::Model& model, std::span<const TensorView> tensors) {
  const std::vector<models::ParameterInfo> parameters = model.parameters();
  BRRR_CHECK(tensors.size() == parameters.size(), "{} tensors, expected {}", tensors.size(),
             parameters.size());
  std::map<std::string_view, const TensorView*> by_name;
  ModelTensors all;
  for (const TensorView& t : tensors) {
    by_name[t.name] = &t;
    if (t.dtype == DType::bf16) all.stored = DType::bf16;
  }
  for (const models::ParameterInfo& p : parameters) {
    const auto at = by_name.find(p.name);
    BRRR_CHECK(at != by_name.end(), "{} is missing", p.name);
    BRRR_CHECK(at->second->shape == p.shape, "{} has shape {}, expected {}", p.name,
               at->second->shape.str(), p.shape.str());
  }
  all.tensors.assign(tensors.begin(), tensors.end());
  const auto absent = model.file_names().zeros;
  const auto size_of = [&](const Shape& shape) {
    return static_cast<size_t>(shape.elements()) * bytes_of(all.stored);
  };
  for (const auto& [name, shape] : absent)
    all.zeros.resize(std::max(all.zeros.size(), size_of(shape)));
  for (const auto& [name, shape] : absent)
    all.tensors.push_back({name, all.stored, shape, std::span(all.zeros).first(size_of(shape))});
  // transformers before version 5 refuses a file that does not say which framework its layout is
  // of.
  all.metadata = {{"format", "pt"}};
  return all;
}

void write_model_config(const fs::path& folder, const models::Model& model, DType stored) {
  write_file_atomically(folder / "config.json", model.config_json(stored));
}

void write_model_files(const fs::path& folder, const models::Model& model,
                       std::span<const TensorView> tensors, const TensorContent& content) {
  const ModelTensors all = model_tensors(model, tensors);
  const auto content_of = [&](const TensorView& t) {
    return t.bytes.empty() && t.shape.elements() > 0 ? content(t) : t.bytes;
  };
  write_safetensors(folder / kSingleWeights, all.tensors, all.metadata,
                    content ? content_of : TensorContent());
  write_model_config(folder, model, all.stored);
}

}  // namespace brrr::io
