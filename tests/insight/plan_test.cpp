// The plan of a run: its parts are the whole, its picture is one, its counts are those of the
// model.
#include "insight/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "backend/cpu/gemm.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

RunPlan plan_of(const KeyValues& given) {
  const train::TrainOptions o = train::resolve(given);
  train::FitContext context;
  context.config = train::model_config(o, 65);
  context.now = resident_memory();
  context.speed = train::MachineSpeed{2e11, 0, 0, 3e10, 2e11, 1 << 20, "for a test"};
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(o, context, &session);
  return analyse(plan, context.config, *session, context.speed);
}

int64_t at(const RunPlan& p, Holds h) { return p.at_peak[static_cast<size_t>(h)]; }

TEST(Plan, PartsAreTheWhole) {
  for (const KeyValues& run :
       {KeyValues{}, KeyValues{{"precision", "bf16"}}, KeyValues{{"precision", "fp16"}},
        KeyValues{{"precision", "bf16"}, {"gradient-accumulation-steps", "3"}},
        KeyValues{{"gradient-accumulation-steps", "3"}}, KeyValues{{"compile", "false"}},
        KeyValues{{"dropout", "0.1"}}, KeyValues{{"rematerialize", "blocks"}},
        KeyValues{{"rematerialize", "all"}}, KeyValues{{"eval-batch-size", "100"}}}) {
    const RunPlan p = plan_of(run);
    const int64_t held = std::accumulate(p.at_peak.begin(), p.at_peak.end(), int64_t{0});
    EXPECT_EQ(held, p.peak.bytes);
    EXPECT_EQ(held + p.gaps, p.plan.arena.total());
    EXPECT_GE(p.gaps, 0);
    EXPECT_LT(p.gaps, p.plan.arena.total() / 8);
    int64_t states = 0;
    for (const NamedBytes& s : p.states) states += s.bytes;
    // Every low-precision copy is a state: no program makes one for itself.
    EXPECT_EQ(states + at(p, Holds::copies),
              p.plan.arena.parameter_bytes + p.plan.arena.state_bytes);
    for (const Moment& m : p.moments) EXPECT_LE(m.total(), p.peak.bytes);
    int64_t saved = 0;
    for (const NamedBytes& s : p.saved_by_op) saved += s.bytes;
    EXPECT_EQ(saved, p.saved_bytes);
    saved = 0;
    for (const NamedBytes& s : p.saved_by_layer) saved += s.bytes;
    EXPECT_EQ(saved, p.saved_bytes);
  }
}

TEST(Plan, KnowsWhatIsWhat) {
  const RunPlan p = plan_of({});
  const int64_t n = p.config.parameter_count();
  EXPECT_NEAR(static_cast<double>(at(p, Holds::weights)), 4.0 * static_cast<double>(n), 1e4);
  EXPECT_NEAR(static_cast<double>(at(p, Holds::optimizer)), 8.0 * static_cast<double>(n), 2e4);
  EXPECT_EQ(at(p, Holds::copies), 0);
  // The forward pass of four layers keeps most of what there is.
  EXPECT_GT(p.saved_bytes, p.plan.arena.total() / 2);
  EXPECT_GT(p.backward_begins, 10u);
  EXPECT_LT(p.backward_begins, p.moments.size() - 10);
  EXPECT_EQ(p.peak.phase, "backward");

  const RunPlan mixed = plan_of({{"precision", "bf16"}});
  // One of each weight, or two in panels.
  const double orders = cpu::gemm_packs_tiles(DType::bf16) ? 2 : 1;
  EXPECT_NEAR(static_cast<double>(at(mixed, Holds::copies)), orders * 2 * static_cast<double>(n),
              orders * 0.1 * static_cast<double>(n));
  const RunPlan summed = plan_of({{"gradient-accumulation-steps", "4"}});
  EXPECT_NEAR(static_cast<double>(at(summed, Holds::gradient_sums)), 4.0 * static_cast<double>(n),
              1e4);
  const RunPlan again = plan_of({{"rematerialize", "blocks"}});
  EXPECT_LT(again.saved_bytes, p.saved_bytes / 2);
  EXPECT_GT(again.flops_backward, 1.2 * p.flops_backward);
  const RunPlan evaluated = plan_of({{"eval-batch-size", "1000"}});
  EXPECT_EQ(evaluated.peak.program, "eval");
  EXPECT_EQ(evaluated.peak.phase, "forward");
}

// Two codes for a parameter, and a scale for each block of 256 of them; small tensors are in f32.
TEST(Plan, EightBitAdamwKeepsTwoBytesForAParameter) {
  for (const char* preset : {"char-cpu", "gpt2"}) {
    const RunPlan p = plan_of({{"preset", preset}, {"optim", "adamw_8bit"}, {"batch-size", "1"}});
    const double n = static_cast<double>(p.config.parameter_count());
    EXPECT_LE(static_cast<double>(p.plan.arena.state_bytes), 2.1 * n) << preset;
    EXPECT_GT(static_cast<double>(p.plan.arena.state_bytes), 2 * n) << preset;
  }
}

TEST(Plan, CountsTheWorkOfTheModel) {
  for (const char* accumulation : {"1", "4"}) {
    const RunPlan p = plan_of({{"gradient-accumulation-steps", accumulation}, {"batch-size", "4"}});
    const nn::Gpt2Config& c = p.config;
    const double n = static_cast<double>(c.parameter_count() - c.n_positions * c.n_embd);
    const double attention = 6.0 * static_cast<double>(c.n_layer * c.n_embd * c.n_positions);
    double products = 0;
    for (const ClassFlops& f : p.flops)
      if (f.name == name_of(OpClass::contraction)) products = f.forward + f.backward;
    EXPECT_GT(products, 6 * n);
    EXPECT_LT(products, 1.15 * (6 * n + 2 * attention));
    EXPECT_NEAR(p.flops_backward / p.flops_forward, 2, 0.15);
  }
}

TEST(Plan, KeysAndValuesOfAGeneration) {
  const RunPlan p = plan_of({{"context", "128"}});
  const nn::Gpt2Config& c = p.config;
  EXPECT_EQ(p.generation.cache, 2 * c.n_layer * c.n_positions * c.n_embd * 4);
  EXPECT_EQ(plan_of({{"context", "128"}, {"precision", "bf16"}}).generation.cache,
            p.generation.cache / 2);
}

TEST(Plan, IsOneObject) {
  const RunPlan p = plan_of({});
  const auto j = nlohmann::json::parse(report_json(p));
  for (const char* key : {"arena_bytes", "process_bytes", "components", "peak_at",
                          "flops_per_token", "predicted_ms", "saved_activations"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["arena_bytes"].get<int64_t>(), p.plan.arena.total());
  int64_t sum = 0;
  for (const auto& [name, bytes] : j["components"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, p.plan.arena.total());
  EXPECT_GT(j["predicted_ms"].get<double>(), 0);
  EXPECT_NE(report(p, false).find("kept from forward to backward"), std::string::npos);
}

TEST(Plan, PictureHoldsEveryKind) {
  const RunPlan p = plan_of({{"precision", "bf16"}});
  const std::string svg = memory_picture(p);
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* part : {"weights", "optimizer", "gradients", "low-precision copies",
                           "saved activations", "temporaries", "peak "})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg, memory_picture(p));
  EXPECT_NE(memory_page(p).find("<pre>"), std::string::npos);
}

}  // namespace
}  // namespace brrr::insight
