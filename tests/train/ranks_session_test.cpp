// Steps on several ranks: the same bits for any number of them and any stage of ZeRO.

#include <gtest/gtest.h>

#include <map>

#include "backend/cpu/target.h"
#include "models/initialise.h"
#include "models/model.h"
#include "runtime/parameters.h"
#include "runtime/ranks/collectives.h"
#include "runtime/ranks/state_shards.h"
#include "support/long_proof.h"
#include "support/thread_ranks.h"
#include "support/token_batch.h"
#include "train/session.h"

namespace brrr::train {
namespace {

constexpr int64_t kSlots = 8, kContext = 16, kVocabulary = 96;

models::ModelPtr small_model(const std::string& architecture, double dropout) {
  return models::find_architecture(architecture)
      .describe(
          {{{"n-layer", "2"}, {"n-head", "2"}, {"n-embd", "64"}}, kVocabulary, kContext, dropout});
}

/// Token ids that depend on the batch's number alone. The last micro-batch of a step scores fewer
/// targets than the others.
io::Batch batch_of(int64_t number, bool is_last) {
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < kContext; ++i) {
    tokens.push_back(static_cast<int32_t>((number * 37 + i * i * 5 + 11) % kVocabulary));
    targets.push_back(static_cast<int32_t>((number * 13 + i * 7 + 3) % kVocabulary));
  }
  int64_t count = kContext;
  if (is_last)
    for (int64_t i = 0; i < 5; ++i, --count) targets[static_cast<size_t>(i)] = io::kIgnoreId;
  return test::token_batch(tokens, targets, count);
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<std::byte>> states;  // whole tensors
  bool operator==(const Trained&) const = default;
};

struct RankCase {
  std::string architecture = "gpt2";
  DType precision = DType::f32;
  optim::OptimizerKind optimizer = optim::OptimizerKind::adamw;
  double dropout = 0;
  int64_t per_slot = 1;
  std::vector<int> ranks = {2, 4, 8};
};

/// What rank 0 has after some steps on `ranks` ranks.
Trained train(const RankCase& c, int ranks, int zero) {
  Trained trained;
  test::run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    const models::ModelPtr model = small_model(c.architecture, c.dropout);
    SessionOptions options;
    options.precision = c.precision;
    options.optimizer.kind = c.optimizer;
    options.shares = {ranks, communicator->rank(), zero, kSlots, kSlots * c.per_slot};
    options.communicator = communicator;
    Backend backend = cpu::cpu_backend();
    add_collectives(backend, ranks, communicator);
    Session session(model->loss(1, kContext), model->scored(1, kContext), backend, options);
    session.allocate();
    load_parameters(session.engine(), models::initial_weights(*model, 1));
    const StepShares& shares = session.shares();
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<io::Batch> batches;
      for (int64_t i = 0; i < shares.local(); ++i) {
        const int64_t number = shares.number_of(i);
        batches.push_back(
            batch_of(step * shares.micro_batches + number, number + 1 == shares.micro_batches));
      }
      const StepResult r = session.step(step, batches, 1e-2);
      if (communicator->rank() > 0) continue;
      trained.losses.push_back(r.loss);
      trained.norms.push_back(r.grad_norm);
    }
    const double evaluated = session.loss_sum(batch_of(1000, false));
    if (communicator->rank() == 0) trained.losses.push_back(evaluated);
    for (const StateInfo& state : session.engine().states()) {
      if (state.role != Role::parameter && !is_kept_between_steps(state.role)) continue;
      std::vector<std::byte> room;
      const auto bytes = read_whole(session.engine(), state, communicator.get(), room);
      if (communicator->rank() == 0) trained.states[state.name].assign(bytes.begin(), bytes.end());
    }
  });
  return trained;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.states.size(), b.states.size());
  for (const auto& [name, bytes] : a.states) {
    ASSERT_TRUE(b.states.contains(name)) << name;
    EXPECT_TRUE(bytes == b.states.at(name)) << name;
  }
}

void expect_same_for_ranks(const RankCase& c) {
  const Trained alone = train(c, 1, 0);
  ASSERT_TRUE(std::isfinite(alone.losses.back()));
  ASSERT_NE(alone.losses[2], alone.losses[0]);
  // Under a sanitizer two of the ways touch the memory that all touch.
  const std::vector<int> some = test::is_sanitized() ? std::vector{2} : c.ranks;
  for (const int ranks : some)
    for (const int zero : {0, 1, 2, 3}) {
      if (test::is_sanitized() && (zero == 1 || zero == 2)) continue;
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}", ranks, zero));
      expect_same(train(c, ranks, zero), alone);
    }
}

TEST(RankSessions, ANumberThatIsNoneIsNamedWithItsRank) {
  test::run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    const models::ModelPtr model = small_model("gpt2", 0);
    SessionOptions options;
    options.shares = {2, communicator->rank(), 0, 2, 2};
    options.communicator = communicator;
    Backend backend = cpu::cpu_backend();
    add_collectives(backend, 2, communicator);
    Session session(model->loss(1, kContext), model->scored(1, kContext), backend, options);
    session.allocate();
    load_parameters(session.engine(), models::initial_weights(*model, 1));
    if (communicator->rank() == 1)
      session.engine().state_f32("transformer.h.1.mlp.c_fc.weight")[0] = NAN;
    const io::Batch batch = batch_of(communicator->rank(), false);
    const StepResult r = session.step(0, std::span(&batch, 1), 1e-2);
    EXPECT_FALSE(std::isfinite(r.loss));
    EXPECT_EQ(session.first_non_finite().value_or(""),
              "the values of transformer.h.1.mlp.c_fc.weight on rank 1");
  });
}

TEST(RankSessions, BitsDependOnNoNumberOfRanksAndNoStage) { expect_same_for_ranks({}); }

TEST(RankSessions, BitsAreTheSameInMixedPrecision) {
  expect_same_for_ranks({.precision = DType::bf16});
}

TEST(RankSessions, SlotsOfSeveralMicroBatchesWithDropout) {
  expect_same_for_ranks({.dropout = 0.1, .per_slot = 2});
}

TEST(RankSessions, EightBitStatesAreDividedInWholeBlocks) {
  expect_same_for_ranks({.optimizer = optim::OptimizerKind::adamw_8bit});
}

TEST(RankSessions, EveryOptimizerIsDivided) {
  for (const auto kind : {optim::OptimizerKind::sgd, optim::OptimizerKind::lion,
                          optim::OptimizerKind::adafactor, optim::OptimizerKind::muon}) {
    SCOPED_TRACE(optim::name_of(kind));
    expect_same_for_ranks({.optimizer = kind, .ranks = {2, 8}});
  }
}

TEST(RankSessions, LlamasAreDivided) { expect_same_for_ranks({.architecture = "llama"}); }

}  // namespace
}  // namespace brrr::train
