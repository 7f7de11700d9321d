#include "data/text_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "data/corpus.h"

namespace brrr::io {

TextFiles::TextFiles(const std::vector<fs::path>& files, bool any_bytes) : any_bytes_(any_bytes) {
  for (const fs::path& path : files) {
    const FileStamp stamp = stamp_of(InputFile(path).fd(), path);
    if (stamp.bytes == 0) continue;
    add({path, stamp, 0}, stamp.bytes);
    if (any_bytes) continue;
    const size_t file = files_.size() - 1;
    const std::string start = read_raw(file, 0, std::min(kSniffBytes, stamp.bytes));
    check_not_binary(start, path.string(), true);
    if (start.find('\0') != std::string::npos || start.size() == stamp.bytes)
      check_is_text(start, path.string(), 0, true);
  }
}

void TextFiles::add(File file, uint64_t bytes) {
  files_.push_back(std::move(file));
  begins_.push_back(begins_.back() + bytes);
}

TextFiles::Place TextFiles::place(uint64_t position) const {
  BRRR_CHECK(position < bytes(), "byte {} of {}", position, bytes());
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), position);
  const auto file = static_cast<size_t>(next - begins_.begin() - 1);
  return {file, position - begins_[file]};
}

// Read, not mapped: a file that is cut short meanwhile is an error here, not a signal, and the text
// does not count as memory of this process.
std::string TextFiles::read_raw(size_t file, uint64_t begin, uint64_t end) const {
  const File& f = files_[file];
  BRRR_CHECK(begin <= end && end <= bytes(file), "bytes {} to {} of {}", begin, end, bytes(file));
  const InputFile opened(f.path);
  check_unchanged(f.path, f.stamp, stamp_of(opened.fd(), f.path));
  std::string text(end - begin, '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::pread(opened.fd(), text.data() + done, text.size() - done,
                              static_cast<off_t>(f.begin + begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) user_error("cannot read {}: {}", f.path.string(), std::strerror(errno));
    if (n == 0) check_unchanged(f.path, f.stamp, stamp_of(opened.fd(), f.path));
    BRRR_CHECK(n > 0, "{} ends before its size", f.path.string());
    done += static_cast<size_t>(n);
  }
  return text;
}

std::string TextFiles::read(size_t file, uint64_t begin, uint64_t end) const {
  std::string text = read_raw(file, begin, end);
  if (!any_bytes_) check_is_text(text, files_[file].path.string(), files_[file].begin + begin);
  return text;
}

uint64_t TextFiles::cut(size_t file, uint64_t from, const CutRule& rule) const {
  const uint64_t end = bytes(file);
  if (from == 0 || from >= end || any_bytes_) return std::min(from, end);
  constexpr uint64_t kBefore = 4;  // bytes of the character before a cut
  const uint64_t last = std::min(end, from + kSearch);
  uint64_t step = 256;
  for (uint64_t at = from; at < last; at += step, step = kSearch) {
    const uint64_t begin = at - std::min(at, kBefore), stop = std::min(last, at + step);
    const std::string window = read_raw(file, begin, stop);
    const size_t found = rule.next(window, at - begin);
    if (found < window.size()) return begin + found;
  }
  if (last == end) return end;
  const std::string window = read_raw(file, from, std::min(end, from + kBefore));
  size_t skip = 0;
  while (skip < window.size() && is_continuation(window[skip])) ++skip;
  return from + skip;
}

std::pair<TextFiles, TextFiles> TextFiles::split(uint64_t position) const {
  std::pair<TextFiles, TextFiles> parts{TextFiles{}, TextFiles{}};
  parts.first.any_bytes_ = parts.second.any_bytes_ = any_bytes_;
  for (size_t file = 0; file < count(); ++file) {
    const uint64_t inside = std::clamp(position, begins_[file], begins_[file + 1]) - begins_[file];
    const uint64_t at = cut(file, inside);
    if (at > 0) parts.first.add(files_[file], at);
    if (at == bytes(file)) continue;
    File rest = files_[file];
    rest.begin += at;
    parts.second.add(std::move(rest), bytes(file) - at);
  }
  return parts;
}

}  // namespace brrr::io
