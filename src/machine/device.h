#pragma once
// The one place that knows which backends there are: names of devices to backends.

#include <string>

#include "base/memory.h"
#include "base/options.h"
#include "runtime/backend.h"

namespace brrr::machine {

/// What --device takes, for help texts.
inline constexpr const char* kDeviceHelp =
    "auto or cpu; cuda or cuda:N, a GPU of this machine; cuda:sm_80, cuda:sm_89, cuda:sm_90, a GPU "
    "to plan for";

/// UserError (exit 2) for what is no name of a device.
void check_device_name(const std::string& name);

/// The row --device, whose field is T::device.
template <typename T>
auto& add_device_row(OptionTable<T>& t) {
  auto& device = t.text("device", &T::device, "NAME", kDeviceHelp);
  device.choices = {"auto", "cpu", "cuda"};
  device.set = [](T& o, const std::string& s) {
    check_device_name(s);
    o.device = s;
  };
  return device;
}

/// The row --memory-limit of inference, whose field is T::memory_limit.
template <typename T>
void add_memory_row(OptionTable<T>& t) {
  auto& limit = t.text("memory-limit", &T::memory_limit, "SIZE",
                       "memory limit of the process (on a GPU: of its programs), such as 6GiB, 6GB "
                       "or 512MiB (default: what is available)");
  limit.set = [](T& o, const std::string& s) {
    parse_memory(s);
    o.memory_limit = s;
  };
}

/// UserError when there is no such device here.
Backend backend_for(const std::string& device);

}  // namespace brrr::machine
