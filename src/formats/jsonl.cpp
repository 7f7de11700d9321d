#include "formats/jsonl.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/file.h"
#include "base/tell.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

/// The lines of a file one after the other, none when it does not exist. What follows the last
/// newline was cut off by a kill and is no line.
class Lines {
 public:
  explicit Lines(const fs::path& path) : path_(path) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    const InputFile file(path);
    const int own = ::dup(file.fd());
    file_ = own < 0 ? nullptr : ::fdopen(own, "rb");
    if (file_ == nullptr) fail_reading();
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    std::free(line_);
    if (file_ != nullptr) std::fclose(file_);
  }
  /// Without its newline, until the next call.
  std::optional<std::string_view> next() {
    if (file_ == nullptr) return std::nullopt;
    errno = 0;
    const ssize_t n = ::getline(&line_, &room_, file_);
    if (n < 0 && std::ferror(file_) != 0) fail_reading();
    if (n <= 0 || line_[n - 1] != '\n') return std::nullopt;
    end_ += n;
    return std::string_view(line_, static_cast<size_t>(n) - 1);
  }
  /// Where the line that next() gave ends in the file, with its newline.
  int64_t end() const { return end_; }

 private:
  [[noreturn]] void fail_reading() const {
    user_error("cannot read {}: {}", path_.string(), std::strerror(errno));
  }

  fs::path path_;
  std::FILE* file_ = nullptr;
  char* line_ = nullptr;
  size_t room_ = 0;
  int64_t end_ = 0;
};

/// Up to the last newline.
int64_t bytes_of_lines(const fs::path& path) {
  Lines lines(path);
  while (lines.next()) continue;
  return lines.end();
}

/// Whether the file's first `bytes` are whole lines.
bool ends_line(const fs::path& path, int64_t bytes) {
  Lines lines(path);
  while (lines.end() < bytes && lines.next()) continue;
  return lines.end() == bytes;
}

void print_damage(const std::string& what) { tell("{}; skipping the line\n", what); }

template <typename Visit, typename Damage = decltype(&print_damage)>
void for_each_record(const fs::path& path, Visit&& visit, Damage&& damage = print_damage) {
  size_t number = 0;
  Lines lines(path);
  while (const auto next = lines.next()) {
    const std::string_view line = *next;
    ++number;
    if (line.empty()) continue;
    const std::string what = fmt::format("{}: line {}", path.string(), number);
    try {
      Json record = parse_json(line, what);
      if (!record.is_object())
        user_error("{}: expected a JSON object, found {}", what, describe(record));
      if (const auto step = record.find("step"); step != record.end() && !step->is_number())
        user_error("{}: expected a number for \"step\", found {}", what, describe(*step));
      visit(line, std::move(record), lines.end());
    } catch (const UserError& damaged) {
      damage(damaged.what());
    }
  }
}

[[noreturn]] void fail(const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  user_error("cannot write {}: {}{}", path.string(), std::strerror(error),
             full ? "; free some space and run again" : "");
}

}  // namespace

JsonlWriter::JsonlWriter(const fs::path& path) : path_(path) {
  const off_t keep = bytes_of_lines(path);
  fd_ = open_for_writing(path, WriteMode::append);
  if (::lseek(fd_, 0, SEEK_END) > keep && ::ftruncate(fd_, keep) != 0) {
    const int error = errno;
    ::close(fd_);
    fail(path, error);
  }
}

JsonlWriter::~JsonlWriter() { ::close(fd_); }

void JsonlWriter::write(const nlohmann::json& record) {
  BRRR_CHECK(record.is_object(), "a record of a log is an object");
  fault_point("log.write");
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, errno);
    done += static_cast<size_t>(n);
  }
}

std::vector<nlohmann::json> read_jsonl(const fs::path& path) {
  std::vector<Json> out;
  for_each_record(
      path, [&](std::string_view, Json record, int64_t) { out.push_back(std::move(record)); });
  return out;
}

size_t each_jsonl_record(const fs::path& path, const std::function<void(const Json&)>& visit,
                         const std::function<void(const std::string&)>& damage) {
  size_t damaged = 0;
  for_each_record(
      path, [&](std::string_view, const Json& record, int64_t) { visit(record); },
      [&](const std::string& what) {
        ++damaged;
        damage(what);
      });
  return damaged;
}

int64_t JsonlWriter::bytes() const { return ::lseek(fd_, 0, SEEK_END); }

void truncate_jsonl_after(const fs::path& path, int64_t step, std::optional<int64_t> bytes) {
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) return;  // JsonlWriter refuses it, and says why
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  // A log that somebody edited, or that lost its end with the power, goes by the steps alone.
  const int64_t limit = bytes && ends_line(path, *bytes) ? *bytes : kNoLimit;
  std::string kept;
  for_each_record(path, [&](std::string_view line, const Json& record, int64_t end) {
    if (end > limit) return;
    const auto at = record.find("step");
    if (at != record.end() && at->get<double>() > static_cast<double>(step)) return;
    kept.append(line) += '\n';
  });
  // Lines only go, so a file of the same size is the same.
  std::error_code absent;
  const auto size = fs::file_size(path, absent);
  if (!absent && kept.size() != size) write_file_atomically(path, kept);
}

}  // namespace brrr::io
