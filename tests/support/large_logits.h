#pragma once
// Losses and gradients of logits around 2^20 and 10^8, where f32 has no digits left for the
// logarithm that lse adds to the largest of them: as PyTorch's log_softmax computes them, from the
// differences to the largest.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

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

/// Losses and gradients against the interpreter, with the loss head in one node, in two and opened.
/// All kernels are prepared first, so that an emulation compiles them together.
inline void check_large_logits(const Backend& backend, const std::vector<int64_t>& all_classes) {
  struct Check {
    std::string name;
    LargeLogits of;
    double tolerance;
    std::unique_ptr<GraphRun> run;
  };
  std::vector<Check> checks;
  for (const int64_t classes : all_classes)
    for (const bool is_product : {false, true})
      for (const char* disabled : {"", "join_loss_head", "match_loss_head"}) {
        if (!is_product && *disabled != '\0') continue;
        Check c{fmt::format("{} classes, product {}, without {}", classes, is_product, disabled),
                is_product ? large_product(classes) : large_logits(classes),
                // f32 sums of as many terms as there are classes, in any order.
                std::ldexp(16 + static_cast<double>(classes), -24), nullptr};
        PipelineOptions options;
        options.loss = "loss";
        if (*disabled != '\0') options.disabled = {disabled};
        c.run = std::make_unique<GraphRun>(run_pipeline(c.of.graph, backend.target(), options),
                                           backend);
        checks.push_back(std::move(c));
      }
  for (const Check& c : checks) {
    SCOPED_TRACE(c.name);
    const reference::Tensors wanted = reference::evaluate(differentiate(c.of.graph), c.of.in);
    for (const auto& [name, t] : c.run->run(c.of.in)) {
      const RefTensor& w = wanted.at(name);
      double top = 1;  // of the terms that cancel in the gradient of x
      for (const double x : w.data) top = std::max(top, std::fabs(x));
      for (size_t i = 0; i < w.size(); ++i)
        EXPECT_NEAR(t.number(i), w.number(i), c.tolerance * top) << name << "[" << i << "]";
    }
  }
}

}  // namespace brrr::test
