// Preloaded into any program of ours, this makes the fake driver's GPU run kernels: the text that
// the fake compiler was given goes through the host's compiler, as in the tests. CUDA_HOME must
// name the folder of the fakes. `scripts/gpu_rehearsal` runs the whole of scripts/gpu_check so.

#include <map>
#include <string>

#include "support/cuda_emulator.h"
#include "support/fake_cuda/fake_cuda.h"

namespace {

using brrr::cuda::KernelSource;

std::function<void()> emulate(const brrr::test::FakeLaunch& launch, void** parameters) {
  static std::map<std::string, KernelSource> sources;
  KernelSource& source = sources[std::string(launch.entry) + '\n' + launch.text];
  if (source.entry.empty()) source = {launch.entry, {}, launch.text};
  return [&source, parameters, shared = launch.shared_bytes,
          grid = brrr::cuda::Dim3{launch.grid[0], launch.grid[1], launch.grid[2]},
          block = brrr::cuda::Dim3{launch.block[0], launch.block[1], launch.block[2]}] {
    brrr::test::run_emulated(source, grid, block, shared, parameters);
  };
}

[[gnu::constructor]] void install() { fake_set_launcher(emulate); }

}  // namespace
