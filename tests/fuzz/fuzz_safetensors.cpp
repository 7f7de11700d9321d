// Any bytes as a safetensors file: a UserError, or a file whose every view can be read.
#include "base/errors.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  try {
    const io::SafetensorsFile file(std::as_bytes(std::span(data, size)), "input");
    unsigned sum = 0;
    for (const io::TensorView& t : file.tensors()) {
      BRRR_CHECK(t.bytes.size() == static_cast<uint64_t>(t.shape.elements()) * bytes_of(t.dtype));
      for (const std::byte b : t.bytes) sum += static_cast<unsigned>(b);
      BRRR_CHECK(file.find(t.name) != nullptr);
      if (is_float(t.dtype)) {
        std::vector<float> out(static_cast<size_t>(t.shape.elements()));
        io::copy_as_f32(t, out);
      }
    }
    for (const io::ForeignTensor& t : file.foreign())
      for (const std::byte b : t.bytes) sum += static_cast<unsigned>(b);
    volatile unsigned used = sum;
    (void)used;
  } catch (const UserError&) {
  }
  return 0;
}
