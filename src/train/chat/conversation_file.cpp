#include "train/chat/conversation_file.h"

#include <algorithm>
#include <array>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/options.h"
#include "data/packed/unpacked_file.h"
#include "formats/json_file.h"

namespace brrr::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kLargestFile = uint64_t{16} << 30;  // unpacked
constexpr std::array<const char*, 7> kRoles = {"system", "developer", "user",   "assistant",
                                               "tool",   "function",  "ipython"};

/// Fields of a message that say whether it is learnt.
constexpr std::string_view kWeight = "weight", kTrain = "train";

bool is_answer(const io::ChatMessage& message) { return message.role == "assistant"; }

/// Whether a message says nothing: no text, no parts of a text, no calls of tools.
bool is_empty(const io::ChatMessage& message) {
  if (message.content.find_first_not_of(" \t\r\n") != std::string::npos) return false;
  const jinja::Dict* const dict = message.whole.dict();
  if (dict == nullptr) return true;
  return std::ranges::none_of(dict->items, [](const auto& item) {
    const auto& [key, value] = item;
    constexpr std::string_view kSaysNothing[] = {"role", "name", kWeight, kTrain};
    return key.is_string() &&
           std::ranges::find(kSaysNothing, key.text()) == std::end(kSaysNothing) &&
           !value.is_string() && value.truth();
  });
}

/// A field of a message; null where it is absent or null, as data libraries fill missing columns.
const jinja::Value* mark_of(const io::ChatMessage& message, std::string_view name) {
  const jinja::Dict* const dict = message.whole.dict();
  const jinja::Value* const value = dict == nullptr ? nullptr : dict->find(name);
  return value == nullptr || value->is_none() ? nullptr : value;
}

/// Checks the marks of message `number` that say whether it is learnt.
void check_marks(const io::ChatMessage& message, size_t number, const std::string& where) {
  const jinja::Value *const weight = mark_of(message, kWeight), *const train =
                                                                    mark_of(message, kTrain);
  if (weight != nullptr && (weight->is_bool() || !weight->is_number() ||
                            (weight->number() != 0 && weight->number() != 1)))
    user_error("{}: message {} ({}) has \"weight\" {}; expected 0 (not learnt) or 1", where, number,
               message.role, jinja::to_repr(*weight));
  if (train != nullptr && !train->is_bool())
    user_error("{}: message {} ({}) has \"train\" {}; expected true or false (not learnt)", where,
               number, message.role, jinja::to_repr(*train));
  if (weight != nullptr && train != nullptr && weight->truth() != train->truth())
    user_error(
        "{}: message {} ({}) has \"weight\" {} and \"train\" {}, which contradict each other",
        where, number, message.role, jinja::to_repr(*weight), train->truth());
  for (const auto& [name, value] : {std::pair{kWeight, weight}, {kTrain, train}})
    if (value != nullptr && value->truth() && !is_answer(message))
      user_error(
          "{}: message {} ({}) has \"{}\" {}, but only messages of the assistant are learnt; leave "
          "it out",
          where, number, message.role, name, jinja::to_repr(*value));
}

}  // namespace

std::vector<io::ChatMessage> messages_or_text(const OrderedJson& field, const char* role,
                                              const std::string& where) {
  if (field.is_string()) return {{role, field.get<std::string>()}};
  return io::messages_of(field, where);
}

std::string fields_of(const OrderedJson& row) {
  std::string fields;
  for (const auto& [name, value] : row.items())
    fields += (fields.empty() ? "" : ", ") + io::in_quotes(name);
  return fields.empty() ? "no field" : fields;
}

jinja::Value tools_in(const OrderedJson& row, const std::string& where) {
  const auto tools = row.find("tools");
  if (tools == row.end() || tools->is_null()) return {};
  return io::tools_of(*tools, where + ", tools");
}

void check_messages(const Conversation& c, const std::string& where) {
  for (size_t i = 0; i < c.messages.size(); ++i) {
    const io::ChatMessage& m = c.messages[i];
    const std::vector<std::string> known(kRoles.begin(), kRoles.end());
    if (std::ranges::find(known, m.role) == known.end()) {
      const std::string likely = nearest(m.role, known);
      user_error("{}: message {} has the role {}; expected one of {}{}", where, i + 1,
                 io::in_quotes(m.role), fmt::join(known, ", "),
                 likely.empty() ? "" : "; did you mean " + likely + "?");
    }
    if (is_empty(m))
      user_error("{}: message {} ({}) is empty; expected text", where, i + 1, m.role);
    check_marks(m, i + 1, where);
  }
  const auto first = c.messages.begin() + static_cast<int64_t>(c.first_answer);
  if (std::none_of(first, c.messages.end(), is_answer))
    user_error(
        "{}: no message of the assistant, so nothing is learnt from it; expected at least one",
        where);
  for (size_t i = c.first_answer; i < c.messages.size(); ++i)
    if (c.is_learnt(i)) return;
  user_error(
      "{}: every message of the assistant has \"weight\": 0 or \"train\": false, so nothing is "
      "learnt from it; leave the line out",
      where);
}

bool Conversation::is_learnt(size_t i) const {
  const io::ChatMessage& m = messages[i];
  if (i < first_answer || !is_answer(m)) return false;
  for (const std::string_view name : {kWeight, kTrain})
    if (const jinja::Value* mark = mark_of(m, name); mark != nullptr && !mark->truth())
      return false;
  return true;
}

namespace {

Conversation conversation_of(const OrderedJson& row, int64_t line, const std::string& where) {
  Conversation c;
  c.line = line;
  const auto messages = row.find("messages");
  const auto prompt = row.find("prompt"), completion = row.find("completion");
  const bool is_pair = prompt != row.end() && completion != row.end();
  if ((messages != row.end()) == is_pair)
    user_error("{}: expected \"messages\", or \"prompt\" and \"completion\"; found {}", where,
               fields_of(row));
  if (is_pair) {
    c.messages = messages_or_text(*prompt, "user", where + ", prompt");
    c.first_answer = c.messages.size();
    const auto answers = messages_or_text(*completion, "assistant", where + ", completion");
    c.messages.insert(c.messages.end(), answers.begin(), answers.end());
  } else {
    c.messages = io::messages_of(*messages, where + ", messages");
  }
  c.tools = tools_in(row, where);
  check_messages(c, where);
  return c;
}

}  // namespace

namespace {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

OrderedJson row_of(std::string_view line, const std::string& where, const char* example) {
  OrderedJson row = io::parse_ordered_json(line, where);
  if (!row.is_object())
    user_error("{}: expected an object such as {} in each line; found {}", where, example,
               io::describe(io::Json(row)));
  return row;
}

/// The first line of a file that is not blank; "" where there is none.
std::string first_line_of(const fs::path& path) {
  io::UnpackedFile file(path);
  std::string text, piece(size_t{64} << 10, '\0');
  while (const size_t count = file.read(piece.data(), piece.size())) {
    text.append(piece, 0, count);
    for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      if (!is_blank(std::string_view(text).substr(0, end))) return text.substr(0, end);
  }
  return is_blank(text) ? "" : text;
}

}  // namespace

bool is_file_of_rows(const fs::path& file) {
  return io::unpacked_name(file).extension() == ".jsonl";
}

TaskData data_of_rows(const fs::path& file, bool prefers_text) {
  const std::string line = first_line_of(file);
  if (line.empty()) user_error("{}: it has no row; expected one in each line", file.string());
  const OrderedJson row = row_of(line, file.string(), R"({"messages": [...]})");
  if (prefers_text && row.contains("text")) return TaskData::text;
  if (row.contains("chosen") && row.contains("rejected")) return TaskData::preferences;
  return row.contains("messages") || (row.contains("prompt") && row.contains("completion"))
             ? TaskData::conversations
             : TaskData::text;
}

void each_json_line(const fs::path& file, const char* example,
                    const std::function<void(const OrderedJson& row, int64_t number,
                                             const std::string& where)>& use) {
  const std::string text = io::read_unpacked(file, kLargestFile);
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (is_blank(line)) continue;
    const std::string where = fmt::format("{}: line {}", file.string(), number);
    use(row_of(line, where, example), number, where);
  }
}

RowFile<Conversation> read_conversations(const fs::path& file) {
  RowFile<Conversation> result{file.string(), {}};
  each_json_line(file, R"({"messages": [...]})",
                 [&](const OrderedJson& row, int64_t number, const std::string& where) {
                   result.rows.push_back(conversation_of(row, number, where));
                 });
  if (result.rows.empty())
    user_error("{}: it has no conversation; expected one in each line", result.name);
  return result;
}

}  // namespace brrr::train
