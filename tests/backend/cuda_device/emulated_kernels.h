#pragma once
// The whole kernel list on the fake driver: the emulation runs what it launches.

#include <map>
#include <string>

#include "backend/cuda/node_plan.h"
#include "backend/cuda/target.h"
#include "support/cuda_emulator.h"
#include "support/fake_cuda/fake_cuda.h"

namespace brrr::cuda {

inline std::map<std::string, KernelSource>& sources() {
  static std::map<std::string, KernelSource> all;
  return all;
}

inline std::function<void()> emulate(const test::FakeLaunch& launch, void** parameters) {
  const KernelSource& source = sources().at(std::string(launch.entry) + '\n' + launch.text);
  // The parameters live as long as the kernel that is bound to them.
  return [&source, parameters, shared = launch.shared_bytes,
          grid = Dim3{launch.grid[0], launch.grid[1], launch.grid[2]},
          block = Dim3{launch.block[0], launch.block[1], launch.block[2]}] {
    test::run_emulated(source, grid, block, shared, parameters);
  };
}

/// The whole kernel list; the emulation learns what it will be asked for.
inline Backend all_kernels() {
  fake_set_launcher(emulate);
  Backend backend = backend_named("cuda");
  for (KernelEntry& e : backend.kernels)
    e.prepare = [prepare = e.prepare](const NodeView& view) {
      auto kernel = prepare(view);
      for (const NodePlan& way : dynamic_cast<CudaKernel&>(*kernel).ways())
        for (const Command& command : way.commands)
          if (const auto* launch = std::get_if<Launch>(&command)) {
            sources()[launch->source.entry + '\n' + launch->source.text()] = launch->source;
            test::emulate_later({{*launch}, 0, true});
          }
      return kernel;
    };
  return backend;
}

}  // namespace brrr::cuda
