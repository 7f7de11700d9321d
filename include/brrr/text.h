#pragma once
// Texts: tokenizers, chat templates, vectors, and texts that a model writes.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brrr/tensor.h"

namespace brrr {
inline namespace v1 {

class Tokenizer {
 public:
  /// That of a model folder, a name of the Hub, a GGUF file, or tokenizer.json.
  static Tokenizer open(const std::filesystem::path& path) {
    detail::require_library();
    brrr_tokenizer* made = nullptr;
    detail::check(brrr_tokenizer_open(path.string().c_str(), &made));
    return Tokenizer(made);
  }
  /// Number of tokens.
  int32_t size() const { return brrr_tokenizer_size(handle_.get()); }
  /// Ids of the tokens that begin and end a text; -1: there is none.
  int32_t begin_of_text() const { return brrr_tokenizer_begin(handle_.get()); }
  int32_t end_of_text() const { return brrr_tokenizer_end(handle_.get()); }
  /// `special`: with what stands before and behind a text.
  std::vector<int32_t> encode(std::string_view text, bool special = false) const {
    brrr_tensor* made = nullptr;
    detail::check(
        brrr_tokenizer_encode(handle_.get(), text.data(), text.size(), special ? 1 : 0, &made));
    const Tensor ids(made);
    const std::span<int32_t> numbers = ids.as<int32_t>();
    return {numbers.begin(), numbers.end()};
  }
  std::string decode(const std::vector<int32_t>& ids) const {
    char* text = nullptr;
    size_t bytes = 0;
    detail::check(brrr_tokenizer_decode(handle_.get(), ids.data(), ids.size(), &text, &bytes));
    const std::unique_ptr<char, void (*)(char*)> owner(text, &brrr_text_free);
    return {text, bytes};
  }

 private:
  explicit Tokenizer(brrr_tokenizer* made) : handle_(made) {}
  detail::Handle<brrr_tokenizer, &brrr_tokenizer_free> handle_;
};

struct ChatMessage {
  std::string role, content;  // "system", "user", "assistant"
};

/// How a model folder writes a conversation.
class ChatTemplate {
 public:
  static ChatTemplate open(const std::filesystem::path& path) {
    detail::require_library();
    brrr_chat_template* made = nullptr;
    detail::check(brrr_chat_template_open(path.string().c_str(), &made));
    return ChatTemplate(made);
  }
  /// The text up to where the next answer begins.
  std::string render(const std::vector<ChatMessage>& messages) const {
    std::vector<const char*> roles, contents;
    for (const ChatMessage& m : messages) {
      roles.push_back(m.role.c_str());
      contents.push_back(m.content.c_str());
    }
    char* text = nullptr;
    detail::check(brrr_chat_template_render(handle_.get(), roles.data(), contents.data(),
                                            messages.size(), &text));
    return detail::taken(text);
  }

 private:
  explicit ChatTemplate(brrr_chat_template* made) : handle_(made) {}
  detail::Handle<brrr_chat_template, &brrr_chat_template_free> handle_;
};

/// Vectors of texts, with the bits of `brrr embed`.
class Embedder {
 public:
  /// Options: those of `brrr embed` that concern the model: precision, pooling, max-length, ...
  static Embedder open(const std::filesystem::path& path, const Options& options = {}) {
    detail::require_library();
    brrr_embedder* made = nullptr;
    const std::vector<brrr_option> o = detail::to_c(options);
    detail::check(brrr_embedder_open(path.string().c_str(), o.data(), o.size(), &made));
    return Embedder(made);
  }
  /// f32 [texts, D]
  Tensor embed(const std::vector<std::string>& texts) {
    brrr_tensor* made = nullptr;
    const std::vector<const char*> list = detail::to_c(texts);
    detail::check(brrr_embed(handle_.get(), list.data(), list.size(), &made));
    return Tensor(made);
  }

 private:
  explicit Embedder(brrr_embedder* made) : handle_(made) {}
  detail::Handle<brrr_embedder, &brrr_embedder_free> handle_;
};

/// Texts continued, or turns of a chat answered.
class Generator {
 public:
  /// Options: those of `brrr generate`: precision, max-new-tokens, temperature, seed, chat, ...
  static Generator open(const std::filesystem::path& path, const Options& options = {}) {
    detail::require_library();
    brrr_generator* made = nullptr;
    const std::vector<brrr_option> o = detail::to_c(options);
    detail::check(brrr_generator_open(path.string().c_str(), o.data(), o.size(), &made));
    return Generator(made);
  }
  /// Gets further text of answer number `answer`, as it comes; returns whether to go on.
  using OnText = std::function<bool(size_t answer, std::string_view text)>;
  /// What follows each prompt; all are answered at once, each with the text that it has alone.
  /// An exception of `on_text` stops generation and is thrown on.
  std::vector<std::string> generate_all(const std::vector<std::string>& prompts,
                                        const OnText& on_text = {}) {
    struct Context {
      const OnText& on_text;
      detail::Caught caught;
    } context{on_text, {}};
    const brrr_on_text call = [](void* c, size_t answer, const char* text) {
      auto& known = *static_cast<Context*>(c);
      return known.caught.run([&] { return known.on_text(answer, text) ? 0 : 1; }, 1);
    };
    std::vector<char*> texts(prompts.size());
    const std::vector<const char*> list = detail::to_c(prompts);
    const brrr_status status = brrr_generate(handle_.get(), list.data(), list.size(),
                                             on_text ? call : nullptr, &context, texts.data());
    std::vector<std::string> made;
    for (char* text : texts) made.push_back(detail::taken(text));
    context.caught.rethrow();
    if (status != BRRR_STOPPED) detail::check(status);
    return made;
  }
  std::string generate(const std::string& prompt, const OnText& on_text = {}) {
    return generate_all({prompt}, on_text)[0];
  }

 private:
  explicit Generator(brrr_generator* made) : handle_(made) {}
  detail::Handle<brrr_generator, &brrr_generator_free> handle_;
};

}  // namespace v1
}  // namespace brrr
