#include "text/post_processor.h"

#include <algorithm>

#include "base/errors.h"
#include "text/json_fields.h"

namespace brrr::io {
namespace {

using ItemKind = InputTemplate::Kind;

constexpr int kDeepestProcessor = 16;
constexpr size_t kMostItems = 1024;
constexpr int32_t kMostTypes = 1 << 20;

InputTemplate::Item token_item(int32_t id, int32_t type) { return {ItemKind::token, id, type}; }

class PostProcessorReader {
 public:
  explicit PostProcessorReader(size_t vocab_size) : vocab_size_(vocab_size) {}

  void read(const Json& json, const std::string& where, int depth, PostProcessor& all) {
    const JsonFields fields(json, where);
    const std::string type = fields.text("type");
    if (type == "ByteLevel") return;  // it moves offsets, which nobody asks for
    if (type == "Sequence") {
      if (depth == kDeepestProcessor)
        user_error("{}: sequences nested deeper than {}", where, kDeepestProcessor);
      const Json& list = fields.list("processors");
      for (size_t i = 0; i < list.size(); ++i)
        read(list[i], fmt::format("{}.processors[{}]", where, i), depth + 1, all);
      return;
    }
    if (seen_)
      user_error("{}: {} is the second post-processor that puts tokens around a text; expected one",
                 where, type);
    seen_ = true;
    if (type == "TemplateProcessing") {
      const JsonFields special(fields.object("special_tokens"), where + ".special_tokens");
      all.single = read_template(fields, "single", false, special);
      all.pair = {};
      if (!fields.get("pair").is_null()) all.pair = read_template(fields, "pair", true, special);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      const int32_t cls = read_token(fields, "cls"), sep = read_token(fields, "sep");
      all = type == "BertProcessing" ? PostProcessor::bert(cls, sep)
                                     : PostProcessor::roberta(cls, sep);
    } else {
      user_error(
          "{}.type is {}, which is not supported (supported: Sequence, ByteLevel, "
          "TemplateProcessing, BertProcessing, RobertaProcessing)",
          where, in_quotes(type));
    }
  }

 private:
  InputTemplate read_template(const JsonFields& fields, const char* key, bool pair,
                              const JsonFields& special) const {
    InputTemplate out;
    int firsts = 0, seconds = 0;
    const Json& items = fields.list(key);
    for (size_t i = 0; i < items.size(); ++i) {
      const std::string where = fmt::format("{}.{}[{}]", fields.where(), key, i);
      const JsonFields item(items[i], where);
      if (!item.get("Sequence").is_null()) {
        const JsonFields sequence(item.object("Sequence"), where + ".Sequence");
        const std::string id = sequence.text("id");
        const bool first = id == "A", second = id == "B" && pair;
        if (!first && !second)
          user_error("{} is {}; expected the sequence A{}", where, items[i].dump(),
                     pair ? " or B" : ", once");
        firsts += first;
        seconds += second;
        out.items.push_back({first ? ItemKind::first : ItemKind::second, 0, read_type(sequence)});
      } else {
        const JsonFields token(item.object("SpecialToken"), where + ".SpecialToken");
        const std::string name = token.text("id");
        const JsonFields ids(special.object(name.c_str()), special.where() + "." + name);
        for (const Json& id : ids.list("ids"))
          out.items.push_back(token_item(read_id(id, ids.where() + ".ids"), read_type(token)));
      }
      if (out.items.size() > kMostItems)
        user_error("{}.{} has more than {} tokens", fields.where(), key, kMostItems);
    }
    if (firsts != 1 || seconds != (pair ? 1 : 0))
      user_error("{}.{} has {} times the sequence A and {} times B; expected {}", fields.where(),
                 key, firsts, seconds, pair ? "each once" : "A once");
    return out;
  }

  int32_t read_id(const Json& id, const std::string& where) const {
    const bool valid = id.is_number_unsigned() && id.get<uint64_t>() < vocab_size_;
    if (!valid)
      user_error("{} holds {}; expected ids from 0 to {}", where, describe(id), vocab_size_ - 1);
    return id.get<int32_t>();
  }
  static int32_t read_type(const JsonFields& fields) {
    return fields.get("type_id").is_null() ? 0 : fields.integer("type_id", 0, kMostTypes);
  }
  /// ["[CLS]", 101]
  int32_t read_token(const JsonFields& fields, const char* key) const {
    const Json& pair = fields.list(key);
    if (pair.size() != 2)
      user_error("{}.{} is {}; expected a token and its id", fields.where(), key, pair.dump());
    return read_id(pair[1], fmt::format("{}.{}", fields.where(), key));
  }

  size_t vocab_size_;
  bool seen_ = false;
};

}  // namespace

size_t InputTemplate::added() const {
  return static_cast<size_t>(std::count_if(
      items.begin(), items.end(), [](const Item& i) { return i.kind == ItemKind::token; }));
}

std::vector<int32_t> InputTemplate::before() const {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < items.size() && items[i].kind == ItemKind::token; ++i)
    ids.push_back(items[i].id);
  return ids;
}

std::vector<int32_t> InputTemplate::behind() const {
  std::vector<int32_t> ids;
  for (size_t i = items.size(); i > 0 && items[i - 1].kind == ItemKind::token; --i)
    ids.push_back(items[i - 1].id);
  std::reverse(ids.begin(), ids.end());
  return ids;
}

PostProcessor PostProcessor::around(const std::vector<int32_t>& prefix,
                                    const std::vector<int32_t>& suffix) {
  PostProcessor out;
  const auto add = [&](InputTemplate& to, ItemKind text, int32_t type) {
    for (const int32_t id : prefix) to.items.push_back(token_item(id, type));
    to.items.push_back({text, 0, type});
    for (const int32_t id : suffix) to.items.push_back(token_item(id, type));
  };
  add(out.single, ItemKind::first, 0);
  add(out.pair, ItemKind::first, 0);
  add(out.pair, ItemKind::second, 1);
  return out;
}

PostProcessor PostProcessor::bert(int32_t cls, int32_t sep) {
  PostProcessor out;
  out.single.items = {token_item(cls, 0), {ItemKind::first, 0, 0}, token_item(sep, 0)};
  out.pair.items = out.single.items;
  out.pair.items.push_back({ItemKind::second, 0, 1});
  out.pair.items.push_back(token_item(sep, 1));
  return out;
}

PostProcessor PostProcessor::roberta(int32_t cls, int32_t sep) {
  PostProcessor out;
  out.single.items = {token_item(cls, 0), {ItemKind::first, 0, 0}, token_item(sep, 0)};
  out.pair.items = out.single.items;
  out.pair.items.push_back(token_item(sep, 0));
  out.pair.items.push_back({ItemKind::second, 0, 0});
  out.pair.items.push_back(token_item(sep, 0));
  return out;
}

PostProcessor PostProcessor::read(const Json& json, const std::string& where, size_t vocab_size) {
  PostProcessor all = around({}, {});
  if (!json.is_null()) PostProcessorReader(vocab_size).read(json, where, 0, all);
  return all;
}

}  // namespace brrr::io
