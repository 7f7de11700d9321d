#include "infer/open/text_maker.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/human.h"
#include "base/system_text.h"
#include "base/tell.h"
#include "formats/gguf/gguf_file.h"
#include "infer/beam_search.h"
#include "infer/open/named_model.h"
#include "machine/device.h"
#include "models/causal_lm.h"
#include "runtime/attention_support.h"
#include "sampling/continuation.h"

namespace brrr::infer {

Sampling sampling_of(const GenerateOptions& o, const io::GenerationSettings& folder) {
  Sampling s{.temperature = o.temperature,
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

namespace {

/// What a chat template writes behind an answer, and the special token that it begins with.
struct EndOfAnswer {
  std::string text;
  std::optional<int32_t> token;
};

/// An adapter answers in the form that it was trained with.
std::optional<io::ChatTemplate> find_chat_template(const GenerateOptions& o,
                                                   const io::ModelFolder& model, bool with_tools) {
  std::vector<fs::path> folders{model.folder};
  for (const io::ChosenAdapter& adapter : io::parse_adapters(o.adapter))
    folders.push_back(adapter.folder);
  if (folders.size() == 2) std::swap(folders[0], folders[1]);
  for (const fs::path& folder : folders)
    if (auto chat = io::ChatTemplate::read(folder, with_tools)) return chat;
  return std::nullopt;
}

EndOfAnswer end_of_answer(const GenerateOptions& o, const io::ModelFolder& model) {
  const auto chat = find_chat_template(o, model, false);
  if (!chat) return {};
  EndOfAnswer end{chat->end_of_answer(), std::nullopt};
  const std::vector<int32_t> ids = model.tokenizer->encode(system_text::trimmed(end.text));
  if (!ids.empty() && model.tokenizer->is_special(ids[0])) end.token = ids[0];
  return end;
}

}  // namespace

std::set<int32_t> text_ends(const GenerateOptions& options, const io::ModelFolder& model) {
  const bool is_chat = options.chat;
  std::set<int32_t> ends(model.generation.ends_of_text.begin(),
                         model.generation.ends_of_text.end());
  if ((ends.empty() || is_chat) && model.tokenizer->end_of_text() >= 0)
    ends.insert(model.tokenizer->end_of_text());
  if (!is_chat) return ends;
  const EndOfAnswer end = end_of_answer(options, model);
  if (end.token) ends.insert(*end.token);
  return ends;
}

std::vector<std::string> stop_strings_of(const GenerateOptions& options,
                                         const io::ModelFolder& model,
                                         const std::optional<std::vector<std::string>>& own) {
  std::vector<std::string> stop = own                         ? *own
                                  : options.was_given("stop") ? options.stop
                                                              : model.generation.stop_strings;
  if (!options.chat) return stop;
  const EndOfAnswer end = end_of_answer(options, model);
  if (!end.token && !end.text.empty()) stop.push_back(end.text);
  return stop;
}

std::vector<int32_t> begin_of_text(const io::ModelFolder& model) {
  if (model.generation.begin_of_text) return {*model.generation.begin_of_text};
  if (model.tokenizer->begin_of_text() >= 0) return {model.tokenizer->begin_of_text()};
  usage_error(
      "--prompt: expected text to continue, at least one character: {} has no begin-of-text token",
      model.folder.string());
}

io::ChatTemplate chat_template_of(const GenerateOptions& options, const io::ModelFolder& model) {
  std::optional<io::ChatTemplate> chat = find_chat_template(options, model, !options.tools.empty());
  if (!chat && io::is_gguf_file(model.folder))
    user_error(
        "--chat: {} has no chat template (tokenizer.chat_template); without --chat the model "
        "continues a text",
        model.folder.string());
  if (!chat)
    user_error(
        "--chat: {} has no chat template, neither chat_template.jinja nor \"chat_template\" in "
        "tokenizer_config.json; without --chat the model continues a text",
        model.folder.string());
  return std::move(*chat);
}

int64_t most_new_tokens(const GenerateOptions& options, const io::ModelFolder& model,
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

GrowingText::GrowingText(const io::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                         const std::set<int32_t>& ends, std::vector<std::string> stop)
    : ends_(ends), stream_(tokenizer), stop_(std::move(stop)) {
  prompt_ = stream_.add(prompt);
  prompt_ += stream_.settle();
}

std::string GrowingText::add(int32_t token) {
  if (ends_.contains(token)) {
    has_ended_ = true;
    return "";
  }
  ids_.push_back(token);
  std::string more = stop_.add(stream_.add(std::span(&token, 1)));
  text_ += more;
  return more;
}

std::string GrowingText::finish() {
  std::string rest = stop_.add(stream_.finish());
  rest += stop_.finish();
  text_ += rest;
  return rest;
}

void add_until_stop(GrowingText& text, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (text.has_ended()) return;
    text.add(token);
  }
}

void check_context(const GenerateOptions& options, const io::ModelFolder& model) {
  const int64_t most = models::longest_generated_text(model.definition->sizes());
  if (options.context > most)
    usage_error("--context {}: the model's context is {}", options.context, counted(most, "token"));
  if (options.context == 1)
    usage_error("--context 1 leaves no room for a new token; expected 2 or more");
}

void note_ignored_settings(const io::ModelFolder& model) {
  for (const std::string& setting : model.generation.ignored)
    tell("note: generation_config.json asks for {}, which is not supported: the text may differ\n",
         setting);
}

int64_t most_guessed_tokens(const GenerateOptions& options, int64_t texts) {
  constexpr int64_t kMost = 64;
  return std::min(kMost, options.prompt_lookup * texts);
}

TextMaker::TextMaker(const GenerateOptions& options, const io::ModelFolder& model)
    : options_(options),
      model_(model),
      sampling_(sampling_of(options, model.generation)),
      ends_(text_ends(options, model)) {
  validate(sampling_);
  check_context(options, model);
  note_ignored_settings(model);
}

Memory TextMaker::memory() const {
  return memory_of(options_, "fewer --max-new-tokens, a shorter prompt");
}

void TextMaker::reserve(int64_t positions, int64_t count) {
  positions = std::min(positions, context());
  const int64_t at_once = options_.beam_size > 1 ? count : std::min(count, options_.parallel);
  if (positions <= room_ && at_once <= at_once_) return;
  // Reserve twice as much for a conversation that grows, so that weights are seldom loaded again.
  if (room_ > 0) positions = std::min(std::max(positions, 2 * room_), context());
  room_ = std::max(room_, positions);
  at_once_ = std::max(at_once_, at_once);
  const Backend backend = machine::backend_for(options_.device);
  batcher_.reset();
  generator_.reset();
  const RunPrecision precision = precision_of(options_, model_);
  if (options_.cache && runs_block_attention(backend) &&
      !models::is_recurrent(model_.definition->sizes()))
    batcher_ = std::make_unique<Batcher>(
        model_.definition, backend, model_.weights,
        BatcherOptions{.precision = precision.dtype,
                       .quantization = precision.quantization,
                       .cache = options_.kv_cache,
                       .parallel = at_once_,
                       .prefill_tokens = options_.prefill_tokens,
                       .context = room_,
                       .guessed_tokens = most_guessed_tokens(options_, at_once_),
                       .memory = memory()});
  else
    generator_ =
        std::make_unique<Generator>(model_.definition, backend, model_.weights,
                                    GeneratorOptions{.use_cache = options_.cache,
                                                     .precision = precision.dtype,
                                                     .quantization = precision.quantization,
                                                     .cache = options_.kv_cache,
                                                     .context = options_.context,
                                                     .positions = room_,
                                                     .memory = memory()});
}

void TextMaker::run(std::span<const int32_t> prompt, const Samples& samples, int64_t most,
                    const OnToken& on_token) {
  for (int64_t i = 0; i < samples.count; ++i) {
    const auto number = static_cast<uint32_t>(samples.first + i);
    const auto on_token_of_answer = [&on_token, i](int32_t token) { return on_token(i, token); };
    if (!batcher_) {
      generator_->generate(prompt, most, Sampler(sampling_, number), on_token_of_answer);
      continue;
    }
    SequenceRequest request;
    request.prompt.assign(prompt.begin(), prompt.end());
    request.sampling = sampling_;
    request.sample_number = number;
    request.max_new_tokens = most;
    request.prompt_lookup = options_.prompt_lookup;
    request.on_token = [on_token_of_answer](int32_t token, double) {
      return on_token_of_answer(token);
    };
    batcher_->add(std::move(request));
  }
  while (batcher_ && batcher_->step()) {
  }
}

std::vector<TextMaker::Text> TextMaker::make(std::span<const int32_t> prompt,
                                             const Samples& samples, bool echoes,
                                             const OnText& on_text,
                                             const std::function<bool()>& stops) {
  const int64_t given = std::ssize(prompt);
  if (given > context())
    tell("note: the prompt has {}, {} {}: only the last {} are read\n", counted(given, "token"),
         context_name(), context(), kept_at_the_end(context()));
  const int64_t most = most_new_tokens(options_, model_, given);
  reserve(given + most, options_.beam_size > 1 ? options_.beam_size : samples.count);
  if (options_.beam_size > 1) return search(prompt, samples.count, most, echoes, on_text);
  const Stopwatch watch;
  std::deque<GrowingText> texts;
  for (int64_t i = 0; i < samples.count; ++i) {
    texts.emplace_back(*model_.tokenizer, prompt, ends_, stop_strings_of(options_, model_));
    if (echoes) on_text(i, texts.back().prompt(), false);
  }
  int64_t longest = 0;
  run(prompt, samples, most, [&](int64_t answer, int32_t token) {
    GrowingText& text = texts[static_cast<size_t>(answer)];
    ++tokens_;
    std::string more = text.add(token);
    const bool ends = text.has_ended() || std::ssize(text.ids()) == most || (stops && stops());
    if (ends) more += text.finish();
    on_text(answer, more, ends);
    longest = std::max(longest, std::ssize(text.ids()) + (text.has_ended() ? 1 : 0));
    return !ends;
  });
  std::vector<Text> made;
  for (const GrowingText& text : texts) made.push_back({text.prompt(), text.text(), text.ids()});
  seconds_ += watch.seconds();
  // After the last token nothing was read any more.
  const int64_t read = given > context() ? kept_at_the_end(context()) : given;
  has_slid_ |= read + longest - 1 > context();
  return made;
}

std::vector<TextMaker::Text> TextMaker::search(std::span<const int32_t> prompt, int64_t count,
                                               int64_t most, bool echoes, const OnText& on_text) {
  if (models::is_recurrent(model_.definition->sizes()))
    user_error("--beam-size: the state of a recurrent model belongs to one text; leave it out");
  if (!batcher_)
    user_error("--beam-size: {} has no attention for caches in blocks; use --device cpu",
               options_.device);
  const Stopwatch watch;
  std::vector<Hypothesis> found;
  const BeamSearch search(*batcher_, {prompt.begin(), prompt.end()},
                          {.beams = options_.beam_size,
                           .max_new_tokens = most,
                           .length_penalty = options_.length_penalty,
                           .ends = ends_},
                          [&](std::vector<Hypothesis> all) { found = std::move(all); });
  while (batcher_->step()) {
  }
  std::vector<Text> made;
  for (int64_t i = 0; i < std::min(count, std::ssize(found)); ++i) {
    const Hypothesis& h = found[static_cast<size_t>(i)];
    GrowingText text(*model_.tokenizer, prompt, ends_, stop_strings_of(options_, model_));
    add_until_stop(text, h.ids);
    text.finish();
    tokens_ += std::ssize(text.ids());
    on_text(i, (echoes ? text.prompt() : std::string()) + text.text(), true);
    made.push_back({text.prompt(), text.text(), text.ids()});
  }
  seconds_ += watch.seconds();
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

}  // namespace brrr::infer
