#pragma once
// Decoded pictures, kept until a number of bytes is reached; what comes later is not kept. Epochs
// read in random order, where forgetting old pictures for new ones would find fewer again. Safe
// from any thread.

#include <memory>
#include <mutex>
#include <unordered_map>

#include "formats/images/image.h"

namespace brrr::io {

class PictureCache {
 public:
  explicit PictureCache(int64_t most_bytes) : most_bytes_(most_bytes) {}
  /// Null where picture i is not kept.
  std::shared_ptr<const Image> find(size_t i) const {
    const std::lock_guard lock(mutex_);
    const auto at = pictures_.find(i);
    return at == pictures_.end() ? nullptr : at->second;
  }
  /// Whether a picture of this many bytes would be kept.
  bool has_room(int64_t bytes) const {
    const std::lock_guard lock(mutex_);
    return bytes_ + bytes <= most_bytes_;
  }
  void keep(size_t i, std::shared_ptr<const Image> image) {
    const auto bytes = static_cast<int64_t>(image->pixels.size()) + kPictureBytes;
    const std::lock_guard lock(mutex_);
    if (bytes_ + bytes > most_bytes_) return;
    if (pictures_.emplace(i, std::move(image)).second) bytes_ += bytes;
  }
  int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  static constexpr int64_t kPictureBytes = 128;  // besides its pixels
  mutable std::mutex mutex_;
  std::unordered_map<size_t, std::shared_ptr<const Image>> pictures_;
  int64_t most_bytes_, bytes_ = 0;
};

}  // namespace brrr::io
