#include "text/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/errors.h"
#include "text/bpe/bpe_vocabulary.h"
#include "text/json_fields.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_json_parts.h"
#include "text/unigram/unigram.h"
#include "text/wordpiece/wordpiece.h"

namespace brrr::io {
namespace {

constexpr int32_t kLongestInput = 1 << 30;

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
    const JsonFields model(file.object("model"), file_ + ": model");
    TokenizerParts parts;
    parts.normalizer = Normalizer::read(file.get("normalizer"), file_ + ": normalizer");
    parts.pre_tokenizer = PreTokenizer::read(file.get("pre_tokenizer"), file_ + ": pre_tokenizer");
    read_vocabulary(model);
    read_added_tokens(file, parts);
    parts.model = read_model(model, parts);
    parts.texts = TokenTexts::read(file.get("decoder"), names_, file_ + ": decoder");
    parts.post_processor =
        PostProcessor::read(file.get("post_processor"), file_ + ": post_processor", names_.size());
    read_truncation(file.get("truncation"), parts.lengths);
    read_padding(file.get("padding"), parts);
    const std::vector<int32_t> prefix = parts.post_processor.single.before();
    parts.end_of_text = id_of_first({kEndOfText, "</s>"});
    parts.begin_of_text = !prefix.empty() ? prefix[0] : id_of_first({"<s>"});
    if (parts.begin_of_text < 0) parts.begin_of_text = parts.end_of_text;
    return parts;
  }

  /// The names of the tokens go where token_id() finds them.
  void hand_over_names(TokenizerParts& parts) { parts.vocabulary = std::move(tokens_); }

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
        user_error("{}: {} is {}, which is not a token of {}", file, key, describe(value), file_);
    };
    read_id("bos_token", parts.begin_of_text);
    read_id("eos_token", parts.end_of_text);
    // A name that is no token is none of this tokenizer: nothing asks for it until a text does.
    const auto read_named = [&](const char* key, int32_t& id) {
      Json value = root.value(key, Json());
      if (value.is_object()) value = value.value("content", Json());
      if (!value.is_string()) return;
      const int32_t known = id_of_first({value.get_ref<const std::string&>()});
      if (known >= 0) id = known;
    };
    read_named("mask_token", parts.named.mask);
    read_named("pad_token", parts.named.pad);
    read_named("unk_token", parts.named.unknown);
    read_named("sep_token", parts.named.separator);
    read_named("cls_token", parts.named.classifier);
    const auto read_side = [&](const char* key, bool& left) {
      const Json value = root.value(key, Json());
      if (value == "left" || value == "right")
        left = value == "left";
      else if (!value.is_null())
        user_error("{}: {} is {}; expected \"left\" or \"right\"", file, key, describe(value));
    };
    read_side("truncation_side", parts.lengths.cut_left);
    read_side("padding_side", parts.lengths.pad_left);
  }

 private:
  std::unique_ptr<TokenModel> read_model(const JsonFields& model, TokenizerParts& parts) {
    const std::string type = model.text("type", "BPE");
    if (type == "BPE") return read_bpe_model(model, parts.pre_tokenizer);
    // The other models take characters.
    parts.pre_tokenizer.spell_letters();
    if (type == "WordPiece" || type == "WordLevel") return read_words(model, type, parts.named);
    if (type == "Unigram") return read_unigram(model, parts.named);
    user_error(
        "{}.type is {}, which is not supported (supported: BPE, Unigram, WordPiece, WordLevel)",
        model.where(), in_quotes(type));
  }

  std::unique_ptr<TokenModel> read_unigram(const JsonFields& fields, NamedTokens& named) const {
    UnigramModel model;
    const Json& vocab = fields.list("vocab");
    for (const Json& entry : vocab) {
      model.add(entry[0].get_ref<const std::string&>(), entry[1].get<double>());
      model.least_score =
          model.size() == 1 ? model.scores[0] : std::min(model.least_score, model.scores.back());
    }
    if (!fields.get("unk_id").is_null())
      model.unknown = fields.integer("unk_id", 0, static_cast<int32_t>(vocab.size()) - 1);
    named.unknown = model.unknown;
    if (fields.flag("byte_fallback", false))
      for (uint32_t byte = 0; byte < 256; ++byte)
        model.byte_ids.push_back(id_of_first({fmt::format("<0x{:02X}>", byte)}));
    return std::make_unique<UnigramEncoder>(std::move(model));
  }

  std::unique_ptr<TokenModel> read_words(const JsonFields& model, const std::string& type,
                                         NamedTokens& named) const {
    WordPieceOptions options;
    options.whole_words = type == "WordLevel";
    const std::string unknown = model.text("unk_token", options.whole_words ? "<unk>" : "[UNK]");
    if (const auto entry = tokens_.find(unknown); entry && !tokens_.is_added(*entry))
      options.unknown = static_cast<int32_t>(tokens_.id(*entry));
    named.unknown = options.unknown;
    if (!options.whole_words) {
      options.continuing = model.text("continuing_subword_prefix", "##");
      if (!model.get("max_input_chars_per_word").is_null())
        options.longest_word =
            static_cast<size_t>(model.integer("max_input_chars_per_word", 0, kLongestInput));
    }
    return std::make_unique<WordPieceModel>(names_, added_, std::move(options));
  }

  std::unique_ptr<TokenModel> read_bpe_model(const JsonFields& model, PreTokenizer& pre_tokenizer) {
    if (model.get("dropout") != 0) model.expect("dropout", nullptr);
    const std::string continuing = model.text("continuing_subword_prefix", ""),
                      ending = model.text("end_of_word_suffix", "");
    // A byte at the end of a word has another token then: letters are looked up one by one.
    if (!continuing.empty() || !ending.empty()) pre_tokenizer.spell_letters();
    return std::make_unique<BpeEncoder>(
        read_bpe(model, pre_tokenizer.byte_level(), continuing, ending));
  }

  void read_truncation(const Json& json, InputLengths& lengths) const {
    if (json.is_null()) return;
    const JsonFields fields(json, file_ + ": truncation");
    lengths.longest = static_cast<size_t>(fields.integer("max_length", 0, kLongestInput));
    const std::string strategy = fields.text("strategy", "LongestFirst"),
                      direction = fields.text("direction", "Right");
    using Cut = InputLengths::Cut;
    if (strategy != "LongestFirst" && strategy != "OnlyFirst" && strategy != "OnlySecond")
      user_error("{}.strategy is {}; expected LongestFirst, OnlyFirst or OnlySecond",
                 fields.where(), in_quotes(strategy));
    lengths.cut = strategy == "OnlyFirst"    ? Cut::first
                  : strategy == "OnlySecond" ? Cut::second
                                             : Cut::longest_first;
    lengths.cut_left = is_left(direction, fields);
    if (!fields.get("stride").is_null() && fields.integer("stride", 0, kLongestInput) != 0)
      user_error("{}.stride is {}, which is not supported; expected 0: what is cut is left out",
                 fields.where(), describe(fields.get("stride")));
  }

  void read_padding(const Json& json, TokenizerParts& parts) const {
    if (json.is_null()) return;
    const JsonFields fields(json, file_ + ": padding");
    const Json& strategy = fields.get("strategy");
    if (strategy.is_object()) {
      const JsonFields fixed(strategy, fields.where() + ".strategy");
      parts.lengths.padded = static_cast<size_t>(fixed.integer("Fixed", 0, kLongestInput));
    } else if (!strategy.is_null() && strategy != "BatchLongest") {
      user_error("{}.strategy is {}; expected \"BatchLongest\" or {{\"Fixed\": length}}",
                 fields.where(), describe(strategy));
    }
    parts.lengths.pad_left = is_left(fields.text("direction", "Right"), fields);
    const std::string token = fields.text("pad_token", "");
    parts.named.pad = id_of_first({token});
    if (parts.named.pad < 0 && !fields.get("pad_id").is_null())
      parts.named.pad = fields.integer("pad_id", 0, static_cast<int32_t>(names_.size()) - 1);
  }

  static bool is_left(const std::string& direction, const JsonFields& fields) {
    if (direction != "Left" && direction != "Right")
      user_error("{}.direction is {}; expected Left or Right", fields.where(),
                 in_quotes(direction));
    return direction == "Left";
  }

  void read_vocabulary(const JsonFields& model) {
    if (scanned_) tokens_ = std::move(scanned_->vocab);
    if (model.text("type", "BPE") == "Unigram") {
      const Json& list = model.list("vocab");
      for (size_t id = 0; id < list.size(); ++id) {
        const Json& entry = list[id];
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
            !entry[1].is_number())
          user_error("{}.vocab[{}] is {}; expected [\"token\", score]", model.where(), id,
                     entry.dump(-1, ' ', false, Json::error_handler_t::replace));
        tokens_.add_json(entry[0].get_ref<const std::string&>(), Json(id), false, file_);
      }
      return;
    }
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
    for (const size_t entry : entries_by_id(tokens_, file_)) {
      names_.emplace_back(tokens_.name(entry));
      added_.push_back(tokens_.is_added(entry));
    }
  }

  BpeModel read_bpe(const JsonFields& fields, bool byte_level, const std::string& continuing,
                    const std::string& ending) {
    BpeModel model =
        byte_level ? byte_level_model(tokens_, file_) : character_model(tokens_, file_);
    model.continuing = continuing;
    model.ending = ending;
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
          user_error("{}.unk_token is {}, which is not a token", fields.where(),
                     in_quotes(unknown));
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
    if (!model.ignore_merges && !model.has_affixes()) reader.check_complete();
    return model;
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
  std::vector<bool> added_;              // by id: no token of the model
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
  reader.hand_over_names(parts);
  return std::make_unique<TextPipeline>(std::move(parts));
}

}  // namespace brrr::io
