#pragma once
// Errors, and the handles of the C interface as classes.

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "brrr/brrr_c.h"

namespace brrr {
inline namespace v1 {

/// A file, a shape, a name or an option is wrong, or something does not fit into memory.
class Error : public std::runtime_error {
 public:
  Error(brrr_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  brrr_status status() const { return status_; }

 private:
  brrr_status status_;
};

/// Options by the names of the command line (docs/options.md): {{"precision", "bf16"}}.
using Options = std::vector<std::pair<std::string, std::string>>;

namespace detail {

inline void check(brrr_status status) {
  if (status != BRRR_OK) throw Error(status, brrr_last_error());
}

/// Options as the C interface takes them; valid as long as the options.
inline std::vector<brrr_option> to_c(const Options& options) {
  std::vector<brrr_option> list;
  for (const auto& [name, value] : options) list.push_back({name.c_str(), value.c_str()});
  return list;
}
inline std::vector<const char*> to_c(const std::vector<std::string>& texts) {
  std::vector<const char*> list;
  for (const std::string& text : texts) list.push_back(text.c_str());
  return list;
}

/// A text of the C interface, freed.
inline std::string taken(char* text) {
  const std::unique_ptr<char, void (*)(char*)> owner(text, &brrr_text_free);
  return owner == nullptr ? std::string() : std::string(owner.get());
}

/// Calls the interface once for each process: the library must be the header's.
inline void require_library() {
  static const std::string refusal =
      brrr_require_abi(BRRR_ABI_VERSION) == BRRR_OK ? "" : brrr_last_error();
  if (!refusal.empty()) throw Error(BRRR_USAGE, refusal);
}

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* handle) const { kFree(handle); }
};
template <typename T, void (*kFree)(T*)>
using Handle = std::unique_ptr<T, Freer<T, kFree>>;

/// An exception of the user's callback, which must not cross the C interface.
class Caught {
 public:
  /// f(), or `otherwise` where it throws; the exception is kept.
  template <typename F>
  int run(F f, int otherwise) noexcept {
    try {
      return f();
    } catch (...) {
      exception_ = std::current_exception();
      return otherwise;
    }
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::exception_ptr exception_;
};

}  // namespace detail
}  // namespace v1
}  // namespace brrr
