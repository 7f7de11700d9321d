#include "folders/quantized/folder_files.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "folders/generation_settings.h"
#include "folders/model_folder.h"
#include "folders/quantized/compressed_tensors.h"
#include "formats/gguf/gguf_file.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

constexpr uint64_t kLargestCopy = uint64_t{1} << 28;

/// A pattern that has the meaning of the text alone.
std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(".^$|()[]{}*+?\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

void copy_if_there(const fs::path& from, const fs::path& to, const fs::path& name) {
  std::error_code ignored;
  if (!fs::is_regular_file(from / name, ignored)) return;
  if (name.has_parent_path()) create_folder(to / name.parent_path());
  write_file_atomically(to / name, read_file(from / name, kLargestCopy));
}

/// The folders of the modules behind the encoder, as modules.json names them.
std::vector<fs::path> module_folders(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  const fs::path path = folder / "modules.json";
  if (!fs::is_regular_file(path, ignored)) return folders;
  const Json modules = parse_json(read_file(path), path.string());
  if (!modules.is_array()) return folders;
  for (const Json& module : modules) {
    const Json name = module.is_object() ? module.value("path", Json()) : Json();
    // A folder beside the file: a path could lead anywhere.
    if (name.is_string() && !name.get<std::string>().empty() &&
        fs::path(name.get<std::string>()).filename() == name.get<std::string>())
      folders.emplace_back(name.get<std::string>());
  }
  return folders;
}

}  // namespace

void copy_texts(const fs::path& from, const fs::path& to) {
  for (const std::string_view name : tokenizer_file_names()) copy_if_there(from, to, name);
  constexpr std::array kNames = {"chat_template.jinja",
                                 "chat_template.json",
                                 "added_tokens.json",
                                 "modules.json",
                                 "sentence_bert_config.json",
                                 "config_sentence_transformers.json",
                                 "LICENSE"};
  for (const char* name : kNames) copy_if_there(from, to, name);
  copy_if_there(from, to, kGenerationConfig);
  copy_if_there(from, to, kPreprocessorConfig);
  for (const fs::path& folder : module_folders(from))
    for (const char* name : {"config.json", "model.safetensors"})
      copy_if_there(from, to, folder / name);
}

std::vector<std::string> kept_layers(const models::Model& model, const WeightSource& files,
                                     const std::set<std::string>& quantised) {
  const models::FileNames names = model.file_names();
  std::set<std::string> tables;
  for (const models::ParameterInfo& p : model.parameters())
    if (p.is_table || p.place == "embed") tables.insert(p.name);
  std::set<std::string> kept;
  files.each([&](const TensorView& t) {
    const std::string_view name = t.name;
    if (t.shape.rank() != 2 || !name.ends_with(kWeightSuffix) || quantised.contains(t.name)) return;
    const std::string inner(name.starts_with(names.prefix) ? name.substr(names.prefix.size())
                                                           : name);
    if (tables.contains(t.name) || tables.contains(names.prefix + inner)) return;
    const bool is_trunk =
        !names.prefix.empty() && std::ranges::any_of(names.trunk, [&](const std::string& start) {
          return inner.starts_with(start);
        });
    const std::string layer = inner.substr(0, inner.size() - kWeightSuffix.size());
    kept.insert(is_trunk ? fmt::format("re:({})?{}$", escaped(names.prefix), escaped(layer))
                         : std::string(name.substr(0, name.size() - kWeightSuffix.size())));
  });
  if (names.tied) {
    const std::string& head = names.tied->first;
    kept.insert(head.ends_with(kWeightSuffix) ? head.substr(0, head.size() - kWeightSuffix.size())
                                              : head);
  }
  return {kept.begin(), kept.end()};
}

void write_quantized_folder(const fs::path& to, const fs::path& from,
                            std::span<const TensorView> tensors,
                            const FolderQuantization& quantization) {
  remove_model_checksums(to);
  const fs::path config = from / "config.json";
  const std::string text =
      is_gguf_file(from) ? with_quantization(read_definition(from)->config_json(DType::bf16),
                                             quantization, from.string())
                         : with_quantization(read_file(config), quantization, config.string());
  if (is_gguf_file(from))
    load_tokenizer(from)->save(to);
  else
    copy_texts(from, to);
  // transformers before version 5 refuses a file that does not say which framework its layout is
  // of.
  write_safetensors(to / kSingleWeights, tensors, {{"format", "pt"}});
  write_file_atomically(to / "config.json", text);
  write_model_checksums(to);
}

}  // namespace brrr::io
