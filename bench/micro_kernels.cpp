// Every CPU kernel but matrix multiplication: microseconds, GB/s of the bytes that the op's cost
// counts, and the ratio to a copy of as many bytes measured in the same run, right before the
// kernel.
//
//   micro_kernels [--reps N] [--filter TEXT]     a table in Markdown

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/threads/parallel.h"
#include "ops/ops.h"

namespace brrr {
namespace {

struct Case {
  const char* op;
  std::vector<Sample::Operand> in;
  Attrs attrs;
};

Sample::Operand f(Shape shape, double low = -1, double high = 1) {
  return {{DType::f32, std::move(shape)}, low, high};
}
Sample::Operand i(Shape shape, double low, double high) {
  return {{DType::i32, std::move(shape)}, low, high};
}

/// The kernels of a training step at width C, hidden width 4C, rows B*T, heads of 64, vocabulary V.
std::vector<Case> cases(int64_t rows, int64_t c, int64_t t, int64_t heads, int64_t v) {
  const int64_t h = 4 * c, b = rows / t;
  const Shape x{rows, c}, wide{rows, h}, scores{b, heads, t, t};
  const Attrs tanh_form{{"approximate", std::string("tanh")}};
  const Attrs dropout{{"p", 0.1}, {"stream", int64_t{1}}};
  const Attrs ignore{{"ignore_index", int64_t{-1}}};
  auto axes = [](std::vector<int64_t> a) { return Attrs{{"axes", std::move(a)}, {"keep", false}}; };
  auto permute = [](std::vector<int64_t> p) { return Attrs{{"permutation", std::move(p)}}; };
  std::vector<Case> out = {
      {"add", {f(x), f(x)}, {}},
      {"add", {f(wide), f({h})}, {}},
      {"mul", {f(wide), f({})}, {}},
      {"where", {{{DType::boolean, {t, t}}, 0, 2}, f(scores), f({})}, {}},
      {"exp", {f(wide)}, {}},
      {"tanh", {f(wide)}, {}},
      {"gelu", {f(wide, -4, 4)}, tanh_form},
      {"gelu_grad", {f(wide), f(wide, -4, 4)}, tanh_form},
      {"silu", {f(wide, -4, 4)}, {}},
      {"silu_grad", {f(wide), f(wide, -4, 4)}, {}},
      {"dropout", {f(x), i({2}, 0, 99)}, dropout},
      {"softmax", {f(scores)}, {}},
      {"softmax_grad", {f(scores), f(scores, 0, 1)}, {}},
      {"layer_norm", {f(x), f({c}), f({c})}, {{"eps", 1e-5}}},
      {"layer_norm_grad", {f(x), f(x), f({c}), f({rows}), f({rows})}, {}},
      {"rms_norm", {f(x), f({c})}, {{"eps", 1e-5}}},
      {"rms_norm_grad", {f(x), f(x), f({c}), f({rows})}, {}},
      {"rotary",
       {f({rows, heads, c / heads}), i({rows}, 0, static_cast<double>(t)), f({t, c / heads / 2}),
        f({t, c / heads / 2})},
       {{"interleaved", false}, {"inverse", false}}},
      {"cross_entropy", {f({rows, v}), i({rows}, 0, static_cast<double>(v))}, ignore},
      {"cross_entropy_grad",
       {f({rows, v}), i({rows}, 0, static_cast<double>(v)), f({rows}, 10, 12), f({rows})},
       ignore},
      {"sum", {f(wide)}, axes({0})},
      {"sum", {f(wide)}, axes({1})},
      {"transpose", {f({b, t, heads, c / heads})}, permute({0, 2, 1, 3})},
      {"transpose", {f(wide)}, permute({1, 0})},
      {"slice", {f({rows, 3 * c})}, {{"axis", int64_t{1}}, {"start", c}, {"size", c}}},
      {"embedding", {f({v, c}), i({rows}, 0, static_cast<double>(v))}, {}},
      {"embedding_grad", {f(x), i({rows}, 0, static_cast<double>(v))}, {{"rows", v}}},
      {"global_norm", {f({v, c})}, {}},
      {"cast", {f(wide)}, {{"dtype", DType::bf16}}},
  };
  Case adamw{"adamw", {f({}), i({}, 1, 9), f({})}, {}};
  for (int part = 0; part < 4; ++part) adamw.in.push_back(f({12 * c, c}, 0, 1));
  adamw.attrs = {{"beta1", 0.9},
                 {"beta2", 0.95},
                 {"eps", 1e-8},
                 {"weight_decay", 0.1},
                 {"decays", std::vector<int64_t>{1}}};
  out.push_back(std::move(adamw));
  return out;
}

struct Memory {
  std::vector<std::byte> bytes;
  std::byte* data = nullptr;
  explicit Memory(int64_t n) : bytes(static_cast<size_t>(n) + 64) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    data = bytes.data() + (64 - address % 64) % 64;
  }
};

/// Microseconds of the fastest repetition: on a machine that others use too, every other statistic
/// measures them.
double fastest_us(int reps, const std::function<void()>& run) {
  run();
  double start = now_seconds();
  run();
  // Short kernels are called often enough for the clock.
  const double once = std::max(now_seconds() - start, 1e-7);
  const int inner = std::clamp(static_cast<int>(2e-4 / once), 1, 1000);
  double best = 1e30;
  for (int r = 0; r < reps; ++r) {
    start = now_seconds();
    for (int k = 0; k < inner; ++k) run();
    best = std::min(best, (now_seconds() - start) / inner);
  }
  return best * 1e6;
}

/// GB/s of reading and writing `bytes` in all, by memcpy on the whole team.
double copy_gbps(int reps, double bytes) {
  const auto half = static_cast<int64_t>(bytes / 2) / 64 * 64;
  Memory from(half), to(half);
  const double us = fastest_us(reps, [&] {
    parallel_for(half / 64, 2048, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data + begin * 64, from.data + begin * 64,
                  static_cast<size_t>(end - begin) * 64);
    });
  });
  return static_cast<double>(2 * half) / us * 1e-3;
}

void measure(const Backend& backend, const Case& c, int reps) {
  Graph g;
  std::vector<ValueId> ids;
  for (const auto& o : c.in)
    ids.push_back(g.input("x" + std::to_string(ids.size()), o.type.shape, o.type.dtype).id);
  const NodeId id = g.add(op(c.op), ids, c.attrs);
  const NodeView view(g, id);
  const auto choice = backend.choose(view);
  BRRR_CHECK(choice.entry != nullptr, "no kernel for {}", c.op);
  std::vector<Memory> memory;
  memory.reserve(32);
  std::vector<const void*> in;
  std::vector<void*> out;
  RngStream rng({1, 2}, 3);
  for (const auto& o : c.in) {
    memory.emplace_back(o.type.bytes());
    for (int64_t k = 0; k < o.type.shape.elements(); ++k)
      store_from_double(o.type.dtype, memory.back().data, k,
                        o.low + (o.high - o.low) * static_cast<double>(rng.next_uniform()));
    in.push_back(memory.back().data);
  }
  for (const Type& t : view.out()) {
    memory.emplace_back(t.bytes());
    out.push_back(memory.back().data);
  }
  const auto kernel = choice.entry->prepare(view);
  Memory scratch(kernel->scratch_bytes());
  const KernelArgs args{in, out, scratch.data};
  const Cost cost = cost_of(g, id);
  const double bytes = cost.bytes_read + cost.bytes_written;
  const double copy = copy_gbps(reps, bytes);
  const double us = fastest_us(reps, [&] { kernel->run(args); });
  const double gbps = bytes / us * 1e-3;
  std::string shapes;
  for (const Type& t : view.in)
    if (shapes.size() < 40) shapes += (shapes.empty() ? "" : ", ") + t.shape.str();
  fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} |\n", c.op, shapes, us, gbps, copy,
             gbps / copy);
  std::fflush(stdout);
}

int main_program(int argc, char** argv) {
  int reps = 200;
  std::string filter;
  for (int a = 1; a + 1 < argc; a += 2) {
    if (std::string_view(argv[a]) == "--reps") reps = std::stoi(argv[a + 1]);
    if (std::string_view(argv[a]) == "--filter") filter = argv[a + 1];
  }
  const Backend backend = cpu::cpu_backend();
  fmt::print("{}, {} threads\n\n", backend.name, thread_count());
  const struct {
    const char* title;
    std::vector<Case> list;
  } groups[] = {{"GPT-2 124M, batch 4 x 256", cases(1024, 768, 256, 12, 50257)},
                {"character model, 12 x 64, width 128", cases(768, 128, 64, 4, 65)}};
  for (const auto& group : groups) {
    fmt::print(
        "{}:\n\n| op | operands | us | GB/s | copy GB/s | ratio |\n|---|---|---|---|---|---|\n",
        group.title);
    for (const Case& c : group.list)
      if (std::string_view(c.op).find(filter) != std::string_view::npos) measure(backend, c, reps);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace brrr

int main(int argc, char** argv) { return brrr::main_program(argc, argv); }
