#pragma once
// The plan of a run: where every byte goes, the moment when most of them are in use, what a token
// costs and how long a step will take. All from compiled programs; the model is never allocated.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "insight/pages/page.h"
#include "insight/plan/rank_plan.h"
#include "passes/precision/cache_precision.h"
#include "train/fit.h"

namespace brrr::insight {

/// What a buffer holds.
enum class Holds : uint8_t {
  weights,
  optimizer,      // states of the optimizer, and of the loss scale
  gradient_sums,  // over micro-batches
  copies,         // of weights in fewer bits
  gradients,      // of weights, until the optimizer has used them
  activations,    // made in the forward pass, read in the backward pass
  recomputed,     // activations that were thrown away and made again
  temporaries,    // everything else, the scratch memory of kernels included
  inputs,         // tokens, targets, scalars
  constants,
  sample_cache,  // keys and values of a text that the model writes while it trains
};
inline constexpr size_t kHolds = 11;
std::string_view name_of(Holds holds);

struct NamedBytes {
  std::string name;
  Holds holds = Holds::temporaries;
  int64_t bytes = 0;
  int64_t count = 1;
};

/// One moment of a step, in the order of the schedule.
struct Moment {
  std::array<int64_t, kHolds> bytes{};
  std::string op, scope;   // of the kernel that runs
  const char* phase = "";  // forward, backward, optimizer
  int64_t total() const;
};

struct Peak {
  int64_t bytes = 0;  // of the arena in use
  std::string program, op, scope;
  std::string phase;  // forward, backward, optimizer
  int64_t step = 0, steps = 0;
};

struct ClassFlops {
  std::string name;
  double forward = 0, backward = 0, optimizer = 0;  // per token
};

/// What it takes to use the model: to generate text with the whole context in the cache, or, for an
/// encoder, to read one text as long as its context.
struct InferencePlan {
  int64_t weights = 0, cache = 0, temporaries = 0;
  int64_t total() const { return weights + cache + temporaries; }
};

/// A rule of thumb and what is true here.
struct Rule {
  std::string rule, source_says, here;
};

/// The launches of one kernel in a step, or the calls of one library function with one shape.
struct PlannedKernel {
  std::string kernel;  // "cublaslt bf16 65536x768x768 nt", "cluster layer_norm_grad+add f32[...]"
  std::string phase;   // forward, backward, optimizer
  int64_t launches = 0;
  double flops = 0;
  double bytes = 0;        // each operand read once, each result written once
  double bytes_again = 0;  // read by a further launch, or scratch memory: written and read
  double ms = 0;           // predicted; 0 where no rates are known
};

/// A step kernel by kernel. Times are predicted: on the host at the rates of RunPlan::speed, on a
/// GPU at shares of its data sheet, which `rates` names.
struct KernelPlan {
  std::vector<PlannedKernel> kernels;  // the longest time first
  std::string rates;                   // "" where no rates are known
  double peak_flops = 0;               // of 16-bit products by the data sheet; 0: unknown
  PlannedKernel total() const;
};

/// What full fine-tuning would take instead of an adapter, all else being equal.
struct FullTuning {
  int64_t arena_bytes = 0, process_bytes = 0;
  double ms = 0;  // of a step; 0: not predicted
};

struct RunPlan {
  train::Plan plan;  // options, bytes of the arena and the process, predicted time
  models::ModelPtr model;
  std::string backend;
  double compile_ms = 0;
  int64_t tokens_per_step = 0;

  std::vector<NamedBytes> states;         // weights, moments, sums: by kind and dtype
  std::array<int64_t, kHolds> at_peak{};  // what the arena holds at the peak
  int64_t gaps = 0;                       // of the arena, in use at no moment of the peak
  Peak peak;
  int64_t saved_bytes = 0;  // activations alive where the backward begins
  std::vector<NamedBytes> saved_by_op, saved_by_layer;  // largest first
  std::vector<Moment> moments;                          // of the program that needs most
  size_t backward_begins = 0;                           // index into moments
  std::vector<ClassFlops> flops;
  double flops_forward = 0, flops_backward = 0, flops_optimizer = 0;  // per token
  std::optional<train::PredictedTime> time;
  std::optional<machine::MachineSpeed> speed;
  std::optional<KernelPlan> kernels;  // see add_kernels()
  std::optional<RankPlan> ranks;      // of a run on several
  InferencePlan inference;
  std::vector<Rule> rules;
  std::optional<FullTuning> full;  // of a run that trains an adapter
};

/// `session` is compiled_run() of the plan's options. `cache`: the KV cache of the inference plan.
RunPlan analyse(const train::Plan& plan, const models::ModelPtr& model,
                const train::Session& session, const std::optional<machine::MachineSpeed>& speed,
                CachePrecision cache = CachePrecision::computed);

/// What the kernels of a GPU are assumed to reach; 0: a share of the data sheet.
struct KernelRates {
  double products = 0, attention = 0, attention_grad = 0;  // FLOP/s on 16-bit factors
  double memory = 0;                                       // bytes per second
  double launch_seconds = 0;                               // from one kernel to the next
};
/// "products=600,attention=230,attention-grad=150,memory=2.5,launch=1" in TFLOP/s, TB/s and
/// microseconds; any of them may be left out. UserError (exit 2) for another name or no number.
KernelRates parse_kernel_rates(std::string_view text);

/// Fills in RunPlan::kernels; `session` is that of analyse().
void add_kernels(RunPlan& plan, const train::Session& session, const KernelRates& rates = {});
/// The kernels of programs. `speed` is that of this machine's processor, where it is known, and
/// `rates` are those of a GPU.
KernelPlan kernels_of(std::span<const train::Session::ProgramUse> programs, const Backend& backend,
                      const std::optional<machine::MachineSpeed>& speed,
                      const KernelRates& rates = {});
/// FLOPs of the model for a token (models::Model::flops_per_token) over the peak of the data sheet,
/// attention causal or with all scores. 0 where that peak is unknown.
double predicted_mfu(const RunPlan& plan, bool is_causal);

/// Tables for people.
std::string report(const RunPlan& plan, bool colour);
/// One object: arena_bytes, process_bytes, components, peak_at, flops_per_token, predicted_ms, ...
std::string report_json(const RunPlan& plan);

/// The memory of a step as stacked areas over the schedule, the peak marked: SVG, self-contained.
std::string memory_picture(const RunPlan& plan, PictureWidth width = PictureWidth::desk);
/// The picture, which tells what is under the pointer, and the tables, which sort, as one page.
std::string memory_page(const RunPlan& plan);

}  // namespace brrr::insight
