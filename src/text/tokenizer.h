#pragma once
// Text to token ids and back. A tokenizer is made of parts (text_pipeline.h): added tokens,
// normalizer, pre-tokenizer, model (bytes, characters, BPE), post-processor and decoder. Tokenizers
// are immutable: encode and decode may be called from any thread.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/cut_rule.h"

namespace brrr::io {

struct EncodeOptions {
  /// Add what the post-processor puts before and behind a text (begin of text), as
  /// encode(add_special_tokens=True) of `tokenizers` does.
  bool add_special_tokens = false;
  /// The text continues another: a piece of a larger one, cut where cut_rule() allows it. Nothing
  /// is put before it.
  bool inside = false;
};

/// What decoding remembers of the ids before; one text begins with a fresh one.
struct DecodeState {
  bool skip_special_tokens = false;
  bool begun = false;              // some token has been decoded
  size_t stripped = 0;             // of what the decoder takes from the beginning of a text
  std::vector<int32_t> held = {};  // ids whose text depends on what follows
};

/// What a model reads that takes texts or pairs of texts: BERT and its kin.
struct ModelInput {
  std::vector<int32_t> ids;
  std::vector<int32_t> types;  // token type ids
  // By token, where words were asked for: which text it is of (0, 1, or -1 where the post-processor
  // put it there), and the index of its word in that text, or -1.
  std::vector<int32_t> texts, words;
  size_t left_out = 0;  // tokens of the texts that were cut to keep to a length

  /// Does a token continue the word of the token before it? Words must have been asked for.
  bool continues_word(size_t token) const {
    return token > 0 && words[token] >= 0 && words[token] == words[token - 1] &&
           texts[token] == texts[token - 1];
  }
};

/// Tokens with a role of their own, as tokenizer_config.json and special_tokens_map.json name them;
/// -1 where there is none.
struct NamedTokens {
  int32_t mask = -1, pad = -1, unknown = -1, separator = -1, classifier = -1;
};

/// What tokenizer.json says of the length of inputs. Encoding keeps to none of it unless asked to.
struct InputLengths {
  enum class Cut { longest_first, first, second };
  std::optional<size_t> longest;  // truncation
  Cut cut = Cut::longest_first;   // which text of a pair gives way
  bool cut_left = false;          // the beginning of a text goes, not its end
  std::optional<size_t> padded;   // padding to this length
  bool pad_left = false;
};

struct PostProcessor;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "byte", "char", "bpe", "wordpiece", "wordlevel" or "unigram".
  virtual std::string kind() const = 0;
  virtual int32_t vocab_size() const = 0;
  /// Id of the end-of-text token, or -1 when there is none.
  virtual int32_t end_of_text() const { return -1; }
  /// Id of the token that a text begins with, or -1 when there is none. Generation from an empty
  /// prompt starts there.
  virtual int32_t begin_of_text() const { return end_of_text(); }
  /// Special tokens are control, not text: decoding may leave them out.
  virtual bool is_special(int32_t id) const { return id == end_of_text(); }
  virtual const NamedTokens& named_tokens() const;
  int32_t mask_token() const { return named_tokens().mask; }
  int32_t pad_token() const { return named_tokens().pad; }
  int32_t unknown_token() const { return named_tokens().unknown; }
  int32_t separator_token() const { return named_tokens().separator; }
  int32_t class_token() const { return named_tokens().classifier; }
  virtual const InputLengths& input_lengths() const;
  /// The id of a token by its name, as the vocabulary writes it.
  virtual std::optional<int32_t> token_id(std::string_view name) const;

  /// Appends the ids of `text`. Special tokens in the text are found where a tokenizer.json lists
  /// them; the other kinds encode them as ordinary text. Throws UserError for text that the
  /// tokenizer cannot represent (a character outside the vocabulary); `ids` is as before then.
  virtual void encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids) const = 0;
  void encode(std::string_view text, std::vector<int32_t>& ids) const { encode(text, {}, ids); }
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The ids of one text or a pair with what the post-processor puts around them, as
  /// encode(add_special_tokens=True) of `tokenizers` gives them, and their types. With `longest`
  /// the texts are cut until all has so many tokens, as input_lengths() says; then the longer text
  /// of a pair gives way first. Throws UserError where the post-processor's tokens alone are more,
  /// or it knows no pairs.
  ModelInput model_input(std::string_view first,
                         std::optional<std::string_view> second = std::nullopt,
                         std::optional<size_t> longest = std::nullopt,
                         bool with_words = false) const;
  /// The same for texts that are words already: each is encoded by itself, and ModelInput::words
  /// has their indices.
  using Words = std::span<const std::string_view>;
  ModelInput model_input_of_words(Words first, std::optional<Words> second = std::nullopt,
                                  std::optional<size_t> longest = std::nullopt) const;

  /// Where a text may be cut so that its pieces, all but the first encoded as `inside`, have the
  /// tokens of the whole. never() is true of a tokenizer for which no such place is known.
  virtual const CutRule& cut_rule() const = 0;

  /// Appends the bytes of the ids, which continue what `state` has seen. Bytes that are no UTF-8
  /// stay as they are. Throws UserError for an id outside [0, vocab_size).
  virtual void decode(std::span<const int32_t> ids, DecodeState& state, std::string& out) const = 0;
  /// Appends what was held back until the last id was known. Most decoders hold nothing back.
  virtual void finish(DecodeState&, std::string&) const {}
  std::string decode(std::span<const int32_t> ids) const;

  /// Writes the files that load_tokenizer reads, into an existing folder.
  virtual void save(const std::filesystem::path& folder) const = 0;

  /// Takes now what memory encoding by `threads` threads comes to keep: a run that tokenises on the
  /// way then knows what it needs.
  virtual void prepare(int64_t /*threads*/) const {}

 protected:
  /// Appends the ids of a text and, for each, the index of its word. A text is one word where the
  /// tokenizer knows none.
  virtual void encode_words(std::string_view text, std::vector<int32_t>& ids,
                            std::vector<int32_t>& words) const;
  virtual const PostProcessor& post_processor() const;

 private:
  struct EncodedText;
  ModelInput join(EncodedText first, std::optional<EncodedText> second,
                  std::optional<size_t> longest) const;
};

/// The text of a growing sequence of ids, whole characters only: a token may end inside one.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(tokenizer) {
    state_.skip_special_tokens = skip_special_tokens;
  }
  /// Takes ids and returns the text that is complete now. A prompt belongs into the stream, too,
  /// for decoders treat the beginning of a text differently.
  std::string add(std::span<const int32_t> ids);
  /// Returns what a decoder that needs all tokens holds back, as if no token followed. Call it at
  /// the end of a prompt, once: what add() and finish() return from then on is the continuation.
  std::string settle();
  /// What the decoder held back, and the bytes of a character that was never completed.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeState state_;
  std::string pending_;
  size_t settled_ = 0;  // bytes that settle() returned
};

/// Reads the tokenizer of a folder: `tokenizer.json` (Hugging Face), else `tokenizer.model`
/// (SentencePiece, or the tiktoken file of Llama 3), else `tekken.json` (Mistral), else
/// `vocab.json` and `merges.txt` (GPT-2's BPE, or RoBERTa's where `config.json` or
/// `tokenizer_config.json` says so), else `vocab.txt` (BERT), else `char.json`, else `byte.json`;
/// or one of the first three by the path of the file, which may have another name
/// (`tokenizer.model.v3`), or the one inside a GGUF file. The begin and end tokens come from
/// `tokenizer_config.json` or `special_tokens_map.json`. Throws UserError that names the missing
/// file, or the broken line or field.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

/// The names of all files that load_tokenizer may read.
std::span<const std::string_view> tokenizer_file_names();

std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Every distinct code point of `text`, in code-point order (nanoGPT's order). Throws UserError
/// with the byte offset where the text is not UTF-8.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
/// Trains byte-level BPE on `text`: GPT-2's split pattern, the most frequent pair merged first,
/// ties to the smaller pair. vocab_size counts the 256 bytes, the merges and "<|endoftext|>", which
/// is found in texts, as in every tokenizer.json.
/// Throws UserError when the text has too few repeated pairs for that many tokens.
std::unique_ptr<Tokenizer> train_bpe(std::string_view text, int32_t vocab_size);
/// Trains WordPiece on `text`: words as BERT cuts them, in small letters without accents; the most
/// frequent pair of tokens merged first. vocab_size counts [PAD], [UNK], [CLS], [SEP] and [MASK]
/// (ids 0 to 4), characters, each as the beginning and as the continuation of a word, and what they
/// are merged to. Characters beyond the 1,000 most frequent are unknown. Throws UserError when the
/// text has too few repeated pairs for that many tokens, or too many characters.
std::unique_ptr<Tokenizer> train_wordpiece(std::string_view text, int32_t vocab_size);

}  // namespace brrr::io
