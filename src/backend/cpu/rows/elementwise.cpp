// Element-wise kernels: a row function from the tables, laid over broadcast operands. 16-bit floats
// are computed in f32 through tiles that stay in L1.

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/rows/row_space.h"

namespace brrr::cpu {
namespace {

void libm_pow(const Row& row) {
  const auto *a = static_cast<const float*>(row.in[0]), *b = static_cast<const float*>(row.in[1]);
  auto* y = static_cast<float*>(row.out);
  const int64_t step_a = !(row.repeated & 1), step_b = !(row.repeated & 2);
  for (int64_t i = 0; i < row.n; ++i) y[i] = std::pow(a[i * step_a], b[i * step_b]);
}

// A rare op for which the C library is fast enough.
constexpr RowEntry kLibmRows[] = {{"pow", DType::f32, &libm_pow}};
constexpr int64_t kLibmGrain = 1024;

RowFunction find(std::span<const RowEntry> table, std::string_view op, DType dtype) {
  for (const RowEntry& entry : table)
    if (entry.op == op && entry.dtype == dtype) return entry.run;
  return nullptr;
}

bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }

/// How a node is computed; run == nullptr: not at all.
struct RowPlan {
  RowFunction run = nullptr;
  RowFunction load = nullptr, store = nullptr;  // of a 16-bit float, by way of f32
  int64_t grain = kElementGrain;
};

RowPlan plan_of(const NodeView& node) {
  const std::string& op = node.node().op->name;
  RowPlan plan;
  if (op == "where") {
    const DType by_size[] = {DType::u8, DType::bf16, DType::f32, DType::f64};
    for (DType t : by_size)
      if (bytes_of(t) == bytes_of(node.in[1].dtype)) plan.run = find(select_rows(), op, t);
    return plan;
  }
  std::string key = op;
  if (op == "gelu" || op == "gelu_grad") key += "." + node.attrs().get<std::string>("approximate");
  const DType dtype = node.in[0].dtype;
  const DType compute = is_half(dtype) ? DType::f32 : dtype;
  for (auto table : {unary_rows(), binary_rows()})
    if (plan.run == nullptr) plan.run = find(table, key, compute);
  if (plan.run == nullptr) {
    plan.run = find(kLibmRows, key, compute);
    plan.grain = kLibmGrain;
  }
  if (is_half(dtype)) {
    plan.load = find(cast_rows(), "from", dtype);
    if (node.out()[0].dtype == dtype) plan.store = find(cast_rows(), "to", dtype);
  }
  return plan;
}

class ElementwiseKernel final : public Kernel {
 public:
  explicit ElementwiseKernel(const NodeView& node)
      : plan_(plan_of(node)), space_(node.out()[0].shape, node.in), operands_(node.in.size()) {
    for (size_t k = 0; k < operands_; ++k) {
      bytes_[k] = static_cast<int64_t>(bytes_of(node.in[k].dtype));
      if (space_.repeated[k]) repeated_ |= 1u << k;
    }
    out_bytes_ = static_cast<int64_t>(bytes_of(node.out()[0].dtype));
  }

  void run(const KernelArgs& args) override {
    parallel_elements(space_.elements, plan_.grain, [&](int64_t begin, int64_t end) {
      space_.each_row(begin, end, [&](int64_t to, const RowSpace::Offsets& at, int64_t count) {
        Row row;
        for (size_t k = 0; k < operands_; ++k)
          row.in[k] = static_cast<const std::byte*>(args.in[k]) + at[k] * bytes_[k];
        row.out = static_cast<std::byte*>(args.out[0]) + to * out_bytes_;
        row.n = count;
        row.repeated = repeated_;
        if (plan_.load == nullptr) {
          plan_.run(row);
        } else {
          run_through_f32(row);
        }
      });
    });
  }

 private:
  void run_through_f32(const Row& row) const {
    constexpr int64_t kPiece = 512;
    float in[kMaxOperands][kPiece], out[kPiece];
    Row tile = row;
    for (int64_t i = 0; i < row.n; i += kPiece) {
      tile.n = std::min(kPiece, row.n - i);
      for (size_t k = 0; k < operands_; ++k) {
        const bool repeated = row.repeated >> k & 1;
        Row load;
        load.in[0] = static_cast<const std::byte*>(row.in[k]) + (repeated ? 0 : i * bytes_[k]);
        load.out = in[k];
        load.n = repeated ? 1 : tile.n;
        plan_.load(load);
        tile.in[k] = in[k];
      }
      std::byte* to = static_cast<std::byte*>(row.out) + i * out_bytes_;
      tile.out = plan_.store ? static_cast<void*>(out) : to;
      plan_.run(tile);
      if (plan_.store) {
        Row store;
        store.in[0] = out;
        store.out = to;
        store.n = tile.n;
        plan_.store(store);
      }
    }
  }

  RowPlan plan_;
  RowSpace space_;
  size_t operands_;
  uint32_t repeated_ = 0;
  int64_t bytes_[kMaxOperands] = {};
  int64_t out_bytes_ = 0;
};

}  // namespace

std::vector<KernelEntry> elementwise_kernels() {
  std::vector<std::string_view> ops;
  for (auto table :
       {unary_rows(), binary_rows(), select_rows(), std::span<const RowEntry>(kLibmRows)}) {
    for (const RowEntry& entry : table) {
      const auto op = entry.op.substr(0, entry.op.find('.'));
      if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
    }
  }
  std::vector<KernelEntry> list;
  for (std::string_view op : ops) {
    list.push_back({op, "rows",
                    [](const NodeView& node) -> std::string {
                      if (plan_of(node).run != nullptr) return "";
                      return fmt::format("no row function for {}", name_of(node.in[0].dtype));
                    },
                    [](const NodeView& node) -> std::unique_ptr<Kernel> {
                      return std::make_unique<ElementwiseKernel>(node);
                    }});
  }
  return list;
}

}  // namespace brrr::cpu
