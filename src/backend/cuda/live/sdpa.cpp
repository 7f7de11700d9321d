#include "backend/cuda/live/sdpa.h"

#include <algorithm>
#include <limits>

namespace brrr::cuda {
namespace {

using cudnn::DataType;
using cudnn::Descriptor;
using cudnn::Field;
using cudnn::Kind;
using cudnn::Pointwise;
using cudnn::RawDescriptor;

/// Names of what is in memory, by which addresses are given.
enum Id : int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv, kSums, kScale, kOne, kHidden };

constexpr int64_t kAlignment = 16;

std::array<int64_t, 4> dense(const std::array<int64_t, 4>& s) {
  return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

}  // namespace

SdpaPlan::SdpaPlan(const cudnn::Library& library, const SdpaCall& call,
                   const cudnn::Descriptor* device)
    : library_(library),
      call_(call),
      scores_{call.batch, call.heads, call.queries, call.keys},
      graph_(library, Kind::graph),
      plan_(library, Kind::plan),
      scale_(static_cast<float>(call.scale)),
      // Before 9.10 the engines want a finite number for what is hidden.
      hidden_(library.version_number() < 91000 ? std::numeric_limits<float>::lowest()
                                               : -std::numeric_limits<float>::infinity()) {
  if (call.backward)
    write_backward();
  else
    write_forward();
  compile(device);
}

// -- tensors

SdpaPlan::Tensor SdpaPlan::tensor(int64_t id, const Sizes& sizes, const Sizes& strides,
                                  DataType type, bool is_virtual, bool is_value) {
  Descriptor t(library_, Kind::tensor);
  t.set(Field::tensor_type, type)
      .set(Field::tensor_sizes, std::span<const int64_t>(sizes))
      .set(Field::tensor_strides, std::span<const int64_t>(strides))
      .set(Field::tensor_id, id)
      .set(Field::tensor_alignment, kAlignment)
      .set(Field::tensor_is_value, is_value);
  if (is_virtual) t.set(Field::tensor_is_virtual, true);
  t.finish();
  parts_.push_back(std::move(t));
  return {parts_.size() - 1, sizes};
}

SdpaPlan::Tensor SdpaPlan::stored(int64_t id, const SdpaCall::Matrix& m, int64_t rows) {
  return tensor(id, {call_.batch, call_.heads, rows, call_.width}, {m.batch, m.head, m.row, 1},
                low(), false);
}

SdpaPlan::Tensor SdpaPlan::transposed(int64_t id, const SdpaCall::Matrix& m, int64_t rows) {
  return tensor(id, {call_.batch, call_.heads, call_.width, rows}, {m.batch, m.head, 1, m.row},
                low(), false);
}

SdpaPlan::Tensor SdpaPlan::value(int64_t id) {
  return tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, DataType::f32, false, true);
}

SdpaPlan::Tensor SdpaPlan::statistic(int64_t id) {
  const Sizes sizes{call_.batch, call_.heads, call_.queries, 1};
  return tensor(id, sizes, dense(sizes), DataType::f32, false);
}

SdpaPlan::Tensor SdpaPlan::between(const Sizes& sizes, DataType type) {
  return tensor(next_id_++, sizes, dense(sizes), type, true);
}

// -- operations

void SdpaPlan::add_op(Descriptor op) {
  op.finish();
  ops_.push_back(std::move(op));
}

SdpaPlan::Tensor SdpaPlan::pointwise(Pointwise mode, const Tensor& x, const Tensor* b,
                                     const Tensor* into, const Tensor* selector, DataType type,
                                     int64_t axis) {
  const Tensor y = into != nullptr ? *into : between(x.sizes, type);
  Descriptor what(library_, Kind::pointwise);
  what.set(Field::pointwise_mode, mode)
      .set(Field::pointwise_math, type == DataType::boolean ? DataType::boolean : DataType::f32);
  if (axis >= 0) what.set(Field::pointwise_axis, axis);
  what.finish();
  Descriptor op(library_, Kind::pointwise_op);
  op.set(Field::pointwise_op, what).set(Field::pointwise_x, parts_[x.index]);
  if (b != nullptr) op.set(Field::pointwise_b, parts_[b->index]);
  if (selector != nullptr) op.set(Field::pointwise_t, parts_[selector->index]);
  op.set(Field::pointwise_y, parts_[y.index]);
  parts_.push_back(std::move(what));
  add_op(std::move(op));
  return y;
}

SdpaPlan::Tensor SdpaPlan::matmul(const Tensor& a, const Tensor& b, const Tensor* into) {
  const Tensor y = into != nullptr
                       ? *into
                       : between({a.sizes[0], a.sizes[1], a.sizes[2], b.sizes[3]}, DataType::f32);
  Descriptor what(library_, Kind::matmul);
  what.set(Field::matmul_math, DataType::f32).finish();
  Descriptor op(library_, Kind::matmul_op);
  op.set(Field::matmul_op, what)
      .set(Field::matmul_a, parts_[a.index])
      .set(Field::matmul_b, parts_[b.index])
      .set(Field::matmul_c, parts_[y.index]);
  parts_.push_back(std::move(what));
  add_op(std::move(op));
  return y;
}

SdpaPlan::Tensor SdpaPlan::reduce(cudnn::Reduction mode, const Tensor& x, const Sizes& sizes,
                                  const Tensor* into) {
  const Tensor y = into != nullptr ? *into : between(sizes, DataType::f32);
  Descriptor what(library_, Kind::reduction);
  what.set(Field::reduction_math, DataType::f32).set(Field::reduction_operator, mode).finish();
  Descriptor op(library_, Kind::reduction_op);
  op.set(Field::reduction_op, what)
      .set(Field::reduction_x, parts_[x.index])
      .set(Field::reduction_y, parts_[y.index]);
  parts_.push_back(std::move(what));
  add_op(std::move(op));
  return y;
}

/// Rows as columns: the same numbers under other strides, perhaps rounded.
SdpaPlan::Tensor SdpaPlan::turned(const Tensor& x, DataType type, const Sizes& strides) {
  const Sizes sizes{x.sizes[0], x.sizes[1], x.sizes[3], x.sizes[2]};
  const Tensor y = tensor(next_id_++, sizes, strides, type, true);
  Descriptor op(library_, Kind::reshape_op);
  op.set(Field::reshape_x, parts_[x.index]).set(Field::reshape_y, parts_[y.index]);
  add_op(std::move(op));
  return y;
}

// -- the formulas

/// A query sees no key behind itself.
SdpaPlan::Tensor SdpaPlan::masked(const Tensor& scores) {
  if (!call_.causal) return scores;
  const auto index = [&](int64_t axis) {
    return pointwise(Pointwise::index, scores, nullptr, nullptr, nullptr, DataType::i32, axis);
  };
  const Tensor row = index(2), column = index(3);
  const Tensor visible =
      pointwise(Pointwise::greater_equal, row, &column, nullptr, nullptr, DataType::boolean);
  const Tensor hidden = value(kHidden);
  return pointwise(Pointwise::select, scores, &hidden, nullptr, &visible);
}

void SdpaPlan::write_forward() {
  const Tensor q = stored(kQ, call_.q, call_.queries), k = transposed(kK, call_.k, call_.keys),
               v = stored(kV, call_.v, call_.keys), y = stored(kY, call_.y, call_.queries),
               lse = statistic(kLse), scale = value(kScale);
  const Sizes per_query{call_.batch, call_.heads, call_.queries, 1};
  const Tensor products = matmul(q, k);
  const Tensor s = masked(pointwise(Pointwise::mul, products, &scale));
  const Tensor top = reduce(cudnn::Reduction::max, s, per_query);
  const Tensor e = pointwise(Pointwise::exp, pointwise(Pointwise::sub, s, &top));
  const Tensor total = reduce(cudnn::Reduction::add, e, per_query);
  const Tensor log_total = pointwise(Pointwise::log, total);
  pointwise(Pointwise::add, top, &log_total, &lse);
  const Tensor p = between(scores_, low());  // rounded for the second product
  pointwise(Pointwise::div, e, &total, &p);
  matmul(p, v, &y);
}

void SdpaPlan::write_backward() {
  const Tensor q = stored(kQ, call_.q, call_.queries), k = transposed(kK, call_.k, call_.keys),
               v = transposed(kV, call_.v, call_.keys), y = stored(kY, call_.y, call_.queries),
               dy = stored(kDy, call_.dy, call_.queries), lse = statistic(kLse),
               sums = statistic(kSums), scale = value(kScale), one = value(kOne);
  const Tensor dq = stored(kDq, call_.dq, call_.queries), dk = stored(kDk, call_.dk, call_.keys),
               dv = stored(kDv, call_.dv, call_.keys);
  const Sizes columns{call_.heads * call_.queries * call_.keys, call_.queries * call_.keys, 1,
                      call_.keys};
  const Tensor products_of_y = pointwise(Pointwise::mul, dy, &y);
  const Tensor row_sums =
      reduce(cudnn::Reduction::add, products_of_y, {call_.batch, call_.heads, call_.queries, 1});
  pointwise(Pointwise::mul, row_sums, &one, &sums);
  const Tensor scores = pointwise(Pointwise::mul, matmul(q, k), &scale);
  const Tensor p = pointwise(Pointwise::exp, masked(pointwise(Pointwise::sub, scores, &lse)));
  matmul(turned(p, low(), columns), dy, &dv);
  const Tensor dp = pointwise(Pointwise::sub, matmul(dy, v), &sums);
  const Tensor ds = pointwise(Pointwise::mul, pointwise(Pointwise::mul, dp, &p), &scale);
  matmul(turned(ds, low(), columns), q, &dk);
  const Tensor rows_of_k = turned(k, DataType::f32, {call_.k.batch, call_.k.head, call_.k.row, 1});
  matmul(ds, rows_of_k, &dq);
}

// -- a plan

void SdpaPlan::compile(const Descriptor* device) {
  std::vector<RawDescriptor> ops;
  for (const Descriptor& op : ops_) ops.push_back(op.raw());
  graph_.set_descriptors(Field::graph_ops, ops);
  if (device == nullptr) graph_.set(Field::graph_handle, library_.handle());
  graph_.finish();
  Descriptor heuristics(library_, Kind::heuristics);
  heuristics.set(Field::heuristics_graph, graph_)
      .set(Field::heuristics_mode, cudnn::Heuristics::best);
  if (device != nullptr) heuristics.set(Field::heuristics_device, *device);
  heuristics.finish();
  // The best first.
  constexpr size_t kMostConfigs = 8;
  std::vector<Descriptor> configs;
  std::vector<RawDescriptor> raw;
  for (size_t i = 0; i < kMostConfigs; ++i) {
    configs.emplace_back(library_, Kind::engine_config);
    raw.push_back(configs.back().raw());
  }
  const int64_t found = heuristics.get_descriptors(Field::heuristics_results, raw);
  std::string why = "cuDNN knows no engine for it";
  for (size_t i = 0; i < std::min(kMostConfigs, static_cast<size_t>(found)); ++i) {
    try {
      Descriptor plan(library_, Kind::plan);
      plan.set(Field::plan_config, configs[i]);
      if (device == nullptr) plan.set(Field::plan_handle, library_.handle());
      plan.finish();
      workspace_bytes_ = plan.get_int64(Field::plan_workspace);
      if (workspace_bytes_ <= sdpa_workspace_bytes(call_)) {
        plan_ = std::move(plan);
        parts_.push_back(std::move(configs[i]));
        return;
      }
      why = fmt::format("cuDNN wants {} bytes of workspace", workspace_bytes_);
    } catch (const cudnn::Refusal& refusal) {
      why = refusal.reason;
    }
  }
  throw cudnn::Refusal{why};
}

Descriptor SdpaPlan::pack(const SdpaAddresses& at) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  const auto add = [&](int64_t id, const void* p) {
    ids.push_back(id);
    pointers.push_back(const_cast<void*>(p));
  };
  add(kQ, at.q);
  add(kK, at.k);
  add(kV, at.v);
  add(kY, at.y);
  add(kLse, at.lse);
  add(kScale, &scale_);
  if (call_.causal) add(kHidden, &hidden_);
  if (call_.backward) {
    add(kDy, at.dy);
    add(kDq, at.dq);
    add(kDk, at.dk);
    add(kDv, at.dv);
    add(kSums, at.sums);
    add(kOne, &one_);
  }
  Descriptor pack(library_, Kind::variant_pack);
  pack.set(Field::pack_ids, std::span<const int64_t>(ids))
      .set(Field::pack_pointers, std::span<void* const>(pointers));
  void* workspace[] = {at.workspace};
  pack.set(Field::pack_workspace, std::span<void* const>(workspace));
  pack.finish();
  return pack;
}

}  // namespace brrr::cuda
