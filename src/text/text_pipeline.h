#pragma once
// A tokenizer made of parts. A text goes through them in this order: added tokens that stand in it
// are taken out; what lies between is normalized; added tokens are looked for again, in the
// normalized text; the pre-tokenizer cuts the rest into pieces; the model turns each into ids; the
// post-processor puts tokens before and behind. The decoder turns ids into text.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"
#include "text/token_texts.h"
#include "text/tokenizer.h"
#include "text/tokenizer_vocab_json.h"

namespace brrr::io {

struct TokenizerParts {
  AddedTokens added;  // looked for in the text as it is
  Normalizer normalizer;
  AddedTokens added_normalized;  // looked for in the normalized text
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::vector<int32_t> prefix, suffix;  // what the post-processor adds to every text
  PostProcessor post_processor;         // instead of those two, where it is not empty
  TokenTexts texts;
  int32_t begin_of_text = -1, end_of_text = -1;
  std::vector<int32_t> special;  // ids, ascending
  NamedTokens named;
  InputLengths lengths;
  VocabTokens vocabulary;  // names; empty where tokens have none but their bytes
  /// The files that it was read from, by name; save() writes them. Empty: those that `make_files`
  /// makes, or, without it, the model's.
  std::map<std::string, std::string> files;
  std::function<std::map<std::string, std::string>(const TokenizerParts&)> make_files = {};
};

class TextPipeline final : public Tokenizer {
 public:
  explicit TextPipeline(TokenizerParts parts);

  std::string kind() const override { return parts_.model->kind(); }
  int32_t vocab_size() const override { return parts_.texts.size(); }
  int32_t end_of_text() const override { return parts_.end_of_text; }
  int32_t begin_of_text() const override { return parts_.begin_of_text; }
  bool is_special(int32_t id) const override;
  using Tokenizer::decode;
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& options,
              std::vector<int32_t>& ids) const override;
  const CutRule& cut_rule() const override { return cut_rule_; }
  void decode(std::span<const int32_t> ids, DecodeState& state, std::string& out) const override;
  void finish(DecodeState& state, std::string& out) const override;
  const NamedTokens& named_tokens() const override { return parts_.named; }
  const InputLengths& input_lengths() const override { return parts_.lengths; }
  std::optional<int32_t> token_id(std::string_view name) const override;
  void save(const std::filesystem::path& folder) const override;
  void prepare(int64_t threads) const override { parts_.model->prepare(threads); }

  const TokenModel& model() const { return *parts_.model; }

 protected:
  void encode_words(std::string_view text, std::vector<int32_t>& ids,
                    std::vector<int32_t>& words) const override;
  const PostProcessor& post_processor() const override { return parts_.post_processor; }

 private:
  void encode_text(std::string_view text, bool inside, PieceSink& sink) const;
  void encode_normalized(std::string_view text, PieceSink& sink, bool at_start) const;
  CutRule find_cut_rule() const;

  TokenizerParts parts_;
  CutRule cut_rule_;
};

}  // namespace brrr::io
