#pragma once
// The text of files that is read piece by piece and never held as a whole. Immutable; reads may
// come from any thread. A file that changes after opening is noticed at the next read.

#include <cstdint>
#include <string>
#include <vector>

#include "data/file_stamp.h"
#include "text/cut_rule.h"

namespace brrr::io {

class TextFiles {
 public:
  /// The files in their order; empty ones are left out. `any_bytes`: they may be cut anywhere and
  /// hold anything (the byte tokenizer); else each piece that is read must be UTF-8 text. Throws
  /// UserError for a file that cannot be read or whose beginning is no text.
  TextFiles(const std::vector<fs::path>& files, bool any_bytes);

  size_t count() const { return files_.size(); }
  /// Of all files laid end to end.
  uint64_t bytes() const { return begins_.back(); }
  uint64_t bytes(size_t file) const { return begins_[file + 1] - begins_[file]; }
  const fs::path& path(size_t file) const { return files_[file].path; }

  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
  };
  /// The file that byte `position` < bytes() of all lies in.
  Place place(uint64_t position) const;

  /// Bytes [begin, end) of a file; both must be cuts. Throws UserError: the file changed, or is no
  /// text there.
  std::string read(size_t file, uint64_t begin, uint64_t end) const;
  /// Bytes that need not begin or end at a character, unchecked.
  std::string read_raw(size_t file, uint64_t begin, uint64_t end) const;

  /// The first place at or behind `from` where the rule allows a cut; where the next kSearch bytes
  /// have none, the next character. The end of the file is a cut.
  uint64_t cut(size_t file, uint64_t from, const CutRule& rule = CutRule::at_words()) const;
  static constexpr uint64_t kSearch = 1 << 16;

  /// The text before and behind the cut at byte `position` of all.
  std::pair<TextFiles, TextFiles> split(uint64_t position) const;

 private:
  struct File {
    fs::path path;
    FileStamp stamp;
    uint64_t begin = 0;  // where the part that counts begins
  };
  TextFiles() = default;
  void add(File file, uint64_t bytes);

  std::vector<File> files_;
  std::vector<uint64_t> begins_{0};  // of each in all; one more than there are files
  bool any_bytes_ = false;
};

}  // namespace brrr::io
