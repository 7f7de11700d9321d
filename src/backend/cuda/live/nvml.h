#pragma once
// NVML: what a GPU is doing. Its headers are no part of every toolkit, and its C interface is
// stable, so the prototypes are our own.

#include <optional>
#include <string>

#include "backend/cuda/live/library.h"
#include "runtime/device.h"

namespace brrr::cuda {

class Nvml {
 public:
  /// Finds the GPU by its place on the bus ("0000:3b:00.0"); absent NVML is no error.
  explicit Nvml(const std::string& pci_bus);
  /// Nothing where NVML is absent. A figure that the GPU does not give is -1.
  std::optional<DeviceReading> read() const;

 private:
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned gpu, memory;
  };
  int (*init_)() = nullptr;
  int (*by_bus_)(const char*, void**) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
  int (*utilization_)(void*, Utilization*) = nullptr;
  int (*power_)(void*, unsigned* milliwatts) = nullptr;
  int (*clock_)(void*, int which, unsigned* mhz) = nullptr;
  int (*temperature_)(void*, int sensor, unsigned* celsius) = nullptr;
  void* device_ = nullptr;
};

}  // namespace brrr::cuda
