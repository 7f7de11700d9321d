#pragma once
// The arena: one block of a device's memory, got once, returned at the end.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/device.h"

namespace brrr {

class Arena {
 public:
  Arena() = default;
  /// Zeroed; `device` outlives it. Throws UserError (exit 3) when there is not enough.
  Arena(Device& device, int64_t bytes)
      : device_(&device), data_(bytes > 0 ? device.allocate(bytes) : nullptr), bytes_(bytes) {}
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Arena() {
    if (data_ != nullptr) device_->release(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace brrr
