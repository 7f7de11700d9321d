#pragma once
// Where training text comes from: the files and folders that the user names, else tiny Shakespeare
// ($BRRR_DATA, the cache, its public URL), else, offline, the C++ headers that the compiler
// brought. Text is taken byte for byte; files are concatenated in order. Archives (gzip, Zstandard)
// and the texts of .jsonl files are unpacked first (plain_text.h).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

struct CorpusOptions {
  /// Files and folders; empty: the default text.
  std::vector<std::filesystem::path> text = {};
  /// Take bytes as they are: binary and non-UTF-8 content passes (for the byte tokenizer).
  bool accept_bytes = false;
  /// Advise --tokenizer byte where such content is refused: the command has that option.
  bool offer_bytes = false;
  /// The field with the text in .jsonl files; empty: "text", or the only string.
  std::string text_field = {};
  /// Whether the caller needs to know where documents end: at the end of a file, at a separator, or
  /// behind the text of a line of a .jsonl file.
  bool by_document = false;
  /// What ends a document inside a file; empty: nothing.
  std::string separator = {};
  /// Where the compiler's headers are; the last resort.
  std::filesystem::path header_root = "/usr/include/c++";
};

/// The separator that ends each text of a .jsonl file if the user gives none.
inline constexpr const char* kRecordSeparator = "\x1e\x1e\n";

/// The files of a corpus, not read yet.
struct CorpusFiles {
  std::vector<std::filesystem::path> files;  // plain text
  std::string description;  // one line: "tiny Shakespeare (the cache)", "3 files (notes.txt, ...)"
  std::string note;         // why a better source was passed over; usually empty
  /// The text that ends a document inside a file; "" if every file is one document.
  std::string separator = {};
};

struct Corpus {
  std::string text;
  std::vector<size_t> document_ends;  // one per non-empty file: end offset in `text`
  std::string separator;              // as in CorpusFiles
  std::string description;
  std::string note;
  std::string sha256;  // of `text`
};

inline constexpr size_t kHeaderCorpusBytes = 1'500'000;

/// Finds the source. Folders are walked in sorted order; names that begin with a dot, and empty
/// files inside folders, are skipped. Throws UserError: a path is missing, unreadable, neither file
/// nor folder, or an empty file; a folder without text; no source at all.
CorpusFiles find_corpus(const CorpusOptions& options);

/// Finds, reads and checks. Throws UserError that names the file, the byte offset and what to do.
Corpus load_corpus(const CorpusOptions& options);

/// The text that a tokenizer learns from: without the marks that Brrr has put between texts.
std::string_view text_to_learn_from(const Corpus& corpus, std::string& storage);

/// Bytes at the beginning of a file that show whether it is text.
inline constexpr uint64_t kSniffBytes = 1 << 16;

/// Throws UserError when `bytes`, the beginning of a file, show that it is no text: UTF-16, or more
/// than 1% control characters (10% if there are eight or fewer).
void check_not_binary(std::string_view bytes, const std::string& name, bool offer_bytes = true);

/// Throws UserError for a NUL byte or invalid UTF-8. `name` and `offset` (of bytes[0] in the file)
/// say where; `offer_bytes`: the message advises --tokenizer byte.
void check_is_text(std::string_view bytes, const std::string& name, size_t offset = 0,
                   bool offer_bytes = true);

}  // namespace brrr::io
