#pragma once
// Device: where the memory of compiled programs lies and their kernels run. The host is one;
// another may have memory that the host cannot touch and a queue of its own: then everything goes
// in and out by copies, and what run() queues is only known to be done when copy_out() or
// synchronise() returns. Used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend.h"

namespace brrr {

/// A kernel, the addresses that it runs on, and where in the model it stands (for errors).
struct Task {
  Kernel* kernel = nullptr;
  KernelArgs args;
  std::string scope;
};

/// Queued work that was kept to be run again on the same addresses.
class Recording {
 public:
  virtual ~Recording() = default;
};

/// Points in a device's queue. It passes each when all that was queued before is done.
class Marks {
 public:
  virtual ~Marks() = default;
  /// Queues mark i, or keeps it with a recording.
  virtual void set(size_t i) = 0;
  /// Waits; by the device's clock, how many seconds after the first it last passed each.
  virtual std::vector<double> seconds() = 0;
};

/// What a device is doing, as its maker's tools tell it; -1: unknown.
struct DeviceReading {
  int64_t memory_used = -1, memory_total = -1;  // bytes
  int busy_percent = -1, clock_mhz = -1, memory_clock_mhz = -1, celsius = -1;
  double watts = -1;
};

class Device {
 public:
  virtual ~Device() = default;
  /// "host", "cuda:0 (NVIDIA H200)"
  virtual std::string name() const = 0;
  /// Whether the host may read and write the device's memory itself, between runs.
  virtual bool is_host() const { return false; }

  virtual std::optional<DeviceReading> reading() const { return std::nullopt; }

  /// Zeroed. Throws UserError (exit 3) when there is not enough.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* data, int64_t bytes) noexcept = 0;

  /// Host to device, after what is queued; `from` may be changed on return.
  virtual void copy_in(std::byte* to, const void* from, int64_t bytes) = 0;
  /// Device to host. Waits; throws UserError for bad data that a kernel met before.
  virtual void copy_out(void* to, const std::byte* from, int64_t bytes) = 0;
  /// Within the device, queued.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  /// What would make the first run of these slow is done now.
  virtual void prepare(std::span<const Task> tasks) { static_cast<void>(tasks); }
  /// Queues one kernel. UserError for bad data, with the task's scope, comes from here or from the
  /// next copy_out() or synchronise().
  virtual void run(const Task& task) = 0;
  virtual void synchronise() = 0;

  /// nullptr: what runs here is timed by waiting for it.
  virtual std::unique_ptr<Marks> marks(size_t count) {
    static_cast<void>(count);
    return nullptr;
  }

  /// Keeps what `work` queues (runs, marks and copies within the device, nothing else) instead of
  /// running it; nullptr: this device keeps nothing, and `work` was not called.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) {
    static_cast<void>(work);
    return nullptr;
  }
  /// Queues it, as if its calls were made now.
  virtual void replay(Recording& recording) { static_cast<void>(recording); }
};

/// Runs a task's kernel here and now; its errors get the task's scope.
void run_on_host(const Task& task);

/// The host itself: huge pages where the system gives them; kernels run when they are queued.
std::unique_ptr<Device> host_device();

}  // namespace brrr
