#pragma once
// Where training text comes from: the files and folders that the user names, else tiny Shakespeare
// ($BRRR_DATA, the cache, its public URL), else, offline, the C++ headers that the compiler
// brought. Text is taken byte for byte; files are concatenated in order.

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
  /// Where the compiler's headers are; the last resort.
  std::filesystem::path header_root = "/usr/include/c++";
};

/// The files of a corpus, not read yet.
struct CorpusFiles {
  std::vector<std::filesystem::path> files;
  std::string description;  // one line: "tiny Shakespeare (the cache)", "3 files (notes.txt, ...)"
  std::string note;         // why a better source was passed over; usually empty
};

struct Corpus {
  std::string text;
  std::vector<size_t> document_ends;  // one per non-empty file: end offset in `text`
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

/// Throws UserError when `bytes`, the begin of a file, show that it is no text: UTF-16, or more
/// than 1% control characters.
void check_not_binary(std::string_view bytes, const std::string& name, bool offer_bytes = true);

/// Throws UserError for a NUL byte or invalid UTF-8. `name` and `offset` (of bytes[0] in the file)
/// say where; `offer_bytes`: the message advises --tokenizer byte.
void check_is_text(std::string_view bytes, const std::string& name, size_t offset = 0,
                   bool offer_bytes = true);

}  // namespace brrr::io
