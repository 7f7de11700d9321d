// libFuzzer target: ONNX files are read and lowered, or refused with a UserError. The first byte
// chooses: a file as it is, or the nodes of one whose constants and inputs are given.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "support/onnx_fields.h"

namespace {

using namespace brrr;
using namespace brrr::test;  // NOLINT: builders of bytes

void lower(const std::string& bytes) {
  const auto module = onnx::open_module(onnx::File::parse(bytes, "m.onnx"));
  GraphRequest request;
  for (const Port& port : module->inputs()) {
    if (!port.is_tensor) {
      request.lists[port.name] = {0, false};
      continue;
    }
    Type type{port.dtype, {}};
    for (const PortDim& d : port.dims)
      type.shape.push_back(Dim(d.size < 0 || d.size > 8 ? 2 : d.size));
    request.data.emplace(port.name, type);
  }
  for (const Port& port : module->outputs()) request.wanted.push_back(port.name);
  module->lower(request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      lower(text);
      return 0;
    }
    using namespace onnx_bytes;  // NOLINT
    lower(model(initializer(tensor("w", kFloat, {2, 2}, raw<float>({1, 2, 3, 4}))) +
                initializer(tensor("i", kInt64, {2}, raw<int64_t>({1, 0}))) +
                initializer(tensor("n", kInt64, {1}, raw<int64_t>({-1}))) +
                input("x", kFloat, {2, 2}) + text + output("y", kFloat, {-1})));
  } catch (const UserError&) {
  }
  return 0;
}
