// The plan of a run: its parts are the whole, its picture is one, its counts are those of the
// model.
#include "insight/plan/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "backend/cpu/products/gemm.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

struct Planned {
  RunPlan plan;
  std::unique_ptr<train::Session> session;
};
Planned planned(const KeyValues& given) {
  const train::TrainOptions o = train::resolve(given);
  train::FitContext context;
  context.model = train::model_of(o, 65);
  context.now = resident_memory();
  context.speed = machine::MachineSpeed{2e11, 0, 0, 3e10, 2e11, 1 << 20, "for a test"};
  context.plans_only = true;
  Planned p;
  const train::Plan plan = train::plan_of(o, context, &p.session);
  p.plan = analyse(plan, context.model, *p.session, context.speed);
  add_kernels(p.plan, *p.session);
  return p;
}
RunPlan plan_of(const KeyValues& given) { return planned(given).plan; }

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
  const int64_t n = p.model->parameter_count();
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
    const double n = static_cast<double>(p.model->parameter_count());
    EXPECT_LE(static_cast<double>(p.plan.arena.state_bytes), 2.1 * n) << preset;
    EXPECT_GT(static_cast<double>(p.plan.arena.state_bytes), 2 * n) << preset;
  }
}

TEST(Plan, CountsTheWorkOfTheModel) {
  for (const char* accumulation : {"1", "4"}) {
    const RunPlan p = plan_of({{"gradient-accumulation-steps", accumulation}, {"batch-size", "4"}});
    const models::ModelSizes c = p.model->sizes();
    const double n = static_cast<double>(p.model->parameter_count() - c.context * c.width);
    const double attention = 6.0 * static_cast<double>(c.layers * c.width * c.context);
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
  const models::ModelSizes c = p.model->sizes();
  EXPECT_EQ(p.inference.cache, 2 * c.layers * c.context * c.width * 4);
  EXPECT_EQ(plan_of({{"context", "128"}, {"precision", "bf16"}}).inference.cache,
            p.inference.cache / 2);
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

TEST(Plan, KernelsOfTheHostAreThePredictedStep) {
  for (const KeyValues& run : {KeyValues{}, KeyValues{{"gradient-accumulation-steps", "3"}}}) {
    const RunPlan p = plan_of(run);
    const PlannedKernel all = p.kernels->total();
    EXPECT_NEAR(all.ms, p.time->total_ms(), 1e-9 * all.ms);
    EXPECT_NEAR(all.flops / static_cast<double>(p.tokens_per_step),
                p.flops_forward + p.flops_backward + p.flops_optimizer, 1e-9 * all.flops);
    for (size_t i = 1; i < p.kernels->kernels.size(); ++i)
      EXPECT_GE(p.kernels->kernels[i - 1].ms, p.kernels->kernels[i].ms);
    EXPECT_EQ(predicted_mfu(p, true), 0);  // no data sheet of the host
  }
}

TEST(Plan, KernelsOfAGpuAreTheWholeStep) {
  const KeyValues run{
      {"preset", "gpt2"}, {"precision", "bf16"}, {"batch-size", "8"}, {"device", "cuda:sm_90"}};
  const RunPlan p = plan_of(run);
  const PlannedKernel all = p.kernels->total();
  const double tokens = static_cast<double>(p.tokens_per_step);
  // Products of the library are counted by their sizes, without GELU in their epilogues; all else
  // by the costs of ops.
  const double flops = p.flops_forward + p.flops_backward + p.flops_optimizer;
  EXPECT_LE(all.flops / tokens, flops);
  EXPECT_GT(all.flops / tokens, 0.998 * flops);
  EXPECT_GT(all.launches, 300);
  double ms = 0;
  int64_t attention = 0, products = 0;
  for (const PlannedKernel& k : p.kernels->kernels) {
    EXPECT_GT(k.bytes, 0) << k.kernel;
    EXPECT_GT(k.ms, 0) << k.kernel;
    ms += k.ms;
    if (k.kernel.find("attention") != std::string::npos) attention += k.launches;
    if (k.kernel.starts_with("cublaslt bf16")) products += k.launches;
  }
  EXPECT_EQ(attention, 24);          // 12 layers, by cuDNN in both passes
  EXPECT_EQ(products, 12 * 12 + 3);  // a chunk of the loss head holds the whole batch
  EXPECT_NEAR(ms, all.ms, 1e-9 * ms);

  const models::ModelSizes c = p.model->sizes();
  const double n = static_cast<double>(p.model->parameter_count() - c.context * c.width);
  const double scores = 6.0 * static_cast<double>(c.layers * c.width * c.context);
  EXPECT_NEAR(predicted_mfu(p, true), (6 * n + scores) * tokens / (1e-3 * ms * 989e12), 1e-9);
  EXPECT_NEAR(predicted_mfu(p, false) / predicted_mfu(p, true),
              (6 * n + 2 * scores) / (6 * n + scores), 1e-9);

  const auto j = nlohmann::json::parse(report_json(p))["kernels"];
  EXPECT_EQ(j["list"].size(), p.kernels->kernels.size());
  EXPECT_EQ(j["all"]["launches"].get<int64_t>(), all.launches);
  EXPECT_EQ(j["mfu_6n_6lct"].get<double>(), predicted_mfu(p, true));
  const std::string text = report(p, false);
  EXPECT_NE(text.find("predicted, not measured: H100 SXM"), std::string::npos);
  EXPECT_NE(text.find("by 6N + 12LCT, of 989 TFLOP/s"), std::string::npos);
}

TEST(Plan, KernelsTakeAsLongAsTheRatesSay) {
  const Planned p = planned({{"preset", "gpt2"}, {"precision", "bf16"}, {"device", "cuda:sm_90"}});
  const auto ms_at = [&](const char* rates) {
    RunPlan copy = p.plan;
    add_kernels(copy, *p.session, parse_kernel_rates(rates));
    return copy.kernels->total().ms;
  };
  const PlannedKernel all = p.plan.kernels->total();
  // Where memory is everything, the time is that of the bytes, and so on.
  EXPECT_NEAR(ms_at("products=1e9,attention=1e9,attention-grad=1e9,memory=0.001,launch=1e-6"),
              (all.bytes + all.bytes_again) / 1e6, 1e-3 * (all.bytes + all.bytes_again) / 1e6);
  const double launches = 1e-3 * static_cast<double>(all.launches);
  EXPECT_NEAR(ms_at("launch=11") - ms_at("launch=1"), 10 * launches, 1e-9);
  EXPECT_NEAR(ms_at("launch=1"), all.ms, 1e-9);
  EXPECT_GT(ms_at("attention=100"), all.ms);
  EXPECT_GT(ms_at("attention-grad=100"), ms_at("attention=100"));
  EXPECT_GT(ms_at("products=300"), 1.5 * all.ms);
  EXPECT_THROW(parse_kernel_rates("product=3"), UserError);
  EXPECT_THROW(parse_kernel_rates("products=600,"
                                  "memory=-1"),
               UserError);
}

// The loss head's chunks read the weights and add to their gradient again and again.
TEST(Plan, KernelsCountChunks) {
  const auto head = [](const char* batch) {
    const RunPlan p = plan_of({{"preset", "gpt2"},
                               {"precision", "bf16"},
                               {"batch-size", batch},
                               {"device", "cuda:sm_90"}});
    PlannedKernel rows, added;
    for (const PlannedKernel& k : p.kernels->kernels) {
      if (k.kernel == "linear_cross_entropy_step") rows = k;
      if (k.kernel.ends_with("tn +addend")) added = k;
    }
    return std::pair(rows, added);
  };
  const auto [rows8, added8] = head("8");
  const auto [rows64, added64] = head("64");
  EXPECT_EQ(rows8.launches, 1);
  EXPECT_EQ(added8.launches, 0);
  EXPECT_EQ(rows64.launches, 8);
  EXPECT_EQ(added64.launches, 7);
  // Logits in bf16, read and written; targets, gradients, losses and their log-sum-exps.
  EXPECT_EQ(rows64.bytes, 65536.0 * (2 * 50304 * 2 + 4 * 4));
  EXPECT_EQ(rows64.bytes, 8 * rows8.bytes);
  // x and the gradient of the logits in bf16, the sum in f32 read and written.
  EXPECT_EQ(added64.bytes, 7.0 * (8192.0 * 2 * (50257 + 768) + 2 * 4.0 * 50257 * 768));
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
}

}  // namespace
}  // namespace brrr::insight
