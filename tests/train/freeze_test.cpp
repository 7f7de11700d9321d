// Parameters that --freeze leaves as they are.

#include "models/freeze.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/target.h"
#include "formats/safetensors.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/temp_folder.h"
#include "support/token_batch.h"
#include "train/session.h"

namespace brrr::train {
namespace {

using Names = std::set<std::string>;

Names frozen(const std::vector<std::string>& items) {
  return models::frozen_parameters(*test::tiny_gpt2().model(), items);
}

TEST(Freeze, PlacesNameParameters) {
  EXPECT_EQ(frozen({"embed"}), (Names{"transformer.wte.weight", "transformer.wpe.weight"}));
  EXPECT_EQ(frozen({"h.1", "h.0"}), frozen({"h.0-1"}));
  EXPECT_EQ(frozen({"transformer.h.1"}), frozen({"h.1"}));
  EXPECT_EQ(frozen({"transformer.h.0.mlp.c_fc.weight"}), Names{"transformer.h.0.mlp.c_fc.weight"});
  const Names norm = frozen({"norm"});
  EXPECT_TRUE(norm.contains("transformer.ln_f.weight"));
  for (const std::string& name : frozen({"h.0"})) EXPECT_TRUE(name.starts_with("transformer.h.0."));
  EXPECT_TRUE(frozen({}).empty());
}

TEST(Freeze, RefusesWhatNamesNothing) {
  EXPECT_USER_ERROR(frozen({"embd"}), "the model has no parameters 'embd'; did you mean 'embed'?");
  EXPECT_USER_ERROR(frozen({"h.2"}), "layers from 0 to 1");
  EXPECT_USER_ERROR(frozen({"h.1-0"}), "the model has no parameters 'h.1-0'");
  EXPECT_USER_ERROR(frozen({"h.0-99999999999999999999"}), "the model has no parameters");
  EXPECT_USER_ERROR(frozen({"transformer.h.0.mlp.c_fd"}),
                    "did you mean 'transformer.h.0.mlp.c_fc'");
  EXPECT_USER_ERROR(frozen({"head"}), "the model has no parameters 'head'");  // it is tied
  EXPECT_USER_ERROR(frozen({"embed", "h.0-1", "norm"}), "nothing is left to train");
}

std::unique_ptr<Session> trained(const Names& names, const SessionOptions& options,
                                 int64_t steps = 3) {
  const models::ModelPtr model = test::tiny_gpt2().model();
  Graph loss = model->loss(2, 5);
  models::freeze(loss, names);
  auto session = std::make_unique<Session>(loss, model->scored(2, 5), cpu::cpu_backend(), options);
  session->allocate();
  load_parameters(session->engine(), models::initial_weights(*model, 1));
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<int32_t> targets{2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const io::Batch batch = test::token_batch(tokens, targets, 10);
  for (int64_t step = 0; step < steps; ++step) session->step(step, std::span(&batch, 1), 1e-2);
  return session;
}

std::vector<float> values_of(const Engine& engine, const models::ParameterInfo& p) {
  std::vector<std::byte> room;
  std::vector<float> values(static_cast<size_t>(p.shape.elements()));
  const auto is_it = [&](const StateInfo& s) { return s.name == p.name; };
  const StateInfo& state = *std::ranges::find_if(engine.states(), is_it);
  io::copy_as_f32({p.name, state.type.dtype, p.shape, engine.read_state(p.name, room)}, values);
  return values;
}
// Within the rounding to bf16, far below what a step of the rate 1e-2 changes.
bool is_near(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::abs(x - y) <= 0x1p-8f * std::abs(x); });
}

// A frozen parameter keeps its bits and has neither moments nor a gradient; the others move.
TEST(Freeze, FrozenParametersKeepTheirBits) {
  const models::ModelPtr model = test::tiny_gpt2().model();
  for (const auto kind : {optim::OptimizerKind::adamw, optim::OptimizerKind::muon,
                          optim::OptimizerKind::adamw_8bit, optim::OptimizerKind::adafactor})
    for (const DType stored : {DType::f32, DType::bf16}) {
      if (kind == optim::OptimizerKind::adafactor && stored == DType::bf16) continue;  // refused
      SessionOptions options;
      options.optimizer.kind = kind;
      options.parameter_dtype = stored;
      const Names names = frozen({"embed", "h.0"});
      const auto session = trained(names, options);
      for (const models::ParameterInfo& p : model->parameters()) {
        const std::string what = p.name + " " + optim::name_of(kind);
        std::vector<float> before(static_cast<size_t>(p.shape.elements()));
        models::initialise(p, 1, before);
        EXPECT_EQ(is_near(before, values_of(session->engine(), p)), names.contains(p.name)) << what;
        const auto is_moment = [&](const StateInfo& s) {
          return s.role == Role::moment && s.name.ends_with(":" + p.name);
        };
        EXPECT_EQ(std::ranges::any_of(session->engine().states(), is_moment),
                  !names.contains(p.name))
            << what;
      }
    }
}

// One step without clipping changes the trained parameters as a step without frozen ones does, and
// needs less memory.
TEST(Freeze, OthersAreTrainedAsBefore) {
  SessionOptions options;
  options.optimizer.kind = optim::OptimizerKind::sgd;
  options.optimizer.max_grad_norm = 0;
  const Names names = frozen({"embed"});
  const auto all = trained({}, options, 1), some = trained(names, options, 1);
  for (const models::ParameterInfo& p : test::tiny_gpt2().model()->parameters())
    if (!names.contains(p.name)) {
      EXPECT_EQ(values_of(all->engine(), p), values_of(some->engine(), p)) << p.name;
    }
  EXPECT_LT(some->forecast().total(), all->forecast().total());
}

}  // namespace
}  // namespace brrr::train
