#pragma once
// Texts in archives and JSON lines as plain text files: texts are read in pieces from any place,
// which neither allows. What is unpacked is kept in the cache under a name for the file, its state
// and the settings, and found there again by the next run.

#include <string>

#include "base/file.h"

namespace brrr::io {

struct PlainTextOptions {
  /// The field with the text in each line of a .jsonl file. Empty: "text", or the only string.
  std::string field = {};
  /// Written behind each text of a .jsonl file.
  std::string separator = "\n";
  bool accept_bytes = false;  // what is unpacked need not be text
  bool offer_bytes = false;   // errors advise --tokenizer byte
};

/// Whether a name says that each line is a JSON object: .jsonl or .ndjson, also packed.
bool has_name_of_json_lines(const fs::path& path);

/// Whether the text has to be made from the file: a .jsonl file or an archive.
bool needs_unpacking(const fs::path& path);

/// The file with its plain text: `path` itself, or one in the cache, which is made in bounded
/// memory if it is not there. Throws UserError that names `path`: an archive that is damaged, ends
/// too early or unpacks to absurdly much; a line that is no JSON object or has no such text; what
/// is no text; a full disk.
fs::path plain_text_of(const fs::path& path, const PlainTextOptions& options);

}  // namespace brrr::io
