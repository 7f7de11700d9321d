#include "data/corpus.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/encoding/utf8.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/human.h"
#include "base/sha256.h"
#include "data/packed/plain_text.h"
#include "web/fetch.h"

namespace brrr::io {
namespace {

const char* bytes_advice(bool offer_bytes) {
  return offer_bytes ? ", or take it as raw bytes with --tokenizer byte" : "";
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Every file below `folder`, sorted by its whole path; links to folders are not followed.
std::vector<fs::path> walk(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    const bool hidden = is_hidden(it->path());
    std::error_code entry_error;
    if (hidden && it->is_directory(entry_error)) it.disable_recursion_pending();
    if (!hidden && it->is_regular_file(entry_error)) files.push_back(it->path());
    it.increment(error);
  }
  if (error) user_error("cannot read the folder {}: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end());
  return files;
}

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) user_error("cannot read {}: {}", path.string(), error.message());
  return size;
}

void add_path(const fs::path& path, std::vector<fs::path>& files) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    user_error("no such text file or folder: {}; check the name after --text", path.string());
  if (error) user_error("cannot read {}: {}", path.string(), error.message());
  if (fs::is_directory(status)) {
    const size_t before = files.size();
    for (fs::path& file : walk(path))
      if (size_of(file) > 0) files.push_back(std::move(file));
    if (files.size() == before)
      user_error("the folder {} holds no text files; name files or another folder", path.string());
    return;
  }
  if (!fs::is_regular_file(status))
    user_error("{} is neither a file nor a folder; --text reads files", path.string());
  if (size_of(path) == 0)
    user_error("{} is empty; expected text, name another file", path.string());
  files.push_back(path);
}

std::string names_of(const std::vector<fs::path>& files) {
  if (files.size() == 1) return files.front().string();
  return fmt::format("{} files ({}, ...)", files.size(), files.front().string());
}

/// The newest version's headers, whole files in sorted order until the cap.
std::optional<CorpusFiles> find_headers(const fs::path& root) {
  std::error_code error;
  long newest = -1;
  fs::path folder;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    long version = -1;
    std::from_chars(name.data(), name.data() + name.size(), version);
    std::error_code entry_error;
    if (version > newest && it->is_directory(entry_error)) newest = version, folder = it->path();
  }
  if (newest < 0) return std::nullopt;
  CorpusFiles found;
  uint64_t total = 0;
  for (fs::path& file : walk(folder)) {
    const uint64_t size = size_of(file);
    if (size == 0) continue;
    if (total + size > kHeaderCorpusBytes) break;
    total += size;
    found.files.push_back(std::move(file));
  }
  if (found.files.empty()) return std::nullopt;
  found.description = fmt::format("the C++ headers in {} ({})", folder.string(),
                                  counted(std::ssize(found.files), "file"));
  return found;
}

CorpusFiles default_corpus(const CorpusOptions& options) {
  if (const auto data = env::get("BRRR_DATA")) {
    const fs::path path = fs::path(*data) / "shakespeare" / "input.txt";
    std::error_code error;
    if (fs::is_regular_file(path, error) && size_of(path) > 0)
      return {{path}, fmt::format("tiny Shakespeare ({})", path.string()), ""};
  }
  std::string note;
  try {
    const fs::path path = fetch_cached(kTinyShakespeare);
    return {{path}, fmt::format("tiny Shakespeare ({})", path.string()), ""};
  } catch (const UserError& error) {
    note = error.what();
  }
  auto headers = find_headers(options.header_root);
  if (!headers)
    user_error(
        "no text to train on: tiny Shakespeare could not be downloaded ({}), and there are no C++ "
        "headers in {}; name a text: --text FILE",
        note, options.header_root.string());
  headers->note = note;
  return *std::move(headers);
}

/// Control characters that texts do not have. Tabs, line ends, form feeds, escape sequences of
/// terminals and the four separators from U+001C on are text.
bool is_control(unsigned char c) {
  return (c > 0 && c < '\t') || (c > '\r' && c < 0x1b) || c == 0x7f;
}

}  // namespace

void check_not_binary(std::string_view bytes, const std::string& name, bool offer_bytes) {
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    user_error("{} is UTF-16, not UTF-8 text; convert it: iconv -f UTF-16 -t UTF-8 {} > text.txt",
               name, name);
  const auto controls = static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return is_control(static_cast<unsigned char>(c));
  }));
  constexpr size_t kFewControls = 8;  // a short text may hold some, if they are under a tenth
  if (controls * (controls > kFewControls ? 100 : 10) > bytes.size())
    user_error("{} is binary, not text ({} of {} bytes are control characters); name a text file{}",
               name, controls, bytes.size(), bytes_advice(offer_bytes));
}

void check_is_text(std::string_view bytes, const std::string& name, size_t offset,
                   bool offer_bytes) {
  if (const size_t nul = bytes.find('\0'); nul != std::string_view::npos)
    user_error("{} is binary, not text (NUL at byte {}); name a text file{}", name, offset + nul,
               bytes_advice(offer_bytes));
  if (const auto at = find_invalid_utf8(bytes))
    user_error(
        "{} is not UTF-8 (byte 0x{:02x} at offset {}); convert it (for Latin-1: iconv -f LATIN1 -t "
        "UTF-8){}",
        name, static_cast<unsigned char>(bytes[*at]), offset + *at, bytes_advice(offer_bytes));
}

CorpusFiles find_corpus(const CorpusOptions& options) {
  if (options.text.empty()) return default_corpus(options);
  CorpusFiles found;
  for (const fs::path& path : options.text) add_path(path, found.files);
  found.description = names_of(found.files);
  found.separator = options.separator;
  const bool has_records = std::ranges::any_of(found.files, has_name_of_json_lines);
  if (found.separator.empty() && options.by_document && has_records)
    found.separator = kRecordSeparator;
  PlainTextOptions plain;
  plain.field = options.text_field;
  if (!found.separator.empty()) plain.separator = found.separator;
  plain.accept_bytes = options.accept_bytes;
  plain.offer_bytes = options.offer_bytes;
  for (fs::path& file : found.files) {
    fs::path text = plain_text_of(file, plain);
    if (size_of(text) == 0)
      user_error("{} holds no text; expected text, name another file", file.string());
    file = std::move(text);
  }
  return found;
}

std::string_view text_to_learn_from(const Corpus& corpus, std::string& storage) {
  if (corpus.separator != kRecordSeparator) return corpus.text;
  storage = corpus.text;
  const std::string_view mark = kRecordSeparator;
  size_t end = 0;
  for (size_t at = 0; at < corpus.text.size();) {
    const size_t next = std::min(corpus.text.find(mark, at), corpus.text.size());
    end += corpus.text.copy(storage.data() + end, next - at, at);
    if (next < corpus.text.size()) storage[end++] = '\n';
    at = next + mark.size();
  }
  storage.resize(end);
  return storage;
}

Corpus load_corpus(const CorpusOptions& options) {
  CorpusFiles found = find_corpus(options);
  Corpus corpus;
  corpus.note = std::move(found.note);
  corpus.separator = found.separator;
  uint64_t total = 0;
  for (const fs::path& file : found.files) total += size_of(file);
  corpus.text.reserve(total);
  for (const fs::path& file : found.files) {
    const std::string text = read_file(file, size_of(file));
    if (!options.accept_bytes) {
      check_not_binary(text, file.string(), options.offer_bytes);
      check_is_text(text, file.string(), 0, options.offer_bytes);
    }
    corpus.text += text;
    if (!text.empty()) corpus.document_ends.push_back(corpus.text.size());
  }
  if (corpus.text.empty()) user_error("{} holds no text; name another file", found.description);
  corpus.sha256 = sha256_hex(corpus.text);
  if (options.text.empty() && found.description.starts_with("tiny") &&
      corpus.sha256 != kTinyShakespeare.sha256)
    found.description += ", not the published version";
  corpus.description = fmt::format("{}, {:.2f} MB", found.description,
                                   1e-6 * static_cast<double>(corpus.text.size()));
  return corpus;
}

}  // namespace brrr::io
