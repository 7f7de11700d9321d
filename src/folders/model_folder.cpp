#include "folders/model_folder.h"
#include "folders/quantized/quantized_model.h"

#include <algorithm>
#include <vector>

#include "base/cache.h"
#include "base/options.h"
#include "base/tell.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/checkpoint.h"
#include "folders/gguf/gguf_config.h"
#include "folders/hub/hub.h"
#include "folders/state_dict.h"
#include "formats/file_kind.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

// The run whose model or options were written last.
std::optional<fs::path> newest_run() {
  std::optional<fs::path> best;
  fs::file_time_type best_time;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    if (!entry.is_directory()) continue;
    if (!holds_model(entry.path()) && list_checkpoints(entry.path()).empty()) continue;
    const auto time = fs::last_write_time(entry.path(), error);
    if (error || (best && time <= best_time)) continue;
    best = entry.path();
    best_time = time;
  }
  return best;
}

constexpr const char* kChecksums = "checksums.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";

/// The files that the model of a folder is read from, as far as they are there.
std::vector<std::string> files_of_model(const fs::path& folder) {
  std::vector<std::string> names{kModel,       kAdapterWeights, kAdapterConfig,
                                 kModelConfig, kConfig,         kGenerationConfig};
  for (const std::string_view name : tokenizer_file_names()) names.emplace_back(name);
  std::erase_if(names, [&](const std::string& name) {
    std::error_code ignored;
    return !fs::exists(folder / name, ignored);
  });
  return names;
}

/// What checksums.json records, by file; nothing where there is none.
std::map<std::string, FileSum> read_checksums(const fs::path& folder) {
  const fs::path record = folder / kChecksums;
  std::error_code ignored;
  if (!fs::exists(record, ignored)) return {};
  const auto fail = [&](const std::string& what) {
    user_error("{}; delete {} if the model is known to be good", what, kChecksums);
  };
  Json json;
  try {
    json = parse_json(read_file(record), record.string());
  } catch (const UserError& e) {
    fail(e.what());
  }
  std::map<std::string, FileSum> sums;
  const auto expect = [&](bool holds) {
    if (!holds) fail(record.string() + ": expected the size and the checksum of each file");
  };
  expect(json.is_object() && (json.contains(kModel) || json.contains(kAdapterWeights)));
  for (const auto& [name, entry] : json.items()) {
    expect(fs::path(name).filename() == name && entry.is_object());
    const Json bytes = entry.value("bytes", Json()), crc = entry.value("crc32c", Json());
    expect(bytes.is_number_unsigned() && crc.is_string());
    sums[name] = {bytes.get<uint64_t>(), crc.get<std::string>()};
  }
  return sums;
}

/// Throws UserError where a file is not the one that was recorded.
void check_file(const fs::path& folder, const std::string& name, const FileSum& recorded) {
  const fs::path path = folder / name;
  std::error_code ignored;
  const bool is_there = fs::exists(path, ignored);
  const FileSum found = is_there ? sum_of_file(path) : FileSum{};
  if (is_there && found == recorded) return;
  const std::vector<Checkpoint> checkpoints = list_checkpoints(folder);
  const std::string now =
      is_there ? fmt::format("is damaged: {} bytes with checksum {}", found.bytes, found.crc32c)
               : "is missing";
  user_error(
      "{} {}, {} says {} bytes with {}; {} (or delete {} if the file was changed on purpose)",
      path.string(), now, kChecksums, recorded.bytes, in_quotes(recorded.crc32c),
      checkpoints.empty() ? "take another copy"
                          : "take its checkpoint " + checkpoints.back().folder.string(),
      kChecksums);
}

void check_model(const fs::path& folder) {
  std::error_code ignored;
  // It was converted, or moved away.
  if (!fs::exists(folder / kModel, ignored) && !holds_adapter(folder)) return;
  for (const auto& [name, sum] : read_checksums(folder)) check_file(folder, name, sum);
}

/// What the user may have meant by a name that is nothing: one of the runs that there are, perhaps.
std::string advice_for(const std::string& name) {
  std::vector<std::string> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error))
    if (entry.is_directory() &&
        (holds_model(entry.path()) || !list_checkpoints(entry.path()).empty()))
      runs.push_back(entry.path().string());
  std::sort(runs.begin(), runs.end());
  std::vector<std::string> names = runs;
  for (const std::string& run : runs) names.push_back(fs::path(run).filename().string());
  const std::string likely = nearest(name, names);
  if (!likely.empty())
    return fmt::format("did you mean {}?", likely.starts_with("runs/") ? likely : "runs/" + likely);
  if (runs.empty())
    return "train one (`brrr train`), or name a folder with a model, or one of the Hugging Face "
           "Hub (ORG/NAME)";
  constexpr size_t kMost = 3;
  const std::string more = runs.size() > kMost ? ", ..." : "";
  runs.resize(std::min(runs.size(), kMost));
  return fmt::format("there are {}{}", fmt::join(runs, ", "), more);
}

}  // namespace

void write_model_checksums(const fs::path& folder) {
  Json json = Json::object();
  for (const std::string& name : files_of_model(folder)) {
    const FileSum sum = sum_of_file(folder / name);
    json[name] = {{"bytes", sum.bytes}, {"crc32c", sum.crc32c}};
  }
  write_file_atomically(folder / kChecksums, json.dump() + "\n");
}

void remove_model_checksums(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / kChecksums, ignored);
}

fs::path find_model(const std::string& name,
                    const std::function<void(const std::string&)>& on_damaged) {
  if (name.empty()) {
    const auto run = newest_run();
    if (!run)
      user_error(
          "there is no run with a model in runs/: train one (`brrr train`), or name a folder with "
          "--model");
    return find_model(run->string(), on_damaged);
  }
  const fs::path path(name);
  if (fs::is_directory(path)) {
    if (holds_model(path)) return path;
    const auto checkpoint = latest_valid(
        path, on_damaged ? on_damaged : [](const std::string&) {},
        [](const Checkpoint& c) { check_readable(c.folder); });
    if (checkpoint) return checkpoint->folder;
    refuse_pickled(path);
    if (const auto file = state_dict_in(path)) return *file;
    user_error(
        "{} holds no model: expected config.json and model.safetensors, or a checkpoint-* folder "
        "with them",
        name);
  }
  if (is_gguf_file(path) || is_state_dict(path)) return path;
  if (fs::exists(path)) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if ((path.extension() == ".safetensors" || path.filename() == kConfig) && holds_model(folder))
      return folder;
    refuse_file(name, "the folder that holds config.json and model.safetensors");
  }
  if (const auto hub = parse_hub_name(name))
    if (const fs::path folder = model_from_hub(*hub); !folder.empty()) return folder;
  user_error("there is no folder {}, and no model of that name in {}: {}", name,
             hugging_face_cache().string(), advice_for(name));
}

namespace {

struct Definition {
  models::ModelPtr model;
  std::string note;  // how the model differs from its config.json; usually empty
};

Definition definition_of(const fs::path& folder) {
  if (is_gguf_file(folder))
    return {models::parse_config(gguf_config(GgufFile(folder)), folder.string()), ""};
  if (is_state_dict(folder))
    return {models::parse_config(state_dict_config(folder), folder.string()), ""};
  const fs::path path = folder / kConfig;
  std::error_code ignored;
  if (fs::exists(folder / kModel, ignored)) {
    const auto sums = read_checksums(folder);
    if (const auto sum = sums.find(kConfig); sum != sums.end())
      check_file(folder, kConfig, sum->second);
  }
  models::ModelPtr model = models::parse_config(read_file(path), path.string());
  const auto tied = model->file_names().tied;
  if (!tied || !holds_model(folder)) return {model, ""};
  const std::shared_ptr<const WeightSource> files = open_weight_source(folder);
  if (!has_other_head(*files, *model)) return {model, ""};
  return {model->with_untied_head(),
          fmt::format("{} ties {} to {}, but {} holds another head: it is loaded untied, as "
                      "transformers does",
                      path.string(), tied->first, tied->second, files->what())};
}

}  // namespace

models::ModelPtr read_definition(const fs::path& folder, const fs::path& base) {
  return holds_adapter(folder) ? read_adapter_definition(folder, base)
                               : definition_of(folder).model;
}

void check_readable(const fs::path& folder, const fs::path& base) {
  const models::ModelPtr model = read_definition(folder, base);
  open_weights(folder, *model, TaskHead::of_files, base);
  if (!model->sees_pictures()) load_tokenizer(folder);
  read_generation_settings(folder, *model);
}

std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "manifest.json", ignored)) open_checkpoint(path);
  const auto sums = read_checksums(path);
  for (const std::string_view name : tokenizer_file_names())
    if (const auto sum = sums.find(std::string(name)); sum != sums.end())
      check_file(path, sum->first, sum->second);
  return load_tokenizer(path);
}

void ModelFolder::read(std::string_view parameter, std::span<float> out) const {
  const TensorView* const tensor = weights->find(parameter);
  BRRR_CHECK(tensor != nullptr, "the model folder has no tensor '{}'", parameter);
  read_as(*weights, *tensor, DType::f32, std::as_writable_bytes(out));
}

namespace {

/// The parameters that are made of integers of the files.
std::shared_ptr<const ParameterSet> quantized_parameters(const WeightSource& weights) {
  auto names = std::make_shared<ParameterSet>();
  weights.each([&](const TensorView& t) {
    if (t.bytes.empty() && t.shape.elements() > 0 && !is_part_of_integers(t.name))
      names->insert(t.name);
  });
  return names;
}

/// The parameters whose integers the source has; null: none.
std::shared_ptr<const GivenParameters> given_parameters(const WeightSource& weights,
                                                        const ParameterSet& quantized) {
  auto given = std::make_shared<GivenParameters>();
  for (const std::string& name : quantized)
    for (const int bits : {8, 4}) {
      const TensorView* const integers = weights.find(integers_name(name, bits));
      if (integers == nullptr) continue;
      const int64_t groups = weights.find(scales_name(name))->shape.size(1);
      given->emplace(
          name, GivenIntegers{
                    bits, groups == 1 ? 0 : static_cast<int>(integers->shape.size(1) / groups)});
    }
  return given->empty() ? nullptr : given;
}

/// The parameters that lie in blocks; null: none does.
std::shared_ptr<const BlockParameters> block_parameters(const WeightSource& weights) {
  auto blocks = std::make_shared<BlockParameters>();
  weights.each([&](const TensorView& t) {
    if (t.storage.is_blocks() && !is_part_of_integers(t.name)) blocks->emplace(t.name, t.storage);
  });
  return blocks->empty() ? nullptr : blocks;
}

}  // namespace

WeightQuantization ModelFolder::own_quantization() const {
  if (blocks) {
    WeightQuantization q{{.bits = 8, .group = 32}, quantized};
    q.blocks = blocks;
    return q;
  }
  if (!quantization || products.grid.bits == 0) return {};
  WeightQuantization own{Quantization{.bits = static_cast<int>(products.grid.bits),
                                      .group = static_cast<int>(products.grid.group),
                                      .of_rows = quantization->dynamic && quantization->symmetric},
                         quantized};
  own.given = given_parameters(*weights, *quantized);
  return own;
}

bool holds_integers(const fs::path& folder) {
  if (is_state_dict(folder)) return false;
  if (!is_gguf_file(folder)) return read_quantization(folder).has_value();
  return block_parameters(*open_weight_source(folder)) != nullptr;
}

ModelFolder open_model(const fs::path& folder, const OpenOptions& options) {
  if (fs::exists(folder / "manifest.json")) open_checkpoint(folder);
  check_model(folder);
  if (holds_adapter(folder)) return open_adapter_folder(folder, options);
  if (!options.adapters.empty()) return open_with_adapters(folder, options);
  ModelFolder model;
  model.folder = folder;
  Definition definition = definition_of(folder);
  if (!definition.note.empty()) tell("note: {}\n", definition.note);
  model.definition = std::move(definition.model);
  if (options.task) model.definition = model.definition->with_task(*options.task);
  if (!is_gguf_file(folder) && !is_state_dict(folder))
    model.quantization = read_quantization(folder);
  if (model.quantization) {
    const auto files = std::make_shared<const WeightFiles>(folder);
    QuantizedWeights found = find_quantized(files, *model.quantization);
    refuse_conv1d(*model.definition, found, folder.string());
    model.products = product_integers(found);
    model.layout = found.layout;
    model.weights =
        match_tensors(with_floats(files, std::move(found)), *model.definition, options.head);
    model.quantized = quantized_parameters(*model.weights);
  } else {
    model.weights = open_weights(folder, *model.definition, options.head);
  }
  model.blocks = block_parameters(*model.weights);
  if (model.blocks) {
    auto names = std::make_shared<ParameterSet>();
    for (const auto& [name, storage] : *model.blocks) names->insert(name);
    model.quantized = names;
  }
  if (options.reads_tokenizer && model.definition->sees_pictures())
    user_error(
        "{}: a {} sees pictures and reads no text: use `brrr classify --images`, `brrr embed "
        "--images` or `brrr run`",
        folder.string(), model.definition->architecture().title);
  if (options.reads_tokenizer) {
    model.tokenizer = load_tokenizer(folder);
    const int64_t vocabulary = model.definition->sizes().vocabulary;
    if (model.tokenizer->vocab_size() > vocabulary)
      user_error(
          "{}: the tokenizer has {} tokens, the model's vocabulary {}: they do not belong together",
          folder.string(), model.tokenizer->vocab_size(), vocabulary);
  }
  model.generation = read_generation_settings(folder, *model.definition);
  return model;
}

}  // namespace brrr::io
