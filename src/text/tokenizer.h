#pragma once
// Text to token ids and back. Three kinds: bytes, characters (Unicode code points of a corpus, as
// nanoGPT's Shakespeare), and GPT-2's byte-level BPE. Tokenizers are immutable: encode and decode
// may be called from any thread.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "byte", "char" or "bpe".
  virtual std::string kind() const = 0;
  virtual int32_t vocab_size() const = 0;
  /// Id of the end-of-text token, or -1 when there is none.
  virtual int32_t end_of_text() const { return -1; }
  /// Appends the ids of `text`. Special tokens in the text are encoded as ordinary text. Throws
  /// UserError for text that the tokenizer cannot represent (a character outside the vocabulary).
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  std::vector<int32_t> encode(std::string_view text) const;
  /// The bytes of the ids. Throws UserError for an id outside [0, vocab_size).
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Writes the files that load_tokenizer reads, into an existing folder.
  virtual void save(const std::filesystem::path& folder) const = 0;
};

/// Reads the tokenizer of a folder: `vocab.json` + `merges.txt` (GPT-2 BPE), else `tokenizer.json`
/// (the Hugging Face form of the same), else `char.json`, else `byte.json`. Throws UserError that
/// says which file is missing or which line is broken.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

/// The names of all files that load_tokenizer may read.
std::span<const std::string_view> tokenizer_file_names();

std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Every distinct code point of `text`, in code-point order (nanoGPT's order). Throws UserError
/// with the byte offset where the text is not UTF-8.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
/// Trains byte-level BPE on `text`: GPT-2's split pattern, the most frequent pair merged first,
/// ties to the smaller pair. vocab_size counts the 256 bytes, the merges and "<|endoftext|>".
/// Throws UserError when the text has too few repeated pairs for that many tokens.
std::unique_ptr<Tokenizer> train_bpe(std::string_view text, int32_t vocab_size);

}  // namespace brrr::io
