// brrr generate: continues a prompt, or answers the turns of a chat, token by token.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/exported_decoder.h"
#include "cli/many_texts.h"
#include "cli/model_option.h"
#include "cli/runnable_option.h"
#include "formats/json_file.h"
#include "infer/open/text_maker.h"
#include "sampling/prompt.h"

namespace brrr::cli {

using infer::begin_of_text;
using infer::chat_template_of;
using infer::TextMaker;
namespace {

/// The tokens that the model continues. Throws UserError (exit 2) for an empty prompt to a model
/// without a begin-of-text token.
std::vector<int32_t> prompt_of(const infer::GenerateOptions& o, const io::ModelFolder& model) {
  const io::Tokenizer& tokenizer = *model.tokenizer;
  if (!o.has_prompt()) return infer::default_prompt(tokenizer);
  if (!o.prompt.empty()) return tokenizer.encode(o.prompt, {.add_special_tokens = true});
  return begin_of_text(model);
}

/// Prints concurrently generated samples in order. It streams the first unfinished sample and
/// buffers the text of later ones.
class SamplePrinter {
 public:
  explicit SamplePrinter(int64_t samples) : held_(static_cast<size_t>(samples)) {}

  void add(int64_t sample, std::string_view text, bool ends) {
    Held& held = held_[static_cast<size_t>(sample)];
    held.text += text;
    held.has_ended = ends;
    while (shown_ < held_.size()) {
      Held& next = held_[shown_];
      if (held_.size() > 1 && !next.has_begun)
        write_output(fmt::format("{}--- {} ---\n", shown_ > 0 ? "\n" : "", shown_ + 1));
      next.has_begun = true;
      write_output(std::exchange(next.text, ""));
      if (!next.has_ended) break;
      write_output("\n");
      ++shown_;
    }
    flush_output();
  }

 private:
  struct Held {
    std::string text;
    bool has_begun = false, has_ended = false;
  };
  std::vector<Held> held_;
  size_t shown_ = 0;
};

/// Makes the samples of one prompt and prints them. `echoes`: with the prompt before them.
void print_samples(const infer::GenerateOptions& options, const io::ModelFolder& model,
                   TextMaker& maker, const std::vector<int32_t>& prompt, bool echoes) {
  const bool stream = options.stream && !options.json, many = options.num_samples > 1;
  SamplePrinter printer(options.num_samples);
  const auto made = maker.make(prompt, {.first = 0, .count = options.num_samples}, echoes,
                               [&](int64_t sample, std::string_view text, bool ends) {
                                 if (stream) printer.add(sample, text, ends);
                               });
  nlohmann::json texts, ids;
  for (const TextMaker::Text& each : made) {
    texts.push_back(echoes ? each.said + each.text : each.text);
    ids.push_back(each.ids);
  }
  if (options.json) {
    nlohmann::json j;
    j["text"] = many ? texts : texts[0];
    j["ids"] = many ? ids : ids[0];
    j["prompt"] = made[0].said;
    j["prompt_ids"] = prompt;
    j["seed"] = options.seed;
    j["tokens"] = maker.tokens();
    j["tokens_per_second"] = maker.tokens_per_second();
    j["process_peak_bytes"] = peak_resident_bytes();
    j["model"] = model.folder.string();
    if (const auto adapters = infer::adapter_titles(model); !adapters.empty())
      j["adapters"] = adapters;
    fmt::print("{}\n", io::json_line(j));
  } else if (!stream) {
    for (size_t i = 0; i < texts.size(); ++i)
      fmt::print("{}{}\n", many ? fmt::format("--- {} ---\n", i + 1) : "",
                 texts[i].get<std::string>());
  }
}

}  // namespace

int generate_main(const infer::GenerateOptions& options) {
  if (is_module_file(options.model)) return generate_with_file(options);
  const io::ModelFolder model =
      open_named_model(options.model, {.adapters = io::parse_adapters(options.adapter)});
  if (!options.prompts.empty()) return generate_many(options, model);
  std::optional<io::ChatTemplate> chat;
  if (options.chat) chat = chat_template_of(options, model);
  TextMaker maker(options, model);
  Conversation conversation(options, model, chat ? &*chat : nullptr);
  if (options.reads_turns())
    converse(maker, conversation, options.has_prompt() ? options.prompt : "", options);
  else
    print_samples(options, model, maker,
                  !chat                  ? prompt_of(options, model)
                  : options.has_prompt() ? conversation.ask(options.prompt)
                                         : conversation.given(),
                  !chat);
  flush_output();
  maker.say_notes();
  if (options.json) return 0;
  tell("{} in {}, {:.0f} tokens/s ({})\n", counted(maker.tokens(), "token"),
       duration_text(maker.seconds()), maker.tokens_per_second(), infer::title_of(model));
  return 0;
}

}  // namespace brrr::cli
