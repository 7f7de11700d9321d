#pragma once
// What the files of the C interface (include/brrr/brrr_c.h) share: errors become statuses, handles
// are checked, options become the key-value pairs of the option tables.

#include <brrr/brrr_c.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/options.h"
#include "base/shape.h"
#include "ir/graph.h"

/// A tensor over memory that `keep` holds.
struct brrr_tensor {
  brrr::DType dtype = brrr::DType::f32;
  std::vector<int64_t> sizes;
  void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> keep;
};

namespace brrr::library {

/// Thrown where a callback asked to stop.
struct Stopped {};

/// Keeps the text that brrr_last_error() gives.
void set_last_error(std::string text);
/// Before each call: lines for people are dropped unless brrr_set_on_note() was called. Throws
/// UserError (usage) in a child of fork().
void begin_call();
/// The status and the message of the exception that is being handled.
brrr_status status_of_exception() noexcept;

/// Runs the body of a function of the interface.
template <typename F>
brrr_status guarded(F body) noexcept {
  try {
    begin_call();
    body();
    return BRRR_OK;
  } catch (...) {
    return status_of_exception();
  }
}

/// Throws UserError (usage) for NULL.
template <typename T>
T& checked(T* pointer, const char* what) {
  if (pointer == nullptr) usage_error("{} is NULL", what);
  return *pointer;
}
/// The same for a text.
std::string text_of(const char* text, const char* what);
std::vector<std::string> texts_of(const char* const* texts, size_t count, const char* what);

KeyValues key_values(const brrr_option* options, size_t count);
/// A copy for the caller, made with malloc.
char* copy_of(const std::string& text);

DType dtype_of(brrr_dtype dtype);
brrr_dtype to_c(DType dtype);
/// Throws UserError for a rank or a size that no tensor has.
Shape shape_of(const int64_t* sizes, int rank);

/// Zeros in memory of the tensor's own, aligned for vectors.
std::unique_ptr<brrr_tensor> new_tensor(DType dtype, const Shape& shape);
/// A copy of row-major bytes.
std::unique_ptr<brrr_tensor> tensor_of(const Type& type, std::span<const std::byte> bytes);
std::span<const std::byte> bytes_of(const brrr_tensor& tensor);
/// Named tensors, each name once. Throws UserError (usage) for NULL and for a name that comes
/// twice.
std::vector<std::pair<std::string, const brrr_tensor*>> named(const char* const* names,
                                                              brrr_tensor* const* tensors,
                                                              size_t count);

}  // namespace brrr::library
