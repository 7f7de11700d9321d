#include "text/sentencepiece/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cfloat>
#include <optional>
#include <unordered_map>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/added_tokens.h"
#include "text/bpe/piece_table.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/json_fields.h"
#include "text/post_processor.h"
#include "text/sentencepiece/sentencepiece_normalizer.h"
#include "text/token_model.h"
#include "text/unigram/unigram.h"

namespace brrr::io {
namespace {

using Kind = SentencePieceModel::PieceKind;
constexpr std::string_view kSpaceMark = "\u2581";

/// The bytes of the character at `at`.
size_t bytes_of_character(std::string_view text, size_t at) {
  return decode_utf8(as_bytes(text.data() + at), as_bytes(text.data() + text.size())).bytes;
}

}  // namespace

// SentencePiece looks two neighbours up together, so it can merge a character that is no piece of
// its own; BpeModel knows only pieces.
BpeModel bpe_model_of(const SentencePieceModel& from, const std::string& where) {
  BpeModel model;
  model.alphabet = BpeModel::Alphabet::characters;
  PieceTable symbols(from.pieces.size());  // what may be merged
  std::vector<PieceTrie::Entry> entries;
  for (uint32_t id = 0; id < from.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = from.pieces[id];
    model.bytes += piece.text;
    model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
    const bool is_character =
        !piece.text.empty() && bytes_of_character(piece.text, 0) == piece.text.size();
    if (piece.kind == Kind::unused)
      user_error("{}: piece {} ({}) is UNUSED, which is supported for Unigram alone", where, id,
                 in_quotes(piece.text));
    if (is_character && (piece.kind == Kind::normal || piece.kind == Kind::control))
      model.character_ids.emplace_back(
          decode_utf8(as_bytes(piece.text.data()), as_bytes(piece.text.data() + piece.text.size()))
              .code,
          id);
    if (piece.kind == Kind::normal || (is_character && piece.kind == Kind::control)) {
      symbols.add(piece.text, id);
      entries.emplace_back(piece.text, id);
    }
  }
  const PieceTrie trie(std::move(entries));
  struct ScoredMerge {
    float score;
    BpeMerge merge;
  };
  std::vector<ScoredMerge> merges;
  merges.reserve(3 * from.pieces.size());
  for (uint32_t id = 0; id < from.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = from.pieces[id];
    if (piece.kind != Kind::normal) continue;
    const std::string_view text = piece.text;
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
      bytes = bytes_of_character(text, at);
      if (bytes < text.size() && symbols.find(text.substr(at, bytes)) == PieceTable::kNone)
        user_error(
            "{}: piece {} ({}) holds the character {}, which is not a piece; such models are not "
            "supported",
            where, id, in_quotes(text), in_quotes(text.substr(at, bytes)));
    }
    const uint8_t* const begin = as_bytes(text.data());
    trie.visit(begin, begin + text.size(), [&](const uint8_t* stop, uint32_t left) {
      const auto length = static_cast<size_t>(stop - begin);
      if (length == text.size()) return;
      const uint32_t right = symbols.find(text.substr(length));
      if (right != PieceTable::kNone) merges.push_back({piece.score, {left, right, id}});
    });
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const ScoredMerge& a, const ScoredMerge& b) { return a.score > b.score; });
  uint32_t rank = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (i > 0 && merges[i].score != merges[i - 1].score) ++rank;
    model.merges.push_back(merges[i].merge);
    model.ranks.push_back(rank);
  }
  model.unknown = from.unknown;
  model.fuse_unknown = true;
  if (from.byte_fallback) model.fallback_ids.resize(256);
  for (uint32_t id = 0; id < from.pieces.size(); ++id)
    if (uint8_t byte = 0;
        from.pieces[id].kind == Kind::byte && is_byte_piece(from.pieces[id].text, byte))
      model.fallback_ids[byte] = id;
  return model;
}

namespace {

UnigramModel unigram_model_of(const SentencePieceModel& from) {
  UnigramModel model;
  model.double_sums = false;
  model.unknown = from.unknown;
  float least = FLT_MAX;
  for (const SentencePieceModel::Piece& piece : from.pieces)
    if (piece.kind == Kind::normal) least = std::min(least, piece.score);
  model.least_score = double{least};
  if (from.byte_fallback) model.byte_ids.resize(256);
  for (uint32_t id = 0; id < from.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = from.pieces[id];
    double score = double{piece.score};
    // What the user defined is better than other pieces, the more the longer it is (0.2.3; versions
    // before 0.2.1 had other scores for it).
    if (piece.kind == Kind::user_defined)
      score = 0.1 * static_cast<double>(piece.text.size()) - 0.1;
    model.add(piece.text, score);
    model.tokens_are_found.push_back(piece.kind == Kind::normal ||
                                     piece.kind == Kind::user_defined);
    if (uint8_t byte = 0; piece.kind == Kind::byte && is_byte_piece(piece.text, byte))
      model.byte_ids[byte] = static_cast<int32_t>(id);
  }
  return model;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const SentencePieceModel& model, const std::string& where);

  std::string kind() const override { return model_->kind(); }
  int32_t vocab_size() const override { return static_cast<int32_t>(kinds_.size()); }
  int32_t begin_of_text() const override { return begin_ >= 0 ? begin_ : end_; }
  int32_t end_of_text() const override { return end_; }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && kinds_[static_cast<size_t>(id)] == Kind::control;
  }
  using Tokenizer::decode;
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options,
              std::vector<int32_t>& ids) const override;
  const CutRule& cut_rule() const override { return cut_rule_; }
  void decode(std::span<const int32_t> ids, DecodeState& state, std::string& out) const override;
  const NamedTokens& named_tokens() const override { return named_; }
  std::optional<int32_t> token_id(std::string_view name) const override {
    const auto found = ids_.find(name);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  void save(const fs::path& folder) const override {
    for (const auto& [name, bytes] : files_) write_file_atomically(folder / name, bytes);
  }

  /// `text` is a tokenizer_config.json.
  void read_config(const SentencePieceModel& model, std::string_view text,
                   const std::string& where);
  /// What save() writes.
  void keep_files(std::map<std::string, std::string> files) { files_ = std::move(files); }

 protected:
  const PostProcessor& post_processor() const override { return post_processor_; }

 private:
  void choose_ends(bool adds_begin, bool adds_end);
  void find_cut_rule(const TokenModel& model);

  std::map<std::string, std::string> files_;
  SentencePieceNormalizer normalizer_;
  AddedTokens user_defined_;  // BPE merges nothing with them
  std::unique_ptr<TokenModel> model_;
  std::vector<Kind> kinds_;            // [V]
  std::string bytes_;                  // what the tokens decode to, end to end
  std::vector<uint32_t> offsets_;      // [V + 1]
  std::vector<bool> begins_spaced_;    // [V]: the piece begins with a space
  bool strips_space_, strips_spaces_;  // at the beginning of a decoded text: one, all
  int32_t begin_ = -1, end_ = -1;
  std::vector<int32_t> prefix_, suffix_;
  PostProcessor post_processor_;
  NamedTokens named_;
  std::unordered_map<std::string_view, int32_t> ids_;  // by piece, of the files
  CutRule cut_rule_;
};

SentencePieceTokenizer::SentencePieceTokenizer(const SentencePieceModel& model,
                                               const std::string& where)
    : normalizer_(model, where),
      strips_space_(model.add_dummy_prefix || model.remove_extra_whitespaces),
      strips_spaces_(model.remove_extra_whitespaces),
      begin_(model.begin),
      end_(model.end) {
  named_.unknown = model.unknown;
  choose_ends(true, model.begin < 0);
  const bool is_bpe = model.algorithm == SentencePieceModel::Algorithm::bpe;
  if (is_bpe)
    model_ = std::make_unique<BpeEncoder>(bpe_model_of(model, where));
  else
    model_ = std::make_unique<UnigramEncoder>(unigram_model_of(model));
  offsets_.push_back(0);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    kinds_.push_back(piece.kind);
    ids_.emplace(piece.text, static_cast<int32_t>(id));
    std::string_view text = piece.text;
    begins_spaced_.push_back(text.starts_with(kSpaceMark));
    if (uint8_t byte = 0; piece.kind == Kind::byte && is_byte_piece(text, byte)) {
      bytes_.push_back(static_cast<char>(byte));
    } else if (piece.kind == Kind::unknown) {
      bytes_ += model.unknown_surface;
    } else if (piece.kind != Kind::control) {
      for (size_t found = 0; (found = text.find(kSpaceMark)) != std::string_view::npos;) {
        bytes_.append(text.substr(0, found)).push_back(' ');
        text.remove_prefix(found + kSpaceMark.size());
      }
      bytes_ += text;
    }
    if (bytes_.size() > 0xffffffffu) user_error("{}: more than 4 GiB of pieces", where);
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (is_bpe && piece.kind == Kind::user_defined) {
      // Its content, as the rule for cuts sees it, is that of the text before it is normalized.
      const std::string content = bytes_.substr(offsets_[id]);
      user_defined_.add({.content = content, .id = static_cast<int32_t>(id)},
                        std::string(piece.text));
    }
  }
  if (is_bpe && normalizer_.is_local()) find_cut_rule(*model_);
}

void SentencePieceTokenizer::choose_ends(bool adds_begin, bool adds_end) {
  prefix_.assign(adds_begin && begin_ >= 0, begin_);
  suffix_.assign(adds_end && end_ >= 0, end_);
  post_processor_ = PostProcessor::around(prefix_, suffix_);
}

void SentencePieceTokenizer::find_cut_rule(const TokenModel& model) {
  cut_rule_ = CutRule::at_words();
  for (size_t before = 0; before < kSymbols; ++before)
    for (const char c : kCutsBefore) {
      const auto after = static_cast<uint8_t>(c);
      if (!cut_rule_.allows(before, after)) continue;
      const uint32_t code = before == kWideSymbol ? kInvalidByte : static_cast<uint32_t>(before);
      cut_rule_.allow(before, after, model.may_cut(code, c == ' ' ? 0x2581 : after));
    }
  user_defined_.restrict_cuts(cut_rule_);
}

void SentencePieceTokenizer::read_config(const SentencePieceModel& model, std::string_view text,
                                         const std::string& where) {
  const Json root = parse_json(text, where);
  const JsonFields fields(root, where + ": the file");
  const auto read_id = [&](const char* key, int32_t& id) {
    Json value = fields.get(key);
    if (value.is_object()) value = value.value("content", Json());
    if (value.is_null()) return;
    if (!value.is_string())
      user_error("{}: {} is {}; expected the text of a token", where, key, describe(value));
    const std::string& name = value.get_ref<const std::string&>();
    const auto piece = std::find_if(model.pieces.begin(), model.pieces.end(),
                                    [&](const auto& p) { return p.text == name; });
    if (piece == model.pieces.end())
      user_error("{}: {} is {}, which is not a piece of tokenizer.model", where, key,
                 describe(value));
    id = static_cast<int32_t>(piece - model.pieces.begin());
  };
  read_id("bos_token", begin_);
  read_id("eos_token", end_);
  choose_ends(fields.flag("add_bos_token", !prefix_.empty()),
              fields.flag("add_eos_token", !suffix_.empty()));
  const Json& added = fields.get("added_tokens_decoder");
  if (!added.is_object()) return;
  for (const auto& [key, token] : added.items())
    if (key.find_first_not_of("0123456789") != std::string::npos || key.size() > 9 ||
        std::stoi(key) >= vocab_size())
      user_error(
          "{}: added_tokens_decoder has a token with the id {}, which tokenizer.model lacks (its "
          "ids go from 0 to {}); use the tokenizer.json of this model",
          where, in_quotes(key), vocab_size() - 1);
}

void SentencePieceTokenizer::encode(std::string_view text, const EncodeOptions& options,
                                    std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  try {
    if (options.add_special_tokens) ids.insert(ids.end(), prefix_.begin(), prefix_.end());
    PieceSink sink(*model_, ids);
    const std::string normalized = normalizer_.apply(text, options.inside);
    PieceSink::Buffer buffer(sink, normalized);
    user_defined_.split(
        normalized, [&](std::string_view stretch) { sink.add(stretch); },
        [&](int32_t id) { sink.add_id(id); });
    buffer.done();
    if (options.add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  } catch (...) {
    ids.resize(before);
    throw;
  }
}

void SentencePieceTokenizer::decode(std::span<const int32_t> ids, DecodeState& state,
                                    std::string& out) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size())
      user_error(
          "token {} (at position {}) is not in the vocabulary: ids go from 0 to {}; were these ids "
          "made by another tokenizer?",
          ids[i], i, vocab_size() - 1);
  for (const int32_t id : ids) {
    const auto at = static_cast<size_t>(id);
    if (state.skip_special_tokens && is_special(id)) continue;
    std::string_view text =
        std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
    const bool is_text = kinds_[at] == Kind::normal || kinds_[at] == Kind::user_defined ||
                         kinds_[at] == Kind::unused;
    if (is_text && !state.begun && strips_space_ && begins_spaced_[at]) {
      text.remove_prefix(1);
      state.begun = !strips_spaces_;
    }
    state.begun |= !text.empty();
    out += text;
  }
}

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(std::map<std::string, std::string> files,
                                              const std::string& where) {
  const SentencePieceModel model = parse_sentencepiece_model(files.at("tokenizer.model"), where);
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(model, where);
  if (const auto config = files.find("tokenizer_config.json"); config != files.end())
    tokenizer->read_config(model, config->second,
                           fs::path(where).replace_filename("tokenizer_config.json").string());
  tokenizer->keep_files(std::move(files));
  return tokenizer;
}

}  // namespace brrr::io
