// Advice: when a set-up has a deliberate fault, the first advice names it. Times are predicted
// (machine/speed.h) for a synthetic machine, so other load cannot change the result; bench/advice
// measures what following the advice gains.
#include "insight/profile/advice.h"

#include <gtest/gtest.h>

#include "base/threads/parallel.h"
#include "insight/profile_sample.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

struct Told {
  Profile profile;
  std::vector<Advice> advice;
};

// The profile as it would be if every kernel took what the model says.
void take_from_model(Profile& p, const Workload& w) {
  const auto programs = w.programs();
  p.kernels_ms = p.between_ms = p.batch_ms = p.rest_ms = 0;
  for (KernelProfile& k : p.kernels) {
    const Graph& g = programs[k.program].program->graph();
    const double seconds =
        g.is_input(k.node) ? 0 : machine::predict_node(g, k.node, p.ceilings.speed());
    k.ms = 1e3 * seconds * static_cast<double>(k.calls);
    p.kernels_ms += k.ms;
  }
  p.step = {p.kernels_ms, p.kernels_ms, p.kernels_ms};
  p.timed_ms = p.kernels_ms;
}

Told told(const WorkloadOptions& w) {
  const auto workload = make_workload(w);
  workload->allocate();
  Told t;
  t.profile = profile(*workload, sample_ceilings(), 0);
  t.profile.mode = w.mode;
  take_from_model(t.profile, *workload);
  if (t.profile.evaluation_ms > 0) t.profile.evaluation_ms = 4 * t.profile.step.median;
  AdviceOptions o;
  o.workload = w;
  o.budget = int64_t{1} << 40;
  o.trials = false;
  t.advice = advise(t.profile, *workload, o);
  return t;
}

WorkloadOptions setup(const KeyValues& given) {
  WorkloadOptions w;
  w.options = train::resolve(train::overlaid({{"n-layer", "3"}, {"eval-steps", "0"}}, given));
  w.model = train::model_of(w.options, 65);
  return w;
}

std::string all_of(const std::vector<Advice>& list) {
  std::string text;
  for (const Advice& a : list) text += sentence(a) + "\n";
  return text;
}

void expect_first(const KeyValues& given, const std::string& cause) {
  const Told t = told(setup(given));
  ASSERT_FALSE(t.advice.empty()) << cause;
  EXPECT_EQ(t.advice[0].cause, cause) << all_of(t.advice);
  EXPECT_GT(t.advice[0].gain(), 0.01);
  EXPECT_LT(t.advice[0].gain(), 0.95);
}

TEST(SlowAdvice, CompilerOff) { expect_first({{"compile", "false"}}, "compile"); }

TEST(SlowAdvice, AttentionWrittenOut) {
  expect_first({{"disable-pass", "match_attention"}, {"context", "512"}, {"batch-size", "2"}},
               "match_attention");
}

TEST(SlowAdvice, NothingFused) {
  expect_first({{"disable-pass", "fuse"}, {"batch-size", "48"}}, "fuse");
}

TEST(SlowAdvice, PortionsTooSmall) {
  expect_first({{"batch-size", "1"}, {"gradient-accumulation-steps", "16"}, {"context", "16"}},
               "micro-batch");
}

TEST(SlowAdvice, RecomputesWhatHasRoom) {
  expect_first({{"rematerialize", "all"}}, "rematerialize");
}

TEST(SlowAdvice, EvaluatesTooOften) {
  expect_first({{"eval-steps", "2"}, {"eval-batches", "20"}}, "evaluation");
}

// A unit that this machine may not have, made up.
TEST(SlowAdvice, SinglePrecisionWhereThereIsAUnitForHalf) {
  Profile p;
  const WorkloadOptions w = setup({});
  const auto workload = make_workload(w);
  workload->allocate();
  Ceilings c = sample_ceilings();
  p = profile(*workload, c, 0);
  AdviceOptions o;
  o.workload = w;
  o.trials = false;
  const auto names_it = [&] {
    for (const Candidate& candidate : candidates(p, o))
      if (candidate.cause == "precision") return true;
    return false;
  };
  p.ceilings.bf16 = 0;
  EXPECT_FALSE(names_it());
  p.ceilings.bf16 = 10 * c.f32;
  EXPECT_TRUE(names_it());
  o.workload.options.precision = Precision::bfloat16;
  EXPECT_FALSE(names_it());
}

TEST(SlowAdvice, IntegersForAModelThatOnlyRuns) {
  Profile p;
  p.ceilings = sample_ceilings();
  AdviceOptions o;
  o.workload = setup({});
  const auto offers = [&](Mode mode, Precision precision, const std::string& option) {
    o.workload.mode = mode;
    o.workload.options.precision = precision;
    const std::vector<Candidate> list = candidates(p, o);
    return std::ranges::any_of(list, [&](const Candidate& c) { return c.option == option; });
  };
  p.ceilings.int8 = 10 * std::max(p.ceilings.f32, p.ceilings.bf16);
  EXPECT_TRUE(offers(Mode::inference, Precision::fp32, "--precision int8"));
  EXPECT_TRUE(offers(Mode::inference, Precision::bfloat16, "--precision int8"));
  EXPECT_FALSE(offers(Mode::training, Precision::fp32, "--precision int8"));
  EXPECT_FALSE(offers(Mode::inference, Precision::int8, "--precision int8"));
  EXPECT_TRUE(offers(Mode::inference, Precision::int8, "--precision bf16"));
  p.ceilings.int8 = 0;
  EXPECT_FALSE(offers(Mode::inference, Precision::fp32, "--precision int8"));
  EXPECT_TRUE(offers(Mode::generation, Precision::fp32, "--precision int8"));
}

TEST(SlowAdvice, AnUglyVocabularyIsLookedAt) {
  AdviceOptions o;
  o.workload = setup({{"vocab-size", "5003"}, {"eval-steps", "0"}});
  const auto option_of = [&] {
    for (const Candidate& c : candidates(sample_profile(), o))
      if (c.cause == "vocabulary") return c.option;
    return std::string();
  };
  EXPECT_EQ(option_of(), "--vocab-size 5056");
  o.fixed_model = true;
  EXPECT_EQ(option_of(), "") << "weights have their sizes";
}

TEST(SlowAdvice, WhatDoesNotFitIsNoAdvice) {
  const WorkloadOptions w = setup({{"rematerialize", "all"}});
  const auto workload = make_workload(w);
  workload->allocate();
  const Profile p = profile(*workload, sample_ceilings(), 0);
  AdviceOptions o;
  o.workload = w;
  o.trials = false;
  o.budget = 1;
  for (const Advice& a : advise(p, *workload, o)) EXPECT_NE(a.cause, "rematerialize");
}

// What a step of this plan takes, by the figures of this plan, is what it took.
TEST(Forecast, OfTheSamePlanIsTheMeasurement) {
  const WorkloadOptions w = setup({});
  const auto workload = make_workload(w);
  workload->allocate();
  const Profile p = profile(*workload, sample_ceilings(), 0.3);
  Forecaster forecaster(p, *workload, int64_t{1} << 30);
  const PlanFacts here = forecaster.here(), same = forecaster.of(*make_workload(w));
  EXPECT_EQ(here.kernels, same.kernels);
  EXPECT_NEAR(here.flops, same.flops, 1e-6 * here.flops);
  EXPECT_NEAR(here.bytes, same.bytes, 1e-6 * here.bytes);
  EXPECT_EQ(same.modelled_share, 0);
  EXPECT_NEAR(same.ms, here.ms, 0.01 * here.ms);
}

}  // namespace
}  // namespace brrr::insight
