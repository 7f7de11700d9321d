// brrr fill-mask: the likeliest tokens for the masks of each line of text.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/encoder_texts.h"
#include "cli/model_option.h"
#include "formats/json_file.h"

namespace brrr::cli {
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

}  // namespace

int fill_mask_main(const infer::FillMaskOptions& options) {
  const io::ModelFolder model = open_named_model(options.model);
  const models::Head head = model.definition->task().head;
  if (head != models::Head::masked_token)
    user_error("{} cannot fill masks: its model is for {}", model.folder.string(),
               models::description(head));
  const io::Tokenizer& tokenizer = *model.tokenizer;
  const int32_t mask = tokenizer.mask_token();
  if (mask < 0) user_error("{}: its tokenizer has no mask token", model.folder.string());
  const std::string mask_text = tokenizer.decode(std::span(&mask, 1));
  infer::Encoder encoder = encoder_of(model, options);
  EncoderTexts texts(options, tokenizer, longest_text(options, model.definition->sizes().context));

  const Stopwatch watch;
  ResultList results("results");
  while (texts.next()) {
    for (size_t i = 0; i < texts.lines().size(); ++i) {
      const io::ModelInput input = texts.encode(i, with_own_mask(texts.lines()[i], mask_text));
      std::vector<int32_t> places;
      for (size_t t = 0; t < input.ids.size(); ++t)
        if (input.ids[t] == mask) places.push_back(static_cast<int32_t>(t));
      if (places.empty())
        user_error("{}: the text has no {}{}; write one where a token should be filled in",
                   texts.where(i), mask_text,
                   input.left_out > 0 ? " among the tokens that are read" : "");
      const std::span<const float> logits = encoder.logits_at({input.ids, input.types}, places);
      check_finite(logits, texts.where(i));
      const size_t vocabulary = logits.size() / places.size();
      Json masks = Json::array();
      for (size_t p = 0; p < places.size(); ++p) {
        Json list = Json::array();
        if (!options.json && places.size() > 1) fmt::print("mask {}\n", p + 1);
        for (const Guess& guess :
             likeliest(logits.subspan(p * vocabulary, vocabulary), options.top_k)) {
          std::vector<int32_t> filled;
          for (size_t t = 0; t < input.ids.size(); ++t) {
            const int32_t id = static_cast<int32_t>(t) == places[p] ? guess.token : input.ids[t];
            if (id == mask || !tokenizer.is_special(id)) filled.push_back(id);
          }
          const std::string token = guess.token < tokenizer.vocab_size()
                                        ? trimmed(tokenizer.decode(std::span(&guess.token, 1)))
                                        : "";
          const std::string sequence = trimmed(tokenizer.decode(filled));
          if (options.json)
            list.push_back({{"token", guess.token},
                            {"token_str", token},
                            {"score", guess.probability},
                            {"sequence", sequence}});
          else
            fmt::print("{:.4f}\t{}\t{}\n", guess.probability, token, sequence);
        }
        masks.push_back(std::move(list));
      }
      if (options.json)
        results.print(masks.dump(-1, ' ', false, Json::error_handler_t::replace));
      else
        fmt::print("\n");
    }
    flush_output();
  }
  const double seconds = watch.seconds() - texts.seconds_waited();
  if (options.json) {
    const Json rest{{"texts", texts.count()},
                    {"seconds", seconds},
                    {"mask", mask_text},
                    {"process_peak_bytes", peak_resident_bytes()},
                    {"model", model.folder.string()}};
    results.finish(rest.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  texts.say_notes();
  say_rate(texts.count(), seconds, model.folder);
  return 0;
}

}  // namespace brrr::cli
