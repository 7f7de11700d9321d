// Element-wise kernels: a row function from the tables, laid over broadcast operands. 16-bit floats
// are computed in f32 through tiles that stay in L1.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/elementwise_rows.h"
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

enum class Bits { both, either, one, left, right };

template <typename T, Bits kOp>
void bits(const Row& row) {
  scalar_binary<T>(row, [](T a, T b) {
    const auto wide = static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(a);
    const auto count = static_cast<uint64_t>(b);
    if constexpr (kOp == Bits::both) return static_cast<T>(a & b);
    if constexpr (kOp == Bits::either) return static_cast<T>(a | b);
    if constexpr (kOp == Bits::one) return static_cast<T>(a ^ b);
    if constexpr (kOp == Bits::left)
      return static_cast<T>(count > 63 ? 0 : static_cast<uint64_t>(wide) << count);
    if (std::is_unsigned_v<T> && count > 63) return T{0};
    return static_cast<T>(wide >> std::min<uint64_t>(count, 63));
  });
}

// Rare ops for which the C library and the compiler's loops are fast enough.
constexpr RowEntry kLibmRows[] = {{Op::pow, DType::f32, &libm_pow},
                                  {Op::tan, DType::f32, &libm_unary<std::tan>},
                                  {Op::asin, DType::f32, &libm_unary<std::asin>},
                                  {Op::acos, DType::f32, &libm_unary<std::acos>},
                                  {Op::atan, DType::f32, &libm_unary<std::atan>},
                                  {Op::sinh, DType::f32, &libm_unary<std::sinh>},
                                  {Op::cosh, DType::f32, &libm_unary<std::cosh>},
                                  {Op::asinh, DType::f32, &libm_unary<std::asinh>},
                                  {Op::acosh, DType::f32, &libm_unary<std::acosh>},
                                  {Op::atanh, DType::f32, &libm_unary<std::atanh>},
                                  {Op::log1p, DType::f32, &libm_unary<std::log1p>},
                                  {Op::expm1, DType::f32, &libm_unary<std::expm1>},
                                  {Op::fmod, DType::f32, &libm_fmod},
                                  {Op::bit_and, DType::i32, &bits<int32_t, Bits::both>},
                                  {Op::bit_or, DType::i32, &bits<int32_t, Bits::either>},
                                  {Op::bit_xor, DType::i32, &bits<int32_t, Bits::one>},
                                  {Op::shift_left, DType::i32, &bits<int32_t, Bits::left>},
                                  {Op::shift_right, DType::i32, &bits<int32_t, Bits::right>},
                                  {Op::bit_and, DType::u8, &bits<uint8_t, Bits::both>},
                                  {Op::bit_or, DType::u8, &bits<uint8_t, Bits::either>},
                                  {Op::bit_xor, DType::u8, &bits<uint8_t, Bits::one>},
                                  {Op::shift_left, DType::u8, &bits<uint8_t, Bits::left>},
                                  {Op::shift_right, DType::u8, &bits<uint8_t, Bits::right>}};
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
  bool refuses_zero = false;                    // operand 1 divides integers
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
  if (find(kLibmRows, node.node(), compute) != nullptr) plan.grain = kLibmGrain;
  plan.refuses_zero = dtype == DType::i64 && is(node.node(), Op::div, Op::fmod);
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
    if (plan_.refuses_zero) divisors_ = node.in[1].shape.elements();
    op_ = node.node().op->id;
  }

  void run(const KernelArgs& args) override {
    if (divisors_ > 0)
      check_divisors(static_cast<const int64_t*>(args.in[0]),
                     static_cast<const int64_t*>(args.in[1]));
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
  void check_divisors(const int64_t* a, const int64_t* b) const {
    if (std::find(b, b + divisors_, 0) == b + divisors_) return;
    space_.each_row(0, space_.elements, [&](int64_t, const RowSpace::Offsets& at, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        if (b[at[1] + (space_.repeated[1] ? 0 : i)] == 0)
          user_error("[{}] an integer divided by zero: {} {} 0", name_of(op_),
                     a[at[0] + (space_.repeated[0] ? 0 : i)], op_ == Op::div ? "/" : "mod");
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
  int64_t divisors_ = 0;
  Op op_ = Op::none;
};

}  // namespace

RowFunction row_function(const Node& node, DType dtype) {
  if (is(node, Op::where)) {
    for (const RowEntry& entry : select_rows())
      if (bytes_of(entry.dtype) == bytes_of(dtype)) return entry.run;
    return nullptr;
  }
  for (auto table :
       {unary_rows(), binary_rows(), integer_rows(), std::span<const RowEntry>(kLibmRows)})
    if (const RowFunction run = find(table, node, dtype)) return run;
  return nullptr;
}

std::vector<KernelEntry> elementwise_kernels() {
  std::vector<Op> ops;
  for (auto table : {unary_rows(), binary_rows(), integer_rows(), select_rows(),
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
