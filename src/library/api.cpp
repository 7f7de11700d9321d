#include "library/api.h"
#include "base/threads/thread_local.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "base/integers.h"
#include "base/tell.h"

/// AddressSanitizer's interface; null where the program is not built with AddressSanitizer.
extern "C" __attribute__((weak)) void* __asan_region_is_poisoned(void* begin, size_t bytes);

namespace brrr::library {
namespace {

BRRR_THREAD_LOCAL std::string last_error;

bool has_sink = false;  // brrr_set_on_note() was called

/// The process in which Brrr first computed something.
pid_t first_process() {
  static const pid_t process = ::getpid();
  return process;
}

brrr_status failed(brrr_status status, std::string text) noexcept {
  try {
    set_last_error(std::move(text));
  } catch (...) {
    last_error.clear();
  }
  return status;
}

}  // namespace

void set_last_error(std::string text) { last_error = std::move(text); }

void begin_call() {
  static const bool is_quiet = [] {
    if (!has_sink) set_tell_sink([](std::string_view) {});
    return true;
  }();
  static_cast<void>(is_quiet);
  if (first_process() != ::getpid())
    usage_error(
        "this process is a fork of one that used Brrr, whose threads do not survive a fork; start "
        "a new process instead, or use Brrr only after the fork");
}

brrr_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Stopped&) {
    return failed(BRRR_STOPPED, "a callback asked to stop");
  } catch (const UserError& e) {
    switch (e.code()) {
      case ExitCode::kUsage:
        return failed(BRRR_USAGE, e.what());
      case ExitCode::kNoMemory:
        return failed(BRRR_NO_MEMORY, e.what());
      case ExitCode::kDone:
      case ExitCode::kFailed:
        break;
    }
    return failed(BRRR_FAILED, e.what());
  } catch (const std::bad_alloc&) {
    return failed(BRRR_NO_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(BRRR_INTERNAL, std::string("internal error, please report it: ") + e.what());
  } catch (...) {
    return failed(BRRR_INTERNAL, "internal error, please report it");
  }
}

std::string text_of(const char* text, const char* what) { return &checked(text, what); }

std::vector<std::string> texts_of(const char* const* texts, size_t count, const char* what) {
  std::vector<std::string> list;
  for (size_t i = 0; i < count; ++i) list.push_back(text_of(checked(texts + i, what), what));
  return list;
}

KeyValues key_values(const brrr_option* options, size_t count) {
  KeyValues given;
  for (size_t i = 0; i < count; ++i) {
    const brrr_option& option = checked(options + i, "the list of options");
    given.emplace_back(text_of(option.name, "the name of an option"),
                       text_of(option.value, "the value of an option"));
  }
  return given;
}

char* copy_of(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

DType dtype_of(brrr_dtype dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number >= std::size(kAllDTypes)) usage_error("there is no dtype {}", number);
  return kAllDTypes[number];
}
brrr_dtype to_c(DType dtype) { return static_cast<brrr_dtype>(dtype); }

Shape shape_of(const int64_t* sizes, int rank) {
  constexpr int kHighestRank = 64;
  if (rank < 0 || rank > kHighestRank)
    usage_error("a tensor has from 0 to {} axes; got {}", kHighestRank, rank);
  Shape shape;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t size = checked(sizes + axis, "the list of sizes");
    if (size < 0) usage_error("axis {} has size {}; expected 0 or more", axis, size);
    shape.push_back(Dim(size));
  }
  return shape;
}

std::unique_ptr<brrr_tensor> new_tensor(DType dtype, const Shape& shape) {
  constexpr size_t kAlignment = 64;
  auto made = std::make_unique<brrr_tensor>();
  made->dtype = dtype;
  for (int axis = 0; axis < shape.rank(); ++axis) made->sizes.push_back(shape.size(axis));
  made->bytes = static_cast<size_t>(shape.elements()) * brrr::bytes_of(dtype);
  const size_t room = round_up(std::max<size_t>(made->bytes, 1), kAlignment);
  made->data = std::aligned_alloc(kAlignment, room);
  if (made->data == nullptr) throw std::bad_alloc();
  made->keep = std::shared_ptr<void>(made->data, &std::free);
  std::memset(made->data, 0, room);
  return made;
}

namespace {

/// Kernels read borrowed memory in place, and in a library that is not instrumented
/// AddressSanitizer does not see these reads. Where the program is built with it, a poisoned byte
/// of the tensor is read through memcpy, which it intercepts: its report shows where the memory was
/// freed.
void report_freed_memory(const brrr_tensor& tensor) {
  if (__asan_region_is_poisoned == nullptr || tensor.bytes == 0) return;
  const void* const poisoned = __asan_region_is_poisoned(tensor.data, tensor.bytes);
  if (poisoned == nullptr) return;
  void* (*volatile copy)(void*, const void*, size_t) = &std::memcpy;  // not inlined
  std::byte byte{};
  copy(&byte, poisoned, 1);
}

}  // namespace

std::unique_ptr<brrr_tensor> tensor_of(const Type& type, std::span<const std::byte> bytes) {
  auto made = new_tensor(type.dtype, type.shape);
  BRRR_CHECK(bytes.size() == made->bytes, "{} bytes for {}", bytes.size(), type.str());
  std::ranges::copy(bytes, static_cast<std::byte*>(made->data));
  return made;
}

std::span<const std::byte> bytes_of(const brrr_tensor& tensor) {
  report_freed_memory(tensor);
  return {static_cast<const std::byte*>(tensor.data), tensor.bytes};
}

std::vector<std::pair<std::string, const brrr_tensor*>> named(const char* const* names,
                                                              brrr_tensor* const* tensors,
                                                              size_t count) {
  std::vector<std::pair<std::string, const brrr_tensor*>> list;
  std::set<std::string> seen;
  for (size_t i = 0; i < count; ++i) {
    std::string name = text_of(checked(names + i, "the list of names"), "the name of a tensor");
    if (!seen.insert(name).second) usage_error("the tensor '{}' is given twice", name);
    list.emplace_back(std::move(name),
                      &checked(checked(tensors + i, "the list of tensors"), "a tensor"));
  }
  return list;
}

}  // namespace brrr::library

using namespace brrr;
using namespace brrr::library;

const char* brrr_version(void) { return BRRR_VERSION; }
int brrr_abi_version(void) { return BRRR_ABI_VERSION; }

brrr_status brrr_require_abi(int header) {
  return guarded([&] {
    if (header != BRRR_ABI_VERSION)
      usage_error(
          "the program was compiled for interface {} of Brrr, and this library, version {}, has "
          "interface {}; install the matching one",
          header, BRRR_VERSION, BRRR_ABI_VERSION);
  });
}

const char* brrr_last_error(void) { return brrr::library::last_error.c_str(); }
void brrr_text_free(char* text) { std::free(text); }

void brrr_set_on_note(brrr_on_note on_note, void* context) {
  brrr::library::has_sink = true;
  if (on_note == nullptr) {
    set_tell_sink([](std::string_view) {});
    return;
  }
  set_tell_sink([on_note, context](std::string_view text) {
    while (text.ends_with('\n')) text.remove_suffix(1);
    on_note(context, std::string(text).c_str());
  });
}
