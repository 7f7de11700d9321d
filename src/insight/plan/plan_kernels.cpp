// A step kernel by kernel, with the time that each is predicted to take.
#include <algorithm>
#include <functional>
#include <map>

#include "backend/cuda/node_work.h"
#include "base/options.h"
#include "insight/plan/anatomy.h"
#include "insight/plan/plan.h"
#include "ops/fused.h"

namespace brrr::insight {
namespace {

using cuda::CommandWork;

/// Dense rates of a data sheet: operations and bytes per second.
struct DataSheet {
  int sm = 0;
  const char* gpu = "";
  double bf16 = 0, fp8 = 0, tf32 = 0, f32 = 0, memory = 0;
};
constexpr DataSheet kDataSheets[] = {
    {80, "A100 80 GB SXM", 312e12, 312e12, 156e12, 19.5e12, 2.039e12},
    {89, "L40S", 362e12, 733e12, 183e12, 91.6e12, 0.864e12},
    {90, "H100 SXM", 989e12, 1979e12, 495e12, 67e12, 3.35e12},
};

// What kernels reach of a data sheet. Attention with heads of 64 and 1024 tokens: what cuDNN and
// FlashAttention-3 were published to reach on an H100, see docs/results/gpu_plan.md.
constexpr double kProductPart = 0.7, kAttentionPart = 0.29, kAttentionGradPart = 0.2;
constexpr double kMemoryPart = 0.87;
constexpr double kLaunchSeconds = 1e-6;  // from one kernel of a recorded graph to the next

const DataSheet* data_sheet(int sm) {
  for (const DataSheet& sheet : kDataSheets)
    if (sheet.sm == sm) return &sheet;
  return nullptr;
}

KernelRates with_defaults(KernelRates r, const DataSheet& s) {
  const auto set = [](double& rate, double otherwise) {
    if (rate == 0) rate = otherwise;
  };
  set(r.products, kProductPart * s.bf16);
  set(r.attention, kAttentionPart * s.bf16);
  set(r.attention_grad, kAttentionGradPart * s.bf16);
  set(r.memory, kMemoryPart * s.memory);
  set(r.launch_seconds, kLaunchSeconds);
  return r;
}

std::string rates_text(const KernelRates& r, const DataSheet& s) {
  return fmt::format(
      "{}, 16-bit products {:.0f} TFLOP/s, attention {:.0f} forward and {:.0f} backward, memory "
      "{:.2f} TB/s, {:.1f} us a launch",
      s.gpu, 1e-12 * r.products, 1e-12 * r.attention, 1e-12 * r.attention_grad, 1e-12 * r.memory,
      1e6 * r.launch_seconds);
}

double seconds_of_work(const CommandWork& w, const KernelRates& r, const DataSheet& s) {
  using Kind = CommandWork::Kind;
  const double peak = w.kind == Kind::other    ? s.f32
                      : is_fp8(w.dtype)        ? s.fp8
                      : bytes_of(w.dtype) == 2 ? s.bf16
                      : w.tf32                 ? s.tf32
                                               : s.f32;
  // Units for other types are faster or slower in the proportions of the data sheet.
  const double rate = w.kind == Kind::attention        ? r.attention
                      : w.kind == Kind::attention_grad ? r.attention_grad
                                                       : r.products;
  return std::max(w.flops / (rate * peak / s.bf16), (w.bytes + w.bytes_again) / r.memory) +
         static_cast<double>(w.launches) * r.launch_seconds;
}

/// The largest result of a node.
std::string result_text(const Graph& g, NodeId id) {
  const auto& results = g.node(id).results;
  const auto largest =
      std::max_element(results.begin(), results.end(),
                       [](const Type& a, const Type& b) { return a.bytes() < b.bytes(); });
  return largest == results.end() ? "" : largest->str();
}

/// `dtype`: of the factors of most products.
std::string host_rates(const machine::MachineSpeed& speed, DType dtype) {
  return "rates of this machine's kernels, " + machine::rates_text(speed, dtype);
}

/// The dtype of the factors in most of the arithmetic of products.
DType dtype_of_products(std::span<const train::Session::ProgramUse> programs) {
  std::map<DType, double> flops;
  for (const train::Session::ProgramUse& use : programs) {
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id)
      if (!g.is_input(id) && class_of(g.node(id)) == OpClass::contraction)
        flops[machine::factor_dtype(g, id)] += cost_of(g, id).flops;
  }
  const auto most = std::max_element(
      flops.begin(), flops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == flops.end() ? DType::f32 : most->first;
}

/// Kernels by name and phase.
class KernelTable {
 public:
  void add(const PlannedKernel& k) {
    PlannedKernel& row =
        rows_.try_emplace({k.kernel, k.phase}, PlannedKernel{k.kernel, k.phase}).first->second;
    row.launches += k.launches;
    row.flops += k.flops;
    row.bytes += k.bytes;
    row.bytes_again += k.bytes_again;
    row.ms += k.ms;
  }
  std::vector<PlannedKernel> take() {
    std::vector<PlannedKernel> list;
    for (auto& [key, row] : rows_) list.push_back(std::move(row));
    std::stable_sort(list.begin(), list.end(), [](const PlannedKernel& a, const PlannedKernel& b) {
      return a.ms != b.ms ? a.ms > b.ms : a.bytes > b.bytes;
    });
    return list;
  }

 private:
  std::map<std::pair<std::string, std::string>, PlannedKernel> rows_;
};

/// Adds one program, `runs` times in a step.
class KernelReader {
 public:
  /// `seconds`: of what a command of a GPU does; null: unknown.
  KernelReader(const std::optional<machine::MachineSpeed>& speed, const Backend& backend,
               std::function<double(const CommandWork&)> seconds, KernelTable& table)
      : speed_(speed), backend_(backend), seconds_(std::move(seconds)), table_(table) {}

  void read(const Program& program, int64_t runs) {
    const Graph& g = program.graph();
    const Phases phases(g);
    for (const Dispatch& d : program.dispatch()) {
      if (program.plan().constant[d.node]) continue;
      const std::string phase = phases.of(d.node);
      const NodeView view(g, d.node);
      const Backend::Choice choice = backend_.choose(view);
      const auto kernel = choice.entry != nullptr ? choice.entry->prepare(view) : nullptr;
      const auto* on_gpu = dynamic_cast<const cuda::CudaKernel*>(kernel.get());
      if (on_gpu == nullptr) {
        add_host(g, d, phase, runs);
        continue;
      }
      const cuda::NodePlan& way = on_gpu->ways().front();
      for (const CommandWork& w : cuda::work_of(view, way)) {
        const std::string name =
            !w.name.empty()
                ? w.name
                : fmt::format("{} {} {}", way.name, op_text(g, d.node), result_text(g, d.node));
        const double ms = seconds_ ? 1e3 * seconds_(w) : 0;
        add({name, phase, w.launches, w.flops, w.bytes, w.bytes_again, ms}, runs);
      }
    }
  }

 private:
  void add_host(const Graph& g, const Dispatch& d, const std::string& phase, int64_t runs) {
    const Cost cost = cost_of(g, d.node);
    add({fmt::format("{} {} {}", d.kernel, op_text(g, d.node), result_text(g, d.node)), phase, 1,
         cost.flops, cost.bytes_read + cost.bytes_written, 0,
         speed_ ? 1e3 * machine::predict_node(g, d.node, *speed_) : 0},
        runs);
  }
  void add(PlannedKernel k, int64_t runs) {
    const auto times = static_cast<double>(runs);
    k.launches *= runs;
    for (double PlannedKernel::*amount : {&PlannedKernel::flops, &PlannedKernel::bytes,
                                          &PlannedKernel::bytes_again, &PlannedKernel::ms})
      k.*amount *= times;
    table_.add(k);
  }

  const std::optional<machine::MachineSpeed>& speed_;
  const Backend& backend_;
  std::function<double(const CommandWork&)> seconds_;
  KernelTable& table_;
};

}  // namespace

PlannedKernel KernelPlan::total() const {
  PlannedKernel all;
  for (const PlannedKernel& k : kernels) {
    all.launches += k.launches;
    all.flops += k.flops;
    all.bytes += k.bytes;
    all.bytes_again += k.bytes_again;
    all.ms += k.ms;
  }
  return all;
}

KernelRates parse_kernel_rates(std::string_view text) {
  struct Rate {
    std::string_view name;
    double KernelRates::*field;
    double unit;
  };
  constexpr Rate kRates[] = {{"products", &KernelRates::products, 1e12},
                             {"attention", &KernelRates::attention, 1e12},
                             {"attention-grad", &KernelRates::attention_grad, 1e12},
                             {"memory", &KernelRates::memory, 1e12},
                             {"launch", &KernelRates::launch_seconds, 1e-6}};
  KernelRates rates;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t sign = std::min(item.find('='), item.size());
    const auto* rate = std::find_if(std::begin(kRates), std::end(kRates), [&](const Rate& known) {
      return known.name == item.substr(0, sign);
    });
    if (rate == std::end(kRates) || sign == item.size())
      usage_error(
          "expected products=N, attention=N, attention-grad=N, memory=N or launch=N, separated by "
          "commas; got '{}'",
          item);
    rates.*(rate->field) =
        rate->unit * parse_real(item.substr(sign + 1), {.low = 0, .low_open = true});
  }
  return rates;
}

KernelPlan kernels_of(std::span<const train::Session::ProgramUse> programs, const Backend& backend,
                      const std::optional<machine::MachineSpeed>& speed, const KernelRates& given) {
  const auto gpu = cuda::gpu_description(backend.name);
  const DataSheet* sheet = gpu ? data_sheet(gpu->sm) : nullptr;
  KernelRates rates;
  std::function<double(const CommandWork&)> seconds;
  if (sheet != nullptr) {
    rates = with_defaults(given, *sheet);
    seconds = [&](const CommandWork& w) { return seconds_of_work(w, rates, *sheet); };
  }
  KernelTable table;
  KernelReader reader(speed, backend, seconds, table);
  for (const train::Session::ProgramUse& use : programs)
    if (use.runs > 0) reader.read(*use.program, use.runs);
  KernelPlan kernels;
  kernels.kernels = table.take();
  if (sheet != nullptr) {
    kernels.rates = rates_text(rates, *sheet);
    kernels.peak_flops = sheet->bf16;
  } else if (speed && backend.memory_bytes == 0) {
    kernels.rates = host_rates(*speed, dtype_of_products(programs));
  }
  return kernels;
}

void add_kernels(RunPlan& p, const train::Session& session, const KernelRates& rates) {
  p.kernels = kernels_of(session.programs(), session.engine().backend(), p.speed, rates);
}

double predicted_mfu(const RunPlan& p, bool is_causal) {
  if (!p.kernels || p.kernels->peak_flops == 0) return 0;
  const double flops = p.model->flops_per_token(p.plan.options.context, !is_causal);
  return flops * static_cast<double>(p.tokens_per_step) /
         (1e-3 * p.kernels->total().ms * p.kernels->peak_flops);
}

}  // namespace brrr::insight
