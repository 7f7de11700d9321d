// Every CPU kernel against the meaning of its op in fp64: the samples of the op table, larger and
// odd shapes, special values; and that bits depend neither on threads, nor on alignment, nor on
// being in place. On every instruction set that the machine has.

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/ops.h"
#include "ops/quantized/int8_rows.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

Sample::Operand operand(Shape shape, double low = -1, double high = 1, DType dtype = DType::f32) {
  return {{dtype, std::move(shape)}, low, high};
}

class CpuKernels : public test::EachIsa {};

const std::vector<KernelEntry>& kernels() {
  static const std::vector<KernelEntry> list = [] {
    best_isa();
    return cpu_kernels();
  }();
  return list;
}

// gemm_test has the products, optimizer_kernels_test the codes; reshape and after are views;
// newton_schulz, fake_quantize and batch_norm are always decomposed; collectives run on a
// communicator (tests/train/ranks_session_test.cpp).
bool has_no_kernel_here(std::string_view op) {
  return op == "matmul" || op == "linear" || op == "reshape" || op == "after" ||
         op == "adamw_8bit" || op == "newton_schulz" || op == "fake_quantize" ||
         op == "scaled_matmul" || op.starts_with("batch_norm") || op == "all_reduce" ||
         op == "reduce_scatter" || op == "all_gather" || op == "own_shard";
}

/// On tiles, attention multiplies probabilities that are rounded as its result will be: as far off
/// again. expect_close() is told of terms twice as large.
std::vector<double> magnitudes_of(const KernelEntry& entry, const std::vector<RefTensor>& wanted) {
  if (entry.name != "flash_amx" && entry.name != "flash_avx512_bf16") return {};
  std::vector<double> twice;
  for (const RefTensor& t : wanted) {
    double largest = 0;
    for (const double w : t.data)
      if (std::isfinite(w)) largest = std::max(largest, std::fabs(w));
    twice.push_back(2 * largest);
  }
  return twice;
}

/// All properties of one call, on every kernel that accepts it. Returns how many did.
int check(const Call& call, bool compare = true) {
  int accepted = 0;
  std::vector<RefTensor> wanted;
  for (const KernelEntry& entry : kernels()) {
    if (entry.op != call.node().op->id || !entry.refusal(call.view()).empty()) continue;
    SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
    ++accepted;
    set_thread_count(2);
    const std::vector<Buffer> got = run_kernel(entry, call);
    if (compare) {
      if (wanted.empty()) wanted = call.wanted();
      expect_close(call, got, wanted, magnitudes_of(entry, wanted));
    }
    for (int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(entry, call), got) << "with " << threads << " threads";
    }
    EXPECT_EQ(run_kernel(entry, call, 1), got) << "with other alignment";
    for (int pair = 0; pair < 2; ++pair)
      EXPECT_EQ(run_kernel(entry, call, 0, true, pair), got) << "in place, pair " << pair;
  }
  return accepted;
}

void check_sample(const char* name, Sample sample) {
  EXPECT_EQ(check(Call(op(name), sample)), 1) << name;
}

/// Rows of integers other than those of a KV cache are stored by the reference loops alone.
bool stores_integers(const OpDef& d, const Sample& sample) {
  if (d.id != Op::store) return false;
  Type y = sample.in[0].type;
  y.storage = *storage_from_name(sample.attrs.get<std::string>("storage"));
  return y.storage.is_quantized() && y.storage.layout == Layout::rows && !ops::is_int8_rows(y);
}

/// Pools of integers run on the reference loops.
/// The indices of integers, and those of pictures with channels last, are left to the reference.
bool pools_integers(const OpDef& d, const Sample& sample) {
  return d.id == Op::max_pool &&
         (is_integer(sample.in[0].type.dtype) || sample.attrs.get_or<bool>("channels_last", false));
}

TEST_P(CpuKernels, EverySampleOfTheOpTable) {
  for (const OpDef* d : all_ops()) {
    if (has_no_kernel_here(d->name)) continue;
    ASSERT_TRUE(d->samples) << d->name;
    for (const Sample& sample : d->samples())
      EXPECT_GE(check(Call(*d, sample)),
                stores_integers(*d, sample) || pools_integers(*d, sample) ? 0 : 1)
          << "no kernel takes " << d->name;
  }
}

TEST_P(CpuKernels, EverySampleInBf16) {
  for (const OpDef* d : all_ops()) {
    if (has_no_kernel_here(d->name) || d->name == "cast") continue;
    // Its states stay f32: optimizer_kernels_test.
    if (d->op_class == OpClass::optimizer && d->name != "global_norm") continue;
    // Their statistics stay f32: attention_test, loss_head_test.
    if (d->name.ends_with("attention_grad") || d->name.starts_with("linear_cross_entropy_"))
      continue;
    if (d->id == Op::fused || d->runs_regions) continue;  // regions say the dtypes
    // By an f32; tables of f32.
    const bool scaled = d->name == "quantize" || d->name == "rotary";
    for (Sample sample : d->samples()) {
      bool any = false;
      for (Sample::Operand& o : sample.in) {
        if (o.type.dtype != DType::f32 || (scaled && &o != &sample.in[0])) continue;
        o.type.dtype = DType::bf16;
        any = true;
      }
      if (any) check(Call(*d, sample));
    }
  }
}

TEST_P(CpuKernels, LargePanels) {
  for (const Layout layout : {Layout::panels, Layout::transposed_panels})
    check_sample("store", {{operand({2080, 2049 - (layout != Layout::panels)}, -1, 1, DType::bf16)},
                           {{"storage", Storage{layout}.str()}}});
}

TEST_P(CpuKernels, ElementWiseInF16AndI32) {
  for (const char* name : {"add", "mul", "div", "maximum", "exp", "tanh", "silu", "gelu", "less"}) {
    Sample sample{{operand({40, 33}, 0.5, 3, DType::f16)}, {}};
    if (std::string_view(name) == "gelu") sample.attrs = {{"approximate", std::string("tanh")}};
    if (op(name).samples()[0].in.size() == 2)
      sample.in.push_back(operand({33}, 0.5, 3, DType::f16));
    check_sample(name, sample);
  }
  for (const char* name : {"add", "sub", "mul", "maximum", "minimum"})
    check_sample(name,
                 {{operand({40, 33}, -9, 9, DType::i32), operand({33}, -9, 9, DType::i32)}, {}});
}

TEST_P(CpuKernels, BroadcastsOfEveryKind) {
  const std::pair<Shape, Shape> pairs[] = {{{300, 257}, {300, 257}},
                                           {{300, 257}, {257}},
                                           {{300, 257}, {300, 1}},
                                           {{300, 257}, {}},
                                           {{}, {300, 257}},
                                           {{257}, {300, 257}},
                                           {{2, 3, 33, 33}, {33, 33}},
                                           {{2, 3, 33, 33}, {3, 1, 1}},
                                           {{2, 3, 33, 33}, {2, 1, 33, 1}},
                                           {{5, 1, 7}, {1, 6, 1}},
                                           {{1, 1}, {1}},
                                           {{70001}, {1}},
                                           {{0, 4}, {4}},
                                           {{64, 1}, {1, 1023}}};
  for (const auto& [a, b] : pairs) {
    for (const char* name : {"sub", "less"}) check_sample(name, {{operand(a), operand(b)}, {}});
    check_sample("where", {{operand(b, 0, 2, DType::boolean), operand(a), operand({})}, {}});
    check_sample("where", {{operand(a, 0, 2, DType::boolean), operand(b), operand(a)}, {}});
    check_sample("logical_and",
                 {{operand(a, 0, 2, DType::boolean), operand(b, 0, 2, DType::boolean)}, {}});
  }
  for (DType t : {DType::u8, DType::bf16, DType::i32, DType::f64})
    check_sample("where", {{operand({65, 33}, 0, 2, DType::boolean), operand({65, 33}, 0, 9, t),
                            operand({33}, 0, 9, t)},
                           {}});
}

TEST_P(CpuKernels, RowsOfEveryWidth) {
  for (int64_t width : {1, 2, 7, 16, 33, 64, 65, 127, 768, 1023, 4099}) {
    const int64_t rows = std::clamp<int64_t>(40000 / width, 9, 700);
    const Shape x{rows, width}, c{width}, r{rows};
    check_sample("softmax", {{operand(x, -20, 20)}, {}});
    check_sample("softmax_grad", {{operand(x), operand(x, 0, 1)}, {}});
    check_sample("layer_norm",
                 {{operand(x, 2, 5), operand(c, 0.5, 1.5), operand(c)}, {{"eps", 1e-5}}});
    check_sample("layer_norm_grad", {{operand(x), operand(x), operand(c, 0.5, 1.5),
                                      operand(r, -0.1, 0.1), operand(r, 1, 2)},
                                     {}});
    check_sample("rms_norm", {{operand(x, 2, 5), operand(c, 0.5, 1.5)}, {{"eps", 1e-5}}});
    check_sample("rms_norm_grad",
                 {{operand(x), operand(x), operand(c, 0.5, 1.5), operand(r, 1, 2)}, {}});
    const auto targets = operand(r, -1, static_cast<double>(width), DType::i32);
    check_sample("cross_entropy",
                 {{operand(x, -20, 20), targets}, {{"ignore_index", int64_t{-1}}}});
    check_sample("cross_entropy_grad", {{operand(x, -3, 3), targets, operand(r, 3, 9), operand(r)},
                                        {{"ignore_index", int64_t{-1}}}});
    for (const char* name : {"sum", "max"})
      for (const std::vector<int64_t>& axes : {std::vector<int64_t>{0}, {1}, {0, 1}})
        check_sample(name, {{operand(x)}, {{"axes", axes}, {"keep", false}}});
  }
}

TEST_P(CpuKernels, NormsInF16) {
  for (const char* name : {"layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad"})
    for (Sample sample : op(name).samples()) {
      for (Sample::Operand& o : sample.in) o.type.dtype = DType::f16;
      check_sample(name, std::move(sample));
    }
}

TEST_P(CpuKernels, RotaryOfEveryWidth) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool interleaved : {false, true})
      for (const auto& [width, columns, heads] : {std::array<int64_t, 3>{2, 2, 1},
                                                  {80, 20, 3},
                                                  {64, 64, 12},
                                                  {130, 66, 2},
                                                  {600, 600, 5}}) {
        const Attrs attrs{
            {"interleaved", interleaved}, {"inverse", width == 64}, {"heads", (heads + 1) / 2}};
        check_sample("rotary",
                     {{operand({2, 33, heads, width}, -1, 1, t), operand({33}, 0, 50, DType::i32),
                       operand({50, columns / 2}), operand({50, columns / 2})},
                      attrs});
      }
}

TEST_P(CpuKernels, VocabularyOfGpt2) {
  const int64_t v = 50257;
  const auto targets = operand({3}, 0, static_cast<double>(v), DType::i64);
  check_sample("cross_entropy",
               {{operand({3, v}, -5, 5), targets}, {{"ignore_index", int64_t{-100}}}});
  check_sample("cross_entropy_grad",
               {{operand({3, v}, -5, 5), targets, operand({3}, 10, 12), operand({3})},
                {{"ignore_index", int64_t{-100}}}});
  check_sample("softmax", {{operand({3, v}, -5, 5)}, {}});
  check_sample("sum", {{operand({20, v})}, {{"axes", std::vector<int64_t>{0}}, {"keep", false}}});
}

TEST_P(CpuKernels, ReductionsOverMixedAxes) {
  const std::pair<Shape, std::vector<int64_t>> cases[] = {
      {{6, 50, 7, 40}, {0, 2}}, {{6, 50, 7, 40}, {1, 3}},
      {{6, 50, 7, 40}, {0, 3}}, {{6, 50, 7, 40}, {1}},
      {{6, 50, 7, 40}, {1, 2}}, {{6, 50, 7, 40}, {0, 1, 2, 3}},
      {{1, 50, 1, 40}, {0, 2}}, {{3, 0, 5}, {1}},
      {{3, 0, 5}, {0}},         {{4, 5}, {}},
      {{200000}, {0}},          {{2, 100000}, {1}},
      {{5000, 3}, {0}},         {{1, 1}, {0, 1}},
      {{300, 300}, {0}}};
  for (const auto& [shape, axes] : cases)
    for (const char* name : {"sum", "max"})
      check_sample(name, {{operand(shape, -1, 2)}, {{"axes", axes}, {"keep", true}}});
}

TEST_P(CpuKernels, MovementOfEveryDtype) {
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    auto x = [&](Shape s) { return operand(std::move(s), 0, 100, t); };
    for (const std::vector<int64_t>& p : {std::vector<int64_t>{0, 2, 1, 3},
                                          {0, 1, 3, 2},
                                          {3, 2, 1, 0},
                                          {1, 0, 2, 3},
                                          {2, 3, 0, 1},
                                          {0, 3, 1, 2},
                                          {0, 1, 2, 3}})
      check_sample("transpose", {{x({3, 37, 5, 65})}, {{"permutation", p}}});
    check_sample("transpose", {{x({300, 517})}, {{"permutation", std::vector<int64_t>{1, 0}}}});
    check_sample("transpose", {{x({1, 5, 1})}, {{"permutation", std::vector<int64_t>{2, 1, 0}}}});
    check_sample("transpose", {{x({0, 5})}, {{"permutation", std::vector<int64_t>{1, 0}}}});
    check_sample(
        "slice",
        {{x({400, 768})}, {{"axis", int64_t{1}}, {"start", int64_t{256}}, {"size", int64_t{256}}}});
    check_sample("slice", {{x({400, 7, 3})},
                           {{"axis", int64_t{1}}, {"start", int64_t{2}}, {"size", int64_t{0}}}});
    check_sample("pad", {{x({400, 7, 33})},
                         {{"axis", int64_t{1}}, {"before", int64_t{2}}, {"after", int64_t{1}}}});
    check_sample("concat", {{x({400, 33}), x({400, 0}), x({400, 65})}, {{"axis", int64_t{1}}}});
    for (const Shape& from : {Shape{}, Shape{65}, Shape{300, 1}, Shape{1, 65}, Shape{300, 65}})
      check_sample("broadcast_to", {{x(from)}, {{"shape", Shape{2, 300, 65}}}});
    check_sample("update_slice",
                 {{x({2, 300, 65}), x({2, 7, 65}), operand({}, -5, 400, DType::i32)},
                  {{"axis", int64_t{1}}}});
    const AttrValue three = Number(3).as(t);
    check_sample("full", {{}, {{"shape", Shape{65, 33}}, {"value", three}, {"dtype", t}}});
    check_sample("iota", {{}, {{"shape", Shape{65, 33}}, {"axis", int64_t{0}}, {"dtype", t}}});
  }
}

TEST_P(CpuKernels, CastBetweenAllDtypes) {
  for (DType from : kAllDTypes)
    for (DType to : kAllDTypes) {
      // What does not fit integers wraps around or becomes their ends; floats stay below infinity.
      const double high = from == DType::boolean ? 2
                          : is_float(to)         ? 100
                          : is_fp8(from)         ? 400
                                                 : 6e4;
      check_sample("cast", {{operand({37, 41}, -high, high, from)}, {{"dtype", to}}});
    }
}

TEST_P(CpuKernels, EmbeddingAndItsGradient) {
  for (const auto& [rows, width, count] : {std::tuple<int64_t, int64_t, int64_t>{65, 128, 768},
                                           {2000, 100, 300},
                                           {1, 7, 50},
                                           {30, 1, 5}}) {
    const auto ids = operand({count}, 0, static_cast<double>(rows), DType::i32);
    check_sample("embedding", {{operand({rows, width}), ids}, {}});
    check_sample("embedding_grad", {{operand({count, width}), ids}, {{"rows", rows}}});
  }
}

TEST_P(CpuKernels, DropoutOfLongTensors) {
  for (const Shape& shape : {Shape{100003}, Shape{511}, Shape{513}, Shape{1}})
    check_sample("dropout", {{operand(shape), operand({2}, -1000, 1000, DType::i32)},
                             {{"p", 0.2}, {"stream", int64_t{9}}}});
  check_sample("random_bits", {{operand({2}, -1000, 1000, DType::i32)},
                               {{"shape", Shape{70007}}, {"stream", int64_t{1}}}});
}

TEST_P(CpuKernels, GlobalNormOfManyTensors) {
  check_sample("global_norm",
               {{operand({300, 300}), operand({0}), operand({131073}), operand({3})}, {}});
}

TEST_P(CpuKernels, SpecialValues) {
  const double inf = INFINITY, nan = NAN;
  const std::vector<double> special = {0.0,    -0.0,    1.0,  -1.0,  inf,   -inf,  nan,  1e-40,
                                       -1e-40, 1e-45,   88.0, 88.8,  -87.5, -95.0, -103, -110,
                                       3.4e38, -3.4e38, 20.0, -20.0, 1e-4,  -1e-4, 0.5,  1.17e-38};
  const auto n = static_cast<int64_t>(special.size());
  for (const char* name : {"neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "abs",
                           "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh"}) {
    const bool gelu = std::string_view(name).starts_with("gelu");
    Attrs attrs;
    if (gelu)
      attrs = {{"approximate", std::string(std::string_view(name) == "gelu" ? "none" : "tanh")}};
    const Call call(op(gelu ? "gelu" : name), {{Type{f32, {n}}, special}}, attrs);
    const auto wanted = call.wanted();
    for (const KernelEntry& entry : kernels()) {
      if (entry.op != call.node().op->id) continue;
      const auto got = run_kernel(entry, call);
      for (size_t i = 0; i < special.size(); ++i) {
        // What f32 makes of the exact value; a subnormal may be off by one step.
        const float w = static_cast<float>(wanted[0].data[i]);
        const double g = load_as_double(f32, got[0].data(), static_cast<int64_t>(i));
        if (std::isnan(w) || std::isinf(w) || w == 0) {
          EXPECT_TRUE((std::isnan(w) && std::isnan(g)) || g == static_cast<double>(w) ||
                      std::fabs(g - static_cast<double>(w)) < 1.5e-45)
              << name << "(" << special[i] << ") = " << g << ", wanted " << w;
        } else {
          EXPECT_NEAR(g, static_cast<double>(w), 1e-6 * std::fabs(static_cast<double>(w)) + 1.5e-45)
              << name << "(" << special[i] << ")";
        }
      }
    }
  }
  std::vector<double> a, b;
  for (double x : special)
    for (double y : special) {
      a.push_back(x);
      b.push_back(y);
    }
  const Type type{f32, {n * n}};
  for (const char* name : {"add", "sub", "mul", "div", "maximum", "minimum", "equal", "not_equal",
                           "less", "less_equal", "greater", "greater_equal"}) {
    const Call call(op(name), {{type, a}, {type, b}});
    const auto wanted = call.wanted();
    for (const KernelEntry& entry : kernels()) {
      if (entry.op != call.node().op->id) continue;
      const auto got = run_kernel(entry, call);
      const DType t = call.view().out()[0].dtype;
      for (size_t i = 0; i < a.size(); ++i) {
        const float w = static_cast<float>(wanted[0].data[i]);  // one correct rounding
        const double g = load_as_double(t, got[0].data(), static_cast<int64_t>(i));
        EXPECT_TRUE((std::isnan(w) && std::isnan(g)) || g == static_cast<double>(w))
            << name << "(" << a[i] << ", " << b[i] << ") = " << g << ", wanted " << w;
      }
    }
  }
}

TEST_P(CpuKernels, RowsWithInfinitiesAndNan) {
  const double inf = INFINITY;
  for (int64_t width : {5, 40, 2500}) {
    std::vector<std::vector<double>> rows;
    auto row = [&](double fill) { return std::vector<double>(static_cast<size_t>(width), fill); };
    rows.push_back(row(-inf));  // NaN
    rows.push_back(row(-inf));  // one element left by the mask
    rows.back()[3] = 2;
    rows.push_back(row(1));
    rows.back()[2] = inf;
    rows.push_back(row(1));
    rows.back()[4] = NAN;
    rows.push_back(row(-inf));
    rows.back()[4] = NAN;
    rows.push_back(row(-inf));  // the only number stands in the last block
    rows.back().back() = -3;
    rows.push_back(row(-1000));
    rows.back()[0] = 1000;
    std::vector<double> x, targets(rows.size(), 3);
    for (const auto& r : rows) x.insert(x.end(), r.begin(), r.end());
    const auto n = static_cast<int64_t>(rows.size());
    const Type type{f32, {n, width}};
    EXPECT_EQ(check(Call(op("softmax"), {{type, x}})), 1);
    EXPECT_EQ(
        check(Call(op("max"), {{type, x}}, {{"axes", std::vector<int64_t>{1}}, {"keep", false}})),
        1);
    EXPECT_EQ(
        check(Call(op("max"), {{type, x}}, {{"axes", std::vector<int64_t>{0}}, {"keep", false}})),
        1);
    const Call loss(op("cross_entropy"), {{type, x}, {Type{i32, {n}}, targets}},
                    {{"ignore_index", int64_t{-1}}});
    const auto wanted = loss.wanted();
    for (const KernelEntry& entry : kernels()) {
      if (entry.op != Op::cross_entropy) continue;
      const auto got = run_kernel(entry, loss);
      for (int64_t r = 0; r < n; ++r)
        for (size_t k = 0; k < 2; ++k) {
          const double w = wanted[k].data[static_cast<size_t>(r)],
                       g = load_as_double(f32, got[k].data(), r);
          EXPECT_TRUE((std::isnan(w) && std::isnan(g)) || w == g ||
                      std::fabs(g - w) < 1e-6 * std::fabs(w))
              << "row " << r << " result " << k << ": " << g << ", wanted " << w;
        }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuKernels, test::every_isa(), test::isa_of);

/// Expects `message` of every kernel that accepts the call.
void expect_user_error(const Call& call, const std::string& message) {
  int accepting = 0;
  for (const KernelEntry& entry : kernels()) {
    if (entry.op != call.node().op->id || !entry.accepts(call.view()).empty()) continue;
    ++accepting;
    try {
      run_kernel(entry, call);
      ADD_FAILURE() << call.text() << " did not fail";
    } catch (const UserError& e) {
      EXPECT_EQ(e.what(), message);
    }
  }
  EXPECT_GT(accepting, 0) << call.text();
}

TEST(CpuKernelErrors, IdsAndTargetsOutsideTheTable) {
  expect_user_error(Call(op("embedding"), {{Type{f32, {4, 2}}, std::vector<double>(8)},
                                           {Type{i32, {3}}, {0, 4, 1}}}),
                    "[embedding] id 4 at position 1 lies outside the table of 4 rows");
  expect_user_error(
      Call(op("embedding_grad"),
           {{Type{f32, {3, 2}}, std::vector<double>(6)}, {Type{i64, {3}}, {0, 1, -1}}},
           {{"rows", int64_t{4}}}),
      "[embedding_grad] id -1 at position 2 lies outside the table of 4 rows");
  for (const double position : {-1.0, 2.0})
    expect_user_error(
        Call(op("rotary"),
             {{Type{f32, {2, 1, 4}}, std::vector<double>(8)},
              {Type{i32, {2}}, {1, position}},
              {Type{f32, {2, 2}}, std::vector<double>(4)},
              {Type{f32, {2, 2}}, std::vector<double>(4)}},
             {{"interleaved", false}, {"inverse", false}}),
        fmt::format("[rotary] position {} of row 1 lies outside the table of 2 rows", position));
  const std::string message =
      "the target of row 1 is 5; expected a class in [0, 5) or ignore_index -1";
  expect_user_error(Call(op("cross_entropy"),
                         {{Type{f32, {2, 5}}, std::vector<double>(10)}, {Type{i32, {2}}, {-1, 5}}},
                         {{"ignore_index", int64_t{-1}}}),
                    "[cross_entropy] " + message);
  expect_user_error(Call(op("cross_entropy_grad"),
                         {{Type{f32, {2, 5}}, std::vector<double>(10)},
                          {Type{i32, {2}}, {-1, 5}},
                          {Type{f32, {2}}, {0, 0}},
                          {Type{f32, {2}}, {0, 0}}},
                         {{"ignore_index", int64_t{-1}}}),
                    "[cross_entropy_grad] " + message);
}

TEST(CpuKernelErrors, RefusalsHaveAReason) {
  const Call gelu(op("gelu"), {{Type{f64, {4}}, std::vector<double>(4)}},
                  {{"approximate", std::string("tanh")}});
  const Call norm(op("softmax"), {{Type{f64, {4}}, std::vector<double>(4)}});
  for (const Call* call : {&gelu, &norm})
    for (const KernelEntry& entry : kernels()) {
      if (entry.op != call->node().op->id) continue;
      EXPECT_NE(entry.accepts(call->view()).find("f64"), std::string::npos);
    }
}

}  // namespace
}  // namespace brrr::cpu
