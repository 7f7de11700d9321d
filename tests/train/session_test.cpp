// The training session: what is not finite is skipped, and named.

#include "train/session.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/target.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/token_batch.h"

namespace brrr::train {
namespace {

class Sessions : public testing::Test {
 protected:
  void start(const SessionOptions& options) {
    const Graph g = config_.model()->loss(2, 5);
    session_.emplace(g, g, cpu::cpu_backend(), options);
    session_->allocate();
    for (const StateInfo& s : session_->engine().states())
      if (s.kind() == InputKind::parameter)
        models::initial_weights(*config_.model(), 1)(s.name, session_->engine().state_f32(s.name));
  }
  std::span<float> weights(const std::string& name) {
    return session_->engine().state_f32("transformer." + name);
  }
  StepResult step(int64_t number = 0) {
    const io::Batch batch = test::token_batch(tokens_, targets_, 10);
    return session_->step(number, std::span(&batch, 1), 1e-2);
  }

  const models::Gpt2Config config_ = test::tiny_gpt2();
  const std::vector<int32_t> tokens_{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<int32_t> targets_{2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::optional<Session> session_;
};

TEST_F(Sessions, NamesTheLayerWhereNumbersEnd) {
  for (const char* layer : {"h.0.mlp", "h.1.mlp", "h.0.attn", "h.1.attn"}) {
    start({});
    const std::string name =
        std::string(layer) + (std::string(layer).ends_with("mlp") ? ".c_fc" : ".c_attn");
    for (float& w : weights(name + ".weight")) w = 1e38f;  // finite, but its products are not
    const StepResult r = step();
    EXPECT_FALSE(std::isfinite(r.loss) && std::isfinite(r.grad_norm));
    const auto origin = session_->first_non_finite();
    ASSERT_TRUE(origin.has_value());
    EXPECT_NE(origin->find(layer), std::string::npos) << *origin;
  }
}

// The sums of gradients are bad when the last micro-batch runs, but it did not begin there.
TEST_F(Sessions, NamesTheLayerWithAccumulation) {
  for (const int64_t portions : {2, 3}) {
    SessionOptions options;
    options.shares.micro_batches = portions;
    start(options);
    for (float& w : weights("h.0.mlp.c_fc.weight")) w = 1e38f;
    const std::vector<io::Batch> batches(static_cast<size_t>(portions),
                                         test::token_batch(tokens_, targets_, 10));
    const StepResult r = session_->step(0, batches, 1e-2);
    ASSERT_FALSE(std::isfinite(r.loss) && std::isfinite(r.grad_norm));
    const std::string origin = session_->first_non_finite().value_or("");
    EXPECT_NE(origin.find("h.0.mlp"), std::string::npos) << origin;
  }
}

TEST_F(Sessions, NamesTheParameterThatHoldsANaN) {
  start({});
  weights("h.1.attn.c_proj.weight")[3] = NAN;
  step();
  EXPECT_EQ(session_->first_non_finite().value_or(""),
            "the values of transformer.h.1.attn.c_proj.weight");
}

TEST_F(Sessions, FindsNothingWhereAllIsWell) {
  start({});
  EXPECT_TRUE(std::isfinite(step().loss));
  EXPECT_EQ(session_->first_non_finite(), std::nullopt);
}

TEST_F(Sessions, ASkippedStepChangesNoWeightAndHalvesTheScale) {
  SessionOptions options;
  options.precision = DType::f16;
  options.scaler.initial = 0x1p60;
  start(options);
  auto all = [&] {
    std::vector<float> values;
    for (const StateInfo& s : session_->engine().states()) {
      if (s.type.dtype != DType::f32 || s.name.starts_with("scaler:")) continue;
      const auto part = session_->engine().state_f32(s.name);
      values.insert(values.end(), part.begin(), part.end());
    }
    return values;
  };
  const auto before = all();
  const StepResult first = step();
  EXPECT_TRUE(std::isfinite(first.loss));
  EXPECT_FALSE(std::isfinite(first.grad_norm));
  EXPECT_EQ(first.loss_scale, 0x1p60);
  EXPECT_TRUE(all() == before);
  int64_t number = 1;
  StepResult r = step(number++);
  EXPECT_EQ(r.loss_scale, 0x1p59);
  while (!std::isfinite(r.grad_norm) && number < 80) r = step(number++);
  EXPECT_TRUE(std::isfinite(r.grad_norm)) << "it never recovered";
  EXPECT_FALSE(all() == before);
  EXPECT_LT(r.grad_norm, 100) << "the norm is that of the unscaled gradients";
}

// The optimizer as ops for each tensor does what its one node does, clipping and all, whatever is
// compiled; and a step that is not finite changes nothing there, either.
TEST_F(Sessions, TheOptimizerInPartsIsTheFusedOne) {
  for (const bool compile : {true, false})
    for (const double clip : {0.0, 0.1}) {
      std::vector<float> after[2];
      for (const bool fused : {true, false}) {
        SessionOptions options;
        options.optimizer.fused = fused;
        options.optimizer.max_grad_norm = clip;
        if (!compile)
          for (const std::string& pass : optional_passes()) options.disabled_passes.insert(pass);
        start(options);
        StepResult r;
        for (int64_t i = 0; i < 5; ++i) r = step(i);
        EXPECT_TRUE(std::isfinite(r.grad_norm));
        const auto w = weights("h.0.mlp.c_fc.weight");
        after[fused].assign(w.begin(), w.end());
        weights("h.1.mlp.c_fc.weight")[0] = NAN;
        const std::vector<float> before(w.begin(), w.end());
        step(5);
        EXPECT_TRUE(std::equal(before.begin(), before.end(), w.begin())) << fused;
      }
      for (size_t i = 0; i < after[0].size(); ++i) ASSERT_NEAR(after[0][i], after[1][i], 2e-5) << i;
    }
}

TEST_F(Sessions, ShowsTheNumbersOfAStep) {
  start({});
  const io::Batch batch = test::token_batch(tokens_, targets_, 10);
  const Graph& g = session_->step_program().graph();
  size_t values = 0;
  float norm = 0;
  session_->look_at_step(0, batch, 1e-2, [&](ValueId v, const std::byte* content) {
    ++values;
    if (g.find_output("grad_norm")->value == v) std::memcpy(&norm, content, sizeof norm);
  });
  EXPECT_GT(values, 20u);
  start({});
  EXPECT_EQ(step().grad_norm, norm);
}

TEST_F(Sessions, TheScaleGrowsAfterGoodSteps) {
  SessionOptions options;
  options.precision = DType::f16;
  options.scaler.initial = 8;
  options.scaler.growth_interval = 3;
  start(options);
  std::vector<double> scales;
  for (int64_t i = 0; i < 7; ++i) scales.push_back(step(i).loss_scale);
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 8, 16, 16, 16, 32}));
}

// Rows that end early: whether the programs are of the whole length and the rest is ignored, or of
// a shorter one, a step does the same.
TEST_F(Sessions, ShorterRowsAreTheSameStepAsIgnoredOnes) {
  const std::vector<int32_t> long_in{1, 2, 3, 0, 0, 6, 7, 8, 0, 0},
      long_out{2, 3, 4, -1, -1, 7, 8, -1, -1, -1};
  const std::vector<int32_t> short_in{1, 2, 3, 6, 7, 8}, short_out{2, 3, 4, 7, 8, -1};
  for (const int64_t accumulation : {1, 2, 3}) {
    SessionOptions options;
    options.shares.micro_batches = accumulation;
    std::vector<float> weights_after[2];
    StepResult results[2];
    for (const bool is_short : {false, true}) {
      start(options);
      if (is_short) {
        const Graph g = config_.model()->loss(2, 5);
        session_.emplace(g, g, cpu::cpu_backend(), options);
        session_->add_shorter(config_.model()->loss(2, 3));
        session_->allocate();
        for (const StateInfo& s : session_->engine().states())
          if (s.kind() == InputKind::parameter)
            models::initial_weights(*config_.model(), 1)(s.name,
                                                         session_->engine().state_f32(s.name));
      }
      // Shapes mix within a step, too.
      std::vector<io::Batch> batches(static_cast<size_t>(accumulation),
                                     test::token_batch(tokens_, targets_, 10));
      batches.back() = is_short ? test::token_batch(short_in, short_out, 5)
                                : test::token_batch(long_in, long_out, 5);
      if (accumulation == 3) std::swap(batches[1], batches[2]);
      results[is_short] = session_->step(0, batches, 1e-3);
      const auto after = weights("h.0.mlp.c_fc.weight");
      weights_after[is_short].assign(after.begin(), after.end());
    }
    EXPECT_NEAR(results[0].loss, results[1].loss, 1e-5);
    EXPECT_NEAR(results[0].grad_norm, results[1].grad_norm, 1e-5);
    for (size_t i = 0; i < weights_after[0].size(); ++i)
      ASSERT_NEAR(weights_after[0][i], weights_after[1][i], 1e-5) << accumulation << " at " << i;
  }
}

// Weights in 16 bits: gradients are summed before they are rounded.
TEST_F(Sessions, SumsOfLowWeightsAreNotRoundedBetween) {
  const auto norm = [&](int64_t parts) {
    SessionOptions options;
    options.optimizer.kind = optim::OptimizerKind::sgd;
    options.parameter_dtype = DType::bf16;
    options.shares.micro_batches = parts;
    const Graph g = config_.model()->loss(6 / parts, 5);
    Session session(g, g, cpu::cpu_backend(), options);
    session.allocate();
    load_parameters(session.engine(), [&](std::string_view name, std::span<float> out) {
      models::initial_weights(*config_.model(), 1)(name, out);
    });
    std::vector<int32_t> in, out;
    for (int32_t i = 0; i < 30; ++i) {
      in.push_back(i * 7 % 13);
      out.push_back(i * 5 % 13);
    }
    std::vector<io::Batch> batches;
    const auto n = in.size() / static_cast<size_t>(parts);
    for (size_t at = 0; at < in.size(); at += n)
      batches.push_back(test::token_batch(std::span(in).subspan(at, n),
                                          std::span(out).subspan(at, n), static_cast<int64_t>(n)));
    return session.step(0, batches, 1e-3).grad_norm;
  };
  EXPECT_NEAR(norm(3), norm(2), 1e-6 * norm(2));
  EXPECT_NEAR(norm(6), norm(2), 1e-6 * norm(2));
}

// k micro-batches of b rows give the gradient of one batch of k b rows, each real token weighing
// the same wherever the ignored ones are.
TEST_F(Sessions, AccumulatedGradientsAreThoseOfTheLargeBatch) {
  constexpr int64_t kRows = 8, kLength = 24;
  models::Gpt2Config config = test::tiny_gpt2();
  config.vocab_size = 101;
  config.n_positions = kLength;
  config.n_embd = 48;
  std::vector<int32_t> in, out;
  for (int32_t i = 0; i < kRows * kLength; ++i) {
    in.push_back(i * 37 % 101);
    out.push_back(i % 7 == 0 || i / kLength == 3 ? -1 : i * 53 % 101);  // a row of none, too
  }
  const auto gradient = [&](int64_t parts) {
    SessionOptions options;
    options.optimizer.kind = optim::OptimizerKind::sgd;  // its momentum is then the gradient
    options.optimizer.weight_decay = 0;
    options.optimizer.max_grad_norm = 0;
    options.shares.micro_batches = parts;
    const Graph g = config.model()->loss(kRows / parts, kLength);
    Session session(g, g, cpu::cpu_backend(), options);
    session.allocate();
    Engine& engine = session.engine();
    for (const StateInfo& s : engine.states())
      if (s.kind() == InputKind::parameter)
        models::initial_weights(*config.model(), 1)(s.name, engine.state_f32(s.name));
    std::vector<io::Batch> batches;
    const auto n = static_cast<size_t>(kRows / parts * kLength);
    for (size_t at = 0; at < in.size(); at += n) {
      const std::span targets = std::span(out).subspan(at, n);
      const auto real = std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
      batches.push_back(test::token_batch(std::span(in).subspan(at, n), targets, real));
    }
    const StepResult r = session.step(0, batches, 1e-3);
    std::vector<float> all{static_cast<float>(r.loss)};
    for (const StateInfo& s : engine.states())
      if (s.name.starts_with("momentum:")) {
        const auto part = engine.state_f32(s.name);
        all.insert(all.end(), part.begin(), part.end());
      }
    return all;
  };
  const std::vector<float> whole = gradient(1);
  ASSERT_GT(whole.size(), 50'000u);
  for (const int64_t parts : {2, 4, 8}) {
    const std::vector<float> sum = gradient(parts);
    ASSERT_EQ(sum.size(), whole.size());
    double gap = 0, norm = 0;
    for (size_t i = 1; i < whole.size(); ++i) {
      gap += std::pow(double{sum[i]} - whole[i], 2);
      norm += std::pow(double{whole[i]}, 2);
    }
    EXPECT_LT(std::sqrt(gap / norm), 1e-6) << parts;
    EXPECT_NEAR(sum[0], whole[0], 1e-6 * whole[0]) << parts;
  }
}

}  // namespace
}  // namespace brrr::train
