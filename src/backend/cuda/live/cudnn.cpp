#include "backend/cuda/live/cudnn.h"

#include <fmt/format.h>

namespace brrr::cuda::cudnn {

Library::~Library() {
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

std::string Library::load() { return load(SharedLibrary({"libcudnn.so.9", "libcudnn.so"})); }

std::string Library::load(SharedLibrary library) {
  if (!library.is_open()) return "no cuDNN: " + library.reason();
  bool all = true;
  Library& table = *this;
#define BRRR_CUDNN_FUNCTIONS(X)    \
  X(cudnnGetVersion)               \
  X(cudnnGetErrorString)           \
  X(cudnnCreate)                   \
  X(cudnnDestroy)                  \
  X(cudnnSetStream)                \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendSetAttribute)      \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendExecute)
  BRRR_CUDNN_FUNCTIONS(BRRR_FIND_FUNCTION)
#undef BRRR_CUDNN_FUNCTIONS
  if (!all) return library.reason();
  if (const int64_t v = version_number(); v < 90000 || v >= 100000)
    return fmt::format("cuDNN 9 is needed, this one is {}", version());
  return "";
}

std::string Library::open(CUstream stream) {
  if (const int status = cudnnCreate(&handle_); status != kSuccess) {
    handle_ = nullptr;
    return fmt::format("cudnnCreate said {}", cudnnGetErrorString(status));
  }
  if (const int status = cudnnSetStream(handle_, stream); status != kSuccess)
    return fmt::format("cudnnSetStream said {}", cudnnGetErrorString(status));
  return "";
}

std::string Library::version() const {
  const int64_t v = version_number();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

Descriptor::Descriptor(const Library& library, Kind kind) : library_(&library) {
  const int status = library.cudnnBackendCreateDescriptor(static_cast<int>(kind), &raw_);
  check(status, "create a descriptor", static_cast<int>(kind));
}

Descriptor::~Descriptor() {
  if (raw_ != nullptr) library_->cudnnBackendDestroyDescriptor(raw_);
}

void Descriptor::check(int status, const char* what, int number) const {
  if (status == kSuccess) return;
  throw Refusal{fmt::format("cuDNN {} does not {} ({}): {}", library_->version(), what, number,
                            library_->cudnnGetErrorString(status))};
}

Descriptor& Descriptor::set_many(Field field, FieldType type, size_t count, const void* values) {
  const int number = static_cast<int>(field);
  check(library_->cudnnBackendSetAttribute(raw_, number, static_cast<int>(type),
                                           static_cast<int64_t>(count), values),
        "take a value", number);
  return *this;
}

Descriptor& Descriptor::finish() {
  check(library_->cudnnBackendFinalize(raw_), "support this", 0);
  return *this;
}

int64_t Descriptor::get_int64(Field field) const {
  int64_t value = 0, count = 0;
  const int number = static_cast<int>(field);
  check(library_->cudnnBackendGetAttribute(raw_, number, static_cast<int>(FieldType::int64), 1,
                                           &count, &value),
        "tell a value", number);
  return value;
}

int64_t Descriptor::get_descriptors(Field field, std::span<RawDescriptor> into) const {
  int64_t count = 0;
  const int number = static_cast<int>(field);
  check(library_->cudnnBackendGetAttribute(raw_, number, static_cast<int>(FieldType::descriptor),
                                           static_cast<int64_t>(into.size()), &count, into.data()),
        "tell descriptors", number);
  return count;
}

}  // namespace brrr::cuda::cudnn
