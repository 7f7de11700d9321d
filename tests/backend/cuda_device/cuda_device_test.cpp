// The device that runs plans, on a driver that tests/support/fake_cuda plays: memory, copies,
// recordings and cuBLASLt's products as the library documents its arguments. What a real GPU does
// with them only a GPU can say.

#include <array>
#include <cstring>
#include <optional>

#include "backend/cuda/device.h"
#include "backend/cuda_device/on_fake_gpu.h"
#include "base/clock.h"
#include "ops/ops.h"
#include "passes/weights/derived_weight.h"
#include "support/attention_attrs.h"

namespace brrr::cuda {
namespace {

TEST_F(OnFakeGpu, IsFoundAndDescribed) {
  const LiveGpus live = live_gpus();
  ASSERT_EQ(live.reason, "");
  ASSERT_EQ(live.gpus.size(), 1u);
  EXPECT_EQ(live.gpus[0].model, "Fake H200");
  EXPECT_EQ(live.gpus[0].description.sm, 90);
  EXPECT_EQ(live.gpus[0].description.multiprocessors, 132);
  EXPECT_EQ(missing_libraries(), "");
  EXPECT_EQ(missing_extras(), "");
  EXPECT_EQ(backend_named("cuda:0").name, "cuda:sm_90");
  EXPECT_THROW(backend_named("cuda:1"), UserError);
}

TEST_F(OnFakeGpu, MemoryIsZeroedCopiedAndGivenBack) {
  const int64_t before = fake_counts().live_blocks;
  {
    const auto device = open_gpu(0, live_gpus().gpus[0].description);
    const int64_t bytes = (int64_t{9} << 20) + 4;
    std::byte* data = device->allocate(bytes);
    std::vector<uint8_t> host(static_cast<size_t>(bytes), 7);
    device->copy_out(host.data(), data, bytes);
    EXPECT_EQ(std::count(host.begin(), host.end(), 0), bytes);
    for (const int64_t n : {int64_t{1}, int64_t{4096}, bytes}) {  // small ones are pinned
      for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(n));
      device->copy_in(data, host.data(), n);
      std::vector<uint8_t> back(static_cast<size_t>(n));
      device->copy_out(back.data(), data, n);
      EXPECT_TRUE(std::equal(back.begin(), back.end(), host.begin())) << n;
    }
    std::byte* other = device->allocate(64);
    device->copy(other, data, 64);
    std::vector<uint8_t> back(64);
    device->copy_out(back.data(), other, 64);
    EXPECT_TRUE(std::equal(back.begin(), back.end(), host.begin()));
    EXPECT_THROW(device->allocate(int64_t{5} << 30), UserError);
    device->release(data, bytes);
    device->release(other, 64);
  }
  EXPECT_EQ(fake_counts().live_blocks, before) << "the device kept memory";
}

// What comes from the host does so beside what runs, in whatever order the streams get on: nothing
// is overwritten that is still to be read, nothing is read that has not come.
TEST_F(OnFakeGpu, CopiesRunBesideKernelsAndOverwriteNothing) {
  for (const bool copies_first : {true, false}) {
    fake_set_order(copies_first);
    const auto device = open_gpu(0, live_gpus().gpus[0].description);
    constexpr int64_t kBytes = 64, kSteps = 7;
    std::byte* in = device->allocate(kBytes);
    std::byte* seen = device->allocate(kBytes * kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      // The host goes on at once with the buffer that it has handed over.
      std::vector<uint8_t> host(kBytes, static_cast<uint8_t>(step + 1));
      device->copy_in(in, host.data(), kBytes);
      device->copy(seen + step * kBytes, in, kBytes);  // what a step reads of its inputs
    }
    std::vector<uint8_t> back(kBytes * kSteps);
    device->copy_out(back.data(), seen, kBytes * kSteps);
    for (int64_t i = 0; i < kBytes * kSteps; ++i)
      ASSERT_EQ(back[static_cast<size_t>(i)], i / kBytes + 1) << "copies first: " << copies_first;
    // More than the buffers hold at once.
    std::vector<uint8_t> large(static_cast<size_t>(13 << 20) + 5), other(large.size());
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint8_t>(i * 7 + i / 4096);
    std::byte* place = device->allocate(static_cast<int64_t>(large.size()));
    device->copy_in(place, large.data(), static_cast<int64_t>(large.size()));
    device->copy_out(other.data(), place, static_cast<int64_t>(large.size()));
    EXPECT_TRUE(other == large);
    for (std::byte* p : {in, seen, place}) device->release(p, 0);
  }
  fake_set_order(true);
}

/// The transfer of the next inputs does not wait for the step that runs.
TEST_F(OnFakeGpu, TheNextCopyNeedNotWaitForTheStep) {
  fake_set_order(true);
  const auto device = open_gpu(0, live_gpus().gpus[0].description);
  std::byte* in = device->allocate(8);
  int done_before = -1, steps = 0;
  const std::vector<uint8_t> host(8, 1);
  device->copy_in(in, host.data(), 8);
  device->synchronise();
  fake_queue([&] { ++steps; }, nullptr);  // a step that takes its time
  device->copy_in(in, host.data(), 8);
  fake_on_copy_in([&] { done_before = steps; });
  device->synchronise();
  fake_on_copy_in({});
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(done_before, 0) << "the copy came after the step";
  device->release(in, 8);
}

// Row-major products of every transposition, batch and dtype as column-major calls.
TEST_F(OnFakeGpu, ProductsAreThoseOfTheReference) {
  int checked = 0;
  for (const DType in : {DType::f32, DType::bf16, DType::f16})
    for (const DType out : {in, DType::f32})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const Shape& batch_a : {Shape{}, Shape{3}, Shape{2, 3}})
            for (const Shape& batch_b : {Shape{}, Shape{3}}) {
              const auto with = [](Shape batch, int64_t r, int64_t c) {
                batch.push_back(r);
                batch.push_back(c);
                return batch;
              };
              Graph g;
              const Value a = g.input("a", with(batch_a, ta ? 7 : 5, ta ? 5 : 7), in);
              const Value b = g.input("b", with(batch_b, tb ? 3 : 7, tb ? 7 : 3), in);
              const Value y = matmul(a, b, ta, tb, out);
              Product p;
              if (!as_product(NodeView(g, y.id.node), {LaunchArg::in(0), LaunchArg::in(1)},
                              LaunchArg::out(0), p)
                       .empty())
                continue;
              g.output("y", y);
              expect_as_reference(g, products(), 7);
              ++checked;
            }
  EXPECT_GE(checked, 80);
}

TEST_F(OnFakeGpu, Tf32RoundsTheOperands) {
  Graph g;
  const Value a = g.input("a", {1, 1}, f32), b = g.input("b", {1, 1}, f32);
  g.output("exact", matmul(a, b));
  g.output("rounded", call1(Op::matmul, {a, b},
                            {{"transpose_a", false}, {"transpose_b", false}, {"tf32", true}}));
  const Type t{f32, {1, 1}};
  const auto got = run(g, {{"a", {t, {1 + 0x1p-12}}}, {"b", {t, {3}}}}, products());
  EXPECT_EQ(got.at("exact").data[0], 3 + 3 * 0x1p-12);
  EXPECT_EQ(got.at("rounded").data[0], 3);
}

TEST_F(OnFakeGpu, ProductsOf8BitsHaveTheirScales) {
  for (const DType a : {f8e4m3, f8e5m2})
    for (const DType b : {f8e4m3, f8e5m2})
      for (const DType out : {bf16, f32})
        for (const bool bias : {false, true}) {
          if (bias && out == f32) continue;  // rounded by a kernel of our own: EveryWayOfEveryNode
          Graph g;
          std::vector<Value> in{g.input("a", {32, 48}, a), g.input("b", {16, 48}, b),
                                g.input("sa", {}, f32), g.input("sb", {}, f32)};
          if (bias) in.push_back(g.input("bias", {16}, out));
          g.output("y", call(Op::scaled_matmul, in,
                             {{"dtype", out}, {"fast_accumulation", a == b}, {"bias", bias}})[0]);
          MatmulCall call;
          std::vector<LaunchArg> places(in.size(), LaunchArg::in(0));
          const std::string refusal = as_product(NodeView(g, static_cast<NodeId>(g.size() - 1)),
                                                 places, LaunchArg::out(0), call.product);
          EXPECT_EQ(refusal.empty(), a == f8e4m3 || b == f8e4m3) << refusal;
          if (refusal.empty()) expect_as_reference(g, products(), 48);
        }
}

TEST_F(OnFakeGpu, EpiloguesAreThoseOfTheReference) {
  const auto check = [&](DType dtype,
                         const std::function<void(Graph&, Value, Value, Value, Value)>& build) {
    Graph body;
    const Value x = body.input("a0", {5, 7}, dtype), w = body.input("a1", {7, 16}, dtype);
    const Value z = body.input("a2", {5, 16}, dtype), b = body.input("a3", {16}, dtype);
    build(body, x, w, z, b);
    Graph g;
    std::vector<ValueId> in;
    for (NodeId id : body.inputs())
      in.push_back(g.input(body.input_name(id), body.type({id, 0})).id);
    const NodeId fused = g.add(op("fused"), in, {{"body", Region(body)}});
    for (uint32_t i = 0; i < g.node(fused).results.size(); ++i)
      g.output(fmt::format("y{}", i), g.value(fused, i));
    expect_as_reference(g, products(), 7);
  };
  {
    Graph body, g;
    const std::vector<Value> x{body.input("a0", {16, 32}, f8e4m3),
                               body.input("a1", {48, 32}, f8e5m2), body.input("a2", {}, f32),
                               body.input("a3", {}, f32)};
    const Value z = body.input("a4", {16, 48}, f32);
    body.output("0",
                z + brrr::call(Op::scaled_matmul, x,
                               {{"dtype", f32}, {"fast_accumulation", false}, {"bias", false}})[0]);
    std::vector<ValueId> in;
    for (NodeId id : body.inputs())
      in.push_back(g.input(body.input_name(id), body.type({id, 0})).id);
    g.output("y", g.value(g.add(op("fused"), in, {{"body", Region(body)}})));
    expect_as_reference(g, products(), 32);
  }
  const Attrs tanh_gelu{{"approximate", std::string("tanh")}};
  for (const DType t : {DType::f32, DType::bf16})
    check(t, [](Graph& g, Value x, Value w, Value z, Value) { g.output("0", matmul(x, w) + z); });
  for (const DType t : {DType::bf16, DType::f16}) {
    check(t, [](Graph& g, Value x, Value w, Value, Value) { g.output("0", gelu(matmul(x, w))); });
    check(t, [](Graph& g, Value x, Value w, Value, Value b) {
      const Value y = linear(x, w, b);
      g.output("0", gelu(y));
      g.output("1", y);
    });
    check(t, [&](Graph& g, Value x, Value w, Value z, Value) {
      g.output("0", call1(Op::gelu_grad, {matmul(x, w), z}, tanh_gelu));
    });
  }
}

// Forward and backward, dense and packed, as cuDNN is asked for them.
TEST_F(OnFakeGpu, AttentionByCudnnIsThatOfTheReference) {
  const int64_t before = fake_counts().library_calls;
  int64_t calls = 0;
  for (const DType t : {DType::bf16, DType::f16})
    for (const bool causal : {true, false})
      for (const auto& [queries, keys, width] :
           {std::array<int64_t, 3>{9, 9, 8}, {5, 12, 16}, {12, 5, 8}, {1, 1, 64}}) {
        Attrs attrs = test::attention_attrs(3, 3, width, width);
        attrs.set("causal", causal);
        Attrs grad_attrs = attrs;
        grad_attrs.set("dlse", false);
        Graph g;
        const Shape rows{2, 3, queries, width}, others{2, 3, keys, width};
        const Value q = g.input("q", rows, t), k = g.input("k", others, t),
                    v = g.input("v", others, t), dy = g.input("dy", rows, t);
        const auto y = call(Op::attention, std::vector{q, k, v}, attrs);
        const auto d = call(Op::attention_grad, std::vector{q, k, v, y[0], y[1], dy}, grad_attrs);
        for (size_t i = 0; i < 2; ++i) g.output(fmt::format("y{}", i), y[i]);
        for (size_t i = 0; i < 3; ++i) g.output(fmt::format("d{}", i), d[i]);
        expect_as_reference(g, by_library("cudnn"), 4 * keys);
        calls += 2;
      }
  EXPECT_EQ(fake_counts().library_calls, before + calls);
}

/// What cuDNN compiled is shared by calls that differ in their addresses, and in nothing else.
TEST_F(OnFakeGpu, AttentionsOfTwoScalesAreTwo) {
  Graph g;
  std::vector<Value> in;
  for (const char* name : {"q", "k", "v"}) in.push_back(g.input(name, {2, 3, 7, 8}, DType::bf16));
  for (const double scale : {0.25, 4.0}) {
    Attrs attrs = test::attention_attrs(3, 3, 8, 8);
    attrs.set("causal", true);
    attrs.set("scale", scale);
    g.output(fmt::format("y{}", scale), call(Op::attention, in, attrs)[0]);
  }
  expect_as_reference(g, by_library("cudnn"), 28);
}

TEST_F(OnFakeGpu, AlgorithmsAreChosenOnce) {
  ::unsetenv("BRRR_AUTOTUNE");
  Graph g;
  g.output("y", matmul(g.input("a", {4, 6}, DType::f32), g.input("b", {6, 3}, DType::f32)));
  expect_as_reference(g, products(), 6);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_ / "cuda")) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  const std::string text = read_file(files[0]);
  EXPECT_NE(text.find("f32 4x3x6 nn"), std::string::npos) << text;
  expect_as_reference(g, products(), 6);
  EXPECT_EQ(read_file(files[0]), text);
}

TEST_F(OnFakeGpu, CallsAreOneGraph) {
  Graph g;
  const Value w = g.input("w", {2, 2}, DType::f32, InputKind::state);
  const Value y = matmul(g.input("a", {2, 2}, DType::f32), w);
  g.update(w, y);
  g.output("corner", slice(reshape(y, {4}), 0, 0, 1));
  Engine engine(products());
  const size_t p = engine.add(g);
  engine.expect_calls(3);
  const int64_t forecast = engine.forecast().total();
  engine.allocate();
  EXPECT_EQ(engine.arena_bytes(), forecast);
  const std::vector<float> identity{1, 0, 0, 1}, twice{2, 0, 0, 2}, thrice{3, 0, 0, 3};
  engine.write_state("w", std::as_bytes(std::span(identity)));
  const auto step = [&] {
    std::vector<Call> calls;
    for (const auto* a : {&twice, &thrice, &identity}) {
      calls.push_back({p, {}, {"corner"}});
      calls.back().set("a", std::span<const float>(*a));
    }
    return engine.run(calls);
  };
  const auto before = fake_counts();
  EXPECT_EQ(step(), (std::vector<std::vector<float>>{{2}, {6}, {6}}));
  EXPECT_EQ(fake_counts().graphs, before.graphs) << "libraries may load when they first run";
  EXPECT_EQ(step(), (std::vector<std::vector<float>>{{12}, {36}, {36}}));
  EXPECT_EQ(step(), (std::vector<std::vector<float>>{{72}, {216}, {216}}));
  const auto after = fake_counts();
  EXPECT_EQ(after.graphs - before.graphs, 1);
  EXPECT_EQ(after.graph_launches - before.graph_launches, 2);
  EXPECT_EQ(after.copies_in - before.copies_in, 3);
}

// Parameters and derived weights that a later program brings are filled before it runs.
TEST_F(OnFakeGpu, WeightsThatComeLaterAreFilledOnTheDevice) {
  const Type square{DType::f32, {2, 2}};
  const auto product_of = [&](const std::string& first, const std::string& second) {
    Graph form;
    const Value left = form.input("a0", square), right = form.input("a1", square);
    form.output("0", matmul(left, right));
    return DerivedWeight{{first, second}, Region(std::move(form))};
  };
  const auto reads = [&](const std::optional<DerivedWeight>& weight) {
    Graph g;
    const Value w = weight ? derived_input(g, *weight) : g.parameter("u", {2, 2});
    g.output("y", matmul(g.input("x", {2, 2}, DType::f32), w));
    return g;
  };
  Engine engine(products());
  engine.allocate();
  const size_t unwritten = engine.add(reads(std::nullopt));
  EXPECT_THROW(engine.run(unwritten), InternalError);
  const auto list =
      std::make_shared<WeightList>("test", nullptr, [](std::string_view name, std::span<float> to) {
        const float x = name == "u" ? 2 : name == "v" ? 3 : 5;
        std::ranges::copy(std::array<float, 4>{x, 0, 0, x}, to.begin());
      });
  for (const char* name : {"u", "v", "w"}) list->add({name, DType::f32, {2, 2}, {}});
  engine.use_weights(list);
  const std::array<float, 4> identity{1, 0, 0, 1};
  const auto corner = [&](size_t program) {
    Call call{program, {}, {}};
    call.set("x", std::span<const float>(identity));
    engine.run(std::span(&call, 1));
    std::vector<std::byte> room;
    float y = 0;
    std::memcpy(&y, engine.read_output(program, "y", room).data(), sizeof y);
    return y;
  };
  EXPECT_EQ(corner(unwritten), 2);
  const size_t later = engine.add(reads(product_of("v", "w")));
  EXPECT_EQ(corner(later), 15);
  // Its source "u" is in the engine, and the engine makes it again when "u" is written.
  Graph both = reads(product_of("u", "u"));
  both.output("u", matmul(both.input("z", {2, 2}, DType::f32), both.parameter("u", {2, 2})));
  const size_t refreshed = engine.add(both);
  engine.set_input<float>(refreshed, "z", identity);
  EXPECT_EQ(corner(refreshed), 4);
  const std::array<float, 4> seven{7, 0, 0, 7};
  engine.write_state("u", std::as_bytes(std::span(seven)));
  EXPECT_EQ(corner(refreshed), 49);
  EXPECT_EQ(corner(later), 15);
}

/// Every kernel takes a millisecond of this GPU's clock, and so does a copy.
TEST_F(OnFakeGpu, TimelinesAreByTheDevicesClock) {
  Graph g;
  const Value w = g.input("w", {2, 2}, DType::f32, InputKind::state);
  const Value y = matmul(matmul(g.input("a", {2, 2}, DType::f32), w), w);
  g.update(w, y);
  g.output("corner", slice(reshape(y, {4}), 0, 0, 1));
  const std::vector<float> twice{2, 0, 0, 2};
  struct Mode {
    const char* variable;
    const char* value;
    int64_t graphs, graph_launches;
  };
  for (const Mode& mode : {Mode{"BRRR_CUDA_GRAPHS", "1", 1, 2}, {"BRRR_CUDA_GRAPHS", "0", 0, 0}}) {
    SCOPED_TRACE(mode.value);
    ::setenv(mode.variable, mode.value, 1);
    Engine engine(products());
    const size_t p = engine.add(g);
    engine.allocate();
    ::unsetenv(mode.variable);
    engine.write_state("w", std::as_bytes(std::span(twice)));
    const auto before = fake_counts();
    float wanted = 2;
    Timeline timeline;
    for (size_t run = 0; run < 3; ++run) {
      const double start = now_seconds();
      engine.set_input<float>(p, "a", twice);
      engine.run(p, &timeline);
      wanted = 2 * wanted * wanted;
      EXPECT_EQ(engine.output_scalar(p, "corner"), wanted);
      ASSERT_EQ(timeline.runs.size(), run + 1);
      const TimelineRun& r = timeline.runs.back();
      EXPECT_GE(r.start, start);
      ASSERT_EQ(r.last - r.first, engine.program(p).plan().copies.size() + 2);
      EXPECT_NEAR(r.seconds, 1e-3 * static_cast<double>(r.last - r.first), 1e-3);
      double end = timeline.records[r.first].start;
      EXPECT_GE(end, r.start);
      for (size_t i = r.first; i < r.last; ++i) {
        const TimelineRecord& record = timeline.records[i];
        EXPECT_EQ(record.node, timeline.records[i - r.first].node);
        EXPECT_EQ(record.start, end);
        EXPECT_NEAR(record.seconds, 1e-3, 1e-6);
        end = record.start + record.seconds;
      }
      EXPECT_LE(end, r.start + r.seconds + 1e-9);
    }
    const auto after = fake_counts();
    EXPECT_EQ(after.graphs - before.graphs, mode.graphs);
    EXPECT_EQ(after.graph_launches - before.graph_launches, mode.graph_launches);
  }
}

/// Then it is the host that knows when a kernel has ended.
TEST_F(OnFakeGpu, TimelinesByWaitingWhereEveryKernelIsWaitedFor) {
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  Graph g;
  g.output("y", matmul(g.input("a", {2, 2}, DType::f32), g.input("b", {2, 2}, DType::f32)));
  Engine engine(products());
  const size_t p = engine.add(g);
  engine.allocate();
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
  Timeline timeline;
  engine.run(p, &timeline);
  ASSERT_EQ(timeline.records.size(), 1u);
  EXPECT_NE(timeline.records[0].seconds, 1e-3) << "by the device's clock";
  EXPECT_GE(timeline.runs[0].seconds, timeline.records[0].seconds);
}

}  // namespace
}  // namespace brrr::cuda
