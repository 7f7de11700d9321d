// Any bytes as a file of PyTorch, or as a pickle: a UserError, or tensors that can be read.
#include "base/errors.h"
#include "formats/pickle/pickle_machine.h"
#include "formats/pickle/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const io::TorchFile file(bytes, "input");
    file.each([&](const TensorView& tensor) {
      std::vector<std::byte> values(static_cast<size_t>(tensor.shape.elements()) *
                                    bytes_of(tensor.dtype));
      file.read(tensor, values);
      BRRR_CHECK(tensor.bytes.empty() || tensor.bytes.size() == values.size());
      BRRR_CHECK(file.find(tensor.name) != nullptr);
    });
  } catch (const UserError&) {
  }
  try {
    const io::Pickle pickle(bytes, "input");
    BRRR_CHECK(pickle.bytes_read() <= size);
  } catch (const UserError&) {
  }
  return 0;
}
