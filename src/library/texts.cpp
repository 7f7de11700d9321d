// Texts by the C interface: vectors, continuations, tokenizers, chat templates.

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "infer/batcher.h"
#include "infer/open/named_model.h"
#include "infer/open/open_embedder.h"
#include "infer/open/text_maker.h"
#include "library/api.h"
#include "machine/device.h"
#include "runtime/attention_support.h"
#include "sampling/prompt.h"

using namespace brrr;
using namespace brrr::library;

struct brrr_embedder {
  infer::EmbedOptions options;
  infer::OpenEmbedder open;
  std::string prompt;  // before each text
  size_t longest = 0;  // tokens
};

struct brrr_generator {
  infer::GenerateOptions options;
  std::unique_ptr<io::ModelFolder> model;
  std::optional<io::ChatTemplate> chat;
  std::set<int32_t> ends;
  std::unique_ptr<infer::Batcher> batcher;  // null until it is needed, and where none runs
  int64_t room = 0, at_once = 0;            // positions of a text, and texts, that it has room for
};

struct brrr_tokenizer {
  std::unique_ptr<io::Tokenizer> tokenizer;
};

struct brrr_chat_template {
  io::ChatTemplate chat;
};

namespace brrr::library {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

std::vector<int32_t> prompt_tokens(const brrr_generator& g, const std::string& prompt) {
  const io::Tokenizer& tokenizer = *g.model->tokenizer;
  if (g.chat) {
    std::vector<io::ChatMessage> messages;
    if (!g.options.system.empty()) messages.push_back({"system", g.options.system});
    messages.push_back({"user", prompt});
    return tokenizer.encode(g.chat->render(messages, local_time()));
  }
  if (prompt.empty()) return infer::begin_of_text(*g.model);
  return tokenizer.encode(prompt, {.add_special_tokens = true});
}

bool uses_batcher(const brrr_generator& g) {
  return g.options.cache && runs_block_attention(machine::backend_for(g.options.device)) &&
         !models::is_recurrent(g.model->definition->sizes());
}

/// Makes a batcher for `count` texts of so many positions unless there is one.
infer::Batcher& batcher_for(brrr_generator& g, int64_t positions, int64_t count) {
  const infer::GenerateOptions& o = g.options;
  const int64_t context =
      o.context > 0 ? o.context : models::longest_generated_text(g.model->definition->sizes());
  positions = std::min(positions, context);
  count = std::min(count, o.parallel);
  if (!g.batcher || positions > g.room || count > g.at_once) {
    g.room = std::max(g.room, positions);
    g.at_once = std::max(g.at_once, count);
    g.batcher.reset();
    const infer::RunPrecision precision = infer::precision_of(o, *g.model);
    g.batcher = std::make_unique<infer::Batcher>(
        g.model->definition, machine::backend_for(o.device), g.model->weights,
        infer::BatcherOptions{
            .precision = precision.dtype,
            .quantization = precision.quantization,
            .cache = o.kv_cache,
            .parallel = g.at_once,
            .prefill_tokens = o.prefill_tokens,
            .context = g.room,
            .guessed_tokens = infer::most_guessed_tokens(o, g.at_once),
            .memory = infer::memory_of(o, "fewer max-new-tokens, shorter prompts")});
  }
  return *g.batcher;
}

/// An answer that grows, and whom it is told.
struct Answers {
  std::deque<infer::GrowingText> texts;
  brrr_on_text on_text = nullptr;
  void* context = nullptr;
  bool is_stopped = false;

  void tell(size_t answer, const std::string& more) {
    if (on_text == nullptr || more.empty() || is_stopped) return;
    is_stopped = on_text(context, answer, more.c_str()) != 0;
  }
  /// Returns whether the answer goes on.
  bool add(size_t answer, int32_t token) {
    if (is_stopped) return false;
    tell(answer, texts[answer].add(token));
    return !texts[answer].has_ended() && !is_stopped;
  }
};

void run_batcher(brrr_generator& g, const std::vector<std::vector<int32_t>>& prompts,
                 const infer::Sampling& sampling, Answers& answers) {
  int64_t positions = 1;
  std::vector<int64_t> most;
  for (const std::vector<int32_t>& prompt : prompts) {
    most.push_back(infer::most_new_tokens(g.options, *g.model, std::ssize(prompt)));
    positions = std::max(positions, std::ssize(prompt) + most.back());
  }
  infer::Batcher& batcher = batcher_for(g, positions, std::ssize(prompts));
  std::vector<infer::SequenceId> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    infer::SequenceRequest request;
    request.prompt = prompts[i];
    request.sampling = sampling;
    request.max_new_tokens = most[i];
    request.prompt_lookup = g.options.prompt_lookup;
    request.on_token = [&answers, i](int32_t token, double) { return answers.add(i, token); };
    request.on_finish = [&answers, i](infer::Finish) {
      answers.tell(i, answers.texts[i].finish());
    };
    ids.push_back(batcher.add(std::move(request)));
  }
  while (!answers.is_stopped && batcher.step()) {
  }
  if (answers.is_stopped)
    for (const infer::SequenceId id : ids) batcher.cancel(id);
}

}  // namespace
}  // namespace brrr::library

brrr_status brrr_embedder_open(const char* path, const brrr_option* options, size_t count,
                               brrr_embedder** embedder) {
  return guarded([&] {
    brrr_embedder*& out = checked(embedder, "embedder");
    KeyValues given = key_values(options, count);
    given.emplace_back("model", text_of(path, "path"));
    auto made = std::make_unique<brrr_embedder>();
    made->options = infer::resolve_embed(given);
    made->open = infer::open_embedder(made->options, infer::TextRole::document);
    const io::SentenceSettings& settings = made->open.settings;
    made->prompt = infer::prompt_of(settings, made->options, infer::TextRole::document);
    made->longest = static_cast<size_t>(
        infer::longest_text(made->options, made->open.context, settings.longest));
    if (made->options.truncate_dim > 0)
      usage_error("truncate-dim: cut the vectors that brrr_embed() gives");
    out = made.release();
  });
}
void brrr_embedder_free(brrr_embedder* embedder) { delete embedder; }

brrr_status brrr_embed(brrr_embedder* embedder, const char* const* texts, size_t count,
                       brrr_tensor** vectors) {
  return guarded([&] {
    brrr_tensor*& out = checked(vectors, "vectors");
    brrr_embedder& e = checked(embedder, "embedder");
    std::vector<io::ModelInput> inputs;
    const auto where = [](size_t row) { return fmt::format("text {}", row); };
    for (const std::string& text : texts_of(texts, count, "a text")) {
      inputs.push_back(
          infer::encoder_input(*e.open.tokenizer, e.open.form, e.longest, e.prompt + text));
      const io::ModelInput& input = inputs.back();
      if (input.left_out > 0 && !e.options.truncate)
        user_error("{} has {} tokens, more than the limit of {}", where(inputs.size() - 1),
                   input.ids.size() + input.left_out, e.longest);
    }
    const auto width = static_cast<size_t>(e.open.vectors->width());
    auto made =
        new_tensor(DType::f32, Shape({static_cast<int64_t>(count), e.open.vectors->width()}));
    const std::span numbers(static_cast<float*>(made->data), count * width);
    e.open.vectors->run(infer::rows_of(inputs), [&](size_t row, std::span<const float> vector) {
      infer::check_finite(vector, where(row));
      std::ranges::copy(vector, numbers.subspan(row * width, width).begin());
    });
    out = made.release();
  });
}

brrr_status brrr_generator_open(const char* path, const brrr_option* options, size_t count,
                                brrr_generator** generator) {
  return guarded([&] {
    brrr_generator*& out = checked(generator, "generator");
    KeyValues given = key_values(options, count);
    given.emplace_back("model", text_of(path, "path"));
    auto made = std::make_unique<brrr_generator>();
    made->options = infer::resolve_generate(given);
    for (const char* name : {"prompt", "prompt-file", "prompts", "interactive", "messages",
                             "num-samples", "beam-size"})
      if (made->options.was_given(name))
        usage_error("{} is for the command line; give prompts to brrr_generate()", name);
    made->model = std::make_unique<io::ModelFolder>(infer::open_named_model(
        made->options.model, {.adapters = io::parse_adapters(made->options.adapter)}));
    infer::check_context(made->options, *made->model);
    if (made->options.chat) made->chat = infer::chat_template_of(made->options, *made->model);
    made->ends = infer::text_ends(made->options, *made->model);
    out = made.release();
  });
}
void brrr_generator_free(brrr_generator* generator) { delete generator; }

brrr_status brrr_generate(brrr_generator* generator, const char* const* prompts, size_t count,
                          brrr_on_text on_text, void* context, char** texts) {
  return guarded([&] {
    brrr_generator& g = checked(generator, "generator");
    char** const out = &checked(texts, "texts");
    std::vector<std::vector<int32_t>> tokens;
    Answers answers{.texts = {}, .on_text = on_text, .context = context};
    for (const std::string& prompt : texts_of(prompts, count, "a prompt")) {
      tokens.push_back(prompt_tokens(g, prompt));
      answers.texts.emplace_back(
          *g.model->tokenizer, tokens.back(), g.ends,
          g.options.was_given("stop") ? g.options.stop : g.model->generation.stop_strings);
    }
    const infer::Sampling sampling = infer::sampling_of(g.options, g.model->generation);
    infer::validate(sampling);
    std::vector<std::string> finished;
    if (uses_batcher(g)) {
      run_batcher(g, tokens, sampling, answers);
    } else {  // a recurrent model, or a device without attention for caches in blocks
      infer::TextMaker maker(g.options, *g.model);
      for (size_t i = 0; i < tokens.size() && !answers.is_stopped; ++i) {
        const auto made = maker.make(
            tokens[i], {}, false,
            [&](int64_t, std::string_view more, bool) { answers.tell(i, std::string(more)); },
            [&] { return answers.is_stopped; });
        finished.push_back(made[0].text);
      }
    }
    if (finished.empty())
      for (const infer::GrowingText& text : answers.texts) finished.push_back(text.text());
    finished.resize(count);
    std::vector<std::unique_ptr<char, decltype(&std::free)>> made;
    for (const std::string& text : finished) made.emplace_back(copy_of(text), &std::free);
    for (size_t i = 0; i < made.size(); ++i) out[i] = made[i].release();
    if (answers.is_stopped) throw Stopped();
  });
}

brrr_status brrr_tokenizer_open(const char* path, brrr_tokenizer** tokenizer) {
  return guarded([&] {
    brrr_tokenizer*& out = checked(tokenizer, "tokenizer");
    const std::string name = text_of(path, "path");
    std::error_code ignored;
    const fs::path file =
        fs::is_regular_file(name, ignored) ? fs::path(name) : infer::find_named_model(name);
    out = new brrr_tokenizer{io::load_tokenizer(file)};
  });
}
void brrr_tokenizer_free(brrr_tokenizer* tokenizer) { delete tokenizer; }

int32_t brrr_tokenizer_size(const brrr_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->tokenizer->vocab_size();
}
int32_t brrr_tokenizer_begin(const brrr_tokenizer* tokenizer) {
  return tokenizer == nullptr ? -1 : tokenizer->tokenizer->begin_of_text();
}
int32_t brrr_tokenizer_end(const brrr_tokenizer* tokenizer) {
  return tokenizer == nullptr ? -1 : tokenizer->tokenizer->end_of_text();
}

brrr_status brrr_tokenizer_encode(const brrr_tokenizer* tokenizer, const char* text, size_t bytes,
                                  int special, brrr_tensor** ids) {
  return guarded([&] {
    brrr_tensor*& out = checked(ids, "ids");
    const std::string_view whole(bytes == 0 ? "" : &checked(text, "text"), bytes);
    const std::vector<int32_t> found =
        checked(tokenizer, "tokenizer")
            .tokenizer->encode(whole, {.add_special_tokens = special != 0});
    out = tensor_of({DType::i32, Shape({std::ssize(found)})}, std::as_bytes(std::span(found)))
              .release();
  });
}

brrr_status brrr_tokenizer_decode(const brrr_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                  char** text, size_t* bytes) {
  return guarded([&] {
    char*& out = checked(text, "text");
    const std::string found =
        checked(tokenizer, "tokenizer")
            .tokenizer->decode(std::span(count == 0 ? nullptr : &checked(ids, "ids"), count));
    if (bytes != nullptr) *bytes = found.size();
    out = copy_of(found);
  });
}

brrr_status brrr_chat_template_open(const char* path, brrr_chat_template** chat) {
  return guarded([&] {
    brrr_chat_template*& out = checked(chat, "chat");
    const fs::path folder = infer::find_named_model(text_of(path, "path"));
    std::optional<io::ChatTemplate> found = io::ChatTemplate::read(folder);
    if (!found)
      user_error("{} has no chat template (chat_template.jinja or tokenizer_config.json)",
                 folder.string());
    out = new brrr_chat_template{std::move(*found)};
  });
}
void brrr_chat_template_free(brrr_chat_template* chat) { delete chat; }

brrr_status brrr_chat_template_render(const brrr_chat_template* chat, const char* const* roles,
                                      const char* const* contents, size_t count, char** text) {
  return guarded([&] {
    char*& out = checked(text, "text");
    std::vector<io::ChatMessage> messages;
    const std::vector<std::string> who = texts_of(roles, count, "a role"),
                                   what = texts_of(contents, count, "a content");
    for (size_t i = 0; i < count; ++i) messages.push_back({who[i], what[i]});
    out = copy_of(checked(chat, "chat").chat.render(messages, local_time()));
  });
}
