#include "text/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/errors.h"
#include "text/bpe/bpe_vocabulary.h"
#include "text/json_fields.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_json_parts.h"

namespace brrr::io {
namespace {

constexpr int kDeepestProcessor = 16;

/// Reads one file into the parts of a tokenizer.
class TokenizerJson {
 public:
  TokenizerJson(std::string_view text, std::string file)
      : file_(std::move(file)), scanned_(split_tokenizer_json(text)) {
    // Errors count the lines of the whole file.
    if (scanned_ && !Json::accept(scanned_->rest)) scanned_.reset();
    root_ = parse_json(scanned_ ? std::string_view(scanned_->rest) : text, file_);
    if (!root_.is_object())
      user_error("{}: it holds {}; expected an object with \"model\"", file_, describe(root_));
  }

  TokenizerParts read() {
    const JsonFields file(root_, file_ + ": the file");
    for (const char* part : {"truncation", "padding"})
      if (!file.get(part).is_null())
        user_error("{}: {} is {}, which is not supported; expected null", file_, part,
                   describe(file.get(part)));
    const JsonFields model(file.object("model"), file_ + ": model");
    check_model(model);
    TokenizerParts parts;
    parts.normalizer = Normalizer::read(file.get("normalizer"), file_ + ": normalizer");
    parts.pre_tokenizer = PreTokenizer::read(file.get("pre_tokenizer"), file_ + ": pre_tokenizer");
    read_vocabulary(model);
    read_added_tokens(file, parts);
    parts.model = std::make_unique<BpeEncoder>(read_bpe(model, parts.pre_tokenizer.byte_level()));
    parts.texts = TokenTexts::read(file.get("decoder"), names_, file_ + ": decoder");
    read_post_processor(file.get("post_processor"), file_ + ": post_processor", 0, parts);
    parts.end_of_text = id_of_first({kEndOfText, "</s>"});
    parts.begin_of_text = !parts.prefix.empty() ? parts.prefix[0] : id_of_first({"<s>"});
    if (parts.begin_of_text < 0) parts.begin_of_text = parts.end_of_text;
    return parts;
  }

  /// The ids of the tokens that begin and end a text, where a configuration names them.
  void read_config(std::string_view text, const std::string& file, TokenizerParts& parts) const {
    const Json root = parse_json(text, file);
    if (!root.is_object()) user_error("{}: it holds {}; expected an object", file, describe(root));
    const auto read_id = [&](const char* key, int32_t& id) {
      Json value = root.value(key, Json());
      if (value.is_object()) value = value.value("content", Json());
      if (value.is_null()) return;
      if (!value.is_string())
        user_error("{}: {} is {}; expected the text of a token", file, key, describe(value));
      id = id_of_first({value.get_ref<const std::string&>()});
      if (id < 0)
        user_error("{}: {} is {}, which is no token of {}", file, key, describe(value), file_);
    };
    read_id("bos_token", parts.begin_of_text);
    read_id("eos_token", parts.end_of_text);
  }

 private:
  void check_model(const JsonFields& model) const {
    const std::string type = model.text("type", "BPE");
    if (type != "BPE")
      user_error("{}.type is {}, which is not supported (supported: BPE)", model.where(),
                 in_quotes(type));
    if (model.get("dropout") != 0) model.expect("dropout", nullptr);
    model.expect("continuing_subword_prefix", "");
    model.expect("end_of_word_suffix", "");
  }

  void read_vocabulary(const JsonFields& model) {
    if (scanned_) tokens_ = std::move(scanned_->vocab);
    for (const auto& [token, id] : model.object("vocab").items())
      tokens_.add_json(token, id, false, file_);
  }

  void read_added_tokens(const JsonFields& file, TokenizerParts& parts) {
    const Json& list = file.get("added_tokens");
    if (!list.is_null() && !list.is_array())
      user_error("{}: \"added_tokens\" is {}; expected a list", file_, describe(list));
    std::vector<AddedToken> added;
    std::set<std::string> contents;
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonFields fields(list[i], fmt::format("{}: added_tokens[{}]", file_, i));
      AddedToken token;
      token.content = fields.text("content");
      token.id = fields.integer("id", 0, WordCache::kIdLimit - 1);
      token.special = fields.flag("special", false);
      token.single_word = fields.flag("single_word", false);
      token.lstrip = fields.flag("lstrip", false);
      token.rstrip = fields.flag("rstrip", false);
      token.normalized = fields.flag("normalized", !token.special);
      if (token.content.empty()) user_error("{}.content is empty", fields.where());
      if (!contents.insert(token.content).second)
        user_error("{}: the token {} is listed twice in added_tokens", file_,
                   in_quotes(token.content));
      if (const auto known = tokens_.find(token.content)) {
        if (tokens_.id(*known) != token.id)
          user_error("{}: the token {} has id {} in the vocabulary and id {} in added_tokens",
                     file_, in_quotes(token.content), tokens_.id(*known), token.id);
      } else {
        tokens_.add_json(token.content, Json(token.id), true, file_);
      }
      if (token.special) parts.special.push_back(token.id);
      added.push_back(std::move(token));
    }
    std::sort(parts.special.begin(), parts.special.end());
    for (const AddedToken& token : added) {
      if (token.normalized)
        parts.added_normalized.add(token, parts.normalizer.apply(token.content, false));
      else
        parts.added.add(token, token.content);
    }
    for (const size_t entry : entries_by_id(tokens_, file_))
      names_.emplace_back(tokens_.name(entry));
  }

  BpeModel read_bpe(const JsonFields& fields, bool byte_level) {
    BpeModel model =
        byte_level ? byte_level_model(tokens_, file_) : character_model(tokens_, file_);
    model.ignore_merges = fields.flag("ignore_merges", false);
    if (!byte_level) {
      model.fuse_unknown = fields.flag("fuse_unk", false);
      if (fields.flag("byte_fallback", false))
        for (uint32_t byte = 0; byte < 256; ++byte) {
          const std::string name = fmt::format("<0x{:02X}>", byte);
          const auto entry = tokens_.find(name);
          if (!entry)
            user_error("{}.byte_fallback is true, but there is no token {}", fields.where(), name);
          model.fallback_ids.push_back(static_cast<uint32_t>(tokens_.id(*entry)));
        }
      if (const std::string unknown = fields.text("unk_token", ""); !unknown.empty()) {
        model.unknown = id_of_first({unknown});
        if (model.unknown < 0)
          user_error("{}.unk_token is {}, which is no token", fields.where(), in_quotes(unknown));
      }
    }
    MergeReader reader(tokens_, file_, file_, "merge", model);
    if (scanned_) reader.reserve(scanned_->merges.size());
    if (scanned_)
      for (size_t i = 0; i < scanned_->merges.size(); ++i)
        reader.add(scanned_->merges[i].first, scanned_->merges[i].second, i + 1);
    const Json& merges = fields.list("merges");
    for (size_t i = 0; i < merges.size(); ++i) {
      const Json& merge = merges[i];
      std::optional<std::pair<std::string_view, std::string_view>> pair;
      if (merge.is_string()) pair = split_pair(merge.get_ref<const std::string&>());
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
        pair = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
      if (!pair)
        user_error("{}: merge {}: {}, got {}", file_, i + 1, kPairExpected, describe(merge));
      reader.add(pair->first, pair->second, i + 1);
    }
    if (!model.ignore_merges) reader.check_complete();
    return model;
  }

  void read_post_processor(const Json& json, const std::string& where, int depth,
                           TokenizerParts& parts) const {
    if (json.is_null()) return;
    const JsonFields fields(json, where);
    const std::string type = fields.text("type");
    if (type == "ByteLevel") return;  // it moves offsets, which nobody asks for
    if (type == "Sequence") {
      if (depth == kDeepestProcessor)
        user_error("{}: sequences nested deeper than {}", where, kDeepestProcessor);
      const Json& list = fields.list("processors");
      for (size_t i = 0; i < list.size(); ++i)
        read_post_processor(list[i], fmt::format("{}.processors[{}]", where, i), depth + 1, parts);
      return;
    }
    if (type != "TemplateProcessing")
      user_error(
          "{}.type is {}, which is not supported (supported: Sequence, ByteLevel, "
          "TemplateProcessing)",
          where, in_quotes(type));
    read_template(fields, parts);
  }

  void read_template(const JsonFields& fields, TokenizerParts& parts) const {
    const JsonFields special(fields.object("special_tokens"), fields.where() + ".special_tokens");
    std::vector<int32_t> prefix, suffix;
    bool behind = false;
    const Json& items = fields.list("single");
    for (size_t i = 0; i < items.size(); ++i) {
      const std::string where = fmt::format("{}.single[{}]", fields.where(), i);
      const JsonFields item(items[i], where);
      if (!item.get("Sequence").is_null()) {
        const JsonFields sequence(item.object("Sequence"), where + ".Sequence");
        if (behind || sequence.text("id") != "A")
          user_error("{} is {}; expected the sequence A, once", where, items[i].dump());
        behind = true;
        continue;
      }
      const JsonFields token(item.object("SpecialToken"), where + ".SpecialToken");
      const std::string name = token.text("id");
      const JsonFields ids(special.object(name.c_str()), special.where() + "." + name);
      for (const Json& id : ids.list("ids")) {
        const bool valid = id.is_number_unsigned() && id.get<uint64_t>() < names_.size();
        if (!valid)
          user_error("{}.ids holds {}; expected ids from 0 to {}", ids.where(), describe(id),
                     names_.size() - 1);
        (behind ? suffix : prefix).push_back(id.get<int32_t>());
      }
    }
    if (!behind) user_error("{}.single has no sequence A", fields.where());
    parts.prefix.insert(parts.prefix.begin(), prefix.begin(), prefix.end());
    parts.suffix.insert(parts.suffix.end(), suffix.begin(), suffix.end());
  }

  int32_t id_of_first(std::initializer_list<std::string_view> candidates) const {
    for (const std::string_view name : candidates)
      if (const auto entry = tokens_.find(name)) return static_cast<int32_t>(tokens_.id(*entry));
    return -1;
  }

  std::string file_;
  std::optional<TokenizerJsonParts> scanned_;
  Json root_;
  VocabTokens tokens_;
  std::vector<std::string_view> names_;  // by id
};

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(std::map<std::string, std::string> files,
                                               const std::string& folder) {
  const auto path = [&](const char* name) { return folder.empty() ? name : folder + "/" + name; };
  TokenizerJson reader(files.at("tokenizer.json"), path("tokenizer.json"));
  TokenizerParts parts = reader.read();
  for (const char* name :
       {"special_tokens_map.json", "tokenizer_config.json"})  // the last one wins
    if (const auto found = files.find(name); found != files.end())
      reader.read_config(found->second, path(name), parts);
  parts.files = std::move(files);
  return std::make_unique<TextPipeline>(std::move(parts));
}

}  // namespace brrr::io
