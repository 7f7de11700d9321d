#pragma once
// A shared library that is opened when it is needed, and tables of its functions. Libraries stay
// open for good: NVIDIA's keep threads of their own.

#include <string>
#include <vector>

namespace brrr::cuda {

class SharedLibrary {
 public:
  /// The first of `names` that opens: in $CUDA_HOME, as the system finds it, in /usr/local/cuda.
  explicit SharedLibrary(std::vector<std::string> names);
  bool is_open() const { return handle_ != nullptr; }
  /// "libnvrtc.so.13 was not found"; names what is missing once find() failed.
  const std::string& reason() const { return reason_; }

  template <typename Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(symbol(name));
    return function != nullptr;
  }

 private:
  void* symbol(const char* name);
  void* handle_ = nullptr;
  std::string opened_, reason_;
};

}  // namespace brrr::cuda

// One member and one look-up for each function of a list LIST(X). The functions' names are macros
// of the headers (cuMemAlloc is cuMemAlloc_v2): arguments of X are expanded before they are used.
#define BRRR_TEXT_OF(name) #name
#define BRRR_DECLARE_FUNCTION(name) decltype(&::name) name = nullptr;
#define BRRR_FIND_FUNCTION(name) all = library.find(BRRR_TEXT_OF(name), table.name) && all;
