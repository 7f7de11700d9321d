// What plans know of ranks: the bytes that they count are those that a run sends.

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "models/initialise.h"
#include "models/model.h"
#include "ops/op.h"
#include "runtime/parameters.h"
#include "runtime/ranks/collectives.h"
#include "runtime/ranks/division.h"
#include "support/thread_ranks.h"
#include "support/token_batch.h"
#include "train/fit.h"
#include "train/predict.h"
#include "train/session.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

constexpr int64_t kPlannedContext = 16, kPlannedVocabulary = 96;

models::ModelPtr planned_model() {
  return models::find_architecture("gpt2").describe(
      {{{"n-layer", "2"}, {"n-head", "2"}, {"n-embd", "64"}},
       kPlannedVocabulary,
       kPlannedContext,
       0});
}

/// The bytes that the collectives of a step send from one rank.
int64_t planned_bytes(const Session& session, int64_t rank) {
  int64_t bytes = 0;
  for (const Session::ProgramUse& use : session.programs()) {
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id)
      if (!g.is_input(id) && is_collective(g.node(id)))
        bytes += use.runs * sent_by(g, id, rank).bytes;
  }
  return bytes;
}

struct PlannedCase {
  int ranks, zero;
  int64_t per_slot = 1;
  DType precision = DType::f32;
};

class RankPlans : public testing::TestWithParam<PlannedCase> {};

TEST_P(RankPlans, CountTheBytesThatAreSent) {
  const PlannedCase c = GetParam();
  const models::ModelPtr model = planned_model();
  std::vector<int64_t> planned(static_cast<size_t>(c.ranks)), sent = planned;
  RankTraffic traffic;
  test::run_ranks(c.ranks, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    SessionOptions options;
    options.precision = c.precision;
    options.shares = {c.ranks, rank, c.zero, c.ranks, c.ranks * c.per_slot};
    options.communicator = communicator;
    Backend backend = cpu::cpu_backend();
    add_collectives(backend, c.ranks, communicator);
    Session session(model->loss(1, kPlannedContext), model->scored(1, kPlannedContext), backend,
                    options);
    session.allocate();
    load_parameters(session.engine(), models::initial_weights(*model, 1));
    const std::vector<int32_t> ids(kPlannedContext, 3);
    const std::vector<io::Batch> batches(static_cast<size_t>(session.shares().local()),
                                         test::token_batch(ids, ids, kPlannedContext));
    session.step(0, batches, 1e-3);  // also makes derived weights for the first time
    const int64_t before = communicator->traffic().bytes_sent;
    session.step(1, batches, 1e-3);
    const int64_t after = communicator->traffic().bytes_sent;
    // Each rank tells the others its count and its losses.
    const int64_t told = (c.ranks - 1) * (int64_t{8} + 4 * session.shares().local());
    sent[static_cast<size_t>(rank)] = after - before - told;
    planned[static_cast<size_t>(rank)] = planned_bytes(session, rank);
    if (rank == 0) traffic = traffic_of(session);
  });
  EXPECT_EQ(planned, sent);
  EXPECT_EQ(traffic.first_bytes, sent[0]);
  EXPECT_EQ(traffic.most_bytes, *std::ranges::max_element(sent));
  int64_t all = 0;
  for (const int64_t bytes : sent) all += bytes;
  EXPECT_DOUBLE_EQ(traffic.mean_bytes, static_cast<double>(all) / c.ranks);
}

INSTANTIATE_TEST_SUITE_P(All, RankPlans,
                         testing::Values(PlannedCase{2, 0}, PlannedCase{2, 1}, PlannedCase{2, 2},
                                         PlannedCase{2, 3}, PlannedCase{3, 1}, PlannedCase{4, 0},
                                         PlannedCase{4, 1}, PlannedCase{4, 2}, PlannedCase{4, 3},
                                         PlannedCase{4, 1, 2}, PlannedCase{2, 2, 2, DType::bf16},
                                         PlannedCase{4, 3, 1, DType::bf16}));

std::unique_ptr<Session> compiled_on_ranks(const KeyValues& given) {
  TrainOptions o = resolve(given);
  cut_into_slots(o);
  return compile_run(o, *model_of(o, 65));
}

/// Bytes of all weights: of gradients, as many.
double weight_bytes(const Session& session) {
  double bytes = 0;
  const Graph& g = session.step_program().graph();
  for (const NodeId id : g.inputs(InputKind::parameter)) {
    const Shape whole = g.node(id).attrs.get_or<Shape>(kShardOf, g.type({id, 0}).shape);
    bytes += 4 * static_cast<double>(whole.elements());
  }
  return bytes;
}

/// The bytes by which ranks tell each other the squares of their shards.
double norm_bytes(const Session& session) {
  double bytes = 0;
  for (const Session::ProgramUse& use : session.programs()) {
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id)
      if (is(g.node(id), Op::all_gather) && g.node(id).attrs.get<int64_t>("block") == 1)
        bytes += static_cast<double>(use.runs) * mean_bytes_sent(g, id);
  }
  return bytes;
}

// Rajbhandari et al. (2020), section 7: data parallel, ZeRO 1 and 2 send each gradient and each
// weight once, ZeRO 3 each weight twice.
TEST(RankPlan, SendsWhatZeroPromises) {
  for (const int64_t ranks : {2, 4, 8})
    for (const int64_t zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}", ranks, zero));
      const auto session = compiled_on_ranks(
          {{"ranks", std::to_string(ranks)}, {"zero", std::to_string(zero)}, {"batch-size", "16"}});
      const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
      const double sent = traffic_of(*session).mean_bytes - norm_bytes(*session);
      const double weights = weight_bytes(*session);
      if (zero < 3) {
        EXPECT_DOUBLE_EQ(sent, 2 * share * weights);
      } else {
        // Small weights are not divided, and tables of positions are not read by the backward pass.
        EXPECT_LE(sent, 3 * share * weights);
        EXPECT_GE(sent, 2.9 * share * weights);
      }
      EXPECT_LT(norm_bytes(*session), 0.01 * sent);
    }
}

TEST(RankPlan, DividesWhatItsStageSays) {
  int64_t before = 0;
  for (const int64_t zero : {0, 1, 2, 3}) {
    // Two slots for each rank: their sums wait for each other.
    const auto session = compiled_on_ranks({{"ranks", "4"},
                                            {"zero", std::to_string(zero)},
                                            {"deterministic-ranks", "8"},
                                            {"gradient-accumulation-steps", "8"}});
    const MemoryForecast f = session->forecast();
    if (zero > 0) {
      EXPECT_LT(f.total(), before) << "ZeRO " << zero;
    }
    before = f.total();
  }
}

TEST(RankPlan, WaitsLessForAFasterLink) {
  const machine::MachineSpeed speed = machine::nominal_speed();
  const auto session = compiled_on_ranks({{"ranks", "4"}, {"zero", "1"}});
  double before = 0;
  for (const char* link : {"100GB/s,1us", "1Gbit,50us", "100Mbit,1ms"}) {
    const Overlap o = overlap_of(*session, speed, machine::parse_link(link));
    EXPECT_GT(o.waited_seconds, before);
    EXPECT_GE(o.hidden(), 0);
    EXPECT_LE(o.hidden(), 1);
    before = o.waited_seconds;
    const PredictedTime time = predict_step(*session, speed, machine::parse_link(link));
    EXPECT_NEAR(time.total_ms(), 1e3 * o.seconds, 1e-9 * time.total_ms());
  }
}

TEST(RankPlan, FitChoosesAStageOfZero) {
  TrainOptions o = resolve({{"ranks", "4"}, {"gradient-accumulation-steps", "4"}, {"fit", "true"}});
  cut_into_slots(o);
  FitContext context;
  context.model = model_of(o, 65);
  context.now = resident_memory();
  context.plans_only = true;
  context.budget = int64_t{1} << 40;
  const FitResult roomy = fit(o, context, FitFreedom::memory);
  ASSERT_TRUE(roomy.best.has_value());
  context.budget = roomy.smallest.needed() + (int64_t{1} << 16);
  const FitResult narrow = fit(o, context, FitFreedom::memory);
  ASSERT_TRUE(narrow.best.has_value());
  EXPECT_GT(narrow.best->options.zero, 0);
  EXPECT_LE(narrow.best->needed(), context.budget);
  for (const Plan& p : narrow.tried) EXPECT_TRUE(!p.fits || p.ms >= narrow.best->ms);
  o = resolve({{"ranks", "4"}, {"gradient-accumulation-steps", "4"}, {"zero", "1"}});
  cut_into_slots(o);
  for (const Plan& p : fit(o, context, FitFreedom::memory).tried) EXPECT_EQ(p.options.zero, 1);
}

}  // namespace
}  // namespace brrr::train
