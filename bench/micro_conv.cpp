// Convolutions of pictures with channels last against oneDNN's, interleaved in one run: the layers
// of ResNet-50 with weights as inference has them (packed before), and those of CIFAR's ResNet-20
// with their two derivatives (plain weights, packed in each call). oneDNN chooses the layout of the
// weights, and in the column "blocked" that of the pictures, too; nobody counts reorders of those.
// With --winograd, the 3 x 3 layers by Winograd's algorithm against our plain sum instead.
//
//   micro_conv [--cpu-time] [--reps N] [--batch N] [--winograd]
//       Table in Markdown: GFLOP/s from the median. --cpu-time: one thread, timed by the processor
//       time it got, for machines that are busy with other work.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/threads/parallel.h"
#include "ops/ops.h"
#include "ops/spatial/conv.h"
#include "ops/spatial/winograd.h"

namespace brrr {
namespace {

struct Layer {
  int64_t size, channels, outputs, kernel, stride;
  int count;  // how often the network has it
};
constexpr Layer kResNet50[] = {
    {224, 3, 64, 7, 2, 1},    {56, 64, 64, 1, 1, 1},    {56, 64, 64, 3, 1, 3},
    {56, 64, 256, 1, 1, 4},   {56, 256, 64, 1, 1, 2},   {56, 256, 128, 1, 1, 1},
    {56, 128, 128, 3, 2, 1},  {28, 128, 512, 1, 1, 4},  {56, 256, 512, 1, 2, 1},
    {28, 512, 128, 1, 1, 3},  {28, 128, 128, 3, 1, 3},  {28, 512, 256, 1, 1, 1},
    {28, 256, 256, 3, 2, 1},  {14, 256, 1024, 1, 1, 6}, {28, 512, 1024, 1, 2, 1},
    {14, 1024, 256, 1, 1, 5}, {14, 256, 256, 3, 1, 5},  {14, 1024, 512, 1, 1, 1},
    {14, 512, 512, 3, 2, 1},  {7, 512, 2048, 1, 1, 3},  {14, 1024, 2048, 1, 2, 1},
    {7, 2048, 512, 1, 1, 2},  {7, 512, 512, 3, 1, 2},
};
constexpr Layer kResNet20[] = {
    {32, 16, 16, 3, 1, 6}, {32, 16, 32, 3, 2, 1}, {16, 32, 32, 3, 1, 5},
    {16, 32, 64, 3, 2, 1}, {8, 64, 64, 3, 1, 5},
};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::vector<float> v(static_cast<size_t>(count));
  RngStream rng({seed, 0}, 0);
  for (float& x : v) x = 2.0f * rng.next_uniform() - 1.0f;
  return v;
}

/// One of our nodes, with memory.
class OurNode {
 public:
  /// `make` builds the node of inputs.
  explicit OurNode(const std::function<Value(Graph&)>& make) {
    const Value y = make(graph_);
    const NodeView view(graph_, y.id.node);
    for (const KernelEntry& entry : cpu::cpu_kernels()) {
      if (entry.op != view.node().op->id || !entry.refusal(view).empty()) continue;
      kernel_ = entry.prepare(view);
      break;
    }
    uint32_t seed = 1;
    for (const Type& t : view.in) {
      operands_.push_back(random_floats((t.bytes() + 3) / 4, seed++));
      in_.push_back(operands_.back().data());
    }
    result_.resize(static_cast<size_t>(view.out()[0].bytes() / 4));
    out_.push_back(result_.data());
    scratch_.resize(static_cast<size_t>(kernel_->scratch_bytes() + 64));
  }
  void run() {
    const auto address = reinterpret_cast<uintptr_t>(scratch_.data());
    kernel_->run({in_, out_, scratch_.data() + (64 - address % 64) % 64});
  }

 private:
  Graph graph_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<std::vector<float>> operands_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  std::vector<float> result_;
  std::vector<std::byte> scratch_;
};

enum class Direction { forward, data, weights };

class OneDnnConv {
 public:
  OneDnnConv(const Layer& l, int64_t batch, Direction direction, bool blocked) {
    using dnnl::memory;
    constexpr auto f32 = memory::data_type::f32;
    const auto tag = blocked ? memory::format_tag::any : memory::format_tag::nhwc;
    const int64_t pad = l.kernel / 2, out = (l.size + 2 * pad - l.kernel) / l.stride + 1;
    const memory::desc x({batch, l.channels, l.size, l.size}, f32, tag),
        w({l.outputs, l.channels, l.kernel, l.kernel}, f32, memory::format_tag::any),
        y({batch, l.outputs, out, out}, f32, tag);
    const memory::dims strides{l.stride, l.stride}, pads{pad, pad};
    constexpr auto direct = dnnl::algorithm::convolution_direct;
    const dnnl::convolution_forward::desc forward(dnnl::prop_kind::forward_training, direct, x, w,
                                                  y, strides, pads, pads);
    const dnnl::convolution_forward::primitive_desc hint(forward, engine_);
    const auto add = [&](int argument, const memory::desc& d) {
      memories_.emplace(argument, memory(d, engine_));
      auto* data = static_cast<float*>(memories_.at(argument).get_data_handle());
      std::fill(data, data + d.get_size() / sizeof(float), 0.5f);
    };
    if (direction == Direction::forward) {
      add(DNNL_ARG_SRC, hint.src_desc());
      add(DNNL_ARG_WEIGHTS, hint.weights_desc());
      add(DNNL_ARG_DST, hint.dst_desc());
      primitive_ = dnnl::convolution_forward(hint);
    } else if (direction == Direction::data) {
      const dnnl::convolution_backward_data::primitive_desc d(
          {direct, x, w, y, strides, pads, pads}, engine_, hint);
      add(DNNL_ARG_DIFF_SRC, d.diff_src_desc());
      add(DNNL_ARG_WEIGHTS, d.weights_desc());
      add(DNNL_ARG_DIFF_DST, d.diff_dst_desc());
      primitive_ = dnnl::convolution_backward_data(d);
    } else {
      const dnnl::convolution_backward_weights::primitive_desc d(
          {direct, x, w, y, strides, pads, pads}, engine_, hint);
      add(DNNL_ARG_SRC, d.src_desc());
      add(DNNL_ARG_DIFF_WEIGHTS, d.diff_weights_desc());
      add(DNNL_ARG_DIFF_DST, d.diff_dst_desc());
      primitive_ = dnnl::convolution_backward_weights(d);
    }
  }
  void run() {
    primitive_.execute(stream_, memories_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> memories_;
};

bool use_cpu_time = false;
int reps = 7;

double timer() {
  if (!use_cpu_time) return now_seconds();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Median seconds of a call of each, interleaved.
std::vector<double> medians(const std::vector<std::function<void()>>& calls, double flops) {
  const int inner = static_cast<int>(std::clamp(4e8 / flops, 1.0, 200.0));
  std::vector<std::vector<double>> all(calls.size());
  for (int r = -1; r < reps; ++r)
    for (size_t i = 0; i < calls.size(); ++i) {
      const double start = timer();
      for (int k = 0; k < inner; ++k) calls[i]();
      if (r >= 0) all[i].push_back((timer() - start) / inner);
    }
  std::vector<double> result;
  for (auto& seconds : all) {
    std::ranges::sort(seconds);
    result.push_back(seconds[seconds.size() / 2]);
  }
  return result;
}

Value our_node(Graph& g, const Layer& l, int64_t batch, Direction direction, bool panels,
               int64_t winograd = 0) {
  const int64_t pad = l.kernel / 2, out = (l.size + 2 * pad - l.kernel) / l.stride + 1;
  const Windows windows{{l.stride, l.stride}, {1, 1}, {pad, pad, pad, pad}, true};
  const Shape picture{batch, l.size, l.size, l.channels}, result{batch, out, out, l.outputs},
      weight{l.outputs, l.channels, l.kernel, l.kernel};
  if (direction == Direction::data)
    return conv_transpose(g.input("dy", result, DType::f32), g.input("w", weight, DType::f32),
                          {l.size, l.size}, windows, 1);
  const Value x = g.input("x", picture, DType::f32);
  if (direction == Direction::weights)
    return conv_weight_grad(x, g.input("dy", result, DType::f32), {l.kernel, l.kernel}, windows, 1);
  if (!panels) return conv(x, g.input("w", weight, DType::f32), std::nullopt, windows, 1);
  const int64_t size = winograd != 0 ? ops::winograd_size(winograd) : l.kernel;
  Type matrix{DType::f32, {l.outputs, size * size * l.channels}};
  matrix.storage.layout = Layout::transposed_panels;
  return conv_by_matrix(x, g.input("w", matrix), {l.kernel, l.kernel}, std::nullopt, windows, 1,
                        winograd);
}

void table(const char* title, std::span<const Layer> layers, int64_t batch, Direction direction,
           bool panels) {
  fmt::print("\n{}, batch {}, {} thread{}, {}\n\n", title, batch, thread_count(),
             thread_count() == 1 ? "" : "s", cpu::isa_name(cpu::best_isa()));
  fmt::print("| layer | times | ours GFLOP/s | oneDNN nhwc | oneDNN blocked | ours / best |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  double sums[3] = {};
  for (const Layer& l : layers) {
    const int64_t pad = l.kernel / 2, out = (l.size + 2 * pad - l.kernel) / l.stride + 1;
    const double flops = 2.0 * static_cast<double>(batch * out * out * l.outputs * l.channels) *
                         static_cast<double>(l.kernel * l.kernel);
    OurNode ours([&](Graph& g) { return our_node(g, l, batch, direction, panels); });
    OneDnnConv plain(l, batch, direction, false), blocked(l, batch, direction, true);
    const auto s =
        medians({[&] { ours.run(); }, [&] { plain.run(); }, [&] { blocked.run(); }}, flops);
    for (size_t i = 0; i < 3; ++i) sums[i] += s[i] * l.count;
    fmt::print(
        "| {0}x{0}x{1}, {2}x{2}/{3} -> {4} | {5} | {6:.0f} | {7:.0f} | {8:.0f} | {9:.2f} |\n",
        l.size, l.channels, l.kernel, l.stride, l.outputs, l.count, flops / s[0] * 1e-9,
        flops / s[1] * 1e-9, flops / s[2] * 1e-9, std::min(s[1], s[2]) / s[0]);
    std::fflush(stdout);
  }
  fmt::print("| all, ms | | {:.1f} | {:.1f} | {:.1f} | {:.2f} |\n", sums[0] * 1e3, sums[1] * 1e3,
             sums[2] * 1e3, std::min(sums[1], sums[2]) / sums[0]);
}

void winograd_table(const char* title, std::span<const Layer> layers, int64_t batch) {
  fmt::print("\n3 x 3 layers of {}, batch {}, {} thread{}, {}\n\n", title, batch, thread_count(),
             thread_count() == 1 ? "" : "s", cpu::isa_name(cpu::best_isa()));
  fmt::print(
      "| layer | plain sum, ms | GFLOP/s | tiles of 2, ms | tiles of 4, ms | plain / better |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const Layer& l : layers) {
    if (l.kernel != 3 || l.stride != 1) continue;
    const double flops = 18.0 * static_cast<double>(batch * l.size * l.size) *
                         static_cast<double>(l.outputs * l.channels);
    OurNode plain([&](Graph&g) { return our_node(g, l, batch, Direction::forward, true); }),
        two([&](Graph&g) { return our_node(g, l, batch, Direction::forward, true, 2); }),
        four([&](Graph&g) { return our_node(g, l, batch, Direction::forward, true, 4); });
    const auto s = medians({[&] { plain.run(); }, [&] { two.run(); }, [&] { four.run(); }}, flops);
    fmt::print("| {0}x{0}x{1} -> {2} | {3:.2f} | {4:.0f} | {5:.2f} | {6:.2f} | {7:.2f} |\n", l.size,
               l.channels, l.outputs, s[0] * 1e3, flops / s[0] * 1e-9, s[1] * 1e3, s[2] * 1e3,
               s[0] / std::min(s[1], s[2]));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace brrr

int main(int argc, char** argv) {
  using namespace brrr;
  int64_t batch = 1;
  bool winograd = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--cpu-time") use_cpu_time = true;
    if (word == "--winograd") winograd = true;
    if (word == "--reps" && i + 1 < argc) reps = std::max(1, std::atoi(argv[++i]));
    if (word == "--batch" && i + 1 < argc) batch = std::max(1, std::atoi(argv[++i]));
  }
  if (use_cpu_time) set_thread_count(1);
  if (winograd) {
    winograd_table("ResNet-50", kResNet50, batch);
    winograd_table("ResNet-20", kResNet20, batch);
    return 0;
  }
  table("ResNet-50, forward", kResNet50, batch, Direction::forward, true);
  for (const auto& [title, direction] : {std::pair("forward", Direction::forward),
                                         {"derivative in x", Direction::data},
                                         {"derivative in w", Direction::weights}})
    table(fmt::format("ResNet-20, {}", title).c_str(), kResNet20, 32, direction, false);
}
