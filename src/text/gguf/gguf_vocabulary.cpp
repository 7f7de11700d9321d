#include "text/gguf/gguf_vocabulary.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/temporary_folder.h"
#include "formats/json_file.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/gguf/gguf_pre_tokenizers.h"
#include "text/gguf/gguf_tokenizer.h"
#include "text/normalizer.h"
#include "text/ranked/ranked_tokens.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_writer.h"

namespace brrr::io {
namespace {

using GgufKind =
    SentencePieceModel::PieceKind;  // the numbers of tokenizer.ggml.token_type are these
constexpr std::string_view kSpaceLetter = "\u2581";

/// The lists of a file's vocabulary.
struct GgufVocabulary {
  std::string model;  // tokenizer.ggml.model
  std::string pre;    // tokenizer.ggml.pre
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
  bool adds_space = false;
  /// What texts become before they are cut, which the file does not say.
  Normalizer normalizer;
  std::vector<std::string> notes;

  void resize(size_t count) {
    tokens.resize(count);
    kinds.resize(count, static_cast<int32_t>(GgufKind::unused));
  }
  void set(size_t id, std::string_view token, GgufKind kind) {
    tokens[id] = token;
    kinds[id] = static_cast<int32_t>(kind);
  }
  bool is(size_t id, GgufKind kind) const { return kinds[id] == static_cast<int32_t>(kind); }
};

std::string with_letters_for_spaces(std::string_view text, std::string_view from,
                                    std::string_view to) {
  std::string out(text);
  for (size_t at = 0; (at = out.find(from, at)) != std::string::npos; at += to.size())
    out.replace(at, from.size(), to);
  return out;
}

[[noreturn]] void refuse_tokenizer(const std::string& where, const std::string& reason) {
  user_error(
      "{}: its tokenizer cannot be written into a GGUF file: {}; those that can: SentencePiece's "
      "BPE, byte-level BPE, WordPiece and single characters",
      where, reason);
}

// ----- tokenizer.model

GgufVocabulary vocabulary_of_pieces(const SentencePieceModel& model, const std::string& where) {
  if (model.algorithm != SentencePieceModel::Algorithm::bpe)
    refuse_tokenizer(where, "it is SentencePiece's Unigram");
  GgufVocabulary v;
  v.model = "llama";
  v.pre = "default";
  v.adds_space = model.add_dummy_prefix;
  v.resize(model.pieces.size());
  v.scores.resize(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    v.set(id,
          piece.kind == GgufKind::user_defined
              ? with_letters_for_spaces(piece.text, kSpaceLetter, " ")
              : std::string(piece.text),
          piece.kind);
    v.scores[id] = piece.score;
  }
  return v;
}

// ----- tokenizer.json

const Json& member(const Json& object, const char* key) {
  static const Json none;
  const auto at = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && at != object.end() ? *at : none;
}

/// Whether a part of a tokenizer.json, or one inside it, has this type.
bool has_type(const Json& part, std::string_view type) {
  if (part.is_object() && member(part, "type") == type) return true;
  if (part.is_object() || part.is_array())
    for (const Json& inner : part)
      if (has_type(inner, type)) return true;
  return false;
}

/// The tokens of the file by id; those of added_tokens have their kinds.
void read_names(const Json& root, GgufVocabulary& v) {
  const Json& model = member(root, "model");
  size_t count = member(model, "vocab").size();
  for (const Json& added : member(root, "added_tokens"))
    count = std::max(count, added.at("id").get<size_t>() + 1);
  v.resize(count);
  for (const auto& [token, id] : member(model, "vocab").items())
    v.set(id.get<size_t>(), token, GgufKind::normal);
  const Json& unknown = member(model, "unk_token");
  for (const Json& added : member(root, "added_tokens")) {
    const auto& content = added.at("content").get_ref<const std::string&>();
    const GgufKind kind = content == unknown              ? GgufKind::unknown
                          : added.value("special", false) ? GgufKind::control
                                                          : GgufKind::user_defined;
    v.set(added.at("id").get<size_t>(), content, kind);
  }
}

/// The two tokens of a merge.
std::pair<std::string, std::string> merged_pair(const Json& merge) {
  if (merge.is_array()) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  return {text.substr(0, space), text.substr(space + 1)};
}

/// SentencePiece's BPE: the score of a token is the place of the first merge that makes it.
void read_scored_merges(const Json& root, GgufVocabulary& v) {
  v.model = "llama";
  v.pre = "default";
  const Json& normalizer = member(root, "normalizer");
  const Json& pre = member(root, "pre_tokenizer");
  v.adds_space = has_type(normalizer, "Prepend") ||
                 (has_type(pre, "Metaspace") && member(pre, "prepend_scheme") != "never" &&
                  member(pre, "add_prefix_space") != false);
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < v.tokens.size(); ++id) ids.emplace(v.tokens[id], id);
  const Json& merges = member(member(root, "model"), "merges");
  const auto last = -static_cast<float>(merges.size());
  v.scores.assign(v.tokens.size(), last);
  std::vector<bool> is_made(v.tokens.size());
  float rank = 0;
  for (const Json& merge : merges) {
    const auto [left, right] = merged_pair(merge);
    const auto made = ids.find(std::string_view(left + right));
    if (made != ids.end() && !is_made[made->second]) {
      is_made[made->second] = true;
      v.scores[made->second] = rank;
    }
    --rank;
  }
  for (size_t id = 0; id < v.tokens.size(); ++id)
    if (uint8_t byte = 0; v.is(id, GgufKind::normal) && is_byte_piece(v.tokens[id], byte))
      v.kinds[id] = static_cast<int32_t>(GgufKind::byte);
}

void read_byte_merges(const Json& root, GgufVocabulary& v) {
  v.model = "gpt2";
  for (const Json& merge : member(member(root, "model"), "merges")) {
    const auto [left, right] = merged_pair(merge);
    v.merges.push_back(left + ' ' + right);
  }
}

void read_word_pieces(const Json& root, GgufVocabulary& v) {
  v.model = "bert";
  v.pre = "default";
  const std::string mark =
      member(root, "model").value("continuing_subword_prefix", std::string("##"));
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.is(id, GgufKind::unknown)) v.kinds[id] = static_cast<int32_t>(GgufKind::control);
    if (!v.is(id, GgufKind::normal)) continue;
    const std::string& token = v.tokens[id];
    v.tokens[id] =
        token.starts_with(mark) ? token.substr(mark.size()) : std::string(kSpaceLetter) + token;
  }
  if (member(member(root, "normalizer"), "lowercase") == false)
    v.notes.push_back(
        "llama.cpp reads texts in small letters, and this tokenizer tells capitals apart");
}

/// Each token is one character: SentencePiece's BPE without merges.
void read_single_characters(GgufVocabulary& v, const std::string& where) {
  v.model = "llama";
  v.pre = "default";
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    std::string& token = v.tokens[id];
    const DecodedChar c =
        decode_utf8(as_bytes(token.data()), as_bytes(token.data() + token.size()));
    if (v.is(id, GgufKind::normal) && c.bytes != token.size())
      refuse_tokenizer(where, "its tokens are whole words (WordLevel)");
    if (token == kSpaceLetter)
      refuse_tokenizer(where, "it has the character U+2581, which stands for a space there");
    if (token == " ") token = kSpaceLetter;
  }
  v.scores.assign(v.tokens.size(), 0);
}

GgufVocabulary vocabulary_of_json(const Json& root, const std::string& where) {
  const std::string type = member(root, "model").value("type", std::string("BPE"));
  if (type != "BPE" && type != "WordPiece" && type != "WordLevel")
    refuse_tokenizer(where, fmt::format("its model is {}", type));
  GgufVocabulary v;
  read_names(root, v);
  const Json& normalizer = member(root, "normalizer");
  const bool is_byte_level = has_type(member(root, "pre_tokenizer"), "ByteLevel");
  if (type == "BPE" && is_byte_level) {
    read_byte_merges(root, v);
    v.normalizer = Normalizer::read(normalizer, where);
    if (!v.normalizer.empty()) {
      if (!has_type(normalizer, "NFC") || has_type(normalizer, "Replace"))
        refuse_tokenizer(where, "it rewrites texts (normalizer)");
      v.notes.push_back("texts are not normalized there (NFC)");
    }
  } else if (type == "BPE") {
    read_scored_merges(root, v);
  } else if (type == "WordPiece") {
    read_word_pieces(root, v);
  } else {
    read_single_characters(v, where);
  }
  return v;
}

// ----- ranks

/// A token that ranks make is that of any merge which gives it; the merges are in their order.
GgufVocabulary vocabulary_of_ranks(const BpeModel& model, const Tokenizer& tokenizer) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.resize(model.size());
  for (uint32_t id = 0; id < model.size(); ++id) {
    const bool is_text = std::binary_search(model.verbatim.begin(), model.verbatim.end(), id);
    v.set(id, is_text ? std::string(model.token(id)) : spell_letters(model.token(id)),
          tokenizer.is_special(static_cast<int32_t>(id)) ? GgufKind::control : GgufKind::normal);
  }
  v.merges.reserve(model.merges.size());
  for (const BpeMerge& merge : model.merges)
    v.merges.push_back(v.tokens[merge.left] + ' ' + v.tokens[merge.right]);
  return v;
}

/// From the files that the tokenizer saves.
GgufVocabulary vocabulary_of(const Tokenizer& tokenizer, const std::string& where) {
  const TemporaryFolder folder("brrr-tokenizer");
  tokenizer.save(folder.path());
  const auto file = [&](const char* name) { return folder.path() / name; };
  std::error_code ignored;
  if (fs::exists(file("tokenizer.json"), ignored))
    return vocabulary_of_json(parse_json(read_file(file("tokenizer.json")), where), where);
  if (fs::exists(file("merges.txt"), ignored)) {
    const BpeModel model =
        parse_vocab_and_merges(read_file(file("vocab.json")), where + "/vocab.json",
                               read_file(file("merges.txt")), where + "/merges.txt");
    return vocabulary_of_json(parse_json(files_of_bpe(model).at("tokenizer.json"), where), where);
  }
  if (fs::exists(file("tokenizer.model"), ignored)) {
    const std::string bytes = read_file(file("tokenizer.model"));
    if (!is_tiktoken(bytes))
      return vocabulary_of_pieces(parse_sentencepiece_model(bytes, where), where);
  }
  const auto* const pipeline = dynamic_cast<const TextPipeline*>(&tokenizer);
  const auto* const ranked =
      pipeline == nullptr ? nullptr : dynamic_cast<const BpeEncoder*>(&pipeline->model());
  if (ranked != nullptr && ranked->model().alphabet == BpeModel::Alphabet::bytes)
    return vocabulary_of_ranks(ranked->model(), tokenizer);
  refuse_tokenizer(where, fmt::format("it is of the kind {}", tokenizer.kind()));
}

// ----- comparison

/// Texts with what tokenizers differ in, and texts of random tokens.
std::vector<std::string> texts_to_compare(const Tokenizer& tokenizer,
                                          const Normalizer& normalizer) {
  std::vector<std::string> texts = {
      "Hello world, it's a test. I'LL see we'd they're",
      "  two  spaces,   three\n\n\tand tabs \n \n end  ",
      "3 33 333 3333 33333 1,234.56 v2.0-rc1 0x1F",
      "na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e \u4e2d\u6587 "
      "\u043f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \U0001f600\U0001f680",
      "CamelCase snake_case <html></html> a+b=c; if (x != y) { return \"z\"; } // \u00a9",
      "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 !!!??? ...---===",
      "A"};
  constexpr int kTexts = 48, kTokens = 24;
  RngStream random({.seed = 1}, 0);
  for (int i = 0; i < kTexts; ++i) {
    std::string text;
    for (int k = 0; k < kTokens; ++k) {
      const auto id =
          static_cast<int32_t>(random.next_below(static_cast<uint64_t>(tokenizer.vocab_size())));
      if (tokenizer.is_special(id)) continue;
      const std::string token = tokenizer.decode(std::span(&id, 1));
      if (!find_invalid_utf8(token) && token.find('\0') == std::string::npos) text += token;
    }
    texts.push_back(std::move(text));
  }
  for (std::string& text : texts) text = normalizer.apply(text, false);
  // What the tokenizer has no tokens for is no text of its own.
  std::erase_if(texts, [&](const std::string& text) {
    try {
      tokenizer.encode(text, {.add_special_tokens = true});
      return false;
    } catch (const UserError&) {
      return true;
    }
  });
  return texts;
}

/// The first of the texts for which a file with this metadata gives other tokens; empty: none.
std::string differing_text(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                           const GgufMetadata& metadata, const std::string& where) {
  const GgufOutput output(metadata, {});
  const GgufFile file(std::as_bytes(std::span(output.header())), where);
  const std::unique_ptr<Tokenizer> made = read_gguf_tokenizer(file);
  const EncodeOptions options{.add_special_tokens = true};
  for (const std::string& text : texts)
    if (!text.empty() && made->encode(text, options) != tokenizer.encode(text, options))
      return text;
  return "";
}

// ----- keys

/// What the tokenizer puts around a text.
struct Around {
  bool begin = false, end = false;
};

Around tokens_around(const Tokenizer& tokenizer, const std::string& where) {
  std::string text;  // the first character that the tokenizer knows
  std::vector<int32_t> plain;
  for (char c = 'a'; c <= 'z' && plain.empty(); ++c) {
    text = c;
    try {
      plain = tokenizer.encode(text);
    } catch (const UserError&) {
    }
  }
  if (plain.empty()) return {};
  const std::vector<int32_t> whole = tokenizer.encode(text, {.add_special_tokens = true});
  const auto begin = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  const auto end = begin + (begin == whole.end() ? 0 : std::ssize(plain));
  const std::vector<int32_t> before(whole.begin(), begin), behind(end, whole.end());
  const auto is = [](const std::vector<int32_t>& ids, int32_t id) {
    return ids.size() == 1 && ids[0] == id;
  };
  const Around around{is(before, tokenizer.begin_of_text()), is(behind, tokenizer.end_of_text())};
  if ((!before.empty() && !around.begin) || (!behind.empty() && !around.end))
    refuse_tokenizer(where,
                     "it puts other tokens around a text than one that begins and one that "
                     "ends it");
  return around;
}

void add_ids(const Tokenizer& tokenizer, const GgufVocabularyOptions& options,
             const GgufVocabulary& v, GgufMetadata& out) {
  const auto add = [&](const char* key, int32_t id) {
    if (id >= 0) out.count(std::string("tokenizer.ggml.") + key, id);
  };
  const bool is_bert = v.model == "bert";
  int32_t begin = tokenizer.begin_of_text(), end = tokenizer.end_of_text();
  std::vector<int32_t> ends = options.ends_of_text;
  if (is_bert) {
    begin = tokenizer.class_token();
    end = tokenizer.separator_token();
    ends.clear();
  } else if (!ends.empty() && std::ranges::find(ends, end) == ends.end()) {
    end = ends[0];
  }
  std::erase(ends, end);
  add("bos_token_id", begin);
  add("eos_token_id", end);
  // Further tokens that end an answer.
  if (!ends.empty()) add("eot_token_id", ends[0]);
  if (ends.size() > 1) add("eom_token_id", ends[1]);
  add("unknown_token_id", tokenizer.unknown_token());
  add("padding_token_id", tokenizer.pad_token());
  add("mask_token_id", tokenizer.mask_token());
  add("cls_token_id", tokenizer.class_token());
  add("seperator_token_id", tokenizer.separator_token());  // as llama.cpp spells it
  if (is_bert) {
    out.count("tokenizer.ggml.token_type_count", 2);
    return;
  }
  const Around around = tokens_around(tokenizer, options.where);
  out.flag("tokenizer.ggml.add_bos_token", around.begin);
  out.flag("tokenizer.ggml.add_eos_token", around.end);
}

void add_lists(const GgufVocabulary& v, GgufMetadata& out) {
  out.text("tokenizer.ggml.model", v.model);
  out.text("tokenizer.ggml.pre", v.pre);
  out.texts("tokenizer.ggml.tokens", v.tokens);
  out.integers("tokenizer.ggml.token_type", v.kinds);
  if (v.model == "llama") {
    out.reals("tokenizer.ggml.scores", v.scores);
    out.flag("tokenizer.ggml.add_space_prefix", v.adds_space);
  }
  if (v.model == "gpt2") out.texts("tokenizer.ggml.merges", v.merges);
}

}  // namespace

std::vector<std::string> add_gguf_vocabulary(const Tokenizer& tokenizer,
                                             const GgufVocabularyOptions& options,
                                             GgufMetadata& out) {
  GgufVocabulary v = vocabulary_of(tokenizer, options.where);
  const auto size = static_cast<size_t>(std::max<int64_t>(options.size, 0));
  if (v.tokens.size() > size)
    user_error("{}: the tokenizer has {} tokens, the model's table {} rows", options.where,
               v.tokens.size(), size);
  // Rows of the table that no token has.
  for (size_t id = v.tokens.size(); id < size; ++id) {
    v.tokens.push_back(fmt::format("[PAD{}]", id));
    v.kinds.push_back(static_cast<int32_t>(GgufKind::unused));
  }
  if (!v.scores.empty()) v.scores.resize(size, std::numeric_limits<float>::lowest());
  if (tokenizer.end_of_text() < 0 && options.ends_of_text.empty() && v.model != "bert") {
    const size_t end = v.model == "llama" ? 2 : 11;  // llama.cpp's defaults
    if (end < size)
      v.notes.push_back(
          fmt::format("no token ends a text; llama.cpp stops at token {} ({}), --ignore-eos there "
                      "goes on",
                      end, in_quotes(v.tokens[end])));
  }
  const std::vector<std::string> texts = texts_to_compare(tokenizer, v.normalizer);
  const auto try_pre = [&](std::string_view pre) {
    v.pre = pre;
    GgufMetadata tried;
    add_lists(v, tried);
    add_ids(tokenizer, options, v, tried);
    return differing_text(tokenizer, texts, tried, options.where);
  };
  if (v.model != "gpt2") {
    if (const std::string text = try_pre(v.pre); !text.empty())
      refuse_tokenizer(options.where, fmt::format("the form {} gives other tokens for {}", v.model,
                                                  in_quotes(text)));
  } else {
    const std::vector<std::string_view> names = gguf_pre_tokenizer_names();
    const auto found =
        std::ranges::find_if(names, [&](std::string_view name) { return try_pre(name).empty(); });
    if (found == names.end())
      refuse_tokenizer(options.where,
                       fmt::format("it cuts texts as none of the pre-tokenizers that have a name "
                                   "there ({})",
                                   fmt::join(names, ", ")));
    v.pre = *found;
  }
  add_lists(v, out);
  add_ids(tokenizer, options, v, out);
  return v.notes;
}

}  // namespace brrr::io
