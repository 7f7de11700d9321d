#include "cli/export_gguf.h"

#include <fmt/ranges.h>

#include "base/env.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/model_option.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/gguf/gguf_export.h"
#include "folders/sentence_folder.h"

namespace brrr::cli {
namespace {

/// The model with its tokenizer; an encoder with the pooling that its folder says.
io::ModelFolder open_for_gguf(const std::string& name,
                              const std::vector<io::ChosenAdapter>& adapters) {
  const fs::path folder = find_named_model(name);
  const models::ModelPtr definition = io::read_definition(folder);
  refuse_pictures(*definition, folder, "written as a GGUF file");
  const models::Head head = definition->task().head;
  if (head != models::Head::embedding && head != models::Head::masked_token)
    return io::merged(io::open_model(folder, {.adapters = adapters}));
  const io::SentenceSettings settings = io::read_sentence_settings(folder);
  if (!settings.layers.empty() || settings.table)
    user_error(
        "{}: its vectors are made by modules besides the encoder (Dense, LayerNorm, a table of "
        "token vectors), which a GGUF file cannot hold",
        (folder / "modules.json").string());
  if (head == models::Head::masked_token)
    tell("note: the head that fills masks is left out, as llama.cpp has none\n");
  return io::merged(io::open_model(
      settings.model, {.task = settings.task, .head = io::TaskHead::fresh, .adapters = adapters}));
}

/// Throws UserError where the disk has no room for the file.
void check_free(const std::string& output, uint64_t bytes) {
  std::error_code error;
  const fs::path parent = fs::absolute(output).parent_path();
  const uint64_t available = fs::space(parent, error).available;
  if (!error && bytes > available)
    user_error("{} needs {}, and {} are free at {}; free some space or take a smaller --type",
               output, format_bytes(static_cast<double>(bytes)),
               format_bytes(static_cast<double>(available)), parent.string());
}

}  // namespace

std::string gguf_types_text() { return fmt::format("{}", fmt::join(io::gguf_file_kinds(), ", ")); }

int export_gguf(const std::string& model, const std::vector<std::string>& adapters,
                const std::string& type, const std::string& output) {
  const auto given = io::gguf_file_kind(type);
  if (!type.empty() && !given)
    usage_error("--type: expected one of {}; got '{}'", gguf_types_text(), type);
  const io::ModelFolder folder = open_for_gguf(model, io::parse_adapters(adapters));
  const io::GgufFileKind kind = given ? *given : io::GgufExport::stored_kind(folder);
  const io::GgufExport plan(folder, kind);
  for (const std::string& note : plan.notes()) tell("note: {}\n", note);
  if (folder.has_integers() && io::is_quantised(kind))
    tell("note: the weights are quantised already; what is quantised again loses more\n");
  tell("writing {}, {} bytes ({}): {}\n", output, plan.bytes(), io::name_of(kind), plan.types());
  check_free(output, plan.bytes());
  plan.write(output);
  const bool makes_text = folder.definition->task().head == models::Head::next_token;
  tell("wrote {} (GGUF, {}), {:.1f} MB; try: {} {} -m {}\n", output, io::name_of(kind),
       static_cast<double>(fs::file_size(output)) / 1e6, env::program(),
       makes_text ? "generate" : "embed", shell_word(output));
  return 0;
}

}  // namespace brrr::cli
