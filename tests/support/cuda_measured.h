#pragma once
// Graphs on a GPU of this machine by chosen ways: how far their results are from the reference's,
// and how long they take by the device's clock. Every figure is printed at once as a line of JSON,
// so that it is known even if what follows crashes.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/node_plan.h"
#include "backend/reference/interpreter.h"
#include "base/clock.h"
#include "runtime/engine.h"
#include "support/tensors.h"

namespace brrr::test {

/// What JSON has for a number; Python reads NaN and Infinity, too.
inline std::string json_number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{:.6g}", x);
}

/// {"family": "copies", "case": "1 MiB", "ms": 0.02}
inline void tell(std::string_view family, std::string_view what,
                 const std::vector<std::pair<std::string_view, double>>& figures) {
  std::cout << fmt::format(R"({{"family": "{}", "case": "{}")", family, what);
  for (const auto& [name, value] : figures)
    std::cout << fmt::format(R"(, "{}": {})", name, json_number(value));
  std::cout << "}" << std::endl;
}

/// The backend with one way for every node that has a way of that name. `taken`: how many had.
inline Backend by_way(Backend backend, const std::string& way, const std::shared_ptr<int>& taken) {
  for (KernelEntry& e : backend.kernels)
    e.prepare = [prepare = e.prepare, way, taken](const NodeView& view) -> std::unique_ptr<Kernel> {
      auto kernel = prepare(view);
      for (const cuda::NodePlan& plan : dynamic_cast<cuda::CudaKernel&>(*kernel).ways())
        if (plan.name == way) {
          ++*taken;
          return std::make_unique<cuda::CudaKernel>(view, std::vector{plan});
        }
      return kernel;
    };
  return backend;
}

/// A graph whose inputs are states that no run writes over.
class GraphOnGpu {
 public:
  GraphOnGpu(const Graph& graph, const Backend& backend) : graph_(graph), engine_(backend) {
    program_ = engine_.add(decompose(graph, backend.target()));
    engine_.allocate();
  }

  void write(const reference::Tensors& inputs) {
    for (const StateInfo& s : engine_.states()) {
      const RefTensor& t = inputs.at(s.name);
      std::vector<std::byte> bytes(static_cast<size_t>(t.type.bytes()));
      write_tensor(t, bytes.data());
      engine_.write_state(s.name, bytes);
    }
  }
  /// Random numbers in [-1, 1), a block of them over and over: zeros would take less power, and so
  /// a higher clock, than a model does. No stride of a tensor is a multiple of the block.
  void fill() {
    Random random(7);
    constexpr size_t kNumbers = (size_t{1} << 20) + 7;
    for (const StateInfo& s : engine_.states()) {
      std::vector<std::byte> numbers(kNumbers * bytes_of(s.type.dtype));
      for (size_t i = 0; i < kNumbers; ++i)
        store_from_double(s.type.dtype, numbers.data(), static_cast<int64_t>(i),
                          random.uniform(-1, 1));
      engine_.fill_state(s.name, [&](std::span<std::byte> to) {
        for (size_t done = 0; done < to.size(); done += numbers.size())
          std::memcpy(to.data() + done, numbers.data(), std::min(numbers.size(), to.size() - done));
      });
    }
  }

  /// Returns the seconds that the device took.
  double run() {
    Timeline timeline;
    engine_.run(program_, &timeline);
    double sum = 0;
    for (const TimelineRecord& r : timeline.records) sum += r.seconds;
    return sum;
  }
  /// The median of about so many seconds of runs, in milliseconds.
  double ms(double about = 0.2) {
    run();  // libraries load
    run();  // the first as a recording
    std::vector<double> times;
    for (const Stopwatch watch; times.size() < 5 || watch.seconds() < about;)
      times.push_back(1e3 * run());
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  /// Seconds of a whole run by the host's clock: whether a larger case is for this device.
  double wall_seconds() {
    run();
    const Stopwatch watch;
    run();
    return watch.seconds();
  }

  std::vector<std::byte> output(std::string_view name) {
    std::vector<std::byte> room;
    const auto bytes = engine_.read_output(program_, name, room);
    return {bytes.begin(), bytes.end()};
  }

  /// Runs on random inputs; the distance of each output from the reference's as a part of the
  /// length of the latter, the largest of all outputs.
  double error(double low = -1, double high = 1) {
    reference::Tensors inputs = random_inputs(graph_, 5, low, high, 5);
    for (auto& [name, t] : inputs)
      for (double& x : t.data) x = rounded_to(t.type.dtype, x);
    write(inputs);
    run();
    const auto wanted = reference::evaluate(graph_, inputs);
    double worst = 0;
    for (const Output& o : graph_.outputs()) {
      const RefTensor& w = wanted.at(o.name);
      const auto bytes = output(o.name);
      double apart = 0, length = 0;
      for (size_t i = 0; i < w.data.size(); ++i) {
        const double got = load_as_double(w.type.dtype, bytes.data(), static_cast<int64_t>(i));
        apart += (got - w.data[i]) * (got - w.data[i]);
        length += w.data[i] * w.data[i];
      }
      const double e = std::sqrt(apart / std::max(length, 1e-300));
      if (!(e <= worst)) worst = e;  // NaN stays
    }
    return worst;
  }

 private:
  Graph graph_;
  Engine engine_;
  size_t program_ = 0;
};

}  // namespace brrr::test
