#pragma once
// log.jsonl: one JSON object per line, appended while a run goes on. A kill can leave a
// half-written last line; it is dropped when the file is opened again, so every reader sees whole
// records only.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::io {

class JsonlWriter {
 public:
  /// Opens `path` for appending, creates it if needed, and cuts off a half-written last line.
  explicit JsonlWriter(const fs::path& path);
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;
  ~JsonlWriter();
  /// Appends one object as one line, in one write. Numbers that are not finite become null.
  void write(const nlohmann::json& record);
  /// The size of the file: all records so far.
  int64_t bytes() const;

 private:
  fs::path path_;
  int fd_ = -1;
};

/// The records of the file in order; none when it does not exist. A half-written last line is left
/// out; so is a damaged line elsewhere, with a warning on standard error that names it: a log is
/// no reason not to go on with a run.
std::vector<nlohmann::json> read_jsonl(const fs::path& path);

/// One after the other, without holding all of them; `damage` gets what is wrong with each damaged
/// line. Returns how many there were.
size_t each_jsonl_record(const fs::path& path,
                         const std::function<void(const nlohmann::json&)>& visit,
                         const std::function<void(const std::string&)>& damage);

/// Drops the records whose "step" is greater than `step`, for a run that resumes there, and those
/// that were written after the first `bytes`, if `bytes` is given and a line ends there: a record
/// of the same step may be younger than the checkpoint. Records without a step stay, damaged lines
/// go. Atomic: a kill leaves the old file or the new one.
void truncate_jsonl_after(const fs::path& path, int64_t step,
                          std::optional<int64_t> bytes = std::nullopt);

}  // namespace brrr::io
