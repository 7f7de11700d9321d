#include "cli/quantize/folder_info.h"

#include <algorithm>
#include <map>

#include "base/human.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "folders/quantized/quantized_model.h"
#include "formats/json_file.h"

namespace brrr::cli {
namespace {

/// Elements of the files' tensors by what they are stored in, without the integers' parts.
std::map<std::string, int64_t> stored_elements(const io::ModelFolder& model) {
  std::map<std::string, int64_t> elements;
  model.weights->each([&](const TensorView& t) {
    const bool is_quantised = model.quantized && model.quantized->contains(t.name);
    elements[is_quantised ? fmt::format("int{}", model.quantization->bits)
                          : std::string(name_of(t.dtype))] += t.shape.elements();
  });
  return elements;
}

int64_t bytes_on_disk(const fs::path& folder) {
  int64_t bytes = 0;
  io::WeightFiles(folder).each(
      [&](const TensorView& t) { bytes += static_cast<int64_t>(t.bytes.size()); });
  return bytes;
}

std::string info_json(const io::ModelFolder& model, const std::string& own) {
  nlohmann::ordered_json j;
  j["model"] = model.folder.string();
  j["architecture"] = model.definition->architecture().name;
  j["parameters"] = model.definition->parameter_count();
  j["bytes"] = bytes_on_disk(model.folder);
  for (const auto& [dtype, count] : stored_elements(model)) j["stored"][dtype] = count;
  const io::WeightSizes sizes = io::weight_sizes(*model.definition);
  j["bytes_in"] = {
      {"fp32", sizes.fp32}, {"bf16", sizes.bf16}, {"int8", sizes.int8}, {"int4", sizes.int4}};
  if (const auto& q = model.quantization)
    j["quantisation"] = {{"bits", q->bits},
                         {"method", q->dynamic ? "dynamic" : "weight-only"},
                         {"group_size", q->group},
                         {"format", q->packed ? "pack-quantized" : "int-quantized"},
                         {"parameters", model.quantized->size()},
                         {"keeps", q->ignore},
                         {"precision", own}};
  return io::json_line(j) + "\n";
}

std::string info_text(const io::ModelFolder& model, const std::string& own) {
  const models::ModelSizes sizes = model.definition->sizes();
  std::string text = fmt::format("{}: {}, {} parameters, {}, width {}, context {}\n",
                                 model.folder.string(), model.definition->architecture().title,
                                 with_commas(model.definition->parameter_count()),
                                 counted(sizes.layers, "layer"), sizes.width, sizes.context);
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : stored_elements(model))
    parts.push_back(fmt::format("{} in {}", with_commas(count), dtype));
  text += fmt::format("weights: {} ({:.1f} MB on disk)\n", fmt::join(parts, ", "),
                      static_cast<double>(bytes_on_disk(model.folder)) / 1e6);
  const auto megabytes = [](int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  const io::WeightSizes in = io::weight_sizes(*model.definition);
  text += fmt::format("sizes: {:.1f} MB in fp32, {:.1f} MB in bf16", megabytes(in.fp32),
                      megabytes(in.bf16));
  if (in.int8 < in.bf16)
    text += fmt::format("; with linear layers in int8 {:.1f} MB, in int4 {:.1f} MB",
                        megabytes(in.int8), megabytes(in.int4));
  text += "\n";
  if (const auto& q = model.quantization) {
    text += fmt::format("quantised: {} linear layers in {}; computed in {} by default\n",
                        model.quantized->size(), io::description(*q), own);
    text += fmt::format("keeps: {}\n", q->ignore.empty() ? "nothing" : listed(q->ignore, 20));
  }
  return text;
}

}  // namespace

void print_folder_info(const std::string& name, bool json) {
  const io::ModelFolder model = open_named_model(name, {.reads_tokenizer = false});
  const std::string own(model.quantization ? name_of(precision_of(model.own_quantization())) : "");
  write_output(json ? info_json(model, own) : info_text(model, own));
}

}  // namespace brrr::cli
