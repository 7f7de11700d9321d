// brrr fill-mask: the likeliest tokens for the masks of each line of text.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/texts/encoder_texts.h"
#include "formats/json_file.h"

namespace brrr::cli {

using infer::check_finite;
using infer::encoder_of;
using infer::longest_text;
namespace {

using io::Json;

/// How people write a mask, whatever the model calls it.
constexpr std::string_view kMaskWords[] = {"[MASK]", "<mask>"};

std::string with_own_mask(std::string text, const std::string& own) {
  for (const std::string_view word : kMaskWords) {
    if (word == own) continue;
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += own.size())
      text.replace(at, word.size(), own);
  }
  return text;
}

struct Guess {
  int32_t token;
  double probability;
};

std::vector<Guess> likeliest(std::span<const float> logits, int64_t count) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(count, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<Guess> guesses;
  for (auto at = order.begin(); at != end; ++at)
    guesses.push_back({*at, std::exp(logits[static_cast<size_t>(*at)] - top) / sum});
  return guesses;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? text : text.substr(first);
}

class MaskFiller {
 public:
  MaskFiller(const infer::FillMaskOptions& options, const io::ModelFolder& model)
      : options_(options),
        model_(model),
        tokenizer_(*model.tokenizer),
        mask_(tokenizer_.mask_token()),
        mask_text_(tokenizer_.decode(std::span(&mask_, 1))),
        encoder_(encoder_of(model, options)),
        texts_(options, tokenizer_, longest_text(options, model.definition->sizes().context)) {}

  int run() {
    const Stopwatch watch;
    while (texts_.next()) {
      // Guesses are kept until all texts before theirs are printed.
      const size_t lines = texts_.lines().size();
      const size_t at_once =
          static_cast<size_t>(std::max<int64_t>(1, kMostGuesses / options_.top_k));
      for (size_t first = 0; first < lines; first += at_once)
        fill(first, std::min(lines - first, at_once));
      flush_output();
    }
    const double seconds = watch.seconds() - texts_.seconds_waited();
    if (options_.json) {
      const Json rest{{"texts", texts_.count()},
                      {"seconds", seconds},
                      {"mask", mask_text_},
                      {"process_peak_bytes", peak_resident_bytes()},
                      {"model", model_.folder.string()}};
      list_.finish(io::json_line(rest));
    }
    texts_.say_notes();
    say_rate(texts_.count(), seconds, infer::title_of(model_));
    return 0;
  }

 private:
  static constexpr int64_t kMostGuesses = 1 << 18;

  struct Text {
    io::ModelInput input;
    std::vector<int32_t> places;
    std::vector<std::vector<Guess>> guesses;  // for each place
  };

  Text text_of(size_t line) {
    Text text;
    text.input = texts_.encode(line, with_own_mask(texts_.lines()[line], mask_text_));
    const std::vector<int32_t>& ids = text.input.ids;
    for (size_t t = 0; t < ids.size(); ++t)
      if (ids[t] == mask_) text.places.push_back(static_cast<int32_t>(t));
    if (text.places.empty())
      user_error("{}: the text has no {}{}; write one where a token should be filled in",
                 texts_.where(line), mask_text_,
                 text.input.left_out > 0 ? " among the tokens that are read" : "");
    return text;
  }

  void fill(size_t first, size_t count) {
    std::vector<Text> list;
    for (size_t i = 0; i < count; ++i) list.push_back(text_of(first + i));
    std::vector<infer::EncoderRow> rows;
    for (const Text& text : list) rows.push_back({text.input.ids, text.input.types, text.places});
    encoder_.run(rows, [&](size_t row, std::span<const float> logits) {
      check_finite(logits, texts_.where(first + row));
      const size_t places = list[row].places.size(), vocabulary = logits.size() / places;
      for (size_t p = 0; p < places; ++p)
        list[row].guesses.push_back(
            likeliest(logits.subspan(p * vocabulary, vocabulary), options_.top_k));
    });
    for (const Text& text : list) print(text);
  }

  /// The text with `token` at a place; masks at other places stay.
  std::string filled(const Text& text, int32_t place, int32_t token) const {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < text.input.ids.size(); ++t) {
      const int32_t id = static_cast<int32_t>(t) == place ? token : text.input.ids[t];
      if (id == mask_ || !tokenizer_.is_special(id)) ids.push_back(id);
    }
    return trimmed(tokenizer_.decode(ids));
  }

  void print(const Text& text) {
    Json masks = Json::array();
    for (size_t p = 0; p < text.places.size(); ++p) {
      Json guesses = Json::array();
      if (!options_.json && text.places.size() > 1) fmt::print("mask {}\n", p + 1);
      for (const Guess& guess : text.guesses[p]) {
        const std::string token = guess.token < tokenizer_.vocab_size()
                                      ? trimmed(tokenizer_.decode(std::span(&guess.token, 1)))
                                      : "";
        const std::string sequence = filled(text, text.places[p], guess.token);
        if (options_.json)
          guesses.push_back({{"token", guess.token},
                             {"token_str", token},
                             {"score", guess.probability},
                             {"sequence", sequence}});
        else
          fmt::print("{:.4f}\t{}\t{}\n", guess.probability, token, sequence);
      }
      masks.push_back(std::move(guesses));
    }
    if (options_.json)
      list_.print(io::json_line(masks));
    else
      fmt::print("\n");
  }

  const infer::FillMaskOptions& options_;
  const io::ModelFolder& model_;
  const io::Tokenizer& tokenizer_;
  int32_t mask_;
  std::string mask_text_;
  infer::Encoder encoder_;
  EncoderTexts texts_;
  ResultList list_{"results"};
};

}  // namespace

int fill_mask_main(const infer::FillMaskOptions& options) {
  const io::ModelFolder model =
      open_named_model(options.model, {.adapters = io::parse_adapters(options.adapter)});
  const models::Head head = model.definition->task().head;
  if (head != models::Head::masked_token)
    user_error("{} cannot fill masks: its model is for {}", infer::title_of(model),
               models::description(head));
  if (model.tokenizer->mask_token() < 0)
    user_error("{}: its tokenizer has no mask token", model.folder.string());
  return MaskFiller(options, model).run();
}

}  // namespace brrr::cli
