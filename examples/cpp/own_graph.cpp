// A net of one's own on data made here: which of four quarters of the plane a noisy point lies in.
#include <brrr/brrr.h>

#include <cstdio>
#include <optional>
#include <random>

namespace {

constexpr int64_t kRows = 64;

/// Points and the quarters that they lie in, without end.
class Points {
 public:
  std::optional<brrr::Batch> operator()() {
    std::vector<float> points;
    std::vector<int32_t> quarters;
    for (int64_t i = 0; i < kRows; ++i) {
      const float x = normal_(random_), y = normal_(random_);
      points.insert(points.end(), {x, y});
      quarters.push_back((x > 0 ? 1 : 0) + (y > 0 ? 2 : 0));
    }
    return brrr::Batch{{"points", brrr::Tensor::of<float>({kRows, 2}, points)},
                       {"quarters", brrr::Tensor::of<int32_t>({kRows}, quarters)}};
  }

 private:
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
};

}  // namespace

int main() try {
  brrr::Graph g;
  const auto x = g.input("points", brrr::f32, {kRows, 2});
  const auto y = g.input("quarters", brrr::i32, {kRows});
  const auto h = brrr::relu(brrr::linear(x, 32, "hidden"));
  g.output("loss", brrr::cross_entropy(brrr::linear(h, 4, "head"), y));

  auto run = brrr::Run::from_env({.max_steps = 300});
  auto [step, loader] = run.prepare(g, brrr::AdamW{.lr = 1e-2}, Points());
  double first = 0, last = 0;
  for (const auto& batch : loader) {
    last = step(batch).loss;
    if (run.steps_done() == 1) first = last;
  }
  std::printf("loss %.3f, at first %.3f\n", last, first);
  run.save("own_graph_model");
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
