// Every device kernel against the meaning of its op in fp64, under the emulation: the samples of
// the op table in f32, bf16 and f16, and odd shapes.

#include <gtest/gtest.h>

#include <set>

#include "backend/kernel_runner.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/cuda_emulator.h"
#include "support/graph_run.h"
#include "support/large_logits.h"
#include "support/long_proof.h"
#include "support/panel_samples.h"

namespace brrr::cuda {
namespace {

using test::Buffer;
using test::Call;

Sample::Operand operand(Shape shape, double low = -1, double high = 1, DType dtype = DType::f32) {
  return {{dtype, std::move(shape)}, low, high};
}

const Backend& backend() {
  static const Backend b = test::emulated_backend();
  return b;
}

/// Calls that are checked together, so that their kernels are compiled together.
class Checks {
 public:
  void add(const OpDef& op, const Sample& sample) {
    if (!test::concerns_panels(op, sample)) calls_.emplace_back(op, sample);
  }
  void add(const char* name, const Sample& sample) { add(op(name), sample); }
  void add(Call call) { calls_.push_back(std::move(call)); }
  /// Every call is accepted by some entry, where `all` is true.
  void run(bool all = true) {
    for (const Call& call : calls_) {
      int accepted = 0;
      for (const KernelEntry* entry : entries_of(call)) {
        entry->prepare(call.view());
        ++accepted;
      }
      EXPECT_TRUE(accepted > 0 || !all) << "no kernel takes " << call.text();
    }
    test::compile_emulated();
    for (const Call& call : calls_) check(call);
  }

 private:
  static std::vector<const KernelEntry*> entries_of(const Call& call) {
    std::vector<const KernelEntry*> list;
    for (const KernelEntry& entry : backend().kernels)
      if (entry.op == call.node().op->id && entry.accepts(call.view()).empty())
        list.push_back(&entry);
    return list;
  }
  static void check(const Call& call) {
    std::vector<RefTensor> wanted;
    for (const KernelEntry* entry : entries_of(call)) {
      SCOPED_TRACE(call.text() + " by " + std::string(entry->name));
      const std::vector<Buffer> got = run_kernel(*entry, call);
      if (wanted.empty()) wanted = call.wanted();
      expect_close(call, got, wanted);
      for (int pair = 0; pair < 2; ++pair)
        EXPECT_EQ(run_kernel(*entry, call, 0, true, pair), got) << "in place, pair " << pair;
    }
  }
  std::vector<Call> calls_;
};

// newton_schulz, fake_quantize and batch_norm are always decomposed; the codes of adamw_8bit have a
// test of their own; regions run on the CPU alone, and so does what only imported files use so far.
bool is_left_out(const OpDef& op) {
  static const std::set<std::string> on_cpu_alone{"min",
                                                  "product",
                                                  "sort",
                                                  "argmax",
                                                  "cumsum",
                                                  "cumprod",
                                                  "gather",
                                                  "scatter",
                                                  "conv",
                                                  "conv_transpose",
                                                  "conv_weight_grad",
                                                  "winograd_weight",
                                                  "max_pool",
                                                  "max_pool_grad",
                                                  "sum_pool",
                                                  "bitcast",
                                                  "gather_elements",
                                                  "segment_sum",
                                                  "segment_max",
                                                  "update_rows",
                                                  "lstm",
                                                  "lstm_grad",
                                                  "gru",
                                                  "gru_grad",
                                                  "all_reduce",
                                                  "reduce_scatter",
                                                  "all_gather",
                                                  "own_shard",
                                                  "block_squares",
                                                  "block_norm"};
  const bool has_no_code = op.op_class == OpClass::elementwise && op.code.empty() &&
                           !op.draws_random && op.id != Op::fused;
  return op.name == "newton_schulz" || op.name == "fake_quantize" || op.name == "adamw_8bit" ||
         op.name.starts_with("batch_norm") || op.runs_regions || has_no_code ||
         on_cpu_alone.contains(op.name);
}

/// Convolutions run on the CPU alone, and so do those with an epilogue, and attention of sequences
/// of different lengths, with a mask by distance or with a window after the query.
bool runs_on_cpu_alone(const OpDef& op, const Sample& sample) {
  for (const char* form : {"starts", "mask_by_distance"})
    if (sample.attrs.get_or<bool>(form, false)) return true;
  if (sample.attrs.find("window_after") != nullptr) return true;
  if (op.id != Op::fused) return false;
  const Graph& body = sample.attrs.get<Region>("body").graph();
  const NodeId product = product_of(body);
  return product != kNoNode && is(body.node(product), Op::conv);
}

TEST(DeviceKernels, EverySampleOfTheOpTable) {
  Checks checks;
  for (const OpDef* d : all_ops())
    if (!is_left_out(*d))
      for (const Sample& sample : test::sampled(d->samples(), 6, d->name))
        if (!runs_on_cpu_alone(*d, sample)) checks.add(*d, sample);
  checks.run();
}

/// Where every f32 operand of a sample may be of 16 bits.
bool has_narrow_samples(const OpDef& d) {
  if (is_left_out(d) || d.name == "cast" || d.name == "fused") return false;
  if (d.op_class == OpClass::optimizer && d.name != "global_norm") return false;  // f32 states
  return d.name != "attention_grad" &&
         !d.name.starts_with("linear_cross_entropy_") &&     // f32 statistics
         d.name != "quantize" && d.name != "scaled_matmul";  // f32 scales
}

void check_samples_in(DType dtype) {
  Checks checks;
  for (const OpDef* d : all_ops()) {
    if (!has_narrow_samples(*d)) continue;
    for (Sample sample : test::sampled(d->samples(), 3, d->name)) {
      bool any = false;
      // Rounded in the middle: DeviceLossHead has a bound for that.
      if (sample.attrs.get_or<bool>("round_logits", false) || runs_on_cpu_alone(*d, sample))
        continue;
      for (Sample::Operand& o : sample.in) {
        if (o.type.dtype != DType::f32) continue;
        if (d->name == "rotary" && &o != &sample.in[0]) continue;  // tables of f32
        o.type.dtype = dtype;
        any = true;
      }
      if (any) checks.add(*d, sample);
    }
  }
  checks.run();
}
TEST(DeviceKernels, EverySampleInBf16) { check_samples_in(DType::bf16); }
TEST(DeviceKernels, EverySampleInF16) { check_samples_in(DType::f16); }

TEST(DeviceKernels, OtherDTypes) {
  Checks checks;
  for (const char* name : {"add", "sub", "mul", "maximum", "minimum", "div"})
    for (DType t :
         {DType::i32, DType::i64, DType::u64, DType::u32, DType::i16, DType::u8, DType::f64})
      checks.add(
          name,
          {{operand({40, 33}, is_unsigned_integer(t) ? 0 : -9, 9, t), operand({33}, 1, 9, t)}, {}});
  for (DType t : {DType::i32, DType::i64, DType::u64, DType::u8})
    checks.add("pow", {{operand({40, 33}, 1, 9, t), operand({33}, 0, 25, t)}, {}});
  for (DType from : kAllDTypes)
    for (DType to : kAllDTypes) {
      // What does not fit integers wraps around or becomes their ends.
      const double high = from == DType::boolean ? 2 : is_integer(to) && !is_fp8(from) ? 6e4 : 100;
      checks.add("cast",
                 {{operand({5, 13}, is_integer(to) ? -high : 0, high, from)}, {{"dtype", to}}});
    }
  for (DType t : {DType::u8, DType::u16, DType::bf16, DType::i64, DType::f64}) {
    checks.add("where", {{operand({65, 33}, 0, 2, DType::boolean), operand({65, 33}, 0, 9, t),
                          operand({33}, 0, 9, t)},
                         {}});
    checks.add("transpose",
               {{operand({5, 7, 16}, 0, 9, t)}, {{"permutation", std::vector<int64_t>{1, 0, 2}}}});
    const AttrValue three = Number(3).as(t);
    checks.add("full", {{}, {{"shape", Shape{7, 5}}, {"value", three}, {"dtype", t}}});
  }
  for (DType t : {DType::i32, DType::f64, DType::i64, DType::u64, DType::i8})
    for (const char* name : {"sum", "max"})
      checks.add(name, {{operand({3, 500}, -90, 90, t)},
                        {{"axes", std::vector<int64_t>{1}}, {"keep", true}}});
  checks.run();
}

TEST(DeviceKernels, BroadcastsOfEveryKind) {
  const std::pair<Shape, Shape> pairs[] = {{{300, 257}, {300, 257}},
                                           {{300, 256}, {256}},
                                           {{300, 257}, {300, 1}},
                                           {{300, 257}, {}},
                                           {{}, {300, 257}},
                                           {{257}, {300, 257}},
                                           {{2, 3, 33, 33}, {33, 33}},
                                           {{2, 3, 33, 33}, {3, 1, 1}},
                                           {{2, 3, 32, 32}, {2, 1, 32, 1}},
                                           {{5, 1, 7}, {1, 6, 1}},
                                           {{1, 1}, {1}},
                                           {{70001}, {1}},
                                           {{0, 4}, {4}},
                                           {{64, 1}, {1, 1023}}};
  Checks checks;
  for (const auto& [a, b] : pairs) {
    for (const char* name : {"sub", "less"}) checks.add(name, {{operand(a), operand(b)}, {}});
    checks.add("where", {{operand(b, 0, 2, DType::boolean), operand(a), operand({})}, {}});
    checks.add("where", {{operand(a, 0, 2, DType::boolean), operand(b), operand(a)}, {}});
  }
  checks.run();
}

TEST(DeviceKernels, RowsOfEveryWidth) {
  Checks checks;
  for (int64_t width : {1, 2, 7, 16, 33, 64, 127, 768, 1023, 1600, 4099, 8192, 16384}) {
    const Shape s{width > 4000 ? 2 : 11, width};
    checks.add("softmax", {{operand(s, -5, 5)}, {}});
    checks.add("softmax_grad", {{operand(s), operand(s, 0, 1)}, {}});
    checks.add("layer_norm",
               {{operand(s), operand({width}, 0.5, 1.5), operand({width})}, {{"eps", 1e-5}}});
    checks.add("layer_norm_grad", {{operand(s), operand(s), operand({width}, 0.5, 1.5),
                                    operand({s[0]}, -0.1, 0.1), operand({s[0]}, 1, 2)},
                                   {}});
    checks.add("rms_norm", {{operand(s), operand({width}, 0.5, 1.5)}, {{"eps", 1e-5}}});
    checks.add("rms_norm_grad",
               {{operand(s), operand(s), operand({width}, 0.5, 1.5), operand({s[0]}, 1, 2)}, {}});
    checks.add("cross_entropy",
               {{operand(s, -5, 5), operand({s[0]}, 0, static_cast<double>(width), DType::i32)},
                {{"ignore_index", int64_t{0}}}});
    checks.add("sum", {{operand(s)}, {{"axes", std::vector<int64_t>{0}}, {"keep", false}}});
  }
  checks.add("layer_norm_grad", {{operand({3001, 48}), operand({3001, 48}), operand({48}, 0.5, 1.5),
                                  operand({3001}, -0.1, 0.1), operand({3001}, 1, 2)},
                                 {}});
  checks.add("sum", {{operand({20000, 10})}, {{"axes", std::vector<int64_t>{0}}, {"keep", false}}});
  checks.add("sum", {{operand({300000})}, {{"axes", std::vector<int64_t>{0}}, {"keep", false}}});
  checks.run();
}

TEST(DeviceKernels, LossesAndGradientsOfLargeLogits) {
  test::check_large_logits(backend(), {3, 1500});
}

TEST(DeviceKernels, ProductsOfOddSizes) {
  Checks checks;
  for (const auto [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {65, 63, 17}, {130, 70, 1}, {2, 129, 100}})
    for (int t = 0; t < 4; ++t) {
      const bool ta = t % 2 == 1, tb = t / 2 == 1;
      checks.add("matmul", {{operand(ta ? Shape{k, m} : Shape{m, k}),
                             operand(tb ? Shape{n, k} : Shape{k, n})},
                            {{"transpose_a", ta}, {"transpose_b", tb}}});
    }
  checks.add("matmul", {{operand({5, 7}, -1, 1, DType::f64), operand({7, 9}, -1, 1, DType::f64)},
                        {{"transpose_a", false}, {"transpose_b", false}}});
  checks.run();
}

/// To the bit: every number of 8 bits, its neighbours, what is too large, infinity and NaN.
TEST(DeviceKernels, QuantisedNumbersAreThoseOfTheDefinition) {
  std::vector<float> x{INFINITY, -INFINITY, NAN, 1e30f, -1e30f, 0.0f, -0.0f, 1e-30f};
  for (uint32_t bits = 0; bits < 256; ++bits)
    for (const float v : {float_from_f8e4m3(static_cast<uint8_t>(bits)),
                          float_from_f8e5m2(static_cast<uint8_t>(bits))})
      for (const float factor : {1.0f, 1.03125f, 1.0625f, 1.09375f, 1.125f, 1.1250001f})
        if (std::isfinite(v)) x.push_back(v * factor);
  while (x.size() % 16 != 0) x.push_back(1.0f);
  const Shape shape{16, static_cast<int64_t>(x.size()) / 16};
  for (const DType t : {f8e4m3, f8e5m2}) {
    Graph g;
    const Value scale = g.input("scale", {}, f32);
    const Value q = quantize(g.input("x", shape, f32), scale, t);
    g.output("q", q);
    g.output("turned", transpose(q, {1, 0}));
    const Graph fused = fuse(g, backend().target());
    EXPECT_EQ(fused.size(), 3u) << "both copies from one launch";
    test::GraphRun run(fused, backend());
    test::compile_emulated();
    for (const double s : {1.0, 0.25, 16.0}) {
      reference::Tensors in{{"scale", {{f32, {}}, {s}}}, {"x", {{f32, shape}, {}}}};
      in["x"].data.assign(x.begin(), x.end());
      const auto got = run.run(in);
      for (size_t i = 0; i < x.size(); ++i) {
        const double wanted = rounded_to(t, x[i] / s), y = got.at("q").data[i];
        const auto columns = static_cast<size_t>(shape[1].size());
        const double turned = got.at("turned").data[i % columns * 16 + i / columns];
        EXPECT_TRUE(y == wanted || (std::isnan(y) && std::isnan(wanted)))
            << x[i] << " became " << y;
        EXPECT_TRUE(turned == y || std::isnan(y)) << i;
        EXPECT_EQ(std::signbit(y), std::signbit(wanted) && !std::isnan(wanted)) << x[i];
      }
    }
  }
}

/// Scales of tensors of every size: of few elements and of more than the blocks take at once.
TEST(DeviceKernels, ScalesOfEverySize) {
  Checks checks;
  for (const Shape& s :
       {Shape{1}, Shape{3}, Shape{2047}, Shape{5, 7, 9}, Shape{300, 257}, Shape{1100, 2048}})
    for (const DType in : {f32, bf16})
      for (const DType t : {f8e4m3, f8e5m2})
        checks.add("quantize_scale", {{operand(s, -3, 2.5, in)}, {{"dtype", t}}});
  checks.run();
}

TEST(DeviceKernels, EmbeddingsOfManyTokens) {
  Checks checks;
  for (DType t : {DType::f32, DType::bf16})
    for (const auto [tokens, rows, width] :
         {std::array<int64_t, 3>{5000, 300, 24}, {1000, 700, 4}, {100, 1, 33}, {0, 5, 8}}) {
      checks.add("embedding", {{operand({rows, width}, -1, 1, t),
                                operand({tokens}, 0, static_cast<double>(rows), DType::i32)},
                               {}});
      checks.add(
          "embedding_grad",
          {{operand({tokens, width}, -1, 1, t),
            operand({tokens}, 0, static_cast<double>(std::min<int64_t>(rows, 290)), DType::i64)},
           {{"rows", rows}}});
    }
  checks.run();
}

TEST(DeviceKernels, RunsAlongEveryAxis) {
  Checks checks;
  for (const DType t : {DType::f32, DType::bf16, DType::i64, DType::u8})
    for (const DType id : {DType::i32, DType::i64})
      for (const int64_t axis : {0, 1, 2})
        for (const Shape& x : {Shape{7, 5, 8}, Shape{3, 300, 33}, Shape{1, 6, 1}})
          checks.add("gather", {{operand(x, -9, 9, t),
                                 operand({2, 11}, -static_cast<double>(x.size(int(axis))),
                                         static_cast<double>(x.size(int(axis))), id)},
                                {{"axis", axis}}});
  checks.run();
}

TEST(DeviceKernels, RotaryOfEveryWidth) {
  Checks checks;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool interleaved : {false, true})
      for (const auto& [width, columns, heads] :
           {std::array<int64_t, 3>{2, 2, 1}, {80, 20, 3}, {64, 64, 12}, {130, 66, 2}})
        checks.add(
            "rotary",
            {{operand({2, 9, heads, width}, -1, 1, t), operand({2, 1}, 0, 50, DType::i32),
              operand({50, columns / 2}), operand({50, columns / 2})},
             {{"interleaved", interleaved}, {"inverse", width == 64}, {"heads", (heads + 1) / 2}}});
  checks.run();
}

TEST(DeviceKernels, PositionsOutsideTheTableAreRefused) {
  const Call call(op("rotary"), {{operand({4, 2, 8}), operand({4}, 5, 6, DType::i32),
                                  operand({5, 4}), operand({5, 4})},
                                 {{"interleaved", false}, {"inverse", false}}});
  for (const KernelEntry& entry : backend().kernels)
    if (entry.op == Op::rotary) {
      EXPECT_THROW(run_kernel(entry, call), UserError);
    }
}

TEST(DeviceKernels, IdsOutsideTheTableAreRefused) {
  for (const char* name : {"embedding", "embedding_grad"}) {
    const bool grad = std::string_view(name) == "embedding_grad";
    const Call call(op(name),
                    {{operand(grad ? Shape{4, 8} : Shape{5, 8}), operand({4}, 5, 6, DType::i32)},
                     grad ? Attrs{{"rows", int64_t{5}}} : Attrs{}});
    for (const KernelEntry& entry : backend().kernels)
      if (name_of(entry.op) == name) {
        EXPECT_THROW(run_kernel(entry, call), UserError) << name;
      }
  }
  for (const double id : {5.0, -6.0}) {
    const Call call(op("gather"), {{operand({5, 8}), operand({4}, id, id + 1, DType::i32)},
                                   {{"axis", int64_t{0}}}});
    for (const KernelEntry& entry : backend().kernels)
      if (entry.op == Op::gather) {
        EXPECT_THROW(run_kernel(entry, call), UserError) << id;
      }
  }
}

}  // namespace
}  // namespace brrr::cuda
