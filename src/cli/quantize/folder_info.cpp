#include "cli/quantize/folder_info.h"

#include <algorithm>
#include <map>

#include "base/human.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/adapters/adapter_tensors.h"
#include "folders/quantized/quantized_model.h"
#include "folders/state_dict.h"
#include "formats/gguf/gguf_file.h"
#include "formats/json_file.h"
#include "models/state_dict_config.h"
#include "train/options/lora_options.h"
#include "train/parts.h"

namespace brrr::cli {
namespace {

/// The tensors of one type in a GGUF file.
struct StoredBlocks {
  int64_t tensors = 0, elements = 0, bytes = 0;
};
std::map<std::string, StoredBlocks> types_of(const io::GgufFile& file) {
  std::map<std::string, StoredBlocks> types;
  for (const io::GgufTensor& t : file.tensors()) {
    StoredBlocks& stored = types[t.type->name];
    ++stored.tensors;
    stored.elements += t.shape.elements();
    stored.bytes += std::ssize(t.bytes);
  }
  return types;
}

/// "int4", "fp8", or a 4-bit float's name.
std::string name_of_quantised(const io::FolderQuantization& q) {
  const bool is_fp8 =
      q.format == io::QuantizedFormat::fp8 || q.format == io::QuantizedFormat::compressed_floats;
  if (is_fp8) return "fp8";
  const bool is_fp4 = q.format == io::QuantizedFormat::bitsandbytes && q.bits == 4;
  return fmt::format("{}{}", is_fp4 ? "float" : "int", q.bits);
}

/// Elements of the files' tensors by what they are stored in, without the integers' parts.
std::map<std::string, int64_t> stored_elements(const io::ModelFolder& model) {
  std::map<std::string, int64_t> elements;
  if (io::is_gguf_file(model.folder)) {
    for (const auto& [type, stored] : types_of(io::GgufFile(model.folder)))
      elements[type] = stored.elements;
    return elements;
  }
  model.weights->each([&](const TensorView& t) {
    if (is_part_of_integers(t.name)) return;
    const bool is_quantised = model.quantized && model.quantized->contains(t.name);
    elements[is_quantised ? name_of_quantised(*model.quantization)
                          : std::string(name_of(t.dtype))] += t.shape.elements();
  });
  return elements;
}

int64_t bytes_on_disk(const fs::path& folder) {
  int64_t bytes = 0;
  if (io::is_gguf_file(folder)) {
    for (const auto& [type, stored] : types_of(io::GgufFile(folder))) bytes += stored.bytes;
    return bytes;
  }
  if (io::is_state_dict(folder)) return static_cast<int64_t>(fs::file_size(folder));
  const io::WeightFiles files(folder);
  files.each([&](const TensorView& t) { bytes += std::ssize(t.bytes); });
  files.each_foreign([&](const ForeignTensor& t) { bytes += std::ssize(t.bytes); });
  return bytes;
}

/// Returns the lines of `info` about a GGUF file: version, tensors, name, tokenizer, and the number
/// and size of its tensors by block type.
std::string gguf_text(const io::GgufFile& file) {
  std::string text =
      fmt::format("GGUF {}: {}", file.version(), counted(std::ssize(file.tensors()), "tensor"));
  if (file.paths().size() > 1) text += fmt::format(" in {} files", file.paths().size());
  if (const auto name = file.text("general.name"); name && !name->empty())
    text += fmt::format(", name {}", io::in_quotes(*name));
  text += fmt::format(", tokenizer {}\n", file.text("tokenizer.ggml.model").value_or("none"));
  for (const auto& [type, stored] : types_of(file))
    text += fmt::format("  {:<8} {:>12}  {:>10}\n", type, counted(stored.tensors, "tensor"),
                        format_bytes(static_cast<double>(stored.bytes)));
  return text;
}

/// What products of a quantised folder read by default.
std::string products_text(const io::ModelFolder& model) {
  const io::ProductIntegers& products = model.products;
  if (products.grid.bits == 0) return "its values rounded to bf16";
  if (products.are_same) return "the integers of the file";
  return fmt::format("its values rounded to {} bits, {}", products.grid.bits,
                     products.grid.group > 0 ? fmt::format("groups of {}", products.grid.group)
                                             : "a scale for each output");
}

std::string info_json(const io::ModelFolder& model, const std::string& own) {
  nlohmann::ordered_json j;
  j["model"] = model.folder.string();
  j["architecture"] = model.definition->architecture().name;
  j["parameters"] = model.definition->parameter_count();
  j["bytes"] = bytes_on_disk(model.folder);
  for (const auto& [dtype, count] : stored_elements(model)) j["stored"][dtype] = count;
  if (io::is_gguf_file(model.folder)) {
    const io::GgufFile file(model.folder);
    j["gguf"] = {{"version", file.version()},
                 {"architecture", file.text("general.architecture").value_or("")},
                 {"name", file.text("general.name").value_or("")},
                 {"files", file.paths().size()},
                 {"tokenizer", file.text("tokenizer.ggml.model").value_or("")}};
    for (const auto& [type, stored] : types_of(file))
      j["gguf"]["types"][type] = {{"tensors", stored.tensors}, {"bytes", stored.bytes}};
  }
  const io::WeightSizes sizes = io::weight_sizes(*model.definition);
  j["bytes_in"] = {
      {"fp32", sizes.fp32}, {"bf16", sizes.bf16}, {"int8", sizes.int8}, {"int4", sizes.int4}};
  if (model.blocks)
    j["quantisation"] = {{"bits", model.own_quantization().bits},
                         {"method", "weight-only"},
                         {"group_size", model.own_quantization().group},
                         {"parameters", model.blocks->size()},
                         {"precision", own}};
  if (const auto& q = model.quantization)
    j["quantisation"] = {{"bits", q->bits},
                         {"method", q->dynamic ? "dynamic" : "weight-only"},
                         {"group_size", q->group},
                         {"format", io::name_of_format(*q)},
                         {"layout", model.layout},
                         {"products", products_text(model)},
                         {"parameters", model.quantized->size()},
                         {"keeps", q->ignore},
                         {"precision", own}};
  return io::json_line(j) + "\n";
}

std::string info_text(const io::ModelFolder& model, const std::string& own) {
  const models::ModelSizes sizes = model.definition->sizes();
  std::string text = fmt::format(
      "{}: {}, {} parameters, {}\n", model.folder.string(), model.definition->architecture().title,
      with_commas(model.definition->parameter_count()),
      sizes.picture ? train::text_of_sizes(sizes, sizes.context)
                    : fmt::format("{}, width {}, context {}", counted(sizes.layers, "layer"),
                                  sizes.width, sizes.context));
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : stored_elements(model))
    parts.push_back(fmt::format("{} in {}", with_commas(count), dtype));
  text += fmt::format("weights: {} ({:.1f} MB on disk)\n", fmt::join(parts, ", "),
                      static_cast<double>(bytes_on_disk(model.folder)) / 1e6);
  if (io::is_gguf_file(model.folder)) text += gguf_text(io::GgufFile(model.folder));
  const auto megabytes = [](int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  const io::WeightSizes in = io::weight_sizes(*model.definition);
  text += fmt::format("sizes: {:.1f} MB in fp32, {:.1f} MB in bf16", megabytes(in.fp32),
                      megabytes(in.bf16));
  if (in.int8 < in.bf16)
    text += fmt::format("; with linear layers in int8 {:.1f} MB, in int4 {:.1f} MB",
                        megabytes(in.int8), megabytes(in.int4));
  text += "\n";
  if (model.blocks)
    text += fmt::format(
        "{} in blocks: those of products are packed as 8 bits in groups of {} when the file is "
        "loaded, computed in {} by "
        "default\n",
        counted(std::ssize(*model.blocks), "weight"), model.own_quantization().group, own);
  if (const auto& q = model.quantization) {
    text +=
        fmt::format("quantised: {} linear layers in {}{}; {}computed in {} by default\n",
                    model.quantized->size(), io::description(*q),
                    model.layout.empty() ? "" : ", " + model.layout,
                    q->format == io::QuantizedFormat::compressed_integers && model.products.are_same
                        ? ""
                        : fmt::format("products read {}; ", products_text(model)),
                    own);
    text += fmt::format("keeps: {}\n", q->ignore.empty() ? "nothing" : listed(q->ignore, 20));
  }
  return text;
}

}  // namespace

namespace {

/// Describes a file of PyTorch whose net is not known by the names of its tensors.
void print_state_dict(const fs::path& path, const WeightSource& tensors, bool json) {
  constexpr size_t kMostNamed = 10;
  std::map<std::string, int64_t> stored;
  std::vector<std::string> names;
  int64_t elements = 0;
  tensors.each([&](const TensorView& t) {
    stored[std::string(name_of(t.dtype))] += t.shape.elements();
    elements += t.shape.elements();
    names.push_back(fmt::format("{} {}", t.name, t.shape.str()));
  });
  if (json) {
    nlohmann::ordered_json j{{"model", path.string()}, {"architecture", nullptr},
                             {"parameters", elements}, {"bytes", fs::file_size(path)},
                             {"stored", stored},       {"tensors", names}};
    write_output(io::json_line(j) + "\n");
    return;
  }
  std::string text = fmt::format(
      "{}: {} of a net that Brrr does not know by their names (it knows torchvision's ResNet)\n",
      path.string(), counted(std::ssize(names), "tensor"));
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : stored)
    parts.push_back(fmt::format("{} in {}", with_commas(count), dtype));
  text += fmt::format("weights: {} ({:.1f} MB on disk)\n", fmt::join(parts, ", "),
                      1e-6 * static_cast<double>(fs::file_size(path)));
  text += fmt::format("tensors: {}\n", listed(names, kMostNamed));
  write_output(text);
}

/// Describes the adapters of a model, and the base that they belong to.
void print_adapter_info(const io::ModelFolder& model, const fs::path& folder, bool json) {
  const models::AdaptedModel& adapted = *model.definition->adapted();
  const models::Adapter& adapter = adapted.adapters().front();
  const io::AdapterBase base = io::base_of_adapter(folder);
  const std::vector<std::string> targets = models::target_names(*adapted.base(), adapter.layers);
  const std::vector<std::string> saved = models::saved_modules(adapter.saved);
  const auto bytes = static_cast<int64_t>(fs::file_size(io::adapter_file(folder)));
  if (json) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
    for (const models::AdaptedLayer& layer : adapter.layers)
      ranks[layer.layer.module] = {{"rank", layer.rank}, {"scale", adapter.scale_of(layer)}};
    const nlohmann::ordered_json j{
        {"model", folder.string()}, {"architecture", adapted.architecture().name},
        {"base", base.name},        {"parameters", adapted.trained_count()},
        {"bytes", bytes},           {"layers", ranks},
        {"modules_to_save", saved}};
    return write_output(io::json_line(j) + "\n");
  }
  std::string text =
      fmt::format("{}: an adapter of {}, a {} with {} parameters\n", folder.string(), base.name,
                  adapted.architecture().title, with_commas(adapted.base()->parameter_count()));
  text += train::adapter_line(adapted) + "\n";
  const models::AdaptedLayer& first = adapter.layers.front();
  text += fmt::format("scale: {:g} in {}{}{}\n", adapter.scale_of(first), first.layer.module,
                      adapter.rslora ? ", alpha / sqrt(rank)" : "",
                      first.has_factor ? ", with DoRA's factors" : "");
  text += fmt::format("layers: {}\n", fmt::join(targets, ", "));
  text += fmt::format("file: {:.1f} MB\n", 1e-6 * static_cast<double>(bytes));
  write_output(text);
}

}  // namespace

void print_folder_info(const std::string& name, bool json) {
  if (const fs::path path(name); io::is_state_dict(path)) {
    const std::shared_ptr<const WeightSource> tensors = io::open_state_dict(path);
    if (!models::config_of_state_dict(*tensors)) return print_state_dict(path, *tensors, json);
  }
  const io::ModelFolder model = open_named_model(name, {.reads_tokenizer = false});
  if (const fs::path folder = find_named_model(name); io::holds_adapter(folder))
    return print_adapter_info(model, folder, json);
  const WeightQuantization quantization = model.own_quantization();
  const Precision precision =
      quantization.bits == 0 ? Precision::bfloat16 : precision_of(quantization);
  const std::string own(model.has_integers() ? name_of(precision) : "");
  write_output(json ? info_json(model, own) : info_text(model, own));
}

}  // namespace brrr::cli
