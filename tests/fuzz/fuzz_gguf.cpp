// Any bytes as a GGUF file: a UserError, or a file whose every value and tensor can be read, and
// which is a model with a tokenizer, or is refused as one.
#include <limits>

#include "base/errors.h"
#include "folders/gguf/gguf_config.h"
#include "folders/gguf/gguf_weights.h"
#include "formats/gguf/gguf_file.h"
#include "fuzz/tokenizer_use.h"
#include "models/model.h"
#include "text/gguf/gguf_tokenizer.h"

namespace {

using namespace brrr;

/// Reads a value and the values inside it.
size_t read_value(const io::GgufValue& value) {
  size_t sum = value.describe().size() + static_cast<size_t>(value.number().has_value()) +
               value.text().value_or("").size();
  if (value.type == io::GgufType::array)
    value.each([&](const io::GgufValue& element) { sum += read_value(element); });
  return sum;
}

size_t read_tensors(const io::GgufFile& file) {
  size_t sum = 0;
  for (const io::GgufTensor& t : file.tensors()) {
    BRRR_CHECK(file.find_tensor(t.name) != nullptr);
    const int64_t elements = t.shape.elements();
    BRRR_CHECK(std::ssize(t.bytes) == elements / t.type->elements * t.type->bytes);
    for (const std::byte b : t.bytes) sum += static_cast<size_t>(b);
    if (!t.type->is_read()) continue;
    std::vector<float> values(static_cast<size_t>(elements));
    dequantise(*t.type, t.bytes, values);
  }
  return sum;
}

template <typename Action>
void or_refused(const Action& action) {
  try {
    action();
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  or_refused([&] {
    const auto file =
        std::make_shared<const io::GgufFile>(std::as_bytes(std::span(data, size)), "input");
    size_t sum = read_tensors(*file);
    for (const auto& [key, value] : file->metadata()) {
      sum += key.size() + read_value(value);
      or_refused([&, k = key] { sum += file->texts(k).size(); });
      or_refused([&, k = key] { sum += file->numbers(k).size(); });
    }
    volatile size_t used = sum;
    (void)used;
    or_refused([&] { models::parse_config(io::gguf_config(*file), "input"); });
    or_refused([&] {
      const auto weights = io::gguf_weights(file);
      weights->each([&](const TensorView& t) {
        std::vector<std::byte> values(static_cast<size_t>(t.shape.elements()) * bytes_of(t.dtype));
        weights->read(t, values);
      });
    });
    or_refused([&] { test::encode_again(*io::read_gguf_tokenizer(*file), "a b<s>c \xc3\xa9\n"); });
  });
  return 0;
}
