// brrr embed: a vector for each line of text.

#include <cstdio>

#include "base/clock.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/embedder.h"
#include "cli/encoder_texts.h"
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
  const OpenEmbedder model = open_embedder(options);
  EncoderTexts texts(options, *model.tokenizer,
                     longest_text(options, model.context, model.settings.longest));

  const Stopwatch watch;
  const int64_t width = model.vectors->width();
  std::vector<float> file;  // of --output
  ResultList list("embeddings");
  while (texts.next()) {
    std::vector<io::ModelInput> inputs;
    for (size_t i = 0; i < texts.lines().size(); ++i)
      inputs.push_back(texts.encode(i, model.settings.prompt + texts.lines()[i]));
    std::vector<float> vectors(inputs.size() * static_cast<size_t>(width));
    model.vectors->run(rows_of(inputs), [&](size_t row, std::span<const float> numbers) {
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
  const double seconds = watch.seconds() - texts.seconds_waited();
  if (options.json) {
    const io::Json rest{{"dimension", width},
                        {"sentences", texts.count()},
                        {"seconds", seconds},
                        {"sentences_per_second", rate_of(texts.count(), seconds)},
                        {"process_peak_bytes", resident_memory().peak},
                        {"model", model.path.string()}};
    list.finish(rest.dump(-1, ' ', false, io::Json::error_handler_t::replace));
  }
  if (!options.output.empty()) {
    io::write_npy(options.output, file, texts.count(), width);
    tell("{}: {} vectors of {} numbers\n", options.output, texts.count(), width);
  }
  texts.say_notes();
  say_rate(texts.count(), seconds, model.path);
  return 0;
}

}  // namespace brrr::cli
