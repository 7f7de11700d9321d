// Batches of one's own over memory of one's own, without a copy into tensors: a line through
// points.
#include <brrr/brrr.h>

#include <cstdio>
#include <vector>

int main() try {
  constexpr int64_t kRows = 32, kBatches = 64;
  std::vector<float> x(kRows * kBatches), y(kRows * kBatches);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 100) / 50 - 1;
    y[i] = 3 * x[i] - 2;
  }
  brrr::Graph g;
  const auto in = g.input("x", brrr::f32, {kRows, 1}), target = g.input("y", brrr::f32, {kRows, 1});
  g.output("loss", brrr::mean_squared_error(brrr::linear(in, 1, "line"), target));

  std::vector<brrr::Batch> batches;
  for (int64_t i = 0; i < kBatches; ++i)
    batches.push_back({{"x", brrr::Tensor::borrow<float>({kRows, 1}, &x[i * kRows])},
                       {"y", brrr::Tensor::borrow<float>({kRows, 1}, &y[i * kRows])}});
  auto run = brrr::Run::from_env({.accumulate = 2});
  auto [step, loader] = run.prepare(g, brrr::AdamW{.lr = 0.1, .weight_decay = 0.0}, batches);
  for (const auto& batch : loader) step(batch);
  for (int epoch = 1; epoch < 20; ++epoch)
    for (size_t i = 0; i + 1 < batches.size(); i += 2) step({{batches[i], batches[i + 1]}});
  std::printf("y = %.2f x + %.2f after %lld steps\n", run.parameter("line.weight").as<float>()[0],
              run.parameter("line.bias").as<float>()[0], static_cast<long long>(run.steps_done()));
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
