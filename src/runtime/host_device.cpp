#include <sys/mman.h>

#include <cstring>

#include "base/errors.h"
#include "base/threads/parallel.h"
#include "runtime/device.h"

namespace brrr {
namespace {

class HostDevice final : public Device {
 public:
  std::string name() const override { return "host"; }
  bool is_host() const override { return true; }

  std::byte* allocate(int64_t bytes) override {
    void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      throw UserError(fmt::format("cannot allocate {:.2f} GiB of memory for the arena: use a "
                                  "smaller batch, context or model",
                                  static_cast<double>(bytes) / (1 << 30)),
                      ExitCode::kNoMemory);
    ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t bytes) noexcept override {
    ::munmap(data, static_cast<size_t>(bytes));
  }

  void copy_in(std::byte* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy_out(void* to, const std::byte* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    parallel_for(bytes, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  }

  void run(const Task& task) override { run_on_host(task); }
  void synchronise() override {}
};

}  // namespace

void run_on_host(const Task& task) {
  try {
    task.kernel->run(task.args);
  } catch (const UserError& e) {
    if (task.scope.empty()) throw;
    throw UserError(fmt::format("{} (at {})", e.what(), task.scope), e.code());
  }
}

std::unique_ptr<Device> host_device() { return std::make_unique<HostDevice>(); }

}  // namespace brrr
