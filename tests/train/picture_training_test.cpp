// Training sessions of models for pictures: running statistics as state, and the promises of a run.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "backend/cpu/target.h"
#include "base/threads/parallel.h"
#include "models/initialise.h"
#include "support/pictures.h"
#include "train/session.h"

namespace brrr::train {
namespace {

class PictureSessions : public testing::Test {
 protected:
  static constexpr int64_t kRows = 4, kClasses = 3;
  const models::ModelPtr model_ = models::parse_config(test::tiny_resnet(), "tiny");

  std::unique_ptr<Session> session(SessionOptions options = {}, int64_t rows = kRows) const {
    options.optimizer.kind = optim::OptimizerKind::sgd;
    auto made = std::make_unique<Session>(model_->loss(rows, 1), model_->scored(rows, 1),
                                          cpu::cpu_backend(), options);
    made->allocate();
    made->engine().load(*models::made_weights(*model_, models::initial_weights(*model_, 1)));
    return made;
  }
  io::Batch batch(int64_t index, int64_t rows = kRows) const {
    return test::picture_batch(*model_->sizes().picture, rows, kClasses, index * rows);
  }
  using States = std::map<std::string, std::string>;  // bytes by name
  static States states(const Session& session, bool buffers_alone = false) {
    States all;
    std::vector<std::byte> room;
    for (const StateInfo& s : session.engine().states()) {
      const bool is_buffer = s.name.find("running_") != std::string::npos ||
                             s.name.find("num_batches") != std::string::npos;
      if (buffers_alone && !is_buffer) continue;
      const auto bytes = session.engine().read_state(s.name, room);
      all[s.name].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return all;
  }
  States after_steps(Session& session, int64_t steps, int64_t first = 0) const {
    for (int64_t i = first; i < first + steps; ++i) {
      const io::Batch b = batch(i);
      session.step(i, std::span(&b, 1), 0.05);
    }
    return states(session);
  }
  static std::string counter(const States& states) {
    return states.at("resnet.embedder.embedder.normalization.num_batches_tracked");
  }
  static std::string count(int64_t n) { return {reinterpret_cast<const char*>(&n), sizeof n}; }
};

TEST_F(PictureSessions, LearnTheirPictures) {
  const auto s = session();
  const io::Batch b = batch(0);
  const double before = s->step(0, std::span(&b, 1), 0.05).loss;
  double after = before;
  for (int64_t i = 1; i < 30; ++i) after = s->step(i, std::span(&b, 1), 0.05).loss;
  EXPECT_LT(after, 0.3 * before);
}

// Evaluation reads the running statistics and leaves them as they are.
TEST_F(PictureSessions, EvaluationChangesNoState) {
  const auto s = session();
  const States before = after_steps(*s, 3);
  EXPECT_EQ(counter(before), count(3));
  std::vector<float> logits;
  const double loss = s->loss_sum(batch(9), &logits);
  EXPECT_EQ(logits.size(), static_cast<size_t>(kRows * kClasses));
  EXPECT_EQ(s->loss_sum(batch(9)), loss);
  EXPECT_EQ(states(*s), before);
}

TEST_F(PictureSessions, ThreadsDoNotChangeTheBits) {
  set_thread_count(1);
  const auto one = session();
  const States expected = after_steps(*one, 4);
  set_thread_count(2);
  const auto two = session();
  EXPECT_EQ(after_steps(*two, 4), expected);
}

// Recomputed batch norms normalise by the batch and leave the running statistics alone.
TEST_F(PictureSessions, RecomputationDoesNotChangeTheBits) {
  const auto plain = session();
  const States expected = after_steps(*plain, 3);
  for (const RematPolicy policy : {RematPolicy::all, RematPolicy::blocks}) {
    SessionOptions options;
    options.rematerialize.policy = policy;
    const auto s = session(options);
    EXPECT_EQ(after_steps(*s, 3), expected);
  }
}

// Each micro-batch updates the running statistics, as in PyTorch: one step of three micro-batches
// leaves the same statistics as three steps with a learning rate of 0.
TEST_F(PictureSessions, EachMicroBatchUpdatesTheStatistics) {
  const auto single = session();
  for (int64_t i = 0; i < 3; ++i) {
    const io::Batch b = batch(i);
    single->step(i, std::span(&b, 1), 0);
  }
  SessionOptions options;
  options.shares.micro_batches = 3;
  const auto accumulated = session(options);
  const std::vector<io::Batch> batches{batch(0), batch(1), batch(2)};
  accumulated->step(0, batches, 0);
  EXPECT_EQ(states(*accumulated, true), states(*single, true));
  EXPECT_EQ(counter(states(*accumulated)), count(3));
}

// A session that takes over the states of another goes on with its bits.
TEST_F(PictureSessions, GoOnWithTheBitsOfTheirStates) {
  const auto whole = session();
  const States expected = after_steps(*whole, 6);
  const auto first = session();
  const States half = after_steps(*first, 3);
  const auto second = session();
  for (const auto& [name, bytes] : half)
    second->engine().write_state(name, std::as_bytes(std::span(bytes)));
  EXPECT_EQ(after_steps(*second, 3, 3), expected);
}

TEST_F(PictureSessions, MixedPrecisionStaysNear) {
  const auto plain = session();
  SessionOptions in_bf16;
  in_bf16.precision = DType::bf16;
  const auto low = session(in_bf16);
  const io::Batch b = batch(0);
  for (int64_t i = 0; i < 5; ++i) {
    const double expected = plain->step(i, std::span(&b, 1), 0.02).loss;
    EXPECT_NEAR(low->step(i, std::span(&b, 1), 0.02).loss, expected, 0.05 * expected + 0.02) << i;
  }
  EXPECT_NEAR(low->loss_sum(b), plain->loss_sum(b), 0.1 * plain->loss_sum(b) + 0.05);
}

// A net whose last planes have one value each has no variance in a batch of one.
TEST_F(PictureSessions, RefuseABatchWithoutAVariance) {
  const auto small = models::parse_config(test::tiny_resnet(), "tiny")->with_image_size(2);
  try {
    small->loss(1, 1);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("has one value (at h.1), which has no variance"),
              std::string::npos)
        << e.what();
  }
  small->loss(2, 1);
}

}  // namespace
}  // namespace brrr::train
