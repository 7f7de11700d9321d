#pragma once
// The ONNX files of PyTorch's exporters in tests/golden/exported, with inputs and what PyTorch
// computes (tests/golden/make_exported_goldens.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/safetensors.h"
#include "runtime/runnable_session.h"

namespace brrr::test {

inline const fs::path kExported = fs::path(BRRR_SOURCE_DIR) / "tests/golden/exported";

inline HostTensor exported_tensor(const std::string& name) {
  static const io::SafetensorsFile file(kExported / "exported.safetensors");
  const io::TensorView& t = file.get(name);
  HostTensor x(t.dtype, t.shape);
  std::memcpy(x.bytes.data(), t.bytes.data(), x.bytes.size());
  return x;
}

inline PortValues exported_inputs(const Runnable& module, const std::string& name) {
  PortValues inputs;
  for (const Port& port : module.inputs())
    inputs.emplace(port.name, exported_tensor(name + "/" + port.name));
  return inputs;
}

/// Within a share of the largest element.
inline void expect_near(const HostTensor& got, const HostTensor& wanted, double share) {
  ASSERT_EQ(got.shape, wanted.shape);
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < wanted.shape.elements(); ++i) {
    largest = std::max(largest, std::fabs(wanted.number(i)));
    difference = std::max(difference, std::fabs(wanted.number(i) - got.number(i)));
  }
  EXPECT_LE(difference, share * largest);
}

}  // namespace brrr::test
