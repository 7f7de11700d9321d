#pragma once
// Losses and gradients of logits around 2^20 and 10^8, where f32 has no digits left for the
// logarithm that lse adds to the largest of them: as PyTorch's log_softmax computes them, from the
// differences to the largest.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "support/graph_run.h"

namespace brrr::test {

struct LargeLogits {
  Graph graph;
  reference::Tensors in;
};

/// cross_entropy of [4, classes]: rows of one number, of two numbers, far below 0, and an ordinary
/// one. All of them are integers in f32.
inline LargeLogits large_logits(int64_t classes) {
  LargeLogits l;
  const Value x = l.graph.parameter("logits", {4, classes});
  const CrossEntropy y = cross_entropy(x, l.graph.input("targets", {4}, i32), -1);
  l.graph.output("losses", y.losses);
  l.graph.output("loss", sum(y.losses, {0}));
  RefTensor logits(x.type()), targets(Type{i32, {4}});
  for (int64_t c = 0; c < classes; ++c) {
    const double rows[] = {1e8, c % 2 == 0 ? 1e8 : 1e8 - 8, -1e8, static_cast<double>(c % 7)};
    for (int64_t r = 0; r < 4; ++r)
      logits.set_number(static_cast<size_t>(r * classes + c), rows[r]);
  }
  for (size_t r = 0; r < 4; ++r) targets.set_number(r, static_cast<double>(r % 2));
  l.in = {{"logits", logits}, {"targets", targets}};
  return l;
}

/// The same behind a product, for the loss head: x [4, 8], w [classes, 8].
inline LargeLogits large_product(int64_t classes) {
  LargeLogits l;
  const Value x = l.graph.parameter("x", {4, 8}), w = l.graph.parameter("w", {classes, 8});
  const Value targets = l.graph.input("targets", {4}, i32);
  const CrossEntropy y = cross_entropy(matmul(x, w, false, true), targets, -1);
  l.graph.output("losses", y.losses);
  l.graph.output("loss", sum(y.losses, {0}));
  RefTensor rows(x.type()), weights(w.type()), t(targets.type());
  for (size_t i = 0; i < rows.size(); ++i)
    rows.set_number(i, i / 8 == 0 ? 0x1p17 : i / 8 == 1 ? -0x1p17 : 0x1p-3);
  for (size_t i = 0; i < weights.size(); ++i)
    weights.set_number(i, i % 8 == 0 && i / 8 % 2 == 1 ? 1 - 0x1p-15 : 1);
  for (size_t r = 0; r < 4; ++r) t.set_number(r, static_cast<double>(r % 2));
  l.in = {{"x", rows}, {"w", weights}, {"targets", t}};
  return l;
}

/// f32: sums of as many terms as there are classes, in any order.
inline void check_large(const LargeLogits& l, int64_t classes, const Backend& backend) {
  const double tolerance = std::ldexp(16 + static_cast<double>(classes), -24);
  const reference::Tensors wanted = reference::evaluate(differentiate(l.graph), l.in);
  for (const std::set<std::string>& disabled :
       {std::set<std::string>{}, {"join_loss_head"}, {"match_loss_head"}}) {
    PipelineOptions options;
    options.loss = "loss";
    options.disabled = disabled;
    SCOPED_TRACE(fmt::format("without {}", fmt::join(disabled, "")));
    GraphRun run(run_pipeline(l.graph, backend.target(), options), backend);
    for (const auto& [name, t] : run.run(l.in)) {
      const RefTensor& w = wanted.at(name);
      double top = 1;  // of the terms that cancel in the gradient of x
      for (const double x : w.data) top = std::max(top, std::fabs(x));
      for (size_t i = 0; i < w.size(); ++i)
        EXPECT_NEAR(t.number(i), w.number(i), tolerance * top) << name << "[" << i << "]";
    }
  }
}

inline void check_large_logits(const Backend& backend) {
  for (const int64_t classes : {2, 3, 37, 1500}) {
    SCOPED_TRACE(fmt::format("{} classes", classes));
    check_large(large_logits(classes), classes, backend);
    check_large(large_product(classes), classes, backend);
  }
}

}  // namespace brrr::test
