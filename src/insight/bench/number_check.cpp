#include "insight/bench/number_check.h"

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/errors.h"

namespace brrr::insight {
namespace {

/// The least normal magnitude of the type in which the dtype is computed; 0: subnormals pass.
double least_normal(DType dtype) {
  if (dtype == DType::f64) return std::numeric_limits<double>::min();
  return dtype == DType::f32 || dtype == DType::bf16 ? std::numeric_limits<float>::min() : 0;
}

}  // namespace

void check_numbers(const std::string& what, DType dtype, std::span<const std::byte> bytes,
                   Zeros zeros) {
  if (!is_float(dtype) || is_fp8(dtype)) return;
  constexpr int64_t kTolerated = 1000;  // one in so many may be subnormal by chance
  const auto count = static_cast<int64_t>(bytes.size() / bytes_of(dtype));
  const double least = least_normal(dtype);
  int64_t not_finite = 0, subnormal = 0, zero = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = std::fabs(load_as_double(dtype, bytes.data(), i));
    not_finite += std::isfinite(x) ? 0 : 1;
    zero += x == 0 ? 1 : 0;
    subnormal += x > 0 && x < least ? 1 : 0;
  }
  const char* advice = "times of such numbers say nothing about the kernels; this is not reported";
  if (not_finite > 0)
    user_error("{}: {} of {} results are NaN or infinite; {}", what, not_finite, count, advice);
  if (subnormal * kTolerated > count)
    user_error("{}: {} of {} results are subnormal; {}", what, subnormal, count, advice);
  if (zeros == Zeros::refused && count > 0 && zero == count)
    user_error("{}: all {} results are 0; {}", what, count, advice);
}

void check_outputs(const std::string& what, Engine& engine, size_t program) {
  const Graph& g = engine.program(program).graph();
  std::vector<std::byte> room;
  for (const Output& output : g.outputs()) {
    const Type& type = g.type(output.value);
    if (type.storage.is_plain())
      check_numbers(what, type.dtype, engine.read_output(program, output.name, room));
  }
}

void check_states(const std::string& what, const Engine& engine) {
  std::vector<std::byte> room;
  for (const StateInfo& state : engine.states())
    if (state.type.storage.is_plain() && state.role != Role::derived)
      check_numbers(fmt::format("{}: {}", what, state.name), state.type.dtype,
                    engine.read_state(state.name, room), Zeros::pass);
}

}  // namespace brrr::insight
