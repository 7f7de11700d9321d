#include "data/labelled/encode_labelled.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/threads/parallel_tasks.h"

namespace brrr::io {
namespace {

constexpr int64_t kRowsAtOnce = 256;

/// The tag of each token: that of a word at its first token.
std::vector<int32_t> tags_of_tokens(const LabelledRow& row, const ModelInput& input) {
  std::vector<int32_t> tags(input.ids.size(), kIgnoreId);
  for (size_t i = 0; i < tags.size(); ++i)
    if (input.words[i] >= 0 && !input.continues_word(i))
      tags[i] = row.tags[static_cast<size_t>(input.words[i])];
  return tags;
}

/// Returns whether the row was cut.
bool encode_labelled_row(const LabelledFile& file, const LabelledRow& row,
                         const Tokenizer& tokenizer, int64_t context, bool truncate,
                         EncodedRow& out) {
  const auto longest = static_cast<size_t>(context);
  ModelInput input;
  if (file.kind == LabelKind::kTags) {
    const std::vector<std::string_view> words(row.words.begin(), row.words.end());
    input = tokenizer.model_input_of_words(words, std::nullopt, longest);
    out.tags = tags_of_tokens(row, input);
  } else {
    const auto second = file.has_pairs ? std::optional<std::string_view>(row.text2) : std::nullopt;
    input = tokenizer.model_input(row.text, second, longest);
  }
  if (input.left_out > 0 && !truncate)
    user_error(
        "{} tokens, more than the context of {}; shorten it, use a longer context, or allow "
        "truncation",
        input.ids.size() + input.left_out, context);
  if (input.ids.empty()) user_error("the text has no tokens; expected at least one");
  out.ids = std::move(input.ids);
  // Types that are all zero need no memory.
  if (std::any_of(input.types.begin(), input.types.end(), [](int32_t type) { return type != 0; }))
    out.types = std::move(input.types);
  out.label = row.label;
  out.values = row.values;
  return input.left_out > 0;
}

}  // namespace

EncodedFile encode_labelled(const LabelledFile& file, const Tokenizer& tokenizer, int64_t context,
                            bool truncate) {
  BRRR_CHECK(context > 0, "a context of {}", context);
  EncodedFile encoded;
  encoded.rows.resize(file.rows.size());
  const int64_t chunks = ceil_div(static_cast<int64_t>(file.rows.size()), kRowsAtOnce);
  std::vector<int64_t> cut(static_cast<size_t>(chunks));
  parallel_tasks(chunks, [&](size_t c) {
    const auto begin = c * static_cast<size_t>(kRowsAtOnce);
    const auto end = std::min(begin + static_cast<size_t>(kRowsAtOnce), file.rows.size());
    for (size_t i = begin; i < end; ++i) {
      const LabelledRow& row = file.rows[i];
      try {
        cut[c] += encode_labelled_row(file, row, tokenizer, context, truncate, encoded.rows[i]);
      } catch (const UserError& e) {
        throw UserError(fmt::format("{}: line {}: {}", file.name, row.line, e.what()), e.code());
      }
    }
  });
  for (const int64_t rows : cut) encoded.cut_rows += rows;
  if (encoded.cut_rows > 0)
    encoded.notes.push_back(fmt::format(
        "{}: {} of {} {} longer than the context of {} tokens and {} truncated", file.name,
        with_commas(encoded.cut_rows), counted(std::ssize(file.rows), "text"),
        encoded.cut_rows == 1 ? "is" : "are", context, encoded.cut_rows == 1 ? "was" : "were"));
  return encoded;
}

}  // namespace brrr::io
