#include "train/chat/chat_data.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"
#include "formats/gguf/gguf_file.h"
#include "train/chat/rendered_rows.h"

namespace brrr::train {
namespace {

/// Encoded conversations, or the parts of those longer than the context.
struct EncodedConversations : LearntSequences {
  std::vector<io::Document> documents;
  int64_t divided = 0, left_out = 0;  // conversations longer than the context
};

EncodedConversations encode(const RowFile<Conversation>& file, const ConversationEncoder& encoder) {
  EncodedConversations all;
  for (const auto& parts :
       encode_rows(file, [&](const Conversation& c) { return encoder.encode(c); })) {
    all.divided += parts.size() > 1 ? 1 : 0;
    all.left_out += parts.empty() ? 1 : 0;
    for (const EncodedConversation& part : parts) all.documents.push_back(all.add(part));
  }
  return all;
}

void note_long(const EncodedConversations& file, const TrainOptions& options, Dataset& d) {
  if (file.divided > 0)
    d.notes.push_back(fmt::format(
        "{} longer than the context of {} were divided between exchanges; a larger --context keeps "
        "them whole",
        counted(file.divided, "conversation"), counted(options.context, "token")));
  if (file.left_out > 0)
    d.notes.push_back(fmt::format(
        "{} left out: no exchange of them fits into the context of {}; use a larger --context",
        counted(file.left_out, "conversation"), counted(options.context, "token")));
}

}  // namespace

io::ChatTemplate chat_template_of(const TrainOptions& options, const std::string& model_folder,
                                  bool with_tools) {
  if (!options.chat_template.empty() && !options.wants_resume())
    return io::ChatTemplate(read_file(options.chat_template), options.chat_template, model_folder);
  if (auto chat = io::ChatTemplate::read(model_folder, with_tools)) return *std::move(chat);
  user_error(
      "{} has no chat template, neither chat_template.jinja nor \"chat_template\" in "
      "tokenizer_config.json; name one with --chat-template FILE",
      model_folder);
}

Dataset chat_dataset(const TrainOptions& options, const std::string& model_folder) {
  Dataset d;
  RenderedRows<Conversation> rows = read_rendered(options, model_folder, read_conversations);
  // The last id of a row is only a target.
  const ConversationEncoder encoder(rows.chat, *rows.tokenizer, options.context + 1);
  EncodedConversations train = encode(rows.train, encoder), val = encode(rows.validation, encoder);
  const bool trains = !options.data.empty();
  const std::string& name = trains ? rows.train.name : rows.validation.name;
  if ((trains ? train : val).documents.empty())
    user_error("{}: no conversation fits into the context of {}; use a larger --context", name,
               counted(options.context, "token"));
  note_long(trains ? train : val, options, d);
  d.has_val = !val.documents.empty();
  if (!d.has_val && !options.skips_validation())
    d.notes.push_back(
        fmt::format("no validation: {} has only {}; name a second file with --val-data", name,
                    counted(std::ssize(rows.train.rows), "conversation")));
  d.description = fmt::format(
      "{}: {} for training and {} for validation; {} tokens, {} of them the "
      "assistant's",
      name, counted(std::ssize(rows.train.rows), "conversation"), rows.validation.rows.size(),
      with_commas(std::ssize(train.ids)), with_commas(train.targets()));
  d.sample_prompt = rows.question(encoder);
  d.tokenizer = std::move(rows.tokenizer);
  d.train = io::TokenSource::from_ids(std::move(train.ids), rows.train.name);
  d.val = io::TokenSource::from_ids(std::move(val.ids), rows.validation.name);
  d.documents = std::move(train.documents);
  d.val_documents = std::move(val.documents);
  d.learnt = std::move(train.learnt);
  d.val_learnt = std::move(val.learnt);
  return d;
}

std::string kept_chat_template(const TrainOptions& options, const fs::path& model_folder) {
  if (!options.chat_template.empty() && !options.wants_resume())
    return read_file(options.chat_template);
  if (model_folder.empty()) return "";
  const fs::path file = model_folder / io::kChatTemplate;
  std::error_code ignored;
  if (fs::exists(file, ignored)) return read_file(file);
  if (!io::is_gguf_file(model_folder)) return "";
  const auto chat = io::ChatTemplate::read(model_folder);
  return chat ? chat->text() : "";
}

}  // namespace brrr::train
