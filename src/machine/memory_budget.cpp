#include "machine/memory_budget.h"

#include <limits>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/errors.h"
#include "machine/device.h"

namespace brrr::machine {
namespace {

MemoryLimit device_budget(const std::string& memory_limit, const Backend& backend) {
  const MemoryLimit all{backend.memory_bytes, "the memory of " + backend.name};
  if (memory_limit.empty()) return all;
  const int64_t asked = parse_memory(memory_limit);
  if (asked > all.bytes)
    usage_error("--memory-limit {} is more than {} has: {}", memory_limit, backend.name,
                memory_text(all.bytes));
  return {asked, "--memory-limit"};
}

}  // namespace

MemoryLimit memory_budget(const std::string& device, const std::string& memory_limit) {
  if (const Backend backend = backend_for(device); backend.memory_bytes > 0)
    return device_budget(memory_limit, backend);
  MemoryLimit limit{std::numeric_limits<int64_t>::max(), "no limit"};
  if (const auto usable = usable_memory())
    limit = {usable->bytes, "what this process may use (" + usable->source + ")"};
  if (memory_limit.empty()) return limit;
  const int64_t asked = parse_memory(memory_limit);
  const int64_t installed = installed_memory();
  if (installed > 0 && asked > installed)
    usage_error("--memory-limit {} is more than this machine has: {}", memory_limit,
                memory_text(installed));
  if (asked <= limit.bytes) limit = {asked, "--memory-limit"};
  return limit;
}

void trim_heap() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace brrr::machine
