#include "data/packed/plain_text.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/cache.h"
#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/sha256.h"
#include "base/tell.h"
#include "data/corpus.h"
#include "data/file_stamp.h"
#include "data/packed/unpacked_file.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr size_t kUnpackedPiece = size_t{1} << 20;
constexpr size_t kLongestJsonLine = size_t{64} << 20;

/// The bytes of a piece that end with a whole character.
size_t whole_characters(std::string_view piece) {
  size_t end = piece.size();
  for (size_t back = 1; back <= std::min<size_t>(3, piece.size()); ++back) {
    const auto c = static_cast<unsigned char>(piece[piece.size() - back]);
    if ((c & 0xc0) == 0x80) continue;
    const size_t length = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (length > back) end = piece.size() - back;
    break;
  }
  return end;
}

/// An archive of plain text.
void write_unpacked(const fs::path& path, const PlainTextOptions& options, FileWriter& out) {
  UnpackedFile file(path);
  std::string piece;
  for (bool at_end = false; !at_end;) {
    const size_t kept = piece.size();
    piece.resize(kept + kUnpackedPiece);
    const size_t n = file.read(piece.data() + kept, kUnpackedPiece);
    at_end = n == 0;
    piece.resize(kept + n);
    const size_t whole = at_end || options.accept_bytes ? piece.size() : whole_characters(piece);
    const std::string_view text = std::string_view(piece).substr(0, whole);
    if (!options.accept_bytes) {
      if (out.bytes_written() == 0)
        check_not_binary(text.substr(0, kSniffBytes), path.string(), options.offer_bytes);
      check_is_text(text, path.string(), out.bytes_written(), options.offer_bytes);
    }
    out.write(text);
    piece.erase(0, whole);
  }
}

/// The texts of a .jsonl file.
class JsonTexts {
 public:
  JsonTexts(const fs::path& path, const PlainTextOptions& options)
      : name_(path.string()), options_(options), file_(path), field_(options.field) {}

  void write(FileWriter& out) {
    std::string line;
    while (next(line)) {
      const size_t begin = number_ == 1 && line.starts_with("\xef\xbb\xbf") ? 3 : 0;
      const std::string_view content = std::string_view(line).substr(begin);
      if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string text = text_of(content);
      if (text.empty()) continue;
      out.write(text);
      out.write(options_.separator);
    }
    if (out.bytes_written() == 0)
      user_error("{} has no texts; expected a JSON object with a text in each line", name_);
  }

 private:
  bool next(std::string& line) {
    ++number_;
    line.clear();
    for (;;) {
      const size_t end = std::min(buffer_.find('\n', at_), buffer_.size());
      line.append(buffer_, at_, end - at_);
      if (line.size() > kLongestJsonLine)
        user_error("{}: line {} is longer than {}; expected a JSON object in each line", name_,
                   number_, format_bytes(static_cast<double>(kLongestJsonLine)));
      if (end < buffer_.size()) {
        at_ = end + 1;
        return true;
      }
      buffer_.resize(kUnpackedPiece);
      buffer_.resize(file_.read(buffer_.data(), buffer_.size()));
      at_ = 0;
      if (buffer_.empty()) return !line.empty();
    }
  }

  std::string text_of(std::string_view line) {
    const std::string where = fmt::format("{}: line {}", name_, number_);
    const auto record = parse_ordered_json(line, where);
    if (!record.is_object())
      user_error("{}: expected a JSON object such as {{\"text\": \"...\"}}; found {}", where,
                 describe(record));
    if (field_.empty()) field_ = found_field(record, where);
    const auto text = record.find(field_);
    if (text != record.end() && text->is_null()) return "";
    if (text == record.end() || !text->is_string())
      user_error("{}: expected a text in the field '{}'; {}", where, field_,
                 text == record.end() ? "the fields are " + fields_of(record)
                                      : "found " + describe(*text));
    std::string content = text->get<std::string>();
    if (content.find('\0') != std::string::npos)
      user_error("{}: the text holds a NUL character, which no text has", where);
    // The separator's own mark cannot be told from a text that holds it.
    if (options_.separator != "\n" && content.find(options_.separator) != std::string::npos)
      user_error("{}: the text holds the separator {}; choose another with --separator", where,
                 in_quotes(options_.separator));
    return content;
  }

  static std::string fields_of(const nlohmann::ordered_json& record) {
    std::vector<std::string> names;
    for (const auto& [name, value] : record.items()) names.push_back(in_quotes(name));
    return names.empty() ? "none" : listed(names);
  }

  static std::string found_field(const nlohmann::ordered_json& record, const std::string& where) {
    if (record.contains("text")) return "text";
    std::vector<std::string> strings;
    for (const auto& [name, value] : record.items())
      if (value.is_string()) strings.push_back(name);
    if (strings.size() != 1)
      user_error("{}: cannot tell which field is the text; choose it with --text-column: {}", where,
                 fields_of(record));
    return strings[0];
  }

  std::string name_;
  const PlainTextOptions& options_;
  UnpackedFile file_;
  std::string field_;
  int64_t number_ = 0;  // of the line
  std::string buffer_;
  size_t at_ = 0;
};

}  // namespace

bool has_name_of_json_lines(const fs::path& path) {
  const std::string ending = ascii_lowercase(unpacked_name(path).extension().string());
  return ending == ".jsonl" || ending == ".ndjson";
}

bool needs_unpacking(const fs::path& path) {
  return has_name_of_json_lines(path) || packing_of_file(path) != Packing::none;
}

fs::path plain_text_of(const fs::path& path, const PlainTextOptions& options) {
  if (!needs_unpacking(path)) return path;
  const FileStamp stamp = stamp_of(path);
  const bool is_json = has_name_of_json_lines(path);
  const std::string key =
      fmt::format("1\n{}\n{} {} {}\n{}\n{}\n{}\n{}", fs::absolute(path).string(), stamp.bytes,
                  stamp.modified_ns, stamp.inode, is_json, options.accept_bytes, options.field,
                  is_json ? options.separator : "");
  const fs::path folder = cache_folder() / "texts";
  const fs::path file = folder / (sha256_hex(key).substr(0, 32) + ".txt");
  std::error_code error;
  if (fs::is_regular_file(file, error)) return file;
  create_folder(folder);
  remove_dead_temporaries(folder);
  NewFile made(file);
  if (is_json)
    JsonTexts(path, options).write(made.out());
  else
    write_unpacked(path, options, made.out());
  check_unchanged(path, stamp, stamp_of(path));
  const auto bytes = static_cast<double>(made.out().bytes_written());
  made.commit();
  // The state of a text is that of what it was made from: `data prepare` goes on by it.
  const timespec time{stamp.modified_ns / 1'000'000'000, stamp.modified_ns % 1'000'000'000};
  const timespec times[] = {time, time};
  ::utimensat(AT_FDCWD, file.c_str(), times, 0);
  tell("{}: {} of text, kept in {} for the next run\n", path.string(), format_bytes(bytes),
       file.string());
  return file;
}

}  // namespace brrr::io
