#include "support/ptx_kernels.h"

#include <map>
#include <memory>

#include "base/file.h"
#include "base/sha256.h"
#include "support/nvrtc.h"

namespace brrr::test {
namespace {

std::string ptx_of(const cuda::KernelSource& source, int sm) {
  BRRR_CHECK(Nvrtc::get() != nullptr, "libnvrtc is not installed");
  // Another compiler makes another text of the same source.
  std::string options = Nvrtc::get()->version() + " ";
  for (const std::string& o : cuda::compile_options()) options += o + " ";
  const fs::path folder = BRRR_EMULATOR_DIR;
  create_folder(folder.string());
  const std::string name = sha256_hex(options + source.text()).substr(0, 24);
  const fs::path kept = folder / fmt::format("{}.sm_{}.ptx", name, sm);
  if (fs::exists(kept)) return read_file(kept);
  const Nvrtc::Result made = Nvrtc::get()->compile_to_ptx(source, sm);
  BRRR_CHECK(made.good, "{}: {}", source.entry, made.log);
  write_file_atomically(kept, made.ptx);
  return made.ptx;
}

}  // namespace

const ptx::Program& ptx_program(const cuda::KernelSource& source, int sm) {
  static auto* known = new std::map<std::string, std::unique_ptr<ptx::Program>>;
  auto& program = (*known)[fmt::format("{} {} {}", sm, source.entry, source.text())];
  if (program == nullptr) program = ptx::parse(ptx_of(source, sm), source.entry);
  return *program;
}

void run_ptx(const cuda::KernelSource& source, int sm, cuda::Dim3 grid, cuda::Dim3 threads,
             int shared_bytes, void** args) {
  ptx::run(ptx_program(source, sm), {grid.x, grid.y, grid.z}, {threads.x, threads.y, threads.z},
           shared_bytes, args);
}

}  // namespace brrr::test
