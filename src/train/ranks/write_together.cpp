#include "train/ranks/write_together.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/env.h"
#include "formats/safetensors_layout.h"
#include "runtime/ranks/shared_work.h"
#include "runtime/ranks/state_shards.h"

namespace brrr::train {
namespace {

using io::SafetensorsLayout;
using io::TensorView;

// Ranks divide the writing of a replicated tensor if each part has at least kLeastPart bytes; parts
// begin at multiples of kPartAlignment.
constexpr uint64_t kLeastPart = uint64_t{1} << 20, kPartAlignment = 4096;

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  user_error("cannot {} {}: {}{}", verb, path.string(), std::strerror(error),
             is_full ? "; free some space and run again" : "");
}

/// Writes at chosen positions of a file to which several processes write.
class PlacedWriter {
 public:
  explicit PlacedWriter(const fs::path& path)
      : path_(path), fd_(open_for_writing(path, WriteMode::update)) {}
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;
  ~PlacedWriter() {
    if (fd_ >= 0) ::close(fd_);
  }
  void write(std::span<const std::byte> bytes, uint64_t at) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 26),
                                 static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
  }
  /// Reserves the space of the whole file, so that a full disk is noticed before anything is
  /// written.
  void reserve(uint64_t bytes) {
    const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    if (error == EOPNOTSUPP || error == EINVAL) {
      if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("write", path_, errno);
    } else if (error != 0) {
      fail("write", path_, error);
    }
  }
  void finish() {
    if (::fsync(fd_) != 0 && errno != EINVAL) fail("sync", path_, errno);
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail("close", path_, errno);
  }

 private:
  fs::path path_;
  int fd_;
};

/// Returns random bytes by which a file is recognised.
std::string fresh_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = random();
    token.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return token;
}

/// Whether this process sees a file of another process, which wrote `token` into it.
bool sees(const fs::path& path, uint64_t at, const std::string& token) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  std::string found(token.size(), '\0');
  const bool is_read = ::pread(fd, found.data(), found.size(), static_cast<off_t>(at)) ==
                       static_cast<ssize_t>(found.size());
  ::close(fd);
  return is_read && found == token;
}

/// The bytes of a tensor that this rank writes, and their offset in the tensor.
struct Part {
  std::span<const std::byte> bytes;
  uint64_t begin = 0;
};

class Parts {
 public:
  Parts(const Engine& engine, const Communicator& communicator)
      : engine_(engine),
        rank_(static_cast<uint64_t>(communicator.rank())),
        ranks_(static_cast<uint64_t>(communicator.ranks())) {}

  /// `number`: the position of the tensor in the file.
  Part of(const SafetensorsLayout::Place& place, size_t number) {
    const TensorView& tensor = *place.tensor;
    const bool is_state = tensor.bytes.empty() && place.bytes > 0;
    const StateInfo* const state = is_state ? engine_.find_state(tensor.name) : nullptr;
    if (state != nullptr && whole_type(*state)) {
      const ShardRange range = range_of_shard(*state, static_cast<int64_t>(rank_));
      const auto element = static_cast<uint64_t>(bytes_of(tensor.dtype));
      const auto begin = static_cast<uint64_t>(range.begin) * element;
      const auto size = static_cast<uint64_t>(range.size()) * element;
      if (size == 0) return {};
      return {engine_.read_state(state->name, room_).first(size), begin};
    }
    // All ranks hold the tensor: they divide a large one, and take turns with small ones.
    uint64_t begin = 0, end = place.bytes;
    if (place.bytes / ranks_ >= kLeastPart) {
      const auto cut = [&](uint64_t rank) {
        return rank == ranks_ ? place.bytes
                              : place.bytes / ranks_ * rank / kPartAlignment * kPartAlignment;
      };
      begin = cut(rank_), end = cut(rank_ + 1);
    } else if (number % ranks_ != rank_) {
      return {};
    }
    const std::span<const std::byte> all =
        state == nullptr ? tensor.bytes : engine_.read_state(state->name, room_);
    return {all.subspan(begin, end - begin), begin};
  }

 private:
  const Engine& engine_;
  uint64_t rank_, ranks_;
  std::vector<std::byte> room_;  // for states in the memory of a device
};

void write_own_parts(const fs::path& path, const SafetensorsLayout& layout, const Engine& engine,
                     const Communicator& communicator) {
  PlacedWriter out(path);
  Parts parts(engine, communicator);
  for (size_t i = 0; i < layout.places.size(); ++i) {
    if (i == layout.places.size() / 2) fault_point("safetensors.write");
    const Part part = parts.of(layout.places[i], i);
    out.write(part.bytes, layout.places[i].begin + part.begin);
  }
  out.finish();
}

/// Writes the file on rank 0, which gathers one tensor at a time. Used where the ranks do not share
/// a file system.
void write_through_first(const fs::path& file, std::span<const TensorView> tensors,
                         const io::Metadata& metadata, const Engine& engine,
                         Communicator* communicator) {
  std::vector<std::byte> room;
  const auto content = [&](const TensorView& tensor) -> std::span<const std::byte> {
    if (!tensor.bytes.empty() || tensor.shape.elements() == 0) return tensor.bytes;
    return read_whole(engine, *engine.find_state(tensor.name), communicator, room);
  };
  if (is_first_rank(communicator)) return io::write_safetensors(file, tensors, metadata, content);
  for (const TensorView* tensor : io::in_file_order(tensors)) content(*tensor);
}

}  // namespace

void write_together(const fs::path& file, std::span<const TensorView> tensors,
                    const io::Metadata& metadata, const Engine& engine,
                    Communicator* communicator) {
  const SafetensorsLayout layout = io::layout_of(tensors, metadata);
  const uint64_t first = layout.head.size();
  std::string token(16, '\0');
  if (communicator == nullptr || layout.bytes < first + token.size())
    return write_through_first(file, tensors, metadata, engine, communicator);
  std::optional<NewFile> made;
  Packed told(text_of_first(communicator, [&] {
    made.emplace(file);
    const fs::path temporary = temporary_beside(file);
    PlacedWriter out(temporary);
    out.reserve(layout.bytes);
    out.write(std::as_bytes(std::span(layout.head)), 0);
    token = fresh_token();
    out.write(std::as_bytes(std::span(token)), first);
    out.finish();
    Packed packed;
    packed.put_text(fs::absolute(temporary).string());
    packed.put_text(token);
    return packed.bytes();
  }));
  const fs::path temporary = told.take_text();
  token = told.take_text();
  const std::vector<char> seen =
      communicator->gather_values(static_cast<char>(sees(temporary, first, token)));
  if (std::ranges::count(seen, 0) > 0) {
    made.reset();
    return write_through_first(file, tensors, metadata, engine, communicator);
  }
  run_on_all(communicator, [&] { write_own_parts(temporary, layout, engine, *communicator); });
  text_of_first(communicator, [&] {
    made->commit();
    return std::string();
  });
}

}  // namespace brrr::train
