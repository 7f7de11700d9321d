#include "text/text_pipeline.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/file.h"
#include "text/tokenizer_writer.h"

namespace brrr::io {

TextPipeline::TextPipeline(TokenizerParts parts) : parts_(std::move(parts)) {
  if (parts_.post_processor.single.empty()) {
    parts_.post_processor = PostProcessor::around(parts_.prefix, parts_.suffix);
  } else {
    parts_.prefix = parts_.post_processor.single.before();
    parts_.suffix = parts_.post_processor.single.behind();
  }
  cut_rule_ = find_cut_rule();
}

bool TextPipeline::is_special(int32_t id) const {
  return std::binary_search(parts_.special.begin(), parts_.special.end(), id);
}

void TextPipeline::encode(std::string_view text, const EncodeOptions& options,
                          std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  try {
    if (options.add_special_tokens)
      ids.insert(ids.end(), parts_.prefix.begin(), parts_.prefix.end());
    PieceSink sink(*parts_.model, ids);
    encode_text(text, options.inside, sink);
    if (options.add_special_tokens)
      ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  } catch (...) {
    ids.resize(before);
    throw;
  }
}

void TextPipeline::encode_words(std::string_view text, std::vector<int32_t>& ids,
                                std::vector<int32_t>& words) const {
  PieceSink sink(*parts_.model, ids, &words);
  encode_text(text, false, sink);
}

void TextPipeline::encode_text(std::string_view text, bool inside, PieceSink& sink) const {
  parts_.added.split(
      text,
      [&](std::string_view stretch) {
        const bool first = stretch.data() == text.data();
        PieceSink::Buffer buffer(sink, stretch);
        if (parts_.normalizer.empty()) {
          encode_normalized(stretch, sink, first && !inside);
        } else {
          const std::string normalized = parts_.normalizer.apply(stretch, first && inside);
          PieceSink::Buffer inner(sink, normalized);
          encode_normalized(normalized, sink, first && !inside);
          inner.done();
        }
        buffer.done();
      },
      [&](int32_t id) { sink.add_id(id); });
}

void TextPipeline::encode_normalized(std::string_view text, PieceSink& sink, bool at_start) const {
  parts_.added_normalized.split(
      text,
      [&](std::string_view stretch) {
        parts_.pre_tokenizer.split(stretch, sink, at_start && stretch.data() == text.data());
      },
      [&](int32_t id) { sink.add_id(id); });
}

// A cut of the text before `after`, an ASCII white space, is exact when the normalizer treats both
// sides apart and what it makes of the two characters may be cut in the normalized text.
CutRule TextPipeline::find_cut_rule() const {
  const Normalizer& normalizer = parts_.normalizer;
  const bool drops_spaces = parts_.pre_tokenizer.drops_spaces();
  // By character of the user's text. A pre-tokenizer without stages leaves all to the model, which
  // is asked for what it sees.
  const auto model_may_cut = [&](uint32_t before, uint32_t after) {
    if (parts_.pre_tokenizer.empty()) {
      if (before < 128) {
        const auto mapped = normalizer.mapped(static_cast<uint8_t>(before));
        if (!mapped) return false;
        before = mapped->second;
      } else if (!normalizer.keeps_wide()) {
        return false;
      }
      if (after < 128) {
        const auto mapped = normalizer.mapped(static_cast<uint8_t>(after));
        if (!mapped) return false;
        after = mapped->first;
      }
    }
    return parts_.model->may_cut(before, after);
  };
  CutRule rule = parts_.pre_tokenizer.cut_rule(model_may_cut);
  if (normalizer.empty()) {
    parts_.added.restrict_cuts(rule);
    parts_.added_normalized.restrict_cuts(rule);
    return rule;
  }
  const AddedTokens& added = parts_.added_normalized;
  const auto symbol_of = [](uint32_t code) { return code < 128 ? size_t{code} : kWideSymbol; };
  const CutRule of_normalized = rule;
  for (size_t before = 0; before < kSymbols; ++before) {
    // The symbol that stands before the cut in the normalized text, where that is known.
    std::optional<size_t> from;
    if (before == kWideSymbol) {
      if (normalizer.keeps_wide()) from = kWideSymbol;
    } else if (const auto mapped = normalizer.mapped(static_cast<uint8_t>(before))) {
      from = symbol_of(mapped->second);
    }
    for (const char c : kCutsBefore) {
      const auto after = static_cast<uint8_t>(c);
      const auto mapped = normalizer.mapped(after);
      bool allowed = mapped.has_value();
      if (allowed) {
        const size_t to = symbol_of(mapped->first);
        const bool is_cut_character =
            to < kWideSymbol && kCutsBefore.find(static_cast<char>(to)) != std::string_view::npos;
        if (parts_.pre_tokenizer.empty())  // then the model was asked about what it sees
          allowed = from && of_normalized.allows(before, after);
        else if (drops_spaces)
          allowed = is_cut_character;
        else
          allowed =
              is_cut_character && from && of_normalized.allows(*from, static_cast<uint8_t>(to));
        if (!added.empty()) allowed = allowed && from && !added.touches(*from, to);
      }
      rule.allow(before, after, allowed);
    }
  }
  parts_.added.restrict_cuts(rule);
  return rule;
}

void TextPipeline::decode(std::span<const int32_t> ids, DecodeState& state,
                          std::string& out) const {
  size_t bytes = out.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size())
      user_error(
          "token {} (at position {}) is not in the vocabulary: ids go from 0 to {}; were these ids "
          "made by another tokenizer?",
          ids[i], i, vocab_size() - 1);
    bytes += parts_.texts.inside(ids[i]).size();
  }
  if (parts_.texts.needs_all()) {
    for (const int32_t id : ids)
      if (!state.skip_special_tokens || !is_special(id)) state.held.push_back(id);
    return;
  }
  out.reserve(bytes);
  for (const int32_t id : ids) {
    if (state.skip_special_tokens && is_special(id)) continue;
    parts_.texts.append(id, state.begun, state.stripped, out);
    state.begun = true;
  }
}

void TextPipeline::finish(DecodeState& state, std::string& out) const {
  if (!state.held.empty()) parts_.texts.append_all(state.held, out);
  state.held.clear();
}

std::optional<int32_t> TextPipeline::token_id(std::string_view name) const {
  if (const auto entry = parts_.vocabulary.find(name))
    return static_cast<int32_t>(parts_.vocabulary.id(*entry));
  if (parts_.vocabulary.size() == 0)
    for (int32_t id = 0; id < vocab_size(); ++id)
      if (parts_.texts.inside(id) == name) return id;
  return std::nullopt;
}

void TextPipeline::save(const fs::path& folder) const {
  if (parts_.files.empty() && parts_.make_files)
    return write_files(parts_.make_files(parts_), folder);
  if (parts_.files.empty()) parts_.model->save(folder);
  write_files(parts_.files, folder);
}

}  // namespace brrr::io
