#include "train/chat/chat_data.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"
#include "base/threads/parallel_tasks.h"
#include "data/hold_out.h"
#include "formats/gguf/gguf_file.h"
#include "train/chat/encode_conversation.h"

namespace brrr::train {
namespace {

/// Ids of conversations one behind the other.
struct EncodedFile {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;
  std::vector<io::Document> documents;
  int64_t divided = 0, left_out = 0;  // conversations longer than the context

  int64_t targets() const { return std::ranges::count(learnt, uint8_t{1}); }
};

EncodedFile encode(const std::vector<Conversation>& conversations, const std::string& name,
                   const ConversationEncoder& encoder) {
  std::vector<std::vector<EncodedConversation>> encoded(conversations.size());
  parallel_tasks(std::ssize(conversations), [&](size_t i) {
    try {
      encoded[i] = encoder.encode(conversations[i]);
    } catch (const UserError& e) {
      throw UserError(fmt::format("{}: line {}: {}", name, conversations[i].line, e.what()),
                      e.code());
    }
  });
  EncodedFile file;
  for (const auto& parts : encoded) {
    file.divided += parts.size() > 1 ? 1 : 0;
    file.left_out += parts.empty() ? 1 : 0;
    for (const EncodedConversation& part : parts) {
      const int64_t begin = std::ssize(file.ids);
      file.ids.insert(file.ids.end(), part.ids.begin(), part.ids.end());
      file.learnt.insert(file.learnt.end(), part.learnt.begin(), part.learnt.end());
      file.documents.push_back({begin, std::ssize(file.ids)});
    }
  }
  return file;
}

using Split = io::HeldOutRows::Split<Conversation>;

void note_long(const EncodedFile& file, const TrainOptions& options, Dataset& d) {
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
      "--task {}: {} has no chat template, neither chat_template.jinja nor \"chat_template\" in "
      "tokenizer_config.json; name one with --chat-template FILE",
      options.task, model_folder);
}

Dataset chat_dataset(const TrainOptions& options, const std::string& model_folder) {
  Dataset d;
  d.tokenizer = io::load_tokenizer(model_folder);
  ConversationFile file = read_conversations(options.data[0]);
  const std::string name = file.name;
  const bool with_tools = std::ranges::any_of(
      file.conversations, [](const Conversation& c) { return c.tools.truth(); });
  const io::ChatTemplate chat = chat_template_of(options, model_folder, with_tools);
  // The last id of a row is a target only.
  const ConversationEncoder encoder(chat, *d.tokenizer, options.context + 1);
  Split split;
  std::string val_name = name;
  if (options.val_data.empty()) {
    split = io::HeldOutRows(options.val_fraction).split(std::move(file.conversations));
  } else {
    split.train = std::move(file.conversations);
    ConversationFile val = read_conversations(options.val_data[0]);
    val_name = val.name;
    split.validation = std::move(val.conversations);
  }
  EncodedFile train = encode(split.train, name, encoder),
              val = encode(split.validation, val_name, encoder);
  if (train.documents.empty())
    user_error("{}: no conversation fits into the context of {}; use a larger --context", name,
               counted(options.context, "token"));
  note_long(train, options, d);
  d.has_val = !val.documents.empty();
  if (!d.has_val)
    d.notes.push_back(
        fmt::format("no validation: {} has only {}; name a second file with --val-data", name,
                    counted(std::ssize(split.train), "conversation")));
  d.description = fmt::format(
      "{}: {} for training and {} for validation; {} tokens, {} of them the "
      "assistant's",
      name, counted(std::ssize(split.train), "conversation"), split.validation.size(),
      with_commas(std::ssize(train.ids)), with_commas(train.targets()));
  d.sample_prompt =
      encoder.question_of(split.validation.empty() ? split.train[0] : split.validation[0]);
  d.train = io::TokenSource::from_ids(std::move(train.ids), name);
  d.val = io::TokenSource::from_ids(std::move(val.ids), val_name);
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
