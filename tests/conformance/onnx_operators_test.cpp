// Operators that ONNX's backend suite does not cover, against ONNX Runtime:
// tests/golden/make_onnx_operator_goldens.py writes the cases, each a file with one node.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "backend/cpu/target.h"
#include "formats/safetensors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"

namespace brrr::test {
namespace {

// A share of the largest number of a result; integers are equal.
constexpr double kOperatorTolerance = 1e-4;

const io::SafetensorsFile& operator_goldens() {
  static const io::SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) /
                                        "tests/golden/onnx_operators.safetensors");
  return file;
}

std::vector<std::string> operator_cases() {
  std::set<std::string> names;
  for (const io::TensorView& t : operator_goldens().tensors())
    names.insert(t.name.substr(0, t.name.find('/')));
  return {names.begin(), names.end()};
}

void expect_result(const HostTensor& got, const io::TensorView& wanted) {
  ASSERT_EQ(got.dtype, wanted.dtype);
  ASSERT_EQ(got.shape, wanted.shape);
  double largest = 1;
  for (int64_t i = 0; i < wanted.shape.elements(); ++i)
    largest = std::max(largest, std::fabs(load_as_double(got.dtype, wanted.bytes.data(), i)));
  const double tolerance = is_float(got.dtype) ? kOperatorTolerance * largest : 0;
  for (int64_t i = 0; i < wanted.shape.elements(); ++i)
    ASSERT_NEAR(load_as_double(got.dtype, got.bytes.data(), i),
                load_as_double(got.dtype, wanted.bytes.data(), i), tolerance)
        << "element " << i;
}

class OnnxOperators : public testing::TestWithParam<std::string> {};

TEST_P(OnnxOperators, ComputeAsOnnxRuntimeDoes) {
  const std::string prefix = GetParam() + "/";
  const auto model = operator_goldens().get(prefix + "model").bytes;
  const auto file =
      onnx::File::parse({reinterpret_cast<const char*>(model.data()), model.size()}, GetParam());
  RunnableSession session(onnx::open_module(file), cpu::cpu_backend());
  PortValues inputs;
  for (const Port& port : session.runnable().inputs()) {
    const io::TensorView& t = operator_goldens().get(prefix + "in/" + port.name);
    HostTensor x(t.dtype, t.shape);
    if (!x.bytes.empty()) std::memcpy(x.bytes.data(), t.bytes.data(), x.bytes.size());
    inputs.emplace(port.name, std::move(x));
  }
  for (const auto& [name, value] : session.run(inputs)) {
    SCOPED_TRACE(name);
    expect_result(value.tensor(), operator_goldens().get(prefix + "out/" + name));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnnxOperators, testing::ValuesIn(operator_cases()),
                         [](const auto& of) { return of.param; });

}  // namespace
}  // namespace brrr::test
