#pragma once
// Micro-benchmarks of this machine and this build: products, fusion, attention, overhead,
// every op, a whole training step, decoding. What is compared runs interleaved in one process;
// figures are medians with the spread of the middle half. Not to be run beside other work.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "formats/svg_plot.h"
#include "infer/run_precision.h"
#include "insight/machine/timing.h"
#include "passes/precision/precision.h"

namespace brrr::insight {

/// Runs each of the functions once to warm up, then in turn, until `seconds` have passed or 1,000
/// rounds, at least `least_rounds`. Milliseconds.
std::vector<Timing> interleave(const std::vector<std::function<void()>>& functions, double seconds,
                               size_t least_rounds = 3);

struct MatmulShape {
  std::string name;  // "mlp.c_fc forward"
  int64_t m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
};
/// Twelve products of a GPT-2 124M training step on `rows` tokens: attn.c_attn, mlp.c_fc,
/// mlp.c_proj and the head, each forward, for its input's gradient and for its weight's.
std::vector<MatmulShape> default_products(int64_t rows);

struct MatmulRow {
  MatmulShape shape;
  std::string dtype, kernel;
  bool multiplies_integers = false;  // quantises a, whose dtype is a float
  Timing ms;
  double tflops = 0, peak_fraction = 0;  // of the fastest measured way to multiply this type
};
/// Times each kernel of the list that accepts the product; the first of them with b packed
/// beforehand (base/panels.h), which shows what packing costs; and with b quantised beforehand as
/// each of `precisions` says (not integer dtypes nor a transposed a).
std::vector<MatmulRow> bench_matmul(const std::vector<MatmulShape>& shapes,
                                    const std::vector<DType>& dtypes, double seconds_per_product,
                                    const std::vector<Precision>& precisions = {});

struct FusionRow {
  std::string name;  // "x*a", "cos(cos x)", "layer_norm + residual + gelu"
  int64_t n = 1;     // operations in the chain
  Timing fused, unfused;
  /// The fused one's time over that of one multiplication, each against the one that ran right
  /// before it, so that what slows the machine for a while slows both. Zeros for other chains.
  Timing over_one;
};
/// x * a repeated n times over `elements` f32 numbers, as one kernel and as n, interleaved.
FusionRow bench_multiplications(int64_t elements, int64_t n, double seconds);
/// x * a repeated 1, 2, 4 .. 128 times over `elements` f32 numbers, and two other clusters.
std::vector<FusionRow> bench_fusion(int64_t elements, double seconds_per_row);
io::Plot fusion_plot(const std::vector<FusionRow>& rows);

struct AttentionRow {
  int64_t t = 0;
  bool backward = false;
  Timing naive, flash;  // naive: zeros where it would not fit in `naive_limit_bytes`
  int64_t naive_bytes = 0, flash_bytes = 0;  // temporaries of the plan
};
struct AttentionOptions {
  int64_t batch = 1, heads = 12, head_width = 64;
  DType dtype = DType::f32;
  bool backward = true;
  int64_t naive_limit_bytes = int64_t{8} << 30;
};
std::vector<AttentionRow> bench_attention(const std::vector<int64_t>& lengths,
                                          const AttentionOptions& options, double seconds_per_row);

/// What one small op costs: an addition of kSmallOp f32 numbers.
struct Overhead {
  double node_us = 0;  // as a node of a compiled program
  double ops_per_second = 0;
  double program_us = 0;   // as a program of its own, called for each
  double compiled_us = 0;  // fused with others into one kernel
};
inline constexpr int64_t kSmallOp = 16;
Overhead bench_overhead(double seconds);

/// The time of one op on one dtype, and that of copying as many bytes as it reads and writes.
struct OpRow {
  std::string op, dtype;  // "sum of rows", "f32"
  std::string kernel;     // "reference": no kernel, the reference interpreter computes it
  int64_t elements = 0;   // size of the largest operand or result
  Timing ms, copy_ms;
  double ns_per_element() const { return 1e6 * ms.median / static_cast<double>(elements); }
  double share_of_copy() const { return copy_ms.median / ms.median; }
};
struct OpsOptions {
  int64_t elements = int64_t{1} << 20;
  std::vector<DType> dtypes;     // empty: all but 8-bit floats
  std::vector<std::string> ops;  // substrings of names; empty: all
  double seconds_per_row = 0.05;
};
/// Times every op except products as a program of one node, for every dtype that it accepts.
std::vector<OpRow> bench_ops(const OpsOptions& options);

struct OptimizerRow {
  std::string name;
  bool copies = false;  // new parameters are written in bf16, too
  int64_t parameters = 0;
  double state_bytes_per_parameter = 0;
  double bytes = 0;      // that one update moves, the norm of the gradients included
  Timing ms, stream_ms;  // the update; a plain pass over as many bytes
};
/// Two rows for each optimizer over about `elements` f32 parameters, gradients clipped: without
/// and with copies in bf16.
std::vector<OptimizerRow> bench_optimizer(int64_t elements, double seconds_per_row);

struct StepClass {
  std::string name;
  double ms = 0, share = 0, flops = 0;
};
/// What one kernel did in a step: every node that it ran.
struct StepKernel {
  std::string op, kernel;
  int64_t nodes = 0;
  double ms = 0, flops = 0, bytes = 0;
};
struct StepRow {
  std::string preset, precision;
  DType dtype = DType::f32;  // by which it is measured: fp8 by bf16, tf32 by f32
  bool is_tf32 = false;
  bool compiled = true;
  int64_t batch = 0, context = 0;
  Timing ms;
  double tokens_per_second = 0;
  // (6 N + 6 L C T) FLOPs per token over the peak of the precision, see peak_type; 0: not measured
  double mfu = 0;
  std::string peak_type;
  double peak_tflops = 0;
  int64_t arena_bytes = 0, activation_bytes = 0;
  double compile_ms = 0;
  std::string rematerialize;
  std::vector<StepClass> classes;   // one timed step by class of operation
  std::vector<StepKernel> kernels;  // and by kernel
  std::vector<double> losses;       // of each step from the first on, all on the same tokens
};
struct StepOptions {
  std::string preset = "char-cpu";
  std::string precision = "fp32";
  bool compile = true;
  int64_t batch = 0, context = 0;  // 0: the preset's
  double dropout = -1;             // below 0: the preset's
  double seconds = 5;
  std::string rematerialize = "none";  // a policy, or the budget of auto: "300MB"
  std::string device = "auto";
  int64_t layers = 0, heads = 0, width = 0;  // 0: the preset's
  bool measures_peaks = true;                // without: no MFU
  int64_t least_steps = 4;  // taken, however long they take; the first is not timed
  std::string model = {};   // a folder whose model is timed instead of the preset's; "": none
};
/// All rows interleaved.
std::vector<StepRow> bench_step(const std::vector<StepOptions>& options);

struct DecodeRow {
  std::string preset;
  Precision precision = Precision::fp32;
  int64_t position = 0;  // tokens in the cache at the middle of the measurement
  Timing ms;             // for one token
  double tokens_per_second = 0;
  int64_t bytes = 0;              // that a token must read: the weights, and the keys and values
  double bandwidth_fraction = 0;  // bytes over the time, against the measured read bandwidth
};
struct DecodeOptions {
  std::string preset = "gpt2";
  std::optional<Precision> precision;  // nothing: that of a quantised folder, else bf16
  int64_t prompt = 0;      // tokens before the first that is timed; 0: 64, or half of the context
  std::string model = {};  // as StepOptions has it
  CachePrecision cache = CachePrecision::computed;
};
/// The bytes that decoding a token reads with so many tokens in the cache: the weights that are
/// multiplied, with the scales of integers, and the keys and values.
int64_t bytes_per_token(const models::Model& model, const infer::RunPrecision& precision,
                        CachePrecision cache, int64_t position);
/// Generation of one sequence with the KV cache, weights at random. All rows interleaved, for
/// `seconds` in all.
std::vector<DecodeRow> bench_decode(const std::vector<DecodeOptions>& options, double seconds);

}  // namespace brrr::insight
