#pragma once
// The arena: one block of memory, mapped once, huge pages where the system gives them, returned at
// the end.

#include <cstddef>
#include <cstdint>
#include <utility>

namespace brrr {

class Arena {
 public:
  Arena() = default;
  /// Zeroed. Throws UserError (exit 3) when the system refuses.
  explicit Arena(int64_t bytes);
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Arena();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace brrr
