// brrr generate: continues a prompt, token by token.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "infer/generator.h"
#include "train/device.h"

namespace brrr::cli {
namespace {

// The length of the longest prefix that ends with a whole UTF-8 character: a token may end inside
// one.
size_t whole_characters(std::string_view text) {
  size_t at = text.size();
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside a character, look further
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (length > back) at = text.size() - back;
    break;
  }
  return at;
}

// Prints text as it comes, whole characters only.
class Stream {
 public:
  void add(std::string_view bytes) {
    pending_ += bytes;
    const size_t n = whole_characters(pending_);
    std::fwrite(pending_.data(), 1, n, stdout);
    std::fflush(stdout);
    pending_.erase(0, n);
  }
  void finish() {
    std::fwrite(pending_.data(), 1, pending_.size(), stdout);
    std::fputc('\n', stdout);
    pending_.clear();
  }

 private:
  std::string pending_;
};

}  // namespace

int generate_main(const infer::GenerateOptions& options) {
  const io::ModelFolder model = open_named_model(options.model);
  infer::Sampling sampling{options.temperature, options.top_k, options.top_p,
                           static_cast<uint32_t>(options.seed)};
  infer::validate(sampling);
  std::string text = options.prompt;
  std::vector<int32_t> prompt;
  if (text == infer::GenerateOptions{}.prompt) {
    prompt = default_prompt(*model.tokenizer);
    text = model.tokenizer->decode(prompt);
  } else {
    prompt = std::as_const(*model.tokenizer).encode(std::string_view(text));
  }
  infer::Generator generator(
      model.definition, train::backend_for(options.device), infer::weights_of(model),
      {.use_cache = options.cache,
       .precision = dtype_of_precision(options.precision),
       .positions = static_cast<int64_t>(prompt.size()) + options.max_new_tokens});
  const int32_t end_of_text = model.tokenizer->end_of_text();
  const bool stream = options.stream && !options.json;

  std::vector<std::string> texts;
  int64_t tokens = 0;
  const Stopwatch watch;
  for (int64_t sample = 0; sample < options.num_samples; ++sample) {
    Stream out;
    if (stream && options.num_samples > 1)
      fmt::print("{}--- {} ---\n", sample ? "\n" : "", sample + 1);
    if (stream) out.add(text);
    std::vector<int32_t> ids = generator.generate(
        prompt, options.max_new_tokens, infer::Sampler(sampling, static_cast<uint32_t>(sample)),
        [&](int32_t token) {
          if (token == end_of_text) return false;
          if (stream) out.add(model.tokenizer->decode(std::span(&token, 1)));
          return true;
        });
    tokens += static_cast<int64_t>(ids.size());
    if (!ids.empty() && ids.back() == end_of_text) ids.pop_back();
    texts.push_back(text + model.tokenizer->decode(ids));
    if (stream) out.finish();
  }
  const double seconds = watch.seconds();
  const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  if (options.json) {
    nlohmann::json j;
    j["text"] = texts.size() == 1 ? nlohmann::json(texts[0]) : nlohmann::json(texts);
    j["tokens"] = tokens;
    j["tokens_per_second"] = rate;
    j["model"] = model.folder.string();
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  if (!stream)
    for (size_t i = 0; i < texts.size(); ++i)
      fmt::print("{}{}\n", texts.size() > 1 ? fmt::format("--- {} ---\n", i + 1) : "", texts[i]);
  std::fflush(stdout);
  fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} tokens/s ({})\n", tokens, seconds, rate,
             model.folder.string());
  return 0;
}

}  // namespace brrr::cli
