#include "text/text_pipeline.h"

#include <algorithm>

#include "base/errors.h"
#include "base/file.h"
#include "base/utf8.h"

namespace brrr::io {

TextPipeline::TextPipeline(TokenizerParts parts)
    : parts_(std::move(parts)), cut_rule_(find_cut_rule()) {}

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
    parts_.added.split(
        text,
        [&](std::string_view stretch) {
          const bool first = stretch.data() == text.data();
          PieceSink::Buffer buffer(sink, stretch);
          if (parts_.normalizer.empty()) {
            encode_normalized(stretch, sink, first && !options.inside);
          } else {
            const std::string normalized =
                parts_.normalizer.apply(stretch, first && options.inside);
            PieceSink::Buffer inner(sink, normalized);
            encode_normalized(normalized, sink, first && !options.inside);
            inner.done();
          }
          buffer.done();
        },
        [&](int32_t id) { sink.add_id(id); });
    if (options.add_special_tokens)
      ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  } catch (...) {
    ids.resize(before);
    throw;
  }
}

void TextPipeline::encode_normalized(std::string_view text, PieceSink& sink, bool at_start) const {
  parts_.added_normalized.split(
      text,
      [&](std::string_view stretch) {
        parts_.pre_tokenizer.split(stretch, sink, at_start && stretch.data() == text.data());
      },
      [&](int32_t id) { sink.add_id(id); });
}

CutRule TextPipeline::find_cut_rule() const {
  const auto model_may_cut = [&](uint32_t before, uint32_t after) {
    if (before < 128) {
      const auto mapped = parts_.normalizer.mapped(static_cast<uint8_t>(before));
      if (!mapped) return false;
      before = *mapped;
    }
    if (after < 128) {
      const auto mapped = parts_.normalizer.mapped(static_cast<uint8_t>(after));
      if (!mapped) return false;
      after = *mapped;
    }
    return parts_.model->may_cut(before, after);
  };
  CutRule rule = parts_.pre_tokenizer.cut_rule(model_may_cut);
  parts_.added.restrict_cuts(rule);
  parts_.added_normalized.restrict_cuts(rule);
  if (parts_.normalizer.empty()) return rule;
  // The stages see other characters than the text has: what the normalizer changes is no cut there.
  for (size_t before = 0; before < kSymbols; ++before)
    for (const char c : kCutsBefore) {
      const auto after = static_cast<uint8_t>(c);
      const auto to = parts_.normalizer.mapped(after);
      const auto from = before == kWideSymbol
                            ? std::optional<uint32_t>(static_cast<uint32_t>(kWideSymbol))
                            : parts_.normalizer.mapped(static_cast<uint8_t>(before));
      const bool same = to == after && from == before;
      if (!to || !from || (!same && !parts_.pre_tokenizer.empty()))
        rule.allow(before, after, false);
    }
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
  out.reserve(bytes);
  for (const int32_t id : ids) {
    if (state.skip_special_tokens && is_special(id)) continue;
    parts_.texts.append(id, state.begun, state.stripped, out);
    state.begun = true;
  }
}

void TextPipeline::save(const fs::path& folder) const {
  if (parts_.files.empty()) parts_.model->save(folder);
  for (const auto& [name, text] : parts_.files) write_file_atomically(folder / name, text);
}

}  // namespace brrr::io
