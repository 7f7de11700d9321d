#pragma once
// Random tensors for the generated tests: operands of a Sample, inputs of a graph. Everything is a
// function of a seed, so a failure can be run again.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/reference/interpreter.h"
#include "base/rng.h"
#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr::test {

class Random {
 public:
  explicit Random(uint32_t seed) : stream_({seed, 0}, 0) {}
  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(word() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform in [0, n).
  int64_t below(int64_t n) {
    return static_cast<int64_t>(stream_.next_below(static_cast<uint64_t>(n)));
  }
  bool coin() { return below(2) == 1; }

 private:
  uint64_t word() {
    const uint64_t high = stream_.next_u32();
    return (high << 32) | stream_.next_u32();
  }
  RngStream stream_;
};

/// Uniform values; integers and booleans are drawn from [low, high).
inline RefTensor random_tensor(const Type& type, double low, double high, Random& random) {
  RefTensor t(type);
  // Doubles far from 0 are multiples of a power of two; integers are not.
  const bool is_wide = bytes_of(type.dtype) == 8 && high - low > 0x1p54;
  for (size_t i = 0; i < t.size(); ++i) {
    const double x = random.uniform(low, high);
    t.set_number(i, is_float(type.dtype) ? x : std::floor(x));
    if (is_wide && is_integer(type.dtype))
      t.set_bits(i, t.bits(i) ^ static_cast<uint64_t>(random.below(1024)));
  }
  return t;
}

inline RefTensor random_tensor(const Sample::Operand& operand, Random& random) {
  RefTensor t = random_tensor(operand.type, operand.low, operand.high, random);
  if (operand.is_partition) {
    std::sort(t.data.begin(), t.data.end());
    t.data.front() = operand.low;
    t.data.back() = operand.high - 1;
  }
  return t;
}

inline std::vector<RefTensor> operands_of(const Sample& sample, uint32_t seed) {
  Random random(seed);
  std::vector<RefTensor> out;
  for (const Sample::Operand& o : sample.in) out.push_back(random_tensor(o, random));
  return out;
}

/// A value for every input of the graph: floats in [low, high), integers in [0, integers).
inline reference::Tensors random_inputs(const Graph& graph, uint32_t seed, double low, double high,
                                        int64_t integers) {
  Random random(seed);
  reference::Tensors out;
  for (NodeId id : graph.inputs()) {
    const Type& type = graph.type({id, 0});
    out[graph.input_name(id)] = is_float(type.dtype)
                                    ? random_tensor(type, low, high, random)
                                    : random_tensor(type, 0, static_cast<double>(integers), random);
  }
  return out;
}

/// "--gtest_filter=Suite.Name/3": how to run the current test again.
inline std::string rerun() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  return std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name();
}

}  // namespace brrr::test
