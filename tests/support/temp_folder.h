#pragma once
// A fresh folder for one test, removed at its end, and the message of an expected UserError.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/errors.h"
#include "base/file.h"

namespace brrr::test {

class TempFolder {
 public:
  explicit TempFolder(const fs::path& parent = fs::temp_directory_path()) {
    std::string pattern = (parent / "brrr-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// The message of the UserError that `action` throws; a test failure when it throws none.
template <typename Action>
std::string user_error_of(Action&& action) {
  try {
    action();
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos)
        << "more than one line: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

}  // namespace brrr::test

/// The UserError's message holds `part`.
#define EXPECT_USER_ERROR(action, part)                                                \
  do {                                                                                 \
    const std::string message_ = ::brrr::test::user_error_of([&] { (void)(action); }); \
    EXPECT_NE(message_.find(part), std::string::npos)                                  \
        << "expected: " << part << "\ngot: " << message_;                              \
  } while (false)
