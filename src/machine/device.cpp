#include "machine/device.h"

#include "backend/cpu/target.h"
#include "backend/cuda/target.h"
#include "base/errors.h"

namespace brrr::machine {

void check_device_name(const std::string& name) {
  if (name == "auto" || name == "cpu" || cuda::is_name(name)) return;
  usage_error(
      "expected auto, cpu, cuda, cuda:0 (a GPU by its number), or cuda:sm_80, cuda:sm_89, "
      "cuda:sm_90 (a GPU to plan for); got '{}'",
      name);
}

Backend backend_for(const std::string& device) {
  check_device_name(device);
  return cuda::is_name(device) ? cuda::backend_named(device) : cpu::cpu_backend();
}

}  // namespace brrr::machine
