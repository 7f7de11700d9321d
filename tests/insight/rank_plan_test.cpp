// The plan of a run on several ranks, as people and programs see it.
#include "insight/plan/rank_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "insight/plan/plan.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

RunPlan plan_on_ranks(int64_t ranks, int64_t zero, const char* precision, const char* link) {
  train::TrainOptions o = train::resolve({{"ranks", std::to_string(ranks)},
                                          {"zero", std::to_string(zero)},
                                          {"precision", precision},
                                          {"batch-size", "8"}});
  train::cut_into_slots(o);
  train::FitContext context;
  context.model = train::model_of(o, 65);
  context.now = resident_memory();
  context.speed = machine::nominal_speed();
  context.link = machine::parse_link(link);
  context.plans_only = true;
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(o, context, &session);
  return analyse(plan, context.model, *session, context.speed);
}

TEST(RankPlanReport, NamesWhatIsSentAndHidden) {
  const RunPlan p = plan_on_ranks(4, 1, "fp32", "1Gbit,50us");
  ASSERT_TRUE(p.ranks.has_value());
  EXPECT_GT(p.ranks->traffic.mean_bytes, 0);
  ASSERT_TRUE(p.ranks->overlap.has_value());
  EXPECT_NEAR(p.plan.ms, 1e3 * p.ranks->overlap->seconds, 1e-6 * p.plan.ms);
  EXPECT_NEAR(p.time->total_ms(), p.plan.ms, 1e-6 * p.plan.ms);
  const std::string text = report(p, false);
  EXPECT_NE(text.find("4 ranks, ZeRO 1"), std::string::npos);
  EXPECT_NE(text.find("0.125 GB/s and 50 us"), std::string::npos);
  const auto j = nlohmann::json::parse(report_json(p));
  EXPECT_EQ(j.at("ranks").at("zero"), 1);
  EXPECT_EQ(j.at("ranks").at("bytes_sent").get<double>(), p.ranks->traffic.mean_bytes);
  EXPECT_GT(j.at("process").at("ranks").get<int64_t>(), 0);
  EXPECT_FALSE(plan_on_ranks(1, 0, "fp32", "1Gbit").ranks.has_value());
}

// FLOPs of a token do not depend on who computes it, but for the optimizer.
TEST(RankPlanReport, CountsTheWorkOfATokenOnce) {
  const RunPlan alone = plan_on_ranks(1, 0, "fp32", "1Gbit"),
                four = plan_on_ranks(4, 1, "fp32", "1Gbit");
  EXPECT_EQ(alone.tokens_per_step, four.tokens_per_step);
  EXPECT_NEAR(four.flops_forward, alone.flops_forward, 1e-3 * alone.flops_forward);
  EXPECT_NEAR(four.flops_backward, alone.flops_backward, 1e-2 * alone.flops_backward);
}

TEST(RankPlanReport, ComparesStages) {
  std::vector<RunPlan> plans;
  for (int64_t zero = 0; zero <= 3; ++zero)
    plans.push_back(plan_on_ranks(4, zero, "bf16", "10Gbit,10us"));
  const double published[] = {16, 7, 5.5, 4};
  for (size_t i = 0; i < plans.size(); ++i)
    EXPECT_DOUBLE_EQ(plans[i].ranks->published, published[i]);
  // Weights and moments: 12 bytes, a fourth of them where they are divided, and a copy of 2.
  EXPECT_GE(plans[0].ranks->kept, 14 - 0.1);
  EXPECT_LT(plans[1].ranks->kept, plans[0].ranks->kept - 7);
  EXPECT_LT(plans[3].ranks->kept, plans[1].ranks->kept);
  const std::string text = compare_stages(plans, false);
  EXPECT_NE(text.find("5.50"), std::string::npos);
  const auto j = nlohmann::json::parse(compare_stages_json(plans));
  ASSERT_EQ(j.at("stages").size(), 4u);
  EXPECT_EQ(j.at("stages")[3].at("arena_bytes").get<int64_t>(), plans[3].plan.arena.total());
}

}  // namespace
}  // namespace brrr::insight
