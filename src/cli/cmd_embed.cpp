// brrr embed: a vector for each line of text, or the lines by their similarity to a text.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/embedder.h"
#include "cli/encoder_texts.h"
#include "formats/json_file.h"
#include "formats/npy.h"

namespace brrr::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// "0.1 -0.2 ...": the shortest decimals that read back as the same numbers.
std::string numbers_text(std::span<const float> numbers, const char* separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}

std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// How near two vectors are; more is nearer, so distances are negative.
double similarity_of(std::span<const float> a, std::span<const float> b, io::Similarity how) {
  double dot = 0, aa = 0, bb = 0, squares = 0, sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    dot += x * y;
    aa += x * x;
    bb += y * y;
    squares += (x - y) * (x - y);
    sum += std::abs(x - y);
  }
  switch (how) {
    case io::Similarity::dot:
      return dot;
    case io::Similarity::euclidean:
      return -std::sqrt(squares);
    case io::Similarity::manhattan:
      return -sum;
    case io::Similarity::cosine:
      break;
  }
  return dot / std::max(std::sqrt(aa) * std::sqrt(bb), 1e-24);
}

class EmbedCommand {
 public:
  explicit EmbedCommand(const infer::EmbedOptions& options)
      : options_(options),
        model_(open_embedder(options, TextRole::document)),
        prompt_(prompt_of(model_.settings, options, TextRole::document)),
        texts_(options, *model_.tokenizer,
               longest_text(options, model_.context, model_.settings.longest), model_.form) {
    if (options.truncate_dim > model_.vectors->width())
      usage_error("--truncate-dim {}: the model's vectors have {} numbers", options.truncate_dim,
                  model_.vectors->width());
    if (options.truncate_dim > 0) width_ = options.truncate_dim;
  }

  int run() {
    const Stopwatch watch;
    if (ranks()) query_ = query_vector();
    while (texts_.next()) {
      std::vector<io::ModelInput> inputs;
      for (size_t i = 0; i < texts_.lines().size(); ++i)
        inputs.push_back(
            behind_prompt(texts_.encode(i, prompt_ + texts_.lines()[i]), texts_.where(i), model_));
      tell_vectors(vectors_of(inputs, model_, [&](size_t row) { return texts_.where(row); }));
    }
    if (ranks()) print_ranked();
    const double seconds = watch.seconds() - texts_.seconds_waited();
    if (options_.json) {
      const io::Json rest{{"dimension", width_},
                          {"sentences", texts_.count()},
                          {"seconds", seconds},
                          {"sentences_per_second", rate_of(texts_.count(), seconds)},
                          {"process_peak_bytes", peak_resident_bytes()},
                          {"model", model_.path.string()}};
      list_.finish(rest.dump(-1, ' ', false, io::Json::error_handler_t::replace));
    }
    if (!options_.output.empty()) {
      io::write_npy(options_.output, file_, texts_.count(), width_);
      tell("{}: {} vectors of {} numbers\n", options_.output, texts_.count(), width_);
    }
    texts_.say_notes();
    say_rate(texts_.count(), seconds, model_.path);
    return 0;
  }

 private:
  bool ranks() const { return !options_.similarity.empty(); }

  static io::ModelInput behind_prompt(io::ModelInput input, const std::string& where,
                                      const OpenEmbedder& model) {
    const int64_t prompt = model.settings.task.prompt_tokens;
    if (prompt > 0 && std::ssize(input.ids) <= prompt)
      user_error(
          "{}: no token of the text is left behind its prompt, which has {}; use a larger "
          "--max-length",
          where, counted(prompt, "token"));
    return input;
  }

  /// The vectors one behind the other, shortened as --truncate-dim says.
  template <typename Where>
  std::vector<float> vectors_of(const std::vector<io::ModelInput>& inputs,
                                const OpenEmbedder& model, const Where& where) const {
    const auto width = static_cast<size_t>(width_);
    std::vector<float> vectors(inputs.size() * width);
    model.vectors->run(rows_of(inputs), [&](size_t row, std::span<const float> numbers) {
      check_finite(numbers, where(row));
      const auto to = std::span(vectors).subspan(row * width, width);
      std::ranges::copy(numbers.first(width), to.begin());
      if (width == numbers.size() || !model.settings.ends_normalized()) return;
      double squares = 0;
      for (const float x : to) squares += static_cast<double>(x) * static_cast<double>(x);
      const double length = std::max(std::sqrt(squares), 1e-12);
      for (float& x : to) x = static_cast<float>(static_cast<double>(x) / length);
    });
    return vectors;
  }

  std::vector<float> query_vector() {
    const std::string prompt = prompt_of(model_.settings, options_, TextRole::query);
    const std::string where = "--similarity";
    const auto vector = [&](const OpenEmbedder& model) {
      const std::vector<io::ModelInput> inputs{
          behind_prompt(texts_.encode_other(prompt + options_.similarity, where), where, model)};
      return vectors_of(inputs, model, [&](size_t) { return where; });
    };
    // A program leaves the tokens of one prompt out.
    if (model_.settings.pools_prompt || prompt == prompt_) return vector(model_);
    return vector(open_embedder(options_, TextRole::query));
  }

  void tell_vectors(std::vector<float> vectors) {
    const auto width = static_cast<size_t>(width_);
    if (!options_.output.empty()) {
      file_.insert(file_.end(), vectors.begin(), vectors.end());
      return;
    }
    for (size_t i = 0; i < texts_.lines().size(); ++i) {
      const auto vector = std::span<const float>(vectors).subspan(i * width, width);
      if (ranks())
        ranked_.push_back({similarity_of(query_, vector, model_.settings.similarity),
                           std::ssize(ranked_) + 1, texts_.lines()[i]});
      else if (options_.json)
        list_.print("[" + numbers_text(vector, ",") + "]");
      else if (options_.json_lines)
        fmt::print("{{\"text\":{},\"embedding\":[{}]}}\n", dumped(texts_.lines()[i]),
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
        list_.print(dumped(json));
      else if (options_.json_lines)
        fmt::print("{}\n", dumped(json));
      else
        fmt::print("{:.4f}\t{}\n", r.similarity, r.text);
    }
    flush_output();
  }

  const infer::EmbedOptions& options_;
  OpenEmbedder model_;
  std::string prompt_;  // before each line
  EncoderTexts texts_;
  int64_t width_ = model_.vectors->width();
  std::vector<float> query_;
  std::vector<Ranked> ranked_;
  std::vector<float> file_;  // of --output
  ResultList list_{options_.similarity.empty() ? "embeddings" : "texts"};
};

}  // namespace

int embed_main(const infer::EmbedOptions& options) {
  check_place(options.output);
  return EmbedCommand(options).run();
}

}  // namespace brrr::cli
