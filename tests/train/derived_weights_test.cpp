// Whole trainings with derived weights as states and without: the same bits.

#include <gtest/gtest.h>
#include <cstring>

#include "backend/cpu/products/gemm_node.h"
#include "backend/cpu/target.h"
#include "base/threads/thread_team.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "passes/weights/derived_weight.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/long_proof.h"
#include "support/token_batch.h"
#include "train/session.h"

namespace brrr::train {
namespace {

using optim::OptimizerKind;

/// Everything that a training gives: losses, norms, evaluations, states.
struct Outcome {
  std::vector<double> figures;
  std::map<std::string, std::vector<std::byte>> states;
  bool operator==(const Outcome&) const = default;
};

models::Gpt2Config config_of(double dropout, int64_t width, int64_t layers) {
  models::Gpt2Config c = test::tiny_gpt2(true, dropout);
  c.n_embd = width;
  c.n_head = 2;
  c.n_layer = layers;
  return c;
}

class DerivedWeights : public testing::Test {
 protected:
  static constexpr int64_t kRows = 2, kLength = 8, kShort = 5;
  // Steps are small and many, and threads change no bit.
  void SetUp() override { set_thread_count(1); }
  void TearDown() override { set_thread_count(usable_processors()); }

  std::unique_ptr<Session> session(SessionOptions options, bool with_copies, double dropout = 0,
                                   bool takes_shorter = false) {
    config_ = config_of(dropout, width_, layers_);
    if (!with_copies) options.disabled_passes.insert("derive_weights");
    const Graph g = config_.model()->loss(kRows, kLength);
    Backend backend = cpu::cpu_backend();
    backend.gains_by_panels = Target().gains_by_panels;
    if (packs_) backend.gains_by_panels = by_views(cpu::multiplies_panels);
    auto s = std::make_unique<Session>(g, g, std::move(backend), options);
    if (takes_shorter) s->add_shorter(config_.model()->loss(kRows, kShort));
    const int64_t forecast = s->forecast().total();
    s->allocate();
    EXPECT_EQ(s->engine().arena_bytes(), forecast);
    EXPECT_EQ(s->bytes_of(Role::derived) > 0, with_copies && copies(*s) > 0);
    initialise(*s);
    return s;
  }
  void initialise(Session& s) {
    load_parameters(s.engine(), [&](std::string_view name, std::span<float> out) {
      models::initial_weights(*config_.model(), 1)(name, out);
    });
  }
  static size_t copies(const Session& s) {
    size_t n = 0;
    for (const StateInfo& info : s.engine().states()) n += info.role == Role::derived;
    return n;
  }

  std::vector<int32_t> ids(int64_t count, int64_t seed) const {
    std::vector<int32_t> row;
    for (int64_t i = 0; i < count; ++i)
      row.push_back(static_cast<int32_t>((i * 7 + seed * 11) % config_.vocab_size));
    return row;
  }
  void step(Session& s, int64_t number, int64_t accumulation, Outcome& out,
            const std::function<int64_t(int64_t)>& length = {}) {
    std::vector<std::vector<int32_t>> rows;
    std::vector<io::Batch> batches;
    for (int64_t i = 0; i < accumulation; ++i) {
      const int64_t micro = number * accumulation + i;
      rows.push_back(ids(kRows * (length ? length(micro) : kLength), micro));
    }
    for (const auto& row : rows)
      batches.push_back(test::token_batch(row, row, static_cast<int64_t>(row.size())));
    const StepResult r = s.step(number, batches, 1e-2);
    out.figures.insert(out.figures.end(), {r.loss, std::isnan(r.grad_norm) ? -1 : r.grad_norm});
    const auto row = ids(kRows * kLength, number + 1000);
    out.figures.push_back(s.loss_sum(test::token_batch(row, row, kRows * kLength)));
  }
  static void keep_states(const Session& s, Outcome& out) {
    std::vector<std::byte> room;
    for (const StateInfo& info : s.engine().states()) {
      const auto bytes = s.engine().read_state(info.name, room);
      if (info.role != Role::derived) out.states[info.name].assign(bytes.begin(), bytes.end());
    }
  }
  Outcome train(Session& s, int64_t steps, int64_t accumulation) {
    Outcome out;
    for (int64_t i = 0; i < steps; ++i) step(s, i, accumulation, out);
    keep_states(s, out);
    return out;
  }
  /// Plain casts hold what the parameters hold.
  static void expect_fresh(const Session& s) {
    std::vector<std::byte> room, parameter;
    for (const StateInfo& info : s.engine().states()) {
      const auto weight = derived_weight(info.attrs);
      if (!weight ||
          info.name != fmt::format("{}:{}", weight->sources[0], brrr::name_of(info.type.dtype)))
        continue;
      const auto got = s.engine().read_state(info.name, room);
      const auto from = s.engine().read_state(weight->sources[0], parameter);
      std::vector<std::byte> wanted(got.size());
      for (int64_t i = 0; i < info.type.shape.elements(); ++i)
        store_from_double(info.type.dtype, wanted.data(), i,
                          load_as_double(DType::f32, from.data(), i));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin())) << info.name;
    }
  }

  int64_t width_ = 48, layers_ = 1;  // fp8 multiplies what is a multiple of 16
  bool packs_ = false;               // copies lie in panels where they may
  models::Gpt2Config config_;
};

class WeightsInPanels : public DerivedWeights {
 protected:
  void SetUp() override {
    DerivedWeights::SetUp();
    width_ = 64;
  }
  std::unique_ptr<Session> session(SessionOptions options, bool in_panels, double dropout = 0,
                                   bool takes_shorter = false) {
    packs_ = in_panels;
    return DerivedWeights::session(std::move(options), true, dropout, takes_shorter);
  }
  static size_t panels(const Session& s) {
    size_t n = 0;
    for (const StateInfo& info : s.engine().states()) n += !info.type.storage.is_plain();
    return n;
  }
};

TEST_F(DerivedWeights, ChangeNoBitOfATraining) {
  struct Precision {
    DType dtype;
    bool fp8;
    DType parameters;
  };
  for (const optim::OptimizerName& name : optim::optimizer_names())
    for (const Precision& p : {Precision{DType::bf16, false, DType::f32},
                               {DType::f16, false, DType::f32},
                               {DType::bf16, true, DType::f32},
                               {DType::bf16, false, DType::bf16}})
      for (const int64_t accumulation : {1, 2, 3}) {
        if (p.parameters == DType::bf16 && name.kind == OptimizerKind::adafactor) continue;
        SCOPED_TRACE(fmt::format("{} {}{} weights {} accumulation {}", name.spellings[0],
                                 brrr::name_of(p.dtype), p.fp8 ? " fp8" : "",
                                 brrr::name_of(p.parameters), accumulation));
        SessionOptions o;
        o.optimizer.kind = name.kind;
        o.precision = p.dtype;
        o.fp8 = p.fp8;
        o.parameter_dtype = p.parameters;
        o.shares.micro_batches = accumulation;
        o.scaler.initial = 0x1p20;  // some of the first steps overflow
        const auto with = session(o, true), without = session(o, false);
        EXPECT_EQ(copies(*without), 0u);
        if (p.parameters == DType::f32) {
          EXPECT_GT(copies(*with), 0u);
        }
        EXPECT_TRUE(train(*with, 4, accumulation) == train(*without, 4, accumulation));
        expect_fresh(*with);
      }
}

/// Options under which programs are others.
std::vector<SessionOptions> other_options() {
  std::vector<SessionOptions> all(6);
  all[0].reuse_memory = false;
  all[1].optimizer.fused = false;
  all[2].rematerialize.policy = RematPolicy::all;
  all[3].optimizer.max_grad_norm = 0;
  for (const std::string& pass : optional_passes())
    if (pass != "derive_weights" && pass != "weight_panels") all[4].disabled_passes.insert(pass);
  all[5].disabled_passes = {"join_loss_head", "keep_accumulators"};
  for (SessionOptions& o : all) o.precision = DType::bf16;
  return all;
}

TEST_F(DerivedWeights, ChangeNoBitWithOtherOptions) {
  for (const int64_t accumulation : {1, 2})
    for (SessionOptions o : test::sampled_if_sanitized(other_options(), 3, "options")) {
      SCOPED_TRACE(fmt::format("without {}", fmt::join(o.disabled_passes, ", ")));
      o.shares.micro_batches = accumulation;
      const auto with = session(o, true, 0.1), without = session(o, false, 0.1);
      EXPECT_GT(copies(*with), 0u);
      EXPECT_TRUE(train(*with, 5, accumulation) == train(*without, 5, accumulation));
      expect_fresh(*with);
    }
}

TEST_F(WeightsInPanels, ChangeNoBitWithOtherOptions) {
  for (const int64_t accumulation : {1, 2})
    for (SessionOptions o : other_options()) {
      SCOPED_TRACE(fmt::format("without {}", fmt::join(o.disabled_passes, ", ")));
      o.shares.micro_batches = accumulation;
      const auto with = session(o, true, 0.1), without = session(o, false, 0.1);
      EXPECT_GT(panels(*with), 0u);
      EXPECT_TRUE(train(*with, 5, accumulation) == train(*without, 5, accumulation));
    }
}

// With many weights and few tokens, making the copies is what takes most: each one's cast for
// itself, and the forecast (session() holds it against the arena) knows it.
TEST_F(WeightsInPanels, AreMadeOneAfterTheOther) {
  width_ = 128;
  layers_ = 6;
  SessionOptions o;
  o.precision = DType::bf16;
  o.shares.micro_batches = 2;
  const auto with = session(o, true), without = session(o, false);
  const auto temporaries = [](const Session& s) { return s.forecast().temporary_bytes; };
  EXPECT_LE(temporaries(*with), temporaries(*without) + int64_t{2} * 128 * 512);
}

TEST_F(WeightsInPanels, ChangeNoBitOfATraining) {
  for (const optim::OptimizerName& name : optim::optimizer_names())
    for (const bool fp8 : {false, true})
      for (const int64_t accumulation : {1, 2, 3}) {
        SCOPED_TRACE(
            fmt::format("{} fp8 {} accumulation {}", name.spellings[0], fp8, accumulation));
        SessionOptions o;
        o.optimizer.kind = name.kind;
        o.precision = DType::bf16;
        o.fp8 = fp8;
        o.shares.micro_batches = accumulation;
        const auto with = session(o, true, 0.1), without = session(o, false, 0.1);
        // Each of the four matrices and the head, for the forward and for the backward pass.
        EXPECT_EQ(panels(*with), fp8 ? 2u : 10u);
        EXPECT_EQ(panels(*without), 0u);
        EXPECT_TRUE(train(*with, 4, accumulation) == train(*without, 4, accumulation));
      }
}

TEST_F(WeightsInPanels, FollowWeightsThatAreWritten) {
  SessionOptions o;
  o.precision = DType::bf16;
  o.shares.micro_batches = 2;
  const auto with = session(o, true, 0, true), without = session(o, false, 0, true);
  Outcome a = train(*with, 2, 2), b = train(*without, 2, 2);
  for (Session* s : {with.get(), without.get()}) {
    initialise(*s);
    s->engine().state_f32("transformer.h.0.mlp.c_fc.weight")[5] = 0.5f;
  }
  const auto length = [](int64_t micro) { return micro % 2 == 0 ? kShort : kLength; };
  step(*with, 2, 2, a, length);
  step(*without, 2, 2, b, length);
  keep_states(*with, a);
  keep_states(*without, b);
  EXPECT_TRUE(a == b);
}

TEST_F(WeightsInPanels, SurviveGradientsThatAreNotFinite) {
  SessionOptions o;
  o.precision = DType::bf16;
  const auto with = session(o, true), without = session(o, false);
  Outcome a, b;
  for (int64_t i = 0; i < 4; ++i) {
    for (Session* s : {with.get(), without.get()})  // the second step changes nothing
      s->engine().state_f32("transformer.h.0.ln_1.bias")[3] = i == 1 ? NAN : 0.25f;
    step(*with, i, 1, a);
    step(*without, i, 1, b);
  }
  std::erase_if(a.figures, [](double x) { return std::isnan(x); });
  std::erase_if(b.figures, [](double x) { return std::isnan(x); });
  keep_states(*with, a);
  keep_states(*without, b);
  EXPECT_TRUE(a == b);
}

TEST_F(DerivedWeights, SurviveOverflows) {
  SessionOptions o;
  o.precision = DType::f16;
  o.scaler.initial = 0x1p40;
  const auto with = session(o, true), without = session(o, false);
  Outcome a, b;
  int64_t skipped = 0;
  for (int64_t i = 0; i < 40; ++i) {
    step(*with, i, 1, a);
    step(*without, i, 1, b);
    skipped += a.figures[a.figures.size() - 2] == -1 || std::isinf(a.figures[a.figures.size() - 2]);
    expect_fresh(*with);
  }
  EXPECT_TRUE(a == b);
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 38);
}

// Weights that somebody writes (a checkpoint, the best model again) are the next step's.
TEST_F(DerivedWeights, FollowWeightsThatAreWritten) {
  for (const bool fp8 : {false, true}) {
    SessionOptions o;
    o.precision = DType::bf16;
    o.fp8 = fp8;
    o.shares.micro_batches = 2;
    const auto with = session(o, true), without = session(o, false);
    Outcome a = train(*with, 2, 2), b = train(*without, 2, 2);
    initialise(*with);
    initialise(*without);
    const auto row = ids(kRows * kLength, 3);
    a.figures.push_back(with->loss_sum(test::token_batch(row, row, kRows * kLength)));
    b.figures.push_back(without->loss_sum(test::token_batch(row, row, kRows * kLength)));
    for (Session* s : {with.get(), without.get()})
      s->engine().state_f32("transformer.h.0.mlp.c_fc.weight")[5] = 0.5f;
    step(*with, 2, 2, a);
    step(*without, 2, 2, b);
    keep_states(*with, a);
    keep_states(*without, b);
    EXPECT_TRUE(a == b);
    expect_fresh(*with);
  }
}

// Shorter rows: fp8 multiplies other products there, so each program reads copies that the other
// does not keep.
TEST_F(DerivedWeights, AreThoseOfEveryProgram) {
  std::vector<std::pair<bool, int64_t>> cases;  // whether fp8, and micro-batches a step
  for (const bool fp8 : {false, true})
    for (const int64_t accumulation : {1, 2, 3}) cases.emplace_back(fp8, accumulation);
  for (const auto& [fp8, accumulation] : test::sampled_if_sanitized(cases, 2, "programs")) {
    SCOPED_TRACE(fmt::format("fp8 {} accumulation {}", fp8, accumulation));
    SessionOptions o;
    o.precision = DType::bf16;
    o.fp8 = fp8;
    o.shares.micro_batches = accumulation;
    const auto with = session(o, true, 0, true), without = session(o, false, 0, true);
    Outcome a, b;
    const auto length = [](int64_t micro) { return micro % 3 == 1 ? kShort : kLength; };
    for (int64_t i = 0; i < 6; ++i) {
      step(*with, i, accumulation, a, length);
      step(*without, i, accumulation, b, length);
    }
    keep_states(*with, a);
    keep_states(*without, b);
    EXPECT_TRUE(a == b);
  }
}

}  // namespace
}  // namespace brrr::train
