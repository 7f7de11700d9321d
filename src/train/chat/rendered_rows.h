#pragma once
// Shared by the tasks whose data a chat template renders (chat, dpo): reading rows from one or two
// .jsonl files, the model's tokenizer and template, and token ids with a mark for each that is
// learnt.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/threads/parallel_tasks.h"
#include "data/document_batches.h"
#include "data/hold_out.h"
#include "text/tokenizer.h"
#include "train/chat/chat_data.h"
#include "train/chat/encode_conversation.h"
#include "train/options.h"

namespace brrr::train {

/// The conversation that stands for a row: its line, its tools, and the prompt that samples answer.
inline const Conversation& shown(const Conversation& row) { return row; }

/// Rows for training and for validation, and what renders them.
template <typename Row>
struct RenderedRows {
  RowFile<Row> train, validation;
  std::unique_ptr<io::Tokenizer> tokenizer;
  io::ChatTemplate chat;

  /// The prompt of the first validation row, or of the first training row if there is no
  /// validation.
  std::string question(const ConversationEncoder& encoder) const {
    const auto& rows = validation.rows.empty() ? train.rows : validation.rows;
    return encoder.question_of(shown(rows.front()));
  }
};

/// Reads --data and --val-data with `read`, or divides the rows of --data. Without --data there are
/// only rows for validation. `model_folder` brings the tokenizer, and the chat template unless
/// --chat-template names one. Throws UserError.
template <typename Row>
RenderedRows<Row> read_rendered(const TrainOptions& options, const std::string& model_folder,
                                RowFile<Row> (*read)(const fs::path&)) {
  std::unique_ptr<io::Tokenizer> tokenizer = io::load_tokenizer(model_folder);
  RowFile<Row> train, validation;
  if (!options.data.empty()) train = read(options.data[0]);
  if (!options.val_data.empty()) validation = read(options.val_data[0]);
  const auto have_tools = [](const RowFile<Row>& file) {
    return std::ranges::any_of(file.rows, [](const Row& r) { return shown(r).tools.truth(); });
  };
  const bool with_tools = have_tools(train) || have_tools(validation);
  if (options.val_data.empty()) {
    auto split = io::HeldOutRows(options.val_fraction).split(std::move(train.rows));
    train.rows = std::move(split.train);
    validation = {train.name, std::move(split.validation)};
  }
  return {std::move(train), std::move(validation), std::move(tokenizer),
          chat_template_of(options, model_folder, with_tools)};
}

/// Encodes the rows in parallel. Errors name the file and the line.
template <typename Row, typename Encode>
auto encode_rows(const RowFile<Row>& file, Encode encode) {
  std::vector<decltype(encode(file.rows.front()))> encoded(file.rows.size());
  parallel_tasks(std::ssize(file.rows), [&](size_t i) {
    try {
      encoded[i] = encode(file.rows[i]);
    } catch (const UserError& e) {
      throw UserError(fmt::format("{}: line {}: {}", file.name, shown(file.rows[i]).line, e.what()),
                      e.code());
    }
  });
  return encoded;
}

/// Concatenated token ids of sequences, with a mark for each id that is learnt.
struct LearntSequences {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;

  io::Document add(const EncodedConversation& sequence) {
    const int64_t begin = std::ssize(ids);
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    learnt.insert(learnt.end(), sequence.learnt.begin(), sequence.learnt.end());
    return {begin, std::ssize(ids)};
  }
  int64_t targets() const { return std::ranges::count(learnt, uint8_t{1}); }
};

}  // namespace brrr::train
