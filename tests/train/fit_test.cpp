// Fitting into a budget: what is chosen keeps the budget and the tokens of a step, and the search
// finds the edge.
#include "train/fit.h"

#include <gtest/gtest.h>

#include "backend/cpu/products/gemm.h"
#include "base/errors.h"
#include "train/trainer.h"

namespace brrr::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

class Fit : public testing::Test {
 protected:
  static TrainOptions options(KeyValues given = {}) {
    const KeyValues small{{"n-layer", "2"},
                          {"n-embd", "32"},
                          {"n-head", "2"},
                          {"context", "16"},
                          {"batch-size", "12"}};
    return resolve(overlaid(small, given));
  }
  FitContext context(const TrainOptions& o, int64_t budget) const {
    FitContext c;
    c.model = model_of(o, 65);
    c.now = now_;
    c.budget = budget;
    return c;
  }
  Plan plan(const TrainOptions& o) const { return plan_of(o, context(o, 0)); }
  const ResidentMemory now_{8 * kMiB, 4 * kMiB, 0, 12 * kMiB};
};

TEST_F(Fit, ForecastIsWhatIsAllocated) {
  std::vector<KeyValues> runs;
  for (const char* batch : {"1", "3", "12"})
    for (const char* precision : {"fp32", "bf16", "fp16"})
      for (const char* accumulation : {"1", "2", "5"})
        runs.push_back({{"batch-size", batch},
                        {"precision", precision},
                        {"gradient-accumulation-steps", accumulation}});
  for (const char* policy : {"blocks", "all", "auto"})
    for (const char* precision : {"fp32", "bf16"})
      runs.push_back({{"rematerialize", policy}, {"precision", precision}});
  runs.push_back({{"activation-memory", "400KiB"}});
  runs.push_back({{"dropout", "0.1"}});
  runs.push_back({{"eval-batch-size", "64"}});
  runs.push_back({{"compile", "false"}});
  runs.push_back({{"disable-pass", "match_attention"}});
  for (const char* products : {"high", "medium"})
    for (const char* policy : {"none", "blocks", "all", "auto"})
      runs.push_back({{"float32-matmul-precision", products}, {"rematerialize", policy}});
  ASSERT_GE(runs.size(), 20u);
  for (const KeyValues& run : runs) {
    const TrainOptions o = options(run);
    std::unique_ptr<Session> session;
    const Plan p = plan_of(o, context(o, 0), &session);
    session->allocate();
    EXPECT_EQ(p.arena.total(), session->engine().arena_bytes());
    int64_t temporary = 0, constant = 0, state = 0;
    for (const Session::ProgramUse& use : session->programs()) {
      verify(use.program->plan());
      temporary = std::max(temporary, use.program->plan().temporary_bytes);
      constant += use.program->plan().constant_bytes;
    }
    for (const StateInfo& s : session->engine().states()) state += (s.type.bytes() + 63) / 64 * 64;
    EXPECT_EQ(p.arena.total(), state + constant + temporary);
  }
}

// What products read in bf16 is no value to keep, and no reason to keep less: recomputation brings
// with it what it brings with products in f32.
TEST_F(Fit, RecomputationBringsAsMuchWhateverProductsAreComputedWith) {
  const auto arena = [&](const char* products, const char* policy, const char* budget) {
    KeyValues given{{"n-layer", "6"},
                    {"n-embd", "96"},
                    {"context", "128"},
                    {"dropout", "0.1"},
                    {"float32-matmul-precision", products},
                    {"rematerialize", policy}};
    if (*budget != 0) given.push_back({"activation-memory", budget});
    return plan(options(given)).arena;
  };
  const auto wide = [&](const char* policy, const char* budget = "") {
    return arena("highest", policy, budget).total();
  };
  const int64_t none = wide("none"), blocks = wide("blocks"), all = wide("all");
  const char* kBudget = "20MiB";
  const int64_t within = wide("auto", kBudget);
  ASSERT_LT(blocks * 2, none);
  ASSERT_LT(within * 2, none);
  const int64_t weights = 6 * 12 * 96 * 96 * 4;
  // Where a sum is no epilogue of a product, the three products that "high" makes of one wait for
  // the node that adds them: two more than one, of the width of the MLP.
  const int64_t waiting = cpu::gemm_packs_tiles(DType::bf16) ? 0 : 2 * 12 * 128 * 4 * 96 * 4;
  const auto at_most = [&](int64_t bytes) { return bytes + bytes / 4 + weights + waiting; };
  for (const char* products : {"high", "medium"}) {
    SCOPED_TRACE(products);
    const auto bytes = [&](const char* policy, const char* budget = "") {
      return arena(products, policy, budget).total();
    };
    // In f32 the most is held when the forward pass ends, and q, k and v are held once; here around
    // the MLP of the last layer.
    EXPECT_LE(bytes("none"), none + none / 8 + weights + waiting);
    EXPECT_LE(bytes("auto"), at_most(wide("auto")));
    EXPECT_LE(bytes("blocks"), at_most(blocks));
    EXPECT_LE(bytes("all"), at_most(all));
    // Computing everything again needs as little as computing blocks again, or, where the gradient
    // of attention is the peak, as little as it does with products in f32.
    const double more = static_cast<double>(bytes("all")) / static_cast<double>(bytes("blocks"));
    EXPECT_LE(more, std::max(1.02, static_cast<double>(all) / static_cast<double>(blocks)));
    EXPECT_LE(bytes("auto", kBudget), at_most(within));
  }
}

TEST_F(Fit, KeepsTheBudgetAndTheTokensOfAStep) {
  const TrainOptions o = options();
  for (int64_t batch : {1, 2, 3, 4, 6, 12}) {
    TrainOptions portion = o;
    portion.batch_size = portion.eval_batch_size = batch;
    portion.gradient_accumulation_steps = 12 / batch;
    const int64_t budget = plan(portion).process.needed();
    const FitResult found = fit(o, context(o, budget), FitFreedom::memory);
    ASSERT_TRUE(found.best) << batch;
    EXPECT_LE(found.best->process.needed(), budget);
    EXPECT_LE(found.best->ms, plan(portion).ms);
    EXPECT_EQ(found.best->options.batch_size * found.best->options.gradient_accumulation_steps, 12);
    EXPECT_EQ(found.best->options.optim, o.optim);
  }
}

TEST_F(Fit, APolicyThatWasAskedForStays) {
  const TrainOptions o = options({{"rematerialize", "blocks"}});
  const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::memory);
  for (const Plan& p : found.tried) EXPECT_EQ(p.options.rematerialize, "blocks");
}

TEST_F(Fit, RoomForEverythingNeedsNoRecomputation) {
  const TrainOptions o = options();
  const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::memory);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(found.best->options.rematerialize, "none");
  EXPECT_EQ(found.best->options.batch_size, 12);
}

// Before anything is computed twice or in portions.
TEST_F(Fit, CopiesInPanelsGoFirst) {
  const TrainOptions o = options({{"precision", "bf16"}});
  const Plan with = plan(o);
  if (!with.has_panels) GTEST_SKIP() << "this machine's products gain nothing by panels";
  const Plan without = plan(options({{"precision", "bf16"}, {"disable-pass", "weight_panels"}}));
  ASSERT_LT(without.needed(), with.needed());
  const FitContext c = context(o, without.needed());
  const FitResult found = fit(o, c, FitFreedom::memory);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(found.best->needed(), without.needed());
  EXPECT_EQ(description(found.best->options), "batch 12, without weight_panels");
  EXPECT_EQ(fit(o, context(o, with.needed()), FitFreedom::memory).best->options.disable_pass,
            o.disable_pass);
}

TEST_F(Fit, EvaluationSeesTheSameRows) {
  const TrainOptions o = options({{"eval-batches", "5"}});
  const FitResult found = fit(o, context(o, 0), FitFreedom::memory);
  const TrainOptions& least = found.smallest.options;
  EXPECT_EQ(least.eval_batch_size * least.eval_batches, 12 * 5);
  const TrainOptions own = options({{"eval-batches", "5"}, {"eval-batch-size", "7"}});
  const TrainOptions kept = fit(own, context(own, 0), FitFreedom::memory).smallest.options;
  EXPECT_EQ(kept.eval_batch_size, 7);
  EXPECT_EQ(kept.eval_batches, 5);
}

TEST_F(Fit, WhatCannotFitSaysWhatWould) {
  const TrainOptions o = options();
  const FitContext c = context(o, 5 * kMiB);
  const FitResult found = fit(o, c, FitFreedom::memory);
  EXPECT_FALSE(found.best);
  for (const Plan& p : found.tried) EXPECT_FALSE(p.fits);
  const int64_t least = found.smallest.process.needed();
  const std::string line = refusal(plan_of(o, c), found, c, {5 * kMiB, "--memory-limit"});
  const std::string advised = memory_at_least(least + machine::kVariesBetweenRuns);
  EXPECT_NE(line.find("--memory-limit " + advised), std::string::npos) << line;
  // What it says is true.
  FitContext enough = c;
  enough.budget = parse_memory(advised);
  EXPECT_TRUE(fit(o, enough, FitFreedom::memory).best);
}

// With what the search left in the process the plan that it found is too much.
TEST_F(Fit, ARefusalPromisesOnlyWhatFitsBesideTheSearch) {
  const TrainOptions o = options();
  const int64_t budget = plan(options({{"batch-size", "6"},
                                       {"eval-batch-size", "6"},
                                       {"gradient-accumulation-steps", "2"}}))
                             .needed();
  FitContext c = context(o, budget);
  const FitResult found = fit(o, c, FitFreedom::memory);
  ASSERT_TRUE(found.best);
  const auto said = [&] { return refusal(plan_of(o, c), found, c, {budget, "--memory-limit"}); };
  c.left_by_search = budget - found.best->needed();
  EXPECT_NE(said().find("With --fit it runs as"), std::string::npos) << said();
  c.left_by_search += 1;
  EXPECT_EQ(said().find("it runs as"), std::string::npos) << said();
  c.left_by_search = budget;
  const std::string least =
      memory_at_least(found.smallest.needed() + budget + machine::kVariesBetweenRuns);
  EXPECT_NE(said().find("The smallest budget that fits is --memory-limit " + least),
            std::string::npos)
      << said();
}

TEST_F(Fit, TooSmallABudgetOfActivationsIsRefusedInMebibytes) {
  try {
    plan(options({{"activation-memory", "24KiB"}}));
    ADD_FAILURE();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("the budget is 24.0 KiB"), std::string::npos) << e.what();
  }
}

TEST_F(Fit, ARefusalNamesAnEvaluationThatIsTooLarge) {
  const auto said = [&](const TrainOptions& o, int64_t budget) {
    const FitContext c = context(o, budget);
    return refusal(plan_of(o, c), fit(o, c, FitFreedom::memory), c, {budget, "--memory-limit"});
  };
  const TrainOptions o = options({{"eval-batch-size", "512"}});
  const TrainOptions small = options({{"eval-batch-size", "12"}});
  const int64_t enough = plan(small).needed();
  ASSERT_LT(enough, plan(o).needed());
  std::string line = said(o, enough);
  EXPECT_NE(line.find("with --eval-batch-size 12 it runs in " + memory_text(enough)), line.npos)
      << line;
  // Then it is not enough alone, and it still helps.
  line = said(o, enough - 1);
  EXPECT_NE(line.find("use a smaller --eval-batch-size, --context or model"), line.npos) << line;
  line = said(o, 5 * kMiB);
  EXPECT_NE(line.find("--eval-batch-size"), line.npos) << line;
  // Evaluation is no larger than the rest.
  for (const TrainOptions& even : {options(), small})
    EXPECT_EQ(said(even, 5 * kMiB).find("--eval-batch-size"), line.npos);
}

TEST_F(Fit, ARecordedBudgetOfActivationsIsForgotten) {
  TrainOptions o = options();
  o.resume = "true";
  o.rematerialize = "auto";
  o.activation_memory = "9MiB";
  const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::memory);
  ASSERT_TRUE(found.best);
  for (const Plan& p : found.tried) EXPECT_EQ(p.options.activation_memory, "");
  const TrainOptions asked = options({{"activation-memory", "9MiB"}});
  const FitResult kept = fit(asked, context(asked, int64_t{1} << 30), FitFreedom::memory);
  for (const Plan& p : kept.tried) EXPECT_EQ(p.options.activation_memory, "9MiB");
}

TEST_F(Fit, AResumedRunKeepsItsPortions) {
  TrainOptions o = options();
  o.resume = "true";
  const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::memory);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(found.best->options.batch_size, 12);
  EXPECT_EQ(found.best->options.gradient_accumulation_steps, 1);
}

TEST_F(Fit, AllFreedomKeepsAnOptimizerThatWasAskedForOrHasStates) {
  for (const bool resumed : {false, true}) {
    TrainOptions o = resumed ? options() : options({{"optim", "adamw"}});
    if (resumed) o.resume = "true";
    const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::all);
    for (const Plan& p : found.tried) EXPECT_EQ(p.options.optim, "adamw");
  }
}

TEST_F(Fit, ABudgetOfActivationsThatIsTooSmallForTheBatchFitsInPortions) {
  const TrainOptions o = options({{"activation-memory", "24KiB"}});
  EXPECT_THROW(plan(o), UserError);
  const FitResult found = fit(o, context(o, int64_t{1} << 30), FitFreedom::memory);
  ASSERT_TRUE(found.best);
  EXPECT_LT(found.best->options.batch_size, 12);
  const Plan most = largest_batch(o, context(o, int64_t{1} << 30));
  EXPECT_TRUE(most.fits);
  EXPECT_LT(most.options.batch_size, 12);
}

// Nothing of a run is left to the interpreter, whose memory no plan knows.
TEST_F(Fit, EveryKindOfRunHasKernelsForAllOfIt) {
  for (const char* optim : {"adamw", "adamw_8bit", "sgd", "lion", "adafactor", "muon"})
    for (const char* precision : {"fp32", "bf16", "fp16"})
      for (const char* weights : {"fp32", "bf16"})
        for (const char* accumulation : {"1", "3"}) {
          const bool low = std::string_view(weights) == "bf16";
          if (low && std::string_view(optim) == "adafactor") continue;
          if (low && std::string_view(precision) == "fp16") continue;
          const TrainOptions o = options({{"optim", optim},
                                          {"precision", precision},
                                          {"param-dtype", weights},
                                          {"dropout", "0.1"},
                                          {"gradient-accumulation-steps", accumulation}});
          const auto session = compile_run(o, *model_of(o, 65));
          for (const Program* program : session->all_programs())
            for (const Dispatch& d : program->dispatch())
              EXPECT_NE(d.kernel, "reference")
                  << optim << " " << precision << " " << weights << " x " << accumulation << ": "
                  << program->graph().node(d.node).op->name << ", "
                  << fmt::format("{}", fmt::join(d.refusals, "; "));
        }
}

TEST_F(Fit, LooksAtFewPlans) {
  const TrainOptions o = options({{"batch-size", "960"}});
  const FitResult found = fit(o, context(o, 40 * kMiB), FitFreedom::memory);
  ASSERT_TRUE(found.best);
  EXPECT_LE(found.compiled, 40);  // 28 divisors and 4 policies
}

TEST_F(Fit, LargestBatchIsAtTheEdge) {
  for (int64_t mib : {14, 17, 25, 70}) {
    const TrainOptions o = options();
    const FitContext c = context(o, mib * kMiB);
    const Plan best = largest_batch(o, c);
    const int64_t batch = best.options.batch_size;
    if (batch == 0) {
      EXPECT_FALSE(best.fits);
      continue;
    }
    EXPECT_TRUE(best.fits);
    EXPECT_LE(best.process.needed(), c.budget);
    TrainOptions more = o;
    more.batch_size = more.eval_batch_size = batch + 1;
    EXPECT_GT(plan(more).process.needed(), c.budget) << "batch " << batch;
  }
  const TrainOptions o = options();
  EXPECT_FALSE(largest_batch(o, context(o, 13 * kMiB)).fits);
}

TEST_F(Fit, FasterIsBetterWhenTheMachineIsKnown) {
  const TrainOptions o = options();
  FitContext c = context(o, int64_t{1} << 30);
  c.speed = machine::MachineSpeed{1e11, 0, 0, 1e10, 1e11, 1 << 20, "for a test"};
  const FitResult found = fit(o, c, FitFreedom::memory);
  ASSERT_TRUE(found.best);
  for (const Plan& p : found.tried) EXPECT_GE(p.ms, found.best->ms);
  EXPECT_GT(found.best->ms, 0);
}

// A search is told what the one before left in the process; then the next choice fits, however
// little the first was over and however much of what is left was hidden by room to spare.
TEST(RoomToLeave, TheSecondSearchSettlesIt) {
  constexpr int64_t kReckoned[] = {60, 41, 35, 30};  // MiB, what there is to choose from
  for (int64_t gap = 0; gap <= 12; ++gap)
    for (int64_t limit = 50 + gap; limit >= 31 + gap; --limit) {
      int64_t left = 0;
      int rounds = 0;
      for (bool fits = false; !fits; ++rounds) {
        ASSERT_LT(rounds, 2) << gap << " MiB left behind, a limit of " << limit;
        const int64_t* chosen = std::begin(kReckoned);
        while (chosen != std::end(kReckoned) && *chosen * kMiB > limit * kMiB - left) ++chosen;
        ASSERT_NE(chosen, std::end(kReckoned)) << gap << " " << limit;
        fits = *chosen + gap <= limit;
        left = room_to_leave(left, *chosen * kMiB, (*chosen + gap) * kMiB);
      }
    }
}

// A measurement beside other work is no figure of the machine.
TEST(MachineSpeedTest, OtherWorkDisturbsWhereItTakesProcessorsOfTheTeam) {
  const auto disturbed = [](double busy, double own, int64_t processors, int64_t threads) {
    return machine::is_disturbed({.busy = busy, .own_processors = own}, processors, threads);
  };
  EXPECT_FALSE(disturbed(1, 2, 2, 2));
  EXPECT_FALSE(disturbed(0.95, 1.8, 2, 2));  // a tenth of a processor each is nothing
  EXPECT_TRUE(disturbed(1, 1.5, 2, 2));
  EXPECT_TRUE(disturbed(1, 1, 2, 2));
  EXPECT_FALSE(disturbed(1, 1, 2, 1));  // the other processor's work
  EXPECT_FALSE(disturbed(0.5, 4, 64, 4));
  EXPECT_TRUE(disturbed(0.5, 16, 64, 64));
  EXPECT_FALSE(disturbed(-1, 1, 2, 2));  // the system does not say
}

TEST_F(Fit, ALimitBeyondTheMachineIsWrong) {
  TrainOptions o = options();
  o.memory_limit = "4000TiB";
  EXPECT_THROW(memory_budget(o), UserError);
  o.memory_limit = "1MiB";
  EXPECT_EQ(memory_budget(o).bytes, kMiB);
  o.memory_limit.clear();
  EXPECT_GT(memory_budget(o).bytes, kMiB);
}

}  // namespace
}  // namespace brrr::train
