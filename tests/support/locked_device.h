#pragma once
// A device whose memory the host cannot touch: pages without any access but while the device
// itself copies or computes. The kernels are those of the CPU. What forgets to go through the
// engine crashes.

#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <vector>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "runtime/device.h"

namespace brrr::test {

/// Shared with the test, to see what the device was asked for.
struct LockedDeviceLog {
  int64_t runs = 0, copies_in = 0, copies_out = 0, recordings = 0, replays = 0, allocated = 0;
};

class LockedDevice final : public Device {
 public:
  LockedDevice(LockedDeviceLog& log, bool records) : log_(log), records_(records) {}

  std::string name() const override { return "locked"; }

  std::byte* allocate(int64_t bytes) override {
    void* data =
        ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BRRR_CHECK(data != MAP_FAILED, "mmap of {} bytes", bytes);
    blocks_.push_back({static_cast<std::byte*>(data), static_cast<size_t>(bytes)});
    log_.allocated += bytes;
    return blocks_.back().data;
  }
  void release(std::byte* data, int64_t bytes) noexcept override {
    ::munmap(data, static_cast<size_t>(bytes));
    std::erase_if(blocks_, [&](const Block& b) { return b.data == data; });
    log_.allocated -= bytes;
  }

  void copy_in(std::byte* to, const void* from, int64_t bytes) override {
    BRRR_CHECK(kept_ == nullptr, "a copy from the host while recording");
    const Open open(*this);
    ++log_.copies_in;
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy_out(void* to, const std::byte* from, int64_t bytes) override {
    BRRR_CHECK(kept_ == nullptr, "a copy to the host while recording");
    const Open open(*this);
    ++log_.copies_out;
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    queue([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  void run(const Task& task) override {
    // As on a device: what is kept are the addresses of now.
    std::vector<const void*> in(task.args.in.begin(), task.args.in.end());
    std::vector<void*> out(task.args.out.begin(), task.args.out.end());
    queue([this, kernel = task.kernel, scratch = task.args.scratch, scope = task.scope,
           in = std::move(in), out = std::move(out)] {
      ++log_.runs;
      run_on_host({kernel, {in, out, scratch}, scope});
    });
  }
  void synchronise() override {}

  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    if (!records_) return nullptr;
    ++log_.recordings;
    auto kept = std::make_unique<Kept>();
    kept_ = kept.get();
    work();
    kept_ = nullptr;
    return kept;
  }
  void replay(Recording& recording) override {
    ++log_.replays;
    const Open open(*this);
    for (const auto& step : dynamic_cast<Kept&>(recording).steps) step();
  }

 private:
  struct Kept final : Recording {
    std::vector<std::function<void()>> steps;
  };
  struct Block {
    std::byte* data;
    size_t bytes;
  };
  struct Open {
    explicit Open(LockedDevice& d) : device(d) { device.protect(PROT_READ | PROT_WRITE); }
    ~Open() { device.protect(PROT_NONE); }
    LockedDevice& device;
  };
  void protect(int access) {
    for (const Block& b : blocks_)
      BRRR_CHECK(::mprotect(b.data, b.bytes, access) == 0, "mprotect of {} bytes", b.bytes);
  }
  void queue(std::function<void()> step) {
    if (kept_ != nullptr) {
      kept_->steps.push_back(std::move(step));
      return;
    }
    const Open open(*this);
    step();
  }

  LockedDeviceLog& log_;
  const bool records_;
  std::vector<Block> blocks_;
  Kept* kept_ = nullptr;
};

/// The CPU's kernels on locked memory.
inline Backend locked_backend(LockedDeviceLog& log, bool records) {
  Backend backend = cpu::cpu_backend();
  backend.name = "locked";
  backend.open_device = [&log, records] { return std::make_unique<LockedDevice>(log, records); };
  return backend;
}

}  // namespace brrr::test
