#pragma once
// The one place that knows which backends there are: names of devices to backends.

#include <string>

#include "runtime/backend.h"

namespace brrr::train {

/// What --device takes, for help texts.
inline constexpr const char* kDeviceHelp =
    "auto or cpu; cuda or cuda:N, a GPU of this machine; cuda:sm_80, cuda:sm_89, cuda:sm_90, a GPU "
    "to plan for";

/// UserError (exit 2) for what is no name of a device.
void check_device_name(const std::string& name);

/// UserError when there is no such device here.
Backend backend_for(const std::string& device);

}  // namespace brrr::train
