// brrr embed: a vector for each line of text.

#include <cstdio>

#include "base/clock.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/encoder_texts.h"
#include "cli/model_option.h"
#include "folders/sentence_folder.h"
#include "formats/json_file.h"
#include "formats/npy.h"

namespace brrr::cli {
namespace {

/// "0.1 -0.2 ...": the shortest decimals that read back as the same numbers.
std::string numbers_text(std::span<const float> numbers, const char* separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}

}  // namespace

int embed_main(const infer::EmbedOptions& options) {
  check_place(options.output);
  if (options.json && !options.output.empty())
    usage_error("expected --json or --output, not both: each says where the vectors go");
  // Older folders of sentence-transformers have the encoder in a folder of its own.
  std::error_code ignored;
  const bool has_modules = fs::exists(fs::path(options.model) / "modules.json", ignored);
  const fs::path folder = has_modules ? fs::path(options.model) : find_named_model(options.model);
  io::SentenceSettings settings = io::read_sentence_settings(folder);
  for (const auto& [name, pooling] : models::poolings())
    if (name == options.pooling) settings.task.pooling = {pooling};
  if (!options.normalize) settings.task.normalize = false;
  const io::ModelFolder model = io::open_model(settings.model, {.task = settings.task});
  if (settings.lowercase && model.tokenizer->encode("A") != model.tokenizer->encode("a"))
    user_error(
        "{}: do_lower_case = true is not supported with a case-sensitive tokenizer; expected false",
        (folder / "sentence_bert_config.json").string());
  if (!settings.is_said && options.pooling.empty())
    tell("note: {} does not say how to pool token vectors: using their mean (see --pooling)\n",
         folder.string());
  infer::Encoder encoder = encoder_of(model, options);
  EncoderTexts texts(options, *model.tokenizer, longest_text(options, model, settings.longest));

  const Stopwatch watch;
  const auto width = model.definition->sizes().width * std::ssize(settings.task.pooling);
  std::vector<float> file;  // of --output
  ResultList list("embeddings");
  while (texts.next()) {
    std::vector<io::ModelInput> inputs;
    for (size_t i = 0; i < texts.lines().size(); ++i)
      inputs.push_back(texts.encode(i, settings.prompt + texts.lines()[i]));
    std::vector<float> vectors(inputs.size() * static_cast<size_t>(width));
    encoder.run(rows_of(inputs), [&](size_t row, std::span<const float> numbers) {
      check_finite(numbers, texts.where(row));
      std::copy(numbers.begin(), numbers.end(),
                vectors.begin() + std::ssize(numbers) * static_cast<int64_t>(row));
    });
    if (!options.output.empty()) {
      file.insert(file.end(), vectors.begin(), vectors.end());
      continue;
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto vector =
          std::span(vectors).subspan(i * static_cast<size_t>(width), static_cast<size_t>(width));
      if (options.json)
        list.print("[" + numbers_text(vector, ",") + "]");
      else
        fmt::print("{}\n", numbers_text(vector, " "));
    }
    flush_output();
  }
  const double seconds = watch.seconds();
  if (options.json) {
    const io::Json rest{{"dimension", width},
                        {"sentences", texts.count()},
                        {"seconds", seconds},
                        {"sentences_per_second", rate_of(texts.count(), seconds)},
                        {"process_peak_bytes", resident_memory().peak},
                        {"model", model.folder.string()}};
    list.finish(rest.dump(-1, ' ', false, io::Json::error_handler_t::replace));
  }
  if (!options.output.empty()) {
    io::write_npy(options.output, file, texts.count(), width);
    tell("{}: {} vectors of {} numbers\n", options.output, texts.count(), width);
  }
  texts.say_notes();
  say_rate(texts.count(), seconds, model);
  return 0;
}

}  // namespace brrr::cli
