#pragma once
// Several programs as one piece of work of a device: the inputs of all go over in one copy, from
// there each goes to its place just before its program runs; scalars are collected and come back
// in one copy. What is queued between the two copies depends on addresses alone, so a device that
// can keep it (a CUDA graph) records it the second time, and from then on queues it at once.

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "runtime/device.h"

namespace brrr {

class Staging {
 public:
  /// `data`: `bytes` of the device's memory.
  Staging(Device& device, std::byte* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}

  /// What `bytes` take of the room.
  static int64_t room_for(int64_t bytes) { return (bytes + 15) / 16 * 16; }

  void clear();
  /// Addresses may stand for something else from now on: what was recorded is not run again.
  void forget() { recordings_.clear(); }
  void add_input(std::byte* to, std::span<const std::byte> bytes);
  /// `run` queues kernels; what it queues is a function of `key` alone.
  void add_run(size_t key, std::function<void()> run);
  void add_output(const std::byte* from, int64_t bytes);
  /// The bytes of the outputs, each in room_for() bytes; valid until the next run().
  std::span<const std::byte> run();

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
    bool operator==(const Copy&) const = default;
    auto operator<=>(const Copy&) const = default;
  };
  struct Part {  // a program, and what is copied before and after it
    std::vector<Copy> before, after;
    size_t key = 0;
    bool operator==(const Part&) const = default;
    auto operator<=>(const Part&) const = default;
  };
  void queue() const;

  Device& device_;
  std::byte* data_;
  int64_t bytes_;
  std::vector<std::byte> in_, out_;  // what goes over, what came back
  std::vector<Part> parts_;
  std::vector<std::function<void()>> runs_;
  bool ends_ = true;  // the last part has its run
  // Of what has run before; null: not recorded yet, or the device keeps nothing.
  std::map<std::vector<Part>, std::unique_ptr<Recording>> recordings_;
};

}  // namespace brrr
