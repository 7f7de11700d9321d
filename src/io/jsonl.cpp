#include "io/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "io/json_file.h"

namespace brrr::io {
namespace {

/// The text up to its last newline: what follows was cut off by a kill.
std::string_view whole_lines(std::string_view text) {
  const size_t last = text.rfind('\n');
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

void print_damage(const std::string& what) {
  fmt::print(stderr, "{}; the line is left out\n", what);
}

template <typename Visit, typename Damage = decltype(&print_damage)>
void for_each_record(const fs::path& path, std::string_view text, Visit&& visit,
                     Damage&& damage = print_damage) {
  size_t number = 0;
  for (std::string_view rest = whole_lines(text); !rest.empty();) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    ++number;
    if (line.empty()) continue;
    const std::string what = fmt::format("{}: line {}", path.string(), number);
    try {
      Json record = parse_json(line, what);
      if (!record.is_object())
        user_error("{}: expected a JSON object, found {}", what, describe(record));
      if (const auto step = record.find("step"); step != record.end() && !step->is_number())
        user_error("{}: expected a number for \"step\", found {}", what, describe(*step));
      visit(line, std::move(record));
    } catch (const UserError& damaged) {
      damage(damaged.what());
    }
  }
}

std::string text_if_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) ? read_file(path) : std::string();
}

[[noreturn]] void fail(const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  user_error("cannot write {}: {}{}", path.string(), std::strerror(error),
             full ? "; free some space and run again" : "");
}

}  // namespace

JsonlWriter::JsonlWriter(const fs::path& path) : path_(path) {
  const std::string text = text_if_exists(path);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path, errno);
  const size_t keep = whole_lines(text).size();
  if (keep != text.size() && ::ftruncate(fd_, static_cast<off_t>(keep)) != 0) {
    const int error = errno;
    ::close(fd_);
    fail(path, error);
  }
}

JsonlWriter::~JsonlWriter() { ::close(fd_); }

void JsonlWriter::write(const nlohmann::json& record) {
  BRRR_CHECK(record.is_object(), "a record of a log is an object");
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, errno);
    done += static_cast<size_t>(n);
  }
}

std::vector<nlohmann::json> read_jsonl(const fs::path& path) {
  const std::string text = text_if_exists(path);
  std::vector<Json> out;
  for_each_record(path, text,
                  [&](std::string_view, Json record) { out.push_back(std::move(record)); });
  return out;
}

size_t each_jsonl_record(const fs::path& path, const std::function<void(const Json&)>& visit,
                         const std::function<void(const std::string&)>& damage) {
  const std::string text = text_if_exists(path);
  size_t damaged = 0;
  for_each_record(
      path, text, [&](std::string_view, const Json& record) { visit(record); },
      [&](const std::string& what) {
        ++damaged;
        damage(what);
      });
  return damaged;
}

void truncate_jsonl_after(const fs::path& path, int64_t step) {
  const std::string text = text_if_exists(path);
  std::string kept;
  for_each_record(path, text, [&](std::string_view line, const Json& record) {
    const auto at = record.find("step");
    if (at != record.end() && at->get<double>() > static_cast<double>(step)) return;
    kept.append(line) += '\n';
  });
  if (kept != text) write_file_atomically(path, kept);
}

}  // namespace brrr::io
