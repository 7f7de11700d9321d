// brrr embed: a vector for each line of text, or the lines by their similarity to a text.

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "cli/pictures/picture_verbs.h"
#include "cli/texts/text_vectors.h"
#include "formats/json_file.h"
#include "formats/npy.h"

namespace brrr::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// "0.1 -0.2 ...": the shortest decimals that read back as the same numbers.
std::string numbers_text(std::span<const float> numbers, const char* separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}

class EmbedCommand {
 public:
  EmbedCommand(const infer::EmbedOptions& options, Communicator* communicator)
      : options_(options), communicator_(communicator), vectors_(options, communicator) {}

  int run() {
    EncoderTexts& texts = vectors_.texts();
    const fs::path& model = vectors_.model().path;
    check_same_vectors();
    const Stopwatch watch;
    if (ranks()) query_ = vectors_.of_query(options_.similarity, "--similarity");
    while (texts.next()) tell_vectors(vectors_.of_lines());
    if (ranks()) print_ranked();
    const double seconds = watch.seconds() - texts.seconds_waited();
    if (options_.json) {
      const io::Json rest{{"dimension", vectors_.width()},
                          {"sentences", texts.count()},
                          {"seconds", seconds},
                          {"sentences_per_second", rate_of(texts.count(), seconds)},
                          {"process_peak_bytes", peak_resident_bytes()},
                          {"model", model.string()}};
      list_.finish(io::json_line(rest));
    }
    if (!options_.output.empty() && is_first_rank(communicator_)) {
      io::write_npy(options_.output, file_, texts.count(), vectors_.width());
      tell("{}: {} vectors of {} numbers\n", options_.output, texts.count(), vectors_.width());
    }
    texts.say_notes();
    const auto& folder = vectors_.model().folder;
    say_rate(texts.count(), seconds, folder ? infer::title_of(*folder) : model.string());
    return 0;
  }

 private:
  /// Compares what the ranks opened: a folder, or an ONNX file. A table of token vectors needs no
  /// comparison, because rank 0 alone uses it.
  void check_same_vectors() {
    if (vectors_.model().folder) {
      check_same_models(communicator_, *vectors_.model().folder, options_.device);
    } else if (fs::is_regular_file(vectors_.model().path)) {
      check_same_files(communicator_, "weights",
                       [&] { return sum_of_file(vectors_.model().path).crc32c; });
    }
  }

  bool ranks() const { return !options_.similarity.empty(); }

  void tell_vectors(std::vector<float> vectors) {
    if (!is_first_rank(communicator_)) return;
    const auto width = static_cast<size_t>(vectors_.width());
    const std::vector<std::string>& lines = vectors_.texts().lines();
    if (!options_.output.empty()) {
      file_.insert(file_.end(), vectors.begin(), vectors.end());
      return;
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto vector = std::span<const float>(vectors).subspan(i * width, width);
      if (ranks())
        ranked_.push_back({similarity_of(query_, vector, vectors_.model().settings.similarity),
                           std::ssize(ranked_) + 1, lines[i]});
      else if (options_.json)
        list_.print("[" + numbers_text(vector, ",") + "]");
      else if (options_.json_lines)
        fmt::print("{{\"text\":{},\"embedding\":[{}]}}\n", io::json_line(OrderedJson(lines[i])),
                   numbers_text(vector, ","));
      else
        fmt::print("{}\n", numbers_text(vector, " "));
    }
    flush_output();
  }

  struct Ranked {
    double similarity;
    int64_t line;  // from 1, over all files
    std::string text;
  };

  void print_ranked() {
    std::ranges::stable_sort(ranked_, std::greater<>(), &Ranked::similarity);
    for (const Ranked& r : ranked_) {
      const OrderedJson json{{"similarity", r.similarity}, {"line", r.line}, {"text", r.text}};
      if (options_.json)
        list_.print(io::json_line(json));
      else if (options_.json_lines)
        fmt::print("{}\n", io::json_line(json));
      else
        fmt::print("{:.4f}\t{}\n", r.similarity, r.text);
    }
    flush_output();
  }

  const infer::EmbedOptions& options_;
  Communicator* communicator_;
  TextVectors vectors_;
  std::vector<float> query_;
  std::vector<Ranked> ranked_;
  std::vector<float> file_;  // of --output
  ResultList list_{options_.similarity.empty() ? "embeddings" : "texts"};
};

}  // namespace

int embed_main(const infer::EmbedOptions& options) {
  if (!options.images.empty()) return embed_pictures(options);
  return share_work(
      options.threads,
      [&](Communicator* communicator) {
        if (is_first_rank(communicator)) check_place(options.output);
        return std::make_unique<EmbedCommand>(options, communicator);
      },
      [](EmbedCommand& command) { return command.run(); });
}

}  // namespace brrr::cli
