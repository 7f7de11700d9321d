#include "backend/cuda/live/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/env.h"

namespace brrr::cuda {

SharedLibrary::SharedLibrary(std::vector<std::string> names) {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& root) {
    for (const char* lib : {"/lib64/", "/lib/"}) folders.push_back(root + lib);
  };
  if (const auto home = env::get("CUDA_HOME")) add(*home);
  folders.emplace_back();  // as the system finds it
  add("/usr/local/cuda");
  for (const std::string& folder : folders)
    for (const std::string& name : names) {
      handle_ = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ == nullptr) continue;
      opened_ = folder + name;
      return;
    }
  reason_ = fmt::format("{} was not found", names.front());
}

void* SharedLibrary::symbol(const char* name) {
  void* found = handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
  if (found == nullptr && reason_.empty())
    reason_ = fmt::format("{} is too old: it has no {}", opened_, name);
  return found;
}

}  // namespace brrr::cuda
