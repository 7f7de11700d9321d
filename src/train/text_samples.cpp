#include "train/text_samples.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "models/causal_lm.h"
#include "sampling/continuation.h"
#include "sampling/prompt.h"

namespace brrr::train {
namespace {

constexpr int64_t kSpecialTokens = 8;  // that a tokenizer may put around a prompt

/// Room for the prompt and what follows it: a token has a byte at least. A text that has more
/// tokens nevertheless, or than the run trains on, forgets its older half.
int64_t window_of(const TrainOptions& o) {
  const auto prompt = static_cast<int64_t>(o.sample_prompt.size()) + kSpecialTokens;
  return std::clamp<int64_t>(prompt + o.sample_tokens, 1, o.context);
}

std::vector<int32_t> prompt_of(const TrainOptions& o, const io::Tokenizer& tokenizer) {
  if (o.sample_prompt.empty()) return infer::default_prompt(tokenizer);
  try {
    return tokenizer.encode(o.sample_prompt, {.add_special_tokens = !renders_conversations(o)});
  } catch (const UserError& e) {
    usage_error("--sample-prompt: {}", e.what());
  }
}

/// A line of a text: tabs stay, what a terminal might obey does not.
std::string printable(std::string_view line) {
  std::string out;
  for (;;) {
    const size_t tab = line.find('\t');
    out += fit_for_a_line(line.substr(0, tab));
    if (tab == std::string_view::npos) return out;
    out += '\t';
    line.remove_prefix(tab + 1);
  }
}

}  // namespace

Graph sampling_graph(const TrainOptions& o, const models::Model& model) {
  const models::Head head = model.task().head;
  if (head != models::Head::next_token)
    usage_error("--sample-steps: {}; leave it out",
                head == models::Head::masked_token
                    ? "this model fills masked tokens in and does not continue texts (after the "
                      "run, `brrr fill-mask` shows what it has learnt)"
                    : "this model judges texts and does not continue them (after the run, `brrr "
                      "classify` shows what it has learnt)");
  return model.decode({.capacity = window_of(o), .cache = dtype_of_precision(o.precision)});
}

TextSamples::TextSamples(const TrainOptions& o, const io::Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      prompt_(prompt_of(o, tokenizer)),
      shows_prompt_(!o.sample_prompt.empty()),
      tokens_(o.sample_tokens),
      count_(o.samples) {
  sampling_.temperature = o.sample_temperature;
  sampling_.seed = static_cast<uint32_t>(o.seed);
}

int64_t TextSamples::positions() const { return std::ssize(prompt_) + tokens_; }

std::vector<std::string> TextSamples::write(int64_t step, const Continue& more) const {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < count_; ++i) {
    const auto number = static_cast<uint32_t>(step * count_ + i);  // another one for each text
    io::TextStream stream(tokenizer_);
    std::string text = stream.add(prompt_);
    text += stream.settle();
    if (!shows_prompt_) text.clear();
    text += stream.add(more(prompt_, tokens_, infer::Sampler(sampling_, number)));
    text += stream.finish();
    texts.push_back(std::move(text));
  }
  return texts;
}

TextSamples::Continue continue_with(Session& session, const TrainOptions& o,
                                    const models::Model& model, std::function<bool()> stops) {
  // What the cache holds is true of these parameters only.
  auto cached = std::make_shared<infer::CachedTokens>(!models::is_recurrent(model.sizes()));
  infer::Window window{window_of(o), model.sizes().vocabulary, {}};
  window.logits = [&session, cached](std::span<const int32_t> tokens) {
    // Prompts are short and programs take memory: one program reads a token at a time.
    return cached->logits_of(tokens, 1, [&](std::span<const int32_t> next, int64_t position) {
      return session.decode(next[0], position);
    });
  };
  return [window = std::move(window), stops = std::move(stops)](
             std::span<const int32_t> prompt, int64_t count, infer::Sampler sampler) {
    return infer::continue_text(window, prompt, count, std::move(sampler),
                                [&](int32_t) { return !stops(); });
  };
}

std::string sample_block(int64_t step, const std::vector<std::string>& texts) {
  std::string block;
  for (size_t i = 0; i < texts.size(); ++i) {
    block += fmt::format("{}step {}: sample{}", i > 0 ? "\n" : "", step,
                         texts.size() > 1 ? fmt::format(" {}", i + 1) : "");
    std::string_view rest = texts[i];
    while (rest.ends_with('\n')) rest.remove_suffix(1);
    for (bool more = true; more;) {
      const size_t end = rest.find('\n');
      block += "\n    " + printable(rest.substr(0, end));
      more = end != std::string_view::npos;
      rest.remove_prefix(more ? end + 1 : rest.size());
    }
  }
  return block;
}

}  // namespace brrr::train
