#include "runtime/arena.h"

#include <sys/mman.h>

#include "base/errors.h"

namespace brrr {

Arena::Arena(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw UserError(
        fmt::format("cannot get {:.2f} GiB of memory for the arena: make the batch, the "
                    "context or the model smaller",
                    static_cast<double>(bytes) / (1 << 30)),
        ExitCode::kNoMemory);
  ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace brrr
