// brrr generate: continues a prompt, token by token.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "infer/generator.h"
#include "infer/stop_strings.h"
#include "train/device.h"

namespace brrr::cli {
namespace {

/// The tokens that the model continues. Throws UserError (exit 2) for an empty prompt to a model
/// without a begin-of-text token.
std::vector<int32_t> prompt_of(const infer::GenerateOptions& o, const io::ModelFolder& model) {
  const io::Tokenizer& tokenizer = *model.tokenizer;
  if (!o.was_given("prompt") && !o.was_given("prompt-file")) return default_prompt(tokenizer);
  if (!o.prompt.empty()) return tokenizer.encode(o.prompt, {.add_special_tokens = true});
  if (model.generation.begin_of_text) return {*model.generation.begin_of_text};
  if (tokenizer.begin_of_text() >= 0) return {tokenizer.begin_of_text()};
  usage_error(
      "--prompt: expected text to continue, at least one character: {} has no begin-of-text token",
      model.folder.string());
}

/// Options that were given come before the folder's, which come before our defaults.
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

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

int generate_main(const infer::GenerateOptions& options) {
  const io::ModelFolder model = open_named_model(options.model);
  const infer::Sampling sampling = sampling_of(options, model.generation);
  infer::validate(sampling);
  for (const std::string& setting : model.generation.ignored)
    tell(
        "note: generation_config.json asks for {}, which is not supported: the text "
        "may differ\n",
        setting);
  const std::vector<int32_t> prompt = prompt_of(options, model);
  const int64_t given = std::ssize(prompt), context = model.definition->sizes().context;
  if (given > context)
    tell("note: the prompt has {} tokens, the model's context {}: only the last {} are read\n",
         given, context, infer::kept_at_the_end(context));
  const Backend backend = train::backend_for(options.device);
  infer::Generator generator(
      model.definition, backend, infer::weights_of(model),
      {.use_cache = options.cache,
       .precision = dtype_of_precision(options.precision),
       .positions = static_cast<int64_t>(prompt.size()) + options.max_new_tokens,
       .memory = memory_of(options, "fewer --max-new-tokens, a shorter prompt")});
  std::set<int32_t> ends(model.generation.ends_of_text.begin(),
                         model.generation.ends_of_text.end());
  if (ends.empty() && model.tokenizer->end_of_text() >= 0)
    ends.insert(model.tokenizer->end_of_text());
  const bool stream = options.stream && !options.json;

  std::vector<std::string> texts;
  std::string said;  // the prompt as it is read
  std::vector<std::vector<int32_t>> all_ids;
  int64_t tokens = 0;
  const Stopwatch watch;
  for (int64_t sample = 0; sample < options.num_samples; ++sample) {
    io::TextStream text(*model.tokenizer);
    infer::StopStrings stop(options.was_given("stop") ? options.stop
                                                      : model.generation.stop_strings);
    std::string whole = text.add(prompt);
    said = whole;
    if (stream && options.num_samples > 1)
      fmt::print("{}--- {} ---\n", sample ? "\n" : "", sample + 1);
    if (stream) print(whole);
    std::vector<int32_t> ids = generator.generate(
        prompt, options.max_new_tokens, infer::Sampler(sampling, static_cast<uint32_t>(sample)),
        [&](int32_t token) {
          if (ends.contains(token)) return false;
          const std::string more = stop.add(text.add(std::span(&token, 1)));
          if (stream) print(more);
          whole += more;
          return !stop.found();
        });
    tokens += static_cast<int64_t>(ids.size());
    if (!ids.empty() && ends.contains(ids.back())) ids.pop_back();
    std::string rest = stop.add(text.finish());
    rest += stop.finish();
    if (stream) print(rest + "\n");
    texts.push_back(whole + rest);
    all_ids.push_back(std::move(ids));
  }
  const double seconds = watch.seconds();
  const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  if (options.json) {
    nlohmann::json j;
    const bool one = texts.size() == 1;
    j["text"] = one ? nlohmann::json(texts[0]) : nlohmann::json(texts);
    j["ids"] = one ? nlohmann::json(all_ids[0]) : nlohmann::json(all_ids);
    j["prompt"] = said;
    j["prompt_ids"] = prompt;
    j["seed"] = options.seed;
    j["tokens"] = tokens;
    j["tokens_per_second"] = rate;
    j["process_peak_bytes"] = resident_memory().peak;
    j["model"] = model.folder.string();
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  if (!stream)
    for (size_t i = 0; i < texts.size(); ++i)
      fmt::print("{}{}\n", texts.size() > 1 ? fmt::format("--- {} ---\n", i + 1) : "", texts[i]);
  std::fflush(stdout);
  tell("{} tokens in {:.2f} s, {:.0f} tokens/s ({})\n", tokens, seconds, rate,
       model.folder.string());
  return 0;
}

}  // namespace brrr::cli
