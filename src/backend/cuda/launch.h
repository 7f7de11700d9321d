#pragma once
// What a node becomes on a GPU: a list of kernel launches, as plain values. No CUDA type stands
// here, so a plan is made, printed and tested without a toolkit, a driver or a device. Two
// executors run the same plan: the device runtime (NVRTC, cuLaunchKernel on one stream, in order)
// and, in tests, an emulation that compiles the same text with the host's compiler.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/backend.h"

namespace brrr::cuda {

/// What kernel choice and plans depend on: a description, never a live device, so that plans for
/// every architecture are made anywhere.
struct GpuDescription {
  std::string name = "cuda:sm_90";
  int sm = 90;  // 10 major + minor
  int multiprocessors = 132;
  int shared_bytes = 227 * 1024;  // that one block may have
  int64_t l2_bytes = 50 << 20;
  int64_t memory_bytes = int64_t{80} << 30;
};
inline constexpr int kLeastSmOfFp8 = 89;
inline constexpr int kSmOfWgmma = 90;  // alone: sm_90a
/// "cuda:sm_80" (A100), "cuda:sm_89" (L40S), "cuda:sm_90" (H100, H200); nullopt: none of them.
std::optional<GpuDescription> gpu_description(std::string_view name);

/// CUDA C++ of one kernel. `text()` is a whole translation unit; it includes nothing.
struct KernelSource {
  std::string entry;                 // extern "C" name
  std::vector<std::string> headers;  // names of device_header(), each once, in this order
  std::string body;
  std::string text() const;
  bool operator==(const KernelSource&) const = default;
};
/// The text of src/backend/cuda/kernels/<name>, built into the binary. InternalError: unknown.
std::string_view device_header(std::string_view name);
/// Options that the texts are written for: the language, and no contraction of a * b + c, so that
/// a fused chain has the bits of its parts. The architecture is the executor's to add.
std::vector<std::string> compile_options();

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
};

/// A matrix of every head as the copy engine of sm_90 takes it: boxes of 64 columns by `rows` rows,
/// as the tiles of kernels/mma.cuh lie.
struct TensorBoxes {
  DType dtype = DType::bf16;
  std::array<int64_t, 4> sizes{};    // innermost first: columns, rows, heads, batches
  std::array<int64_t, 3> strides{};  // in bytes, of all but the columns: multiples of 16
  int64_t rows = 0;                  // of a box, at most 256
  static constexpr int64_t kColumns = 64;
  bool operator==(const TensorBoxes&) const = default;
};

/// One argument of a kernel.
struct LaunchArg {
  enum class Kind {
    in,       // address of operand `index` + `value` bytes
    out,      // address of result `index` + `value` bytes
    scratch,  // address of the node's scratch memory + `value` bytes
    i32,      // `value`
    i64,      // `value`
    f32,      // `number`
    error,    // address of a u32 of this launch, 0 before the run; 1 says that data are bad: `text`
    record,   // a struct by value: its members are `fields`, 8 bytes each: addresses and i64
    tensor    // what the copy engine knows of `boxes`, which begin at the address fields[0]
  };
  Kind kind = Kind::i32;
  uint32_t index = 0;
  int64_t value = 0;
  float number = 0;
  std::vector<LaunchArg> fields;
  std::string text;
  TensorBoxes boxes{};
  bool operator==(const LaunchArg&) const = default;

  static LaunchArg in(size_t operand, int64_t bytes = 0) {
    return {Kind::in, static_cast<uint32_t>(operand), bytes, 0, {}, {}};
  }
  static LaunchArg out(size_t result, int64_t bytes = 0) {
    return {Kind::out, static_cast<uint32_t>(result), bytes, 0, {}, {}};
  }
  static LaunchArg scratch(int64_t bytes) { return {Kind::scratch, 0, bytes, 0, {}, {}}; }
  static LaunchArg i32(int64_t v) { return {Kind::i32, 0, v, 0, {}, {}}; }
  static LaunchArg i64(int64_t v) { return {Kind::i64, 0, v, 0, {}, {}}; }
  static LaunchArg f32(float v) { return {Kind::f32, 0, 0, v, {}, {}}; }
  /// The message of the UserError; what the kernel writes then is of no use, but stays inside.
  static LaunchArg error(std::string message) {
    return {Kind::error, 0, 0, 0, {}, std::move(message)};
  }
  static LaunchArg record(std::vector<LaunchArg> members) {
    return {Kind::record, 0, 0, 0, std::move(members), {}};
  }
  static LaunchArg tensor(LaunchArg at, TensorBoxes boxes) {
    return {Kind::tensor, 0, 0, 0, {std::move(at)}, {}, boxes};
  }
};
/// All arguments of a launch together: what every driver takes.
inline constexpr int64_t kMostArgumentBytes = 4000;

/// A matrix product that a launch computes: y = scales op(a) op(b) + bias, or y += that. A library
/// may do it instead of the launch. Row-major; m x k times k x n; strides in elements.
struct Product {
  DType in = DType::f32, out = DType::f32;
  std::optional<DType> in_b;  // of b, where it is another than that of a
  bool tf32 = false;          // f32 operands may be rounded to tf32
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t row_a = 0, row_b = 0, row_y = 0;  // between rows as stored
  int64_t batch = 1, batch_a = 0, batch_b = 0, batch_y = 0;
  LaunchArg a, b, y;
  std::optional<LaunchArg> bias;  // [n]
  DType bias_dtype = DType::f32;
  std::optional<LaunchArg> scale_a, scale_b;  // [] f32: the sum is multiplied by both
  bool fast_accumulation = false;             // of fp8: sums may have fewer bits than f32
  bool accumulate = false;
  DType dtype_b() const { return in_b.value_or(in); }
};

struct Launch {
  KernelSource source;
  Dim3 grid, block;
  int shared_bytes = 0;  // dynamic
  std::vector<LaunchArg> args;
  std::optional<Product> product;
};

/// Launches run one after another. Addresses of operands, results and scratch memory are multiples
/// of kAlignment, but for operands that are views: of those the plan has seen the offset.
struct LaunchPlan {
  std::vector<Launch> launches;
  int64_t scratch_bytes = 0;
  /// Whether the in-place pairs of the OpDef hold.
  bool in_place = true;

  /// Room in the scratch memory; returns its offset.
  int64_t take_scratch(int64_t bytes) {
    const int64_t at = scratch_bytes;
    scratch_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  static constexpr int64_t kAlignment = 256;
};

/// One way to run an op on a GPU, as KernelEntry is on the host.
struct PlanEntry {
  Op op;
  std::string_view name;
  /// Empty: accepts. Otherwise the reason for the refusal.
  std::function<std::string(const NodeView&, const GpuDescription&)> accepts;
  std::function<LaunchPlan(const NodeView&, const GpuDescription&)> plan;
  /// Which of them is faster only a measurement says: entries of an op that are rivals are ways of
  /// one kernel, the first of them the default.
  bool is_rival = false;
};

/// Every kernel of this folder that is written as CUDA C++; for one op the earlier one is tried
/// first.
std::vector<PlanEntry> device_kernels();

}  // namespace brrr::cuda
