// Element-wise kernels: a row function from the tables, laid over broadcast operands. 16-bit floats
// are computed in f32 through tiles that stay in L1.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/elementwise_rows.h"
#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/rows/row_space.h"
#include "base/errors.h"

namespace brrr::cpu {
namespace {

void libm_pow(const Row& row) {
  const auto *a = static_cast<const float*>(row.in[0]), *b = static_cast<const float*>(row.in[1]);
  auto* y = static_cast<float*>(row.out);
  const int64_t step_a = !(row.repeated & 1), step_b = !(row.repeated & 2);
  for (int64_t i = 0; i < row.n; ++i) y[i] = std::pow(a[i * step_a], b[i * step_b]);
}

template <float (*kFunction)(float)>
void libm_unary(const Row& row) {
  const auto* x = static_cast<const float*>(row.in[0]);
  auto* y = static_cast<float*>(row.out);
  for (int64_t i = 0; i < row.n; ++i) y[i] = kFunction(x[i]);
}

template <typename T, typename F>
void scalar_binary(const Row& row, F f) {
  const auto *a = static_cast<const T*>(row.in[0]), *b = static_cast<const T*>(row.in[1]);
  auto* y = static_cast<T*>(row.out);
  const int64_t step_a = !(row.repeated & 1), step_b = !(row.repeated & 2);
  for (int64_t i = 0; i < row.n; ++i) y[i] = f(a[i * step_a], b[i * step_b]);
}

void libm_fmod(const Row& row) {
  scalar_binary<float>(row, [](float a, float b) { return std::fmod(a, b); });
}

// Rare ops for which the C library is fast enough.
constexpr RowEntry kLibmRows[] = {{Op::pow, DType::f32, &libm_pow},
                                  {Op::tan, DType::f32, &libm_unary<std::tan>},
                                  {Op::sinh, DType::f32, &libm_unary<std::sinh>},
                                  {Op::cosh, DType::f32, &libm_unary<std::cosh>},
                                  {Op::asinh, DType::f32, &libm_unary<std::asinh>},
                                  {Op::acosh, DType::f32, &libm_unary<std::acosh>},
                                  {Op::atanh, DType::f32, &libm_unary<std::atanh>},
                                  {Op::log1p, DType::f32, &libm_unary<std::log1p>},
                                  {Op::expm1, DType::f32, &libm_unary<std::expm1>},
                                  {Op::fmod, DType::f32, &libm_fmod}};
constexpr int64_t kLibmGrain = 1024;

RowFunction find(std::span<const RowEntry> table, const Node& node, DType dtype) {
  for (const RowEntry& entry : table)
    if (is(node, entry.op) && entry.dtype == dtype &&
        (entry.form.empty() || entry.form == node.attrs.get<std::string>("approximate")))
      return entry.run;
  return nullptr;
}

bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }

/// How a node is computed; run == nullptr: not at all.
struct RowPlan {
  RowFunction run = nullptr;
  RowFunction load = nullptr, store = nullptr;  // of a 16-bit float, by way of f32
  bool refuses_zero = false;                    // may_divide_by_zero()
  int64_t grain = kElementGrain;
};

RowPlan plan_of(const NodeView& node) {
  RowPlan plan;
  if (is(node.node(), Op::where)) {
    plan.run = row_function(node.node(), node.in[1].dtype);
    return plan;
  }
  const DType dtype = node.in[0].dtype;
  const DType compute = is_half(dtype) ? DType::f32 : dtype;
  plan.run = row_function(node.node(), compute);
  plan.refuses_zero = may_divide_by_zero(node.node(), dtype);
  if (find(kLibmRows, node.node(), compute) != nullptr || plan.refuses_zero ||
      (dtype == DType::f64 && (node.in.size() == 1 || is(node.node(), Op::pow, Op::fmod))))
    plan.grain = kLibmGrain;
  if (is_half(dtype)) {
    plan.load = vector_cast(dtype, DType::f32);
    if (node.out()[0].dtype == dtype) plan.store = vector_cast(DType::f32, dtype);
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
    dtype_ = node.in[0].dtype;
    op_ = node.node().op->id;
  }

  void run(const KernelArgs& args) override {
    if (plan_.refuses_zero) check_divisors(args);
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
  // Before the rows, because threads of the team must not throw.
  void check_divisors(const KernelArgs& args) const {
    with_number_type(dtype_, [&]<typename T>(T) {
      if constexpr (std::is_integral_v<T>) check_divisors_of<T>(args);
    });
  }
  template <typename T>
  void check_divisors_of(const KernelArgs& args) const {
    const auto *a = static_cast<const T*>(args.in[0]), *b = static_cast<const T*>(args.in[1]);
    space_.each_row(0, space_.elements, [&](int64_t, const RowSpace::Offsets& at, int64_t count) {
      const int64_t step_a = !space_.repeated[0], step_b = !space_.repeated[1];
      // A repeated divisor is looked at once; a power also depends on its base.
      if (step_b == 0 && op_ != Op::pow) count = std::min<int64_t>(count, 1);
      for (int64_t i = 0; i < count; ++i) {
        const T x = a[at[0] + i * step_a], y = b[at[1] + i * step_b];
        if (op_ != Op::pow && y == 0)
          user_error("[{}] an integer divided by zero: {} {} 0", name_of(op_), x,
                     op_ == Op::div ? "/" : "mod");
        if (op_ == Op::pow && x == 0 && y < 0)
          user_error("[pow] an integer divided by zero: 1 / 0");
      }
    });
  }
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
  DType dtype_ = DType::f32;
  Op op_ = Op::none;
};

}  // namespace

bool may_divide_by_zero(const Node& node, DType dtype) {
  return is_integer(dtype) && dtype != DType::boolean && is(node, Op::div, Op::fmod, Op::pow);
}

RowFunction row_function(const Node& node, DType dtype) {
  if (is(node, Op::where)) {
    for (const RowEntry& entry : select_rows())
      if (bytes_of(entry.dtype) == bytes_of(dtype)) return entry.run;
    return nullptr;
  }
  for (auto table :
       {unary_rows(), binary_rows(), scalar_rows(), std::span<const RowEntry>(kLibmRows)})
    if (const RowFunction run = find(table, node, dtype)) return run;
  return nullptr;
}

std::vector<KernelEntry> elementwise_kernels() {
  std::vector<Op> ops;
  for (auto table : {unary_rows(), binary_rows(), scalar_rows(), select_rows(),
                     std::span<const RowEntry>(kLibmRows)}) {
    for (const RowEntry& entry : table)
      if (std::find(ops.begin(), ops.end(), entry.op) == ops.end()) ops.push_back(entry.op);
  }
  std::vector<KernelEntry> list;
  for (const Op op : ops) {
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
