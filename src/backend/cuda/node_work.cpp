#include "backend/cuda/node_work.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

using ArgKind = LaunchArg::Kind;

bool is_address_kind(ArgKind kind) {
  return kind == ArgKind::in || kind == ArgKind::out || kind == ArgKind::scratch;
}

/// A part of an operand, of a result or of the scratch memory that a launch is given.
struct WorkRegion {
  ArgKind kind = ArgKind::in;
  uint32_t index = 0;
  int64_t offset = 0;
  double box_bytes = 0;  // of what the copy engine may read of it; 0: it is a plain address
};

void add_regions(const LaunchArg& arg, std::vector<WorkRegion>& regions) {
  if (is_address_kind(arg.kind)) regions.push_back({arg.kind, arg.index, arg.value});
  if (arg.kind == ArgKind::tensor) {
    const LaunchArg& at = arg.fields[0];
    const auto& sizes = arg.boxes.sizes;
    const double bytes =
        std::accumulate(sizes.begin(), sizes.end(), static_cast<double>(bytes_of(arg.boxes.dtype)),
                        [](double all, int64_t size) { return all * static_cast<double>(size); });
    regions.push_back({at.kind, at.index, at.value, bytes});
  } else {
    for (const LaunchArg& field : arg.fields) add_regions(field, regions);
  }
}

std::vector<WorkRegion> regions_of(const Launch& launch) {
  std::vector<WorkRegion> regions;
  for (const LaunchArg& arg : launch.args) add_regions(arg, regions);
  return regions;
}

/// How long regions are: to where the next one of the node begins.
class RegionSizes {
 public:
  RegionSizes(const NodeView& node, const NodePlan& plan) {
    for (uint32_t k = 0; k < node.in.size(); ++k) begins_[{ArgKind::in, k}] = {node.in[k].bytes()};
    for (uint32_t k = 0; k < node.out().size(); ++k)
      begins_[{ArgKind::out, k}] = {node.out()[k].bytes()};
    begins_[{ArgKind::scratch, 0}] = {plan.scratch_bytes};
    for (const Command& command : plan.commands) {
      if (const auto* launch = std::get_if<Launch>(&command)) {
        for (const WorkRegion& r : regions_of(*launch)) add(r.kind, r.index, r.offset);
      } else if (const auto* call = std::get_if<MatmulCall>(&command)) {
        for (const LaunchArg* arg : {&call->product.a, &call->product.b, &call->product.y})
          add(arg->kind, arg->index, arg->value);
        add(ArgKind::scratch, 0, call->workspace);
      } else {
        const auto& attention = std::get<SdpaCall>(command);
        add(ArgKind::scratch, 0, attention.sums);
        add(ArgKind::scratch, 0, attention.workspace);
      }
    }
  }
  double bytes_of(const WorkRegion& r) const {
    const std::set<int64_t>& begins = begins_.at({r.kind, r.index});
    const auto next = begins.upper_bound(r.offset);
    return next == begins.end() ? 0 : static_cast<double>(*next - r.offset);
  }

 private:
  void add(ArgKind kind, uint32_t index, int64_t offset) { begins_[{kind, index}].insert(offset); }
  std::map<std::pair<ArgKind, uint32_t>, std::set<int64_t>> begins_;
};

double bytes_of_many(DType dtype, int64_t elements) {
  return static_cast<double>(bytes_of(dtype)) * static_cast<double>(elements);
}

CommandWork work_of_product(const MatmulCall& call) {
  const Product& p = call.product;
  CommandWork w{.kind = CommandWork::Kind::product, .name = "cublaslt " + describe(call)};
  w.dtype = p.in;
  w.tf32 = p.tf32;
  w.launches = 1;
  w.flops = 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.m) *
            static_cast<double>(p.n) * static_cast<double>(p.k);
  const int64_t of_a = p.batch_a == 0 ? 1 : p.batch, of_b = p.batch_b == 0 ? 1 : p.batch;
  const double y = bytes_of_many(p.out, p.batch * p.m * p.n);
  w.bytes =
      bytes_of_many(p.in, of_a * p.m * p.k) + bytes_of_many(p.dtype_b(), of_b * p.k * p.n) + y;
  if (p.bias) w.bytes += bytes_of_many(p.bias_dtype, p.n);
  if (call.addend || p.accumulate) w.bytes += y;
  if (call.aux) w.bytes += y;
  if (call.bias_gradient) w.bytes += bytes_of_many(DType::f32, call.sums_a ? p.m : p.n);
  return w;
}

/// The cost of the node, as one entry.
CommandWork work_of_node(const NodeView& node) {
  CommandWork w;
  if (class_of(node.node()) == OpClass::contraction) {
    w.kind = !node.node().op->is_attention ? CommandWork::Kind::product
             : node.node().op->is_gradient ? CommandWork::Kind::attention_grad
                                           : CommandWork::Kind::attention;
    w.dtype = node.in[0].dtype;
    w.tf32 = node.attrs().get_or<bool>("tf32", false);
  }
  const Cost cost = cost_of(node.graph, node.id);
  w.flops = cost.flops;
  w.bytes = cost.bytes_read + cost.bytes_written;
  return w;
}

/// What launches read of operands that an earlier one has read, and their scratch memory. cuDNN
/// writes and reads the gradients of all scores, of which a causal mask leaves half.
double bytes_again(const NodeView& node, const NodePlan& plan, const RegionSizes& region_sizes) {
  std::vector<double> read(node.in.size());
  double scratch = 0;
  for (const Command& command : plan.commands) {
    if (const auto* call = std::get_if<SdpaCall>(&command); call != nullptr && call->backward)
      scratch += (call->causal ? 1 : 2) * static_cast<double>(sdpa_workspace_bytes(*call));
    const auto* launch = std::get_if<Launch>(&command);
    if (launch == nullptr) continue;
    std::vector<double> here(node.in.size());
    for (const WorkRegion& r : regions_of(*launch)) {
      if (r.kind == ArgKind::scratch) scratch += region_sizes.bytes_of(r);
      if (r.kind != ArgKind::in) continue;
      const auto whole = static_cast<double>(node.in[r.index].bytes());
      here[r.index] = std::min(whole, here[r.index] + (r.box_bytes > 0 ? r.box_bytes : whole));
    }
    for (size_t k = 0; k < read.size(); ++k) read[k] += here[k];
  }
  double again = scratch;
  for (size_t k = 0; k < read.size(); ++k)
    again += std::max(0.0, read[k] - static_cast<double>(node.in[k].bytes()));
  return again;
}

}  // namespace

std::vector<CommandWork> work_of(const NodeView& node, const NodePlan& plan) {
  const RegionSizes region_sizes(node, plan);
  const bool is_mixed =
      std::any_of(plan.commands.begin(), plan.commands.end(),
                  [](const Command& c) { return std::holds_alternative<MatmulCall>(c); });
  if (!is_mixed) {
    CommandWork all = work_of_node(node);
    all.launches = static_cast<int64_t>(plan.commands.size());
    all.bytes_again = bytes_again(node, plan, region_sizes);
    return {all};
  }
  std::vector<CommandWork> list;
  for (const Command& command : plan.commands) {
    if (const auto* call = std::get_if<MatmulCall>(&command)) {
      list.push_back(work_of_product(*call));
      continue;
    }
    const auto* launch = std::get_if<Launch>(&command);
    BRRR_CHECK(launch != nullptr, "attention by a library beside a product");
    const std::string& name = launch->source.entry;
    auto at = std::find_if(list.begin(), list.end(),
                           [&](const CommandWork& w) { return w.name == name; });
    if (at == list.end()) at = list.insert(list.end(), CommandWork{.name = name});
    ++at->launches;
    for (const WorkRegion& r : regions_of(*launch)) at->bytes += region_sizes.bytes_of(r);
  }
  return list;
}

}  // namespace brrr::cuda
