// Training on flat rows: a step gives the same results as with padded rows, for every size to which
// the batch is rounded up, and is reproducible bit for bit.

#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/target.h"
#include "data/labelled/labelled_batches.h"
#include "models/bert/bert_config.h"
#include "models/initialise.h"
#include "runtime/parameters.h"
#include "train/session.h"

namespace brrr::train {
namespace {

constexpr int64_t kFlatContext = 24, kFlatBatch = 4, kFlatAccumulation = 2;

class FlatRows : public testing::Test {
 protected:
  FlatRows() {
    std::mt19937 random(5);
    for (size_t i = 0; i < 27; ++i) {
      io::EncodedRow row;
      row.ids.resize(2 + random() % static_cast<uint32_t>(kFlatContext - 1));
      for (int32_t& id : row.ids) id = static_cast<int32_t>(random() % 90);
      row.label = static_cast<int32_t>(random() % 2);
      rows_.push_back(std::move(row));
    }
    config_.vocab_size = 90;
    config_.max_position_embeddings = kFlatContext;
    config_.hidden_size = 32;
    config_.num_hidden_layers = 2;
    config_.num_attention_heads = 2;
    config_.intermediate_size = 64;
    config_.task.head = models::Head::classes;
    config_.task.labels = {"a", "b"};
    set_dropout(0);
  }
  void set_dropout(double p) {
    config_.hidden_dropout_prob = config_.attention_probs_dropout_prob =
        config_.classifier_dropout = p;
  }
  io::BatchOptions batches(bool flat) const {
    io::BatchOptions o;
    o.mode = io::Sampling::kEpoch;
    o.batch = kFlatBatch;
    o.context = kFlatContext;
    o.vocab = config_.vocab_size;
    o.seed = 3;
    o.flat = flat;
    o.batches_per_step = kFlatAccumulation;
    if (flat) o.lengths = io::flat_lengths(kFlatBatch * kFlatContext);
    return o;
  }
  /// Takes `steps` steps and returns the weights; `results` gets what the steps gave.
  std::vector<float> train(const io::BatchOptions& o, int64_t steps,
                           std::vector<StepResult>& results) const {
    const models::ModelPtr model = config_.model();
    const auto graph = [&](int64_t length, bool trains) {
      const models::FlatBinding binding{length, kFlatBatch, std::nullopt};
      if (!o.flat)
        return trains ? model->loss(kFlatBatch, length) : model->scored(kFlatBatch, length);
      return trains ? model->flat_loss(binding) : model->flat_scored(binding);
    };
    SessionOptions options;
    options.shares.micro_batches = kFlatAccumulation;
    const int64_t whole = o.flat ? kFlatBatch * kFlatContext : kFlatContext;
    Session session(graph(whole, true), graph(whole, false), cpu::cpu_backend(), options);
    for (const int64_t length : o.lengths)
      if (length < whole) session.add_shorter(graph(length, true));
    session.allocate();
    load_parameters(session.engine(), models::initial_weights(*model, 1));
    const io::LabelledBatches source(rows_, "rows", o, {io::LabelKind::kClasses, 0, true});
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<io::Batch> micro(kFlatAccumulation);
      for (int64_t i = 0; i < kFlatAccumulation; ++i)
        source.fill(step * kFlatAccumulation + i, micro[static_cast<size_t>(i)]);
      results.push_back(session.step(step, micro, 1e-3));
    }
    std::vector<float> weights;
    for (const models::ParameterInfo& p : model->parameters()) {
      const auto values = session.engine().state_f32(p.name);
      weights.insert(weights.end(), values.begin(), values.end());
    }
    return weights;
  }

  std::vector<io::EncodedRow> rows_;
  models::BertConfig config_;
};

TEST_F(FlatRows, AStepIsThatOfPaddedRows) {
  std::vector<StepResult> flat, padded, whole;
  io::BatchOptions one_size = batches(true);
  one_size.lengths.clear();
  train(batches(true), 9, flat);  // beyond the end of the epoch, whose last rows are empty
  train(batches(false), 9, padded);
  train(one_size, 9, whole);
  for (size_t i = 0; i < flat.size(); ++i)
    for (const std::vector<StepResult>* other : {&padded, &whole}) {
      EXPECT_NEAR(flat[i].loss, (*other)[i].loss, 2e-5) << i;
      EXPECT_NEAR(flat[i].grad_norm, (*other)[i].grad_norm, 1e-4 * flat[i].grad_norm) << i;
    }
}

TEST_F(FlatRows, DropoutIsAFunctionOfSeedAndStep) {
  set_dropout(0.2);
  std::vector<StepResult> first, again, without;
  EXPECT_TRUE(train(batches(true), 5, first) == train(batches(true), 5, again));
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].loss, again[i].loss);
  set_dropout(0);
  train(batches(true), 1, without);
  EXPECT_NE(first[0].loss, without[0].loss);
}

}  // namespace
}  // namespace brrr::train
