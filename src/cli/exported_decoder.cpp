#include "cli/exported_decoder.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/runnable_option.h"
#include "formats/json_file.h"
#include "modules/open_module.h"
#include "sampling/prompt.h"
#include "sampling/stop_strings.h"

namespace brrr::cli {

using infer::DecoderSettings;
using infer::kept_texts;
using infer::KeptTexts;

namespace {

void check_options(const infer::GenerateOptions& o) {
  for (const char* name : {"top-k", "top-p", "min-p", "repetition-penalty", "presence-penalty",
                           "frequency-penalty", "seed", "num-samples", "temperature"})
    if (o.was_given(name) && !(std::string_view(name) == "temperature" && o.temperature == 0))
      usage_error(
          "--{}: {} always takes the most likely token; leave the option out, or name the model's "
          "folder",
          name, o.model);
  if (!o.adapter.empty())
    usage_error(
        "--adapter: {} holds its weights as they were exported; export the model with its "
        "adapter, or name the model's folder",
        o.model);
  if (o.context > 0)
    usage_error("--context: {} was exported for one; export it again with --generate {}", o.model,
                o.context);
  if (!o.cache) usage_error("--no-cache: {} holds its loop with a cache; leave it out", o.model);
  if (o.kv_cache != CachePrecision::computed)
    usage_error("--kv-cache: {} keeps its cache as it was exported; leave it out", o.model);
  if (o.reads_turns())
    usage_error("{} answers one prompt; give --prompt TEXT, without --interactive", o.model);
}

std::tm time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

std::vector<int32_t> chat_prompt(const infer::GenerateOptions& o, const KeptTexts& texts) {
  if (!texts.chat)
    user_error("--chat: {} holds no chat template; without --chat it continues a text", o.model);
  std::vector<io::ChatMessage> messages;
  if (!o.messages.empty()) messages = io::read_messages(o.messages);
  if (!o.system.empty()) {
    if (!messages.empty() && messages[0].role == "system")
      usage_error("--system: {} begins with a system message; leave one of them out", o.messages);
    messages.insert(messages.begin(), {"system", o.system});
  }
  if (o.has_prompt()) messages.push_back({"user", o.prompt});
  const jinja::Value tools = o.tools.empty() ? jinja::Value() : io::read_tools(o.tools);
  return texts.tokenizer->encode(texts.chat->render(messages, time_now(), tools));
}

std::vector<int32_t> prompt_for_file(const infer::GenerateOptions& o, const KeptTexts& texts) {
  if (o.chat) return chat_prompt(o, texts);
  const io::Tokenizer& tokenizer = *texts.tokenizer;
  if (!o.has_prompt()) return infer::default_prompt(tokenizer);
  if (!o.prompt.empty()) return tokenizer.encode(o.prompt, {.add_special_tokens = true});
  if (tokenizer.begin_of_text() >= 0) return {tokenizer.begin_of_text()};
  usage_error(
      "--prompt: expected text to continue, at least one character: the tokenizer of {} has no "
      "begin-of-text token",
      o.model);
}

/// How many tokens the texts of a decoder have at most. Throws UserError for what is no decoder.
int64_t decoder_capacity(const Runnable& module, const std::string& name) {
  const auto has = [](const std::vector<Port>& ports, const char* port) {
    return std::ranges::find(ports, port, &Port::name) != ports.end();
  };
  const auto tokens = std::ranges::find(module.outputs(), std::string("tokens"), &Port::name);
  if (!has(module.inputs(), "prompt") || !has(module.inputs(), "max_new_tokens") ||
      !has(module.outputs(), "count") || tokens == module.outputs().end() ||
      tokens->dims.size() != 1 || tokens->dims[0].size < 0)
    user_error(
        "{}: it is no decoder, which `brrr export --generate N` writes; `brrr run {}` runs other "
        "files",
        name, name);
  return tokens->dims[0].size;
}

}  // namespace

int generate_with_file(const infer::GenerateOptions& o) {
  check_options(o);
  const std::shared_ptr<const Runnable> module = modules::open_module(o.model);
  const int64_t capacity = decoder_capacity(*module, o.model);
  const KeptTexts texts = kept_texts(*module, !o.tools.empty());
  if (texts.tokenizer == nullptr)
    user_error("{}: it has no tokenizer; export it again from a folder that has one", o.model);
  const std::vector<int32_t> prompt = prompt_for_file(o, texts);
  if (std::ssize(prompt) > capacity)
    user_error("the prompt has {} tokens, and {} takes at most {}; export it with --generate {}",
               prompt.size(), o.model, capacity, prompt.size() + 1);
  const int64_t asked = o.was_given("max-new-tokens")
                            ? o.max_new_tokens
                            : texts.settings.max_new_tokens.value_or(o.max_new_tokens);
  const int64_t most = std::min(asked, capacity - std::ssize(prompt));

  RunnableArguments how;
  how.device = o.device;
  how.precision = o.precision;
  how.memory_limit = o.memory_limit;
  const std::shared_ptr<infer::Runner> runner = runner_of({module, std::nullopt}, how);
  PortValues inputs;
  inputs.emplace("prompt", HostTensor::of<int32_t>({std::ssize(prompt)}, prompt));
  inputs.emplace("max_new_tokens", HostTensor::of<int32_t>({}, {static_cast<int32_t>(most)}));
  const Stopwatch watch;
  const PortValues outputs = runner->run(inputs);
  const double seconds = watch.seconds();
  const auto all = outputs.find("tokens")->second.tensor().as<int32_t>();
  const auto count = static_cast<size_t>(outputs.find("count")->second.tensor().number(0));
  std::vector<int32_t> made(all.begin() + std::min(std::ssize(prompt), std::ssize(all)),
                            all.begin() + static_cast<int64_t>(std::min(count, all.size())));

  const size_t tokens = made.size();
  const std::vector<int32_t>& ends = texts.settings.ends_of_text;
  const bool ended = !made.empty() && std::ranges::find(ends, made.back()) != ends.end();
  if (ended) made.pop_back();
  io::TextStream stream(*texts.tokenizer);
  const std::string said = stream.add(prompt);
  infer::StopStrings stop(o.was_given("stop") ? o.stop : texts.settings.stop_strings);
  std::string text = stop.add(stream.add(made) + stream.finish());
  text += stop.finish();
  const double speed = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  if (o.json) {
    const nlohmann::json json{{"text", o.chat ? text : said + text},
                              {"ids", made},
                              {"prompt", said},
                              {"prompt_ids", prompt},
                              {"tokens", tokens},
                              {"tokens_per_second", speed},
                              {"process_peak_bytes", peak_resident_bytes()},
                              {"model", o.model}};
    fmt::print("{}\n", io::json_line(json));
    return 0;
  }
  write_output((o.chat ? text : said + text) + "\n");
  flush_output();
  if (most < asked && !ended)
    tell("note: the texts of {} have at most {} tokens, prompt included\n", o.model, capacity);
  tell("{} in {}, {:.0f} tokens/s ({})\n", counted(tokens, "token"), duration_text(seconds), speed,
       o.model);
  return 0;
}

}  // namespace brrr::cli
