// A loss of one's own, and derivatives of anything: a Huber loss, fitted by gradients that the
// graph itself computes.
#include <brrr/brrr.h>

#include <cstdio>

int main() try {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {6}), y = g.input("y", brrr::f32, {6});
  const auto w = g.input("w", brrr::f32, {}), b = g.input("b", brrr::f32, {});
  const auto error = x * w + b - y;
  // Quadratic within 1, linear beyond: one outlier does not decide.
  const auto size = brrr::ops::abs(error);
  const auto inside =
      brrr::minimum(size, brrr::ops::full(g, "{shape=[6], dtype=f32, value=1.0}")[0]);
  const auto loss = brrr::mean(inside * (size - inside * 0.5));
  const auto gradients = g.gradient(loss, {w, b});
  g.output("loss", loss);
  g.output("dw", gradients[0]);
  g.output("db", gradients[1]);
  brrr::Module module = g.compile();

  float weight = 0, bias = 0;
  const auto xs = brrr::Tensor::of<float>({6}, {0, 1, 2, 3, 4, 5});
  const auto ys = brrr::Tensor::of<float>({6}, {1, 3, 5, 7, 9, 100});  // 2 x + 1 and an outlier
  for (int i = 0; i < 2000; ++i) {
    const auto out = module.run({{"x", xs},
                                 {"y", ys},
                                 {"w", brrr::Tensor::of<float>({}, {weight})},
                                 {"b", brrr::Tensor::of<float>({}, {bias})}});
    weight -= 0.05f * out.at("dw").as<float>()[0];
    bias -= 0.05f * out.at("db").as<float>()[0];
  }
  std::printf("y = %.2f x + %.2f\n", weight, bias);
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
