#include "backend/cuda/live/nvml.h"

namespace brrr::cuda {
namespace {

constexpr int kSmClock = 1, kMemoryClock = 2;  // NVML_CLOCK_SM, NVML_CLOCK_MEM
constexpr int kGpuSensor = 0;                  // NVML_TEMPERATURE_GPU

}  // namespace

Nvml::Nvml(const std::string& pci_bus) {
  SharedLibrary library({"libnvidia-ml.so.1"});
  const bool all = library.find("nvmlInit_v2", init_) &&
                   library.find("nvmlDeviceGetHandleByPciBusId_v2", by_bus_) &&
                   library.find("nvmlDeviceGetMemoryInfo", memory_) &&
                   library.find("nvmlDeviceGetUtilizationRates", utilization_) &&
                   library.find("nvmlDeviceGetPowerUsage", power_) &&
                   library.find("nvmlDeviceGetClockInfo", clock_) &&
                   library.find("nvmlDeviceGetTemperature", temperature_);
  if (!all || init_() != 0) return;
  if (by_bus_(pci_bus.c_str(), &device_) != 0) device_ = nullptr;
}

std::optional<DeviceReading> Nvml::read() const {
  if (device_ == nullptr) return std::nullopt;
  DeviceReading r;
  Memory memory{};
  if (memory_(device_, &memory) == 0) {
    r.memory_used = static_cast<int64_t>(memory.used);
    r.memory_total = static_cast<int64_t>(memory.total);
  }
  Utilization utilization{};
  if (utilization_(device_, &utilization) == 0) r.busy_percent = static_cast<int>(utilization.gpu);
  unsigned value = 0;
  if (power_(device_, &value) == 0) r.watts = value / 1000.0;
  if (clock_(device_, kSmClock, &value) == 0) r.clock_mhz = static_cast<int>(value);
  if (clock_(device_, kMemoryClock, &value) == 0) r.memory_clock_mhz = static_cast<int>(value);
  if (temperature_(device_, kGpuSensor, &value) == 0) r.celsius = static_cast<int>(value);
  return r;
}

}  // namespace brrr::cuda
