#include "cli/text_maker.h"

#include <algorithm>

#include "base/clock.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/model_option.h"
#include "machine/device.h"
#include "sampling/stop_strings.h"

namespace brrr::cli {

infer::Sampling sampling_of(const infer::GenerateOptions& o, const io::GenerationSettings& folder) {
  infer::Sampling s{.temperature = o.temperature,
                    .top_k = o.top_k,
                    .top_p = o.top_p,
                    .seed = static_cast<uint32_t>(o.seed),
                    .min_p = o.min_p,
                    .repetition_penalty = o.repetition_penalty,
                    .presence_penalty = o.presence_penalty,
                    .frequency_penalty = o.frequency_penalty};
  if (!o.was_given("temperature")) {
    if (folder.temperature) s.temperature = *folder.temperature;
    if (folder.samples == false) s.temperature = 0;
  }
  if (!o.was_given("top-k") && folder.top_k) s.top_k = *folder.top_k;
  if (!o.was_given("top-p") && folder.top_p) s.top_p = *folder.top_p;
  if (!o.was_given("min-p") && folder.min_p) s.min_p = *folder.min_p;
  if (!o.was_given("repetition-penalty") && folder.repetition_penalty)
    s.repetition_penalty = *folder.repetition_penalty;
  return s;
}

std::set<int32_t> text_ends(const io::ModelFolder& model) {
  std::set<int32_t> ends(model.generation.ends_of_text.begin(),
                         model.generation.ends_of_text.end());
  if (ends.empty() && model.tokenizer->end_of_text() >= 0)
    ends.insert(model.tokenizer->end_of_text());
  return ends;
}

std::vector<int32_t> begin_of_text(const io::ModelFolder& model) {
  if (model.generation.begin_of_text) return {*model.generation.begin_of_text};
  if (model.tokenizer->begin_of_text() >= 0) return {model.tokenizer->begin_of_text()};
  usage_error(
      "--prompt: expected text to continue, at least one character: {} has no begin-of-text token",
      model.folder.string());
}

io::ChatTemplate chat_template_of(const io::ModelFolder& model, bool with_tools) {
  std::optional<io::ChatTemplate> chat = io::ChatTemplate::read(model.folder, with_tools);
  if (!chat)
    user_error(
        "--chat: {} has no chat template, neither chat_template.jinja nor \"chat_template\" in "
        "tokenizer_config.json; without --chat the model continues a text",
        model.folder.string());
  return std::move(*chat);
}

int64_t most_new_tokens(const infer::GenerateOptions& options, const io::ModelFolder& model,
                        int64_t prompt) {
  const io::GenerationSettings& folder = model.generation;
  if (options.was_given("max-new-tokens")) return options.max_new_tokens;
  if (folder.max_new_tokens) return *folder.max_new_tokens;
  if (!folder.max_length) return options.max_new_tokens;
  if (prompt >= *folder.max_length)
    user_error(
        "{}: max_length is {} tokens, and the prompt has {}: nothing may follow it; give "
        "--max-new-tokens",
        (model.folder / io::kGenerationConfig).string(), *folder.max_length, prompt);
  return *folder.max_length - prompt;
}

TextMaker::TextMaker(const infer::GenerateOptions& options, const io::ModelFolder& model)
    : options_(options),
      model_(model),
      sampling_(sampling_of(options, model.generation)),
      ends_(text_ends(model)) {
  infer::validate(sampling_);
  const int64_t most = model.definition->sizes().context;
  if (options.context > most)
    usage_error("--context {}: the model's context is {}", options.context, counted(most, "token"));
  if (options.context == 1)
    usage_error("--context 1 leaves no room for a new token; expected 2 or more");
  for (const std::string& setting : model.generation.ignored)
    tell(
        "note: generation_config.json asks for {}, which is not supported: the text "
        "may differ\n",
        setting);
}

infer::Generator& TextMaker::generator_for(int64_t prompt, int64_t more) {
  const int64_t positions = std::min(prompt + more, context());
  if (!generator_ || positions > room_) {
    // A conversation grows by turns: twice the room, so that weights are seldom read again.
    room_ = generator_ ? std::min(std::max(positions, 2 * room_), context()) : positions;
    const Backend backend = machine::backend_for(options_.device);
    generator_.reset();
    generator_.emplace(
        model_.definition, backend, model_.weights,
        infer::GeneratorOptions{
            .use_cache = options_.cache,
            .precision = dtype_of_precision(options_.precision),
            .context = options_.context,
            .positions = room_,
            .memory = memory_of(options_, "fewer --max-new-tokens, a shorter prompt")});
  }
  return *generator_;
}

TextMaker::Text TextMaker::make(std::span<const int32_t> prompt, int64_t sample, bool echoes,
                                const std::function<void(std::string_view)>& on_text,
                                const std::function<bool()>& stops) {
  const int64_t given = std::ssize(prompt);
  if (given > context() && sample == 0)
    tell("note: the prompt has {}, {} {}: only the last {} are read\n", counted(given, "token"),
         context_name(), context(), infer::kept_at_the_end(context()));
  const int64_t most = most_new_tokens(options_, model_, given);
  infer::Generator& generator = generator_for(given, most);
  const Stopwatch watch;
  Text made;
  io::TextStream text(*model_.tokenizer);
  infer::StopStrings stop(options_.was_given("stop") ? options_.stop
                                                     : model_.generation.stop_strings);
  made.said = text.add(prompt);
  made.said += text.settle();
  if (echoes) on_text(made.said);
  const auto add = [&](std::string more) {
    on_text(more);
    made.text += more;
  };
  made.ids = generator.generate(
      prompt, most, infer::Sampler(sampling_, static_cast<uint32_t>(sample)), [&](int32_t token) {
        if (ends_.contains(token)) return false;
        add(stop.add(text.add(std::span(&token, 1))));
        return !stop.found() && !(stops && stops());
      });
  tokens_ += std::ssize(made.ids);
  const int64_t made_tokens = std::ssize(made.ids);
  if (!made.ids.empty() && ends_.contains(made.ids.back())) made.ids.pop_back();
  std::string rest = stop.add(text.finish());
  add(rest + stop.finish());
  seconds_ += watch.seconds();
  // After the last token nothing was read any more.
  const int64_t read = given > context() ? infer::kept_at_the_end(context()) : given;
  has_slid_ |= read + made_tokens - 1 > context();
  return made;
}

void TextMaker::say_notes() const {
  if (has_slid_)
    tell(
        "note: the text is longer than {} of {}, whose window slid: each time it was full, the "
        "older "
        "half was forgotten\n",
        context_name(), counted(context(), "token"));
}

double TextMaker::tokens_per_second() const {
  return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
}

}  // namespace brrr::cli
