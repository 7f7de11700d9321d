// The loss head in chunks against the meaning of its ops in fp64: chunks cut anywhere, every dtype,
// both layouts of the weights; that forward and backward together give the bits of one after the
// other; and that the logits are never held at once.

#include "backend/cpu/products/loss_head.h"

#include <gtest/gtest.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/target.h"
#include "backend/kernel_runner.h"
#include "base/panels.h"
#include "base/threads/thread_team.h"
#include "passes/pipeline.h"
#include "runtime/program.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

struct Case {
  int64_t rows, width, classes;
  bool transpose_w = true;
  DType dtype = DType::f32;
  std::optional<DType> dw_dtype = std::nullopt;
  bool dlse = false, wide_targets = false;
  int64_t ignore_index = -1;
  double scale = 1;  // of x
};

class LossHeadKernels : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, LossHeadKernels, test::every_isa(), test::isa_of);

using HeadOperands = std::vector<std::pair<Type, std::vector<double>>>;

HeadOperands head_operands(const Case& c) {
  RngStream rng({3, 4}, 5);
  auto tensor = [&](Shape shape, DType dtype, double low, double high) {
    std::vector<double> v(static_cast<size_t>(shape.elements()));
    for (double& x : v) x = low + (high - low) * static_cast<double>(rng.next_uniform());
    return std::pair{Type{dtype, shape}, v};
  };
  HeadOperands in{
      tensor({c.rows, c.width}, c.dtype, -c.scale, c.scale),
      tensor(c.transpose_w ? Shape{c.classes, c.width} : Shape{c.width, c.classes}, c.dtype, -1, 1),
      tensor({c.rows}, c.wide_targets ? DType::i64 : i32, -1, static_cast<double>(c.classes))};
  for (double& t : in[2].second) {
    t = std::floor(t);
    if (t < 0) t = static_cast<double>(c.ignore_index);
  }
  return in;
}

Attrs attrs_of(const Case& c) {
  return {{"ignore_index", c.ignore_index}, {"transpose_w", c.transpose_w}};
}

Call forward_call(const Case& c) {
  return Call(op("linear_cross_entropy"), head_operands(c), attrs_of(c));
}

void add_rows(HeadOperands& in, const Case& c, uint32_t seed) {
  RngStream rng({seed, 4}, 5);
  std::vector<double> v(static_cast<size_t>(c.rows));
  for (double& x : v) x = 2 * static_cast<double>(rng.next_uniform()) - 1;
  in.push_back({Type{f32, {c.rows}}, v});
}

Attrs with_gradients(const Case& c) {
  Attrs attrs = attrs_of(c);
  if (c.dw_dtype) attrs.set("dw_dtype", *c.dw_dtype);
  return attrs;
}

// With the lse that the forward kernel gives, or the exact one.
Call backward_call(const Case& c, const Buffer* lse = nullptr) {
  HeadOperands in = head_operands(c);
  std::vector<double> values = forward_call(c).wanted()[1].data;
  if (lse != nullptr)
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = load_as_double(f32, lse->data(), static_cast<int64_t>(i));
  in.push_back({Type{f32, {c.rows}}, values});
  add_rows(in, c, 8);
  if (c.dlse) add_rows(in, c, 9);
  Attrs attrs = with_gradients(c);
  attrs.set("dlse", c.dlse);
  return Call(op("linear_cross_entropy_grad"), in, attrs);
}

Call step_call(const Case& c) {
  HeadOperands in = head_operands(c);
  add_rows(in, c, 8);
  return Call(op("linear_cross_entropy_step"), in, with_gradients(c));
}

KernelEntry chunked(const Call& call, int64_t chunk) {
  for (const KernelEntry& entry : loss_head_kernels())
    if (entry.op == call.node().op->id) {
      EXPECT_EQ(entry.accepts(call.view()), "") << call.text();
    }
  return {call.node().op->id, "chunked", [](const NodeView&) { return std::string(); },
          [chunk](const NodeView& node) { return loss_head(node, chunk); }};
}

double largest(const std::vector<double>& values) {
  double top = 0;
  for (double x : values) top = std::max(top, std::fabs(x));
  return top;
}

// What rounding is relative to. An error of a logit, which may be as large as the largest logit
// says, is a relative error of its probability; dx and dw are sums of dlogits w and dlogits x,
// where the dlogits are rounded to the dtype of x.
std::vector<double> magnitudes_of(const Call& call, const Case& c) {
  const auto &x = call.values[0], &w = call.values[1];
  double top = 1;
  std::vector<double> of_class(static_cast<size_t>(c.classes));
  double of_row = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> e(static_cast<size_t>(c.classes));
    double total = 0;
    for (int64_t v = 0; v < c.classes; ++v) {
      double logit = 0;
      for (int64_t k = 0; k < c.width; ++k)
        logit += x[static_cast<size_t>(r * c.width + k)] *
                 w[static_cast<size_t>(c.transpose_w ? v * c.width + k : k * c.classes + v)];
      top = std::max(top, std::fabs(logit));
      e[static_cast<size_t>(v)] = std::exp(logit);
      total += std::exp(logit);
    }
    double sum = 0;  // |dlogits| <= |dloss + dlse| <= 2
    for (int64_t v = 0; v < c.classes; ++v) {
      const bool target = call.values[2][static_cast<size_t>(r)] == static_cast<double>(v);
      const double d = 2 * (e[static_cast<size_t>(v)] / total + (target ? 1 : 0));
      sum += d;
      of_class[static_cast<size_t>(v)] += d;
    }
    of_row = std::max(of_row, sum);
  }
  const double statistic = top + std::log(static_cast<double>(c.classes));
  const double dx = of_row * largest(w) * top;
  double dw = largest(of_class) * largest(x) * top;
  if (c.dw_dtype) dw *= test::tolerance(c.dtype, 1) / test::tolerance(*c.dw_dtype, 1);
  const std::string& name = call.node().op->name;
  if (name == "linear_cross_entropy") return {statistic, statistic};
  if (name == "linear_cross_entropy_grad") return {dx, dw};
  return {statistic, statistic, dx, dw};
}

void check(const Call& call, const Case& c, int64_t chunk) {
  SCOPED_TRACE(fmt::format("{}, chunks of {}", call.text(), chunk));
  const KernelEntry entry = chunked(call, chunk);
  set_thread_count(2);
  const std::vector<Buffer> got = run_kernel(entry, call);
  expect_close(call, got, call.wanted(), magnitudes_of(call, c));
  for (int threads : {1, 3}) {
    set_thread_count(threads);
    EXPECT_EQ(run_kernel(entry, call), got) << "with " << threads << " threads";
  }
  EXPECT_EQ(run_kernel(entry, call, 1), got) << "with other alignment";
}

void check_all(const Case& c, std::initializer_list<int64_t> chunks) {
  for (int64_t chunk : chunks) {
    check(forward_call(c), c, chunk);
    check(backward_call(c), c, chunk);
    if (!c.dlse) check(step_call(c), c, chunk);
  }
}

TEST_P(LossHeadKernels, SizesOfEveryKind) {
  std::vector<Case> cases;
  for (bool transpose_w : {true, false})
    for (const auto& [rows, width, classes] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                               {5, 3, 1},
                                               {7, 16, 13},
                                               {1, 5, 2},
                                               {33, 64, 257},
                                               {50, 7, 1031},
                                               {37, 24, 101}})
      cases.push_back(
          {.rows = rows, .width = width, .classes = classes, .transpose_w = transpose_w});
  for (const Case& c : test::sampled_if_sanitized(cases, 5, "sizes")) check_all(c, {1, 3, 16, 64});
}

/// The call with its weights, operand 1, in panels; those of dx in the same ones if `turned`.
Call in_panels(const Call& call, const Case& c, bool turned = false) {
  HeadOperands in;
  for (size_t i = 0; i < call.values.size(); ++i)
    in.emplace_back(call.graph.type(call.node().operands[i]), call.values[i]);
  in[1].first.storage.layout = right_layout(c.transpose_w);
  if (call.node().op->is_gradient) {
    in.push_back(in[1]);
    in.back().first.storage.layout = right_layout(c.transpose_w == turned);
  }
  return Call(*call.node().op, in, call.node().attrs);
}

// The bits of the same weights as they lie: classes of any number, more than are summed at once.
TEST_P(LossHeadKernels, WeightsInPanels) {
  std::vector<Case> cases;
  for (const bool transpose_w : {true, false})
    for (const auto& [rows, width, classes] : {std::tuple<int64_t, int64_t, int64_t>{1, 32, 1},
                                               {1, 64, 101},
                                               {37, 32, 45},
                                               {50, 96, 1024},
                                               {20, 32, 8192 + 65}})
      cases.push_back({.rows = rows,
                       .width = width,
                       .classes = classes,
                       .transpose_w = transpose_w,
                       .dtype = DType::bf16,
                       .dw_dtype = DType::f32});
  for (const Case& c : test::sampled_if_sanitized(cases, 4, "panels"))
    for (const Call& plain : {forward_call(c), backward_call(c), step_call(c)}) {
      SCOPED_TRACE(plain.text());
      const Call panels = in_panels(plain, c);
      for (const int64_t chunk : {16, 40}) {
        const auto wanted = run_kernel(chunked(plain, chunk), plain);
        EXPECT_EQ(run_kernel(chunked(panels, chunk), panels), wanted);
        EXPECT_EQ(run_kernel(chunked(panels, chunk), panels, 2), wanted) << "other alignment";
      }
    }
}

// Weights in the panels of x w alone: dx has the bits of weights as they lie where the classes are
// one part of its sum, and rounds otherwise.
TEST_P(LossHeadKernels, WeightsInPanelsThatAreTurned) {
  for (const bool transpose_w : {true, false})
    for (const auto& [rows, width, classes, parts] :
         {std::tuple<int64_t, int64_t, int64_t, int>{1, 32, 1, 1},
          {37, 32, 45, 1},
          {50, 96, 1024, 1},
          {20, 32, 8192 + 65, 1},
          {9, 8192, 290, 2}}) {
      const Case c{.rows = rows,
                   .width = width,
                   .classes = classes,
                   .transpose_w = transpose_w,
                   .dtype = DType::bf16,
                   .dw_dtype = DType::f32};
      for (const Call& plain : {backward_call(c), step_call(c)}) {
        SCOPED_TRACE(plain.text());
        const Call panels = in_panels(plain, c, true);
        const auto wanted = run_kernel(chunked(plain, 16), plain);
        const auto got = run_kernel(chunked(panels, 16), panels);
        if (parts == 1) {
          EXPECT_EQ(got, wanted);
        } else {
          expect_close(plain, got, plain.wanted(), magnitudes_of(plain, c));
        }
        set_thread_count(3);
        EXPECT_EQ(run_kernel(chunked(panels, 16), panels, 2), got) << "other alignment and threads";
        set_thread_count(2);
      }
    }
}

TEST_P(LossHeadKernels, SixteenBits) {
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool transpose_w : {true, false})
      for (const std::optional<DType> dw : {std::optional<DType>(), std::optional(DType::f32)}) {
        Case c{.rows = 37, .width = 24, .classes = 101, .transpose_w = transpose_w, .dtype = dtype};
        c.dw_dtype = dw;
        check_all(c, {5, 16, 40});
        c.rows = 5;
        c.width = 3;
        c.classes = 1;
        check_all(c, {2});
        c.rows = 19;
        c.width = 65;
        c.classes = 1031;
        check_all(c, {16});
      }
}

TEST_P(LossHeadKernels, OptionsOfTheOps) {
  check_all({.rows = 21, .width = 8, .classes = 37, .dlse = true}, {4, 32});
  check_all({.rows = 21, .width = 8, .classes = 37, .dtype = DType::bf16, .dlse = true}, {4});
  check_all({.rows = 21, .width = 8, .classes = 37, .wide_targets = true, .ignore_index = -100},
            {8});
  check_all({.rows = 21, .width = 8, .classes = 7, .ignore_index = 3}, {8});
  // Probabilities near 1 and near 0.
  check_all({.rows = 21, .width = 16, .classes = 37, .scale = 12}, {8});
}

TEST_P(LossHeadKernels, NoRows) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c{.rows = 0, .width = 8, .classes = 37, .dtype = dtype};
    check_all(c, {16});
  }
}

TEST_P(LossHeadKernels, AllRowsIgnored) {
  const Case c{.rows = 9, .width = 4, .classes = 21};
  for (Call call : {step_call(c), backward_call(c)}) {
    std::fill(call.values[2].begin(), call.values[2].end(), -1);
    check(call, c, 4);
    const auto got = run_kernel(chunked(call, 4), call);
    for (size_t k : {got.size() - 2, got.size() - 1})
      for (size_t i = 0; i < got[k].size(); ++i) ASSERT_EQ(got[k].data()[i], std::byte{0});
  }
}

// Forward and backward together, or one after the other; and the chunk changes only in which order
// the rows are summed into dw.
TEST_P(LossHeadKernels, TheSameBitsTogetherAndApart) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{.rows = 45, .width = 24, .classes = 203, .dtype = dtype};
    const Call forward = forward_call(c), step = step_call(c);
    const auto together = run_kernel(chunked(step, 16), step);
    const auto first = run_kernel(chunked(forward, 16), forward);
    const Call backward = backward_call(c, &first[1]);
    const auto second = run_kernel(chunked(backward, 16), backward);
    EXPECT_EQ(together[0], first[0]);
    EXPECT_EQ(together[1], first[1]);
    EXPECT_EQ(together[2], second[0]);
    EXPECT_EQ(together[3], second[1]);
    for (int64_t chunk : {1, 7, 45}) {
      const auto other = run_kernel(chunked(step, chunk), step);
      for (size_t k : {0, 1, 2}) EXPECT_EQ(other[k], together[k]) << "chunks of " << chunk;
    }
  }
}

TEST(LossHeadErrors, TargetsOutsideTheClasses) {
  Case c{.rows = 5, .width = 4, .classes = 21};
  for (Call call : {forward_call(c), backward_call(c), step_call(c)}) {
    call.values[2] = {0, 20, -1, 21, 3};
    const std::string name = call.node().op->name;
    try {
      run_kernel(chunked(call, 2), call);
      ADD_FAILURE() << name;
    } catch (const UserError& e) {
      EXPECT_EQ(std::string(e.what()),
                "[" + name +
                    "] the target of row 3 is 21; expected a class in [0, 21) or ignore_index -1");
    }
  }
}

TEST(LossHeadErrors, RefusalsHaveAReason) {
  const Call wide = forward_call({.rows = 2, .width = 3, .classes = 4, .dtype = DType::f64});
  const Call none = forward_call({.rows = 2, .width = 3, .classes = 0});
  for (const KernelEntry& entry : loss_head_kernels()) {
    if (entry.op != Op::linear_cross_entropy) continue;
    EXPECT_EQ(entry.accepts(wide.view()), "dtype f64: only f32, bf16 and f16");
    EXPECT_EQ(entry.accepts(none.view()), "no classes, or rows without elements");
  }
}

// -- memory
// ------------------------------------------------------------------------------------------

TEST(LossHeadMemory, ChunksAreFewAndNeverAllRows) {
  for (int64_t rows : {0, 1, 128, 255, 256, 257, 300, 768, 1000, 1024, 4096, 65536})
    for (int64_t classes : {1, 65, 50257, 50304, 128256, 1000003}) {
      SCOPED_TRACE(fmt::format("{} rows of {}", rows, classes));
      const int64_t chunk = loss_head_chunk(rows, classes);
      EXPECT_GE(chunk, 1);
      EXPECT_TRUE(rows <= 256 || chunk < rows);
      EXPECT_TRUE(chunk <= 144 || (chunk - 15) * classes * 4 <= int64_t{64} << 20);
      EXPECT_TRUE(rows <= 256 || chunk >= 64);
    }
  EXPECT_EQ(loss_head_chunk(1024, 50257), 256);
  EXPECT_EQ(loss_head_chunk(4096, 50257), 320);
  EXPECT_EQ(loss_head_chunk(1024, 50257, true), 512);
  EXPECT_EQ(loss_head_chunk(4096, 50257, true), 1024);
}

int64_t temporary_bytes(int64_t rows, int64_t classes, DType precision,
                        const std::set<std::string>& disabled) {
  Graph g;
  Value x = g.parameter("x", {4, rows / 4, 16}), w = g.parameter("w", {classes, 16});
  Value targets = g.input("targets", {4, rows / 4}, i32);
  g.output("loss", sum(cross_entropy(matmul(x, w, false, true), targets).losses, {0, 1}));
  PipelineOptions options;
  options.loss = "loss";
  options.precision = precision;
  options.disabled = disabled;
  const Backend backend = cpu_backend();
  const Program program(run_pipeline(g, backend.target(), options), backend);
  return program.plan().temporary_bytes + program.plan().constant_bytes;
}

TEST(LossHeadMemory, OfATrainingStepNeverHoldsTheLogits) {
  constexpr int64_t kRows = 32768, kClasses = 20001, kLogits = kRows * kClasses * 4;
  for (DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const std::set<std::string>& off : {std::set<std::string>{}, {"join_loss_head"}}) {
      const int64_t bytes = temporary_bytes(kRows, kClasses, precision, off);
      EXPECT_LT(bytes, kLogits / 4) << name_of(precision);
      // Twice the rows: only x and its gradient grow.
      EXPECT_LT(temporary_bytes(2 * kRows, kClasses, precision, off), bytes + kLogits / 20);
      EXPECT_LT(temporary_bytes(272, kClasses, precision, off), 272 * kClasses * 4);
    }
  EXPECT_GT(temporary_bytes(kRows, kClasses, DType::f32, {"match_loss_head"}), kLogits);
}

}  // namespace
}  // namespace brrr::cpu
