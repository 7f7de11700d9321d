// Training, checkpoints, resume, evaluation and generation on a device whose memory the host cannot
// touch: the bits are those of the host, and a checkpoint of one goes on on the other.

#include <gtest/gtest.h>

#include "data/token_source.h"
#include "infer/encoder.h"
#include "infer/evaluate.h"
#include "infer/generator.h"
#include "infer/model_runnable.h"
#include "models/bert/bert_config.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "ops/ops.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/locked_device.h"
#include "support/temp_folder.h"
#include "support/token_batch.h"
#include "text/tokenizer_char.h"
#include "train/run_folder.h"
#include "train/session.h"

namespace brrr::train {
namespace {

enum class Where { host, locked, recording };

class Devices : public testing::TestWithParam<Where> {
 protected:
  Backend backend(Where where) {
    return where == Where::host ? cpu::cpu_backend()
                                : test::locked_backend(log_, where == Where::recording);
  }
  std::unique_ptr<Session> session(Where where, const SessionOptions& options) {
    const Graph g = config_.model()->loss(2, 5);
    auto s = std::make_unique<Session>(g, g, backend(where), options);
    s->add_shorter(config_.model()->loss(2, 3));
    const int64_t forecast = s->forecast().total();
    s->allocate();
    EXPECT_EQ(forecast, s->engine().arena_bytes());
    load_parameters(s->engine(), [&](std::string_view name, std::span<float> out) {
      models::initial_weights(*config_.model(), 1)(name, out);
    });
    return s;
  }
  /// Steps from..to, some of their micro-batches of shorter rows.
  std::vector<double> train(Session& s, int64_t from, int64_t to, int64_t accumulation) {
    std::vector<double> figures;
    for (int64_t step = from; step < to; ++step) {
      std::vector<std::vector<int32_t>> ids;
      std::vector<io::Batch> batches;
      for (int64_t i = 0; i < accumulation; ++i) {
        const int64_t n = step % 3 == 1 && i == 0 ? 6 : 10;
        ids.emplace_back();
        for (int64_t j = 0; j < n; ++j)
          ids.back().push_back(static_cast<int32_t>((7 * step + 3 * i + 5 * j) % 13));
      }
      for (const auto& row : ids)
        batches.push_back(test::token_batch(row, row, static_cast<int64_t>(row.size())));
      const StepResult r = s.step(step, batches, 1e-2);
      figures.insert(figures.end(), {r.loss, r.grad_norm, r.loss_scale});
    }
    const std::vector<int32_t> row{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    figures.push_back(s.loss_sum(test::token_batch(row, row, 10)));
    return figures;
  }
  static std::map<std::string, std::vector<std::byte>> states(const Session& s) {
    std::map<std::string, std::vector<std::byte>> out;
    std::vector<std::byte> room;
    for (const StateInfo& info : s.engine().states()) {
      if (info.name.starts_with("grad_sum:")) continue;
      const auto bytes = s.engine().read_state(info.name, room);
      out[info.name].assign(bytes.begin(), bytes.end());
    }
    return out;
  }

  const models::Gpt2Config config_ = test::tiny_gpt2(true, 0.1);
  test::LockedDeviceLog log_;
};
INSTANTIATE_TEST_SUITE_P(Where, Devices, testing::Values(Where::locked, Where::recording),
                         [](const auto& row) {
                           return row.param == Where::locked ? "locked" : "recording";
                         });

TEST_P(Devices, TrainToTheSameBitsAsTheHost) {
  for (const int64_t accumulation : {1, 2, 3})
    for (const DType precision : {DType::f32, DType::f16}) {
      SCOPED_TRACE(fmt::format("accumulation {}, {}", accumulation, name_of(precision)));
      SessionOptions options;
      options.shares.micro_batches = accumulation;
      options.precision = precision;
      const auto there = session(GetParam(), options), here = session(Where::host, options);
      EXPECT_EQ(train(*there, 0, 7, accumulation), train(*here, 0, 7, accumulation));
      EXPECT_TRUE(states(*there) == states(*here));
    }
  EXPECT_EQ(log_.allocated, 0) << "memory that was not given back";
}

TEST_P(Devices, AStepGoesOverInOneCopyAndOneRecording) {
  SessionOptions options;
  options.shares.micro_batches = 3;
  const auto s = session(GetParam(), options);
  const auto step = [&](int64_t number) {
    const std::vector<int32_t> row{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const std::vector<io::Batch> batches(3, test::token_batch(row, row, 10));
    s->step(number, batches, 1e-3);
  };
  step(0);
  EXPECT_EQ(log_.recordings, 0) << "libraries may load when they first run";
  step(1);
  log_ = {.allocated = log_.allocated};
  for (int64_t i = 2; i <= 5; ++i) step(i);
  EXPECT_EQ(log_.copies_in, 4);
  EXPECT_EQ(log_.copies_out, 4);
  EXPECT_EQ(log_.recordings, 0) << "a step of the same programs was recorded again";
  EXPECT_EQ(log_.replays, GetParam() == Where::recording ? 4 : 0);
}

TEST_P(Devices, NameTheLayerWhereNumbersEnd) {
  const auto s = session(GetParam(), {});
  s->engine().fill_state("transformer.h.1.mlp.c_fc.weight", [](std::span<std::byte> bytes) {
    for (float& w : std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / 4)) w = 1e38f;
  });
  const std::vector<int32_t> row{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const io::Batch batch = test::token_batch(row, row, 10);
  const StepResult r = s->step(0, std::span(&batch, 1), 1e-2);
  EXPECT_FALSE(std::isfinite(r.loss) && std::isfinite(r.grad_norm));
  EXPECT_NE(s->first_non_finite().value_or("").find("h.1.mlp"), std::string::npos);
}

TEST_P(Devices, AnIdOutsideTheTableIsTheUsersError) {
  const auto s = session(GetParam(), {});
  const std::vector<int32_t> row{1, 2, 3, 4, 99, 6, 7, 8, 9, 10};
  const io::Batch batch = test::token_batch(row, row, 10);
  const std::string said = test::user_error_of([&] { s->step(0, std::span(&batch, 1), 1e-2); });
  EXPECT_NE(said.find("99"), std::string::npos) << said;
  EXPECT_NE(said.find("(at "), std::string::npos) << said;
}

TEST_P(Devices, CheckpointsMoveBetweenDevices) {
  const auto tokenizer = io::make_char_tokenizer("abcdefghijklm");
  TrainOptions o;
  SessionOptions options;
  options.shares.micro_batches = 2;
  const auto whole = session(Where::host, options);
  train(*whole, 0, 6, 2);
  for (const auto& [first, second] :
       {std::pair{GetParam(), GetParam()}, std::pair{GetParam(), Where::host},
        std::pair{Where::host, GetParam()}}) {
    const test::TempFolder folder;
    {
      const auto s = session(first, options);
      train(*s, 0, 3, 2);
      TrainerState state;
      state.step = 3;
      const auto model = config_.model();
      save_checkpoint(folder.path(), {s->engine(), *model, tokenizer.get()}, o, state);
    }
    const auto s = session(second, options);
    load_checkpoint(folder.path() / "checkpoint-000003", s->engine(), *config_.model(), o);
    train(*s, 3, 6, 2);
    EXPECT_TRUE(states(*s) == states(*whole));
  }
}

TEST_P(Devices, GenerateTheSameTokens) {
  const auto weights = [&](std::string_view name, std::span<float> out) {
    models::initial_weights(*config_.model(), 1)(name, out);
    for (float& x : out) x *= 8;  // so that tokens differ
  };
  for (const bool cache : {true, false}) {
    std::vector<int32_t> tokens[2];
    for (const bool there : {false, true}) {
      infer::Generator g(config_.model(), backend(there ? GetParam() : Where::host),
                         models::made_weights(*config_.model(), weights), {.use_cache = cache});
      const std::vector<int32_t> prompt{3, 1, 4};
      tokens[there] = g.generate(prompt, 20, infer::Sampler({1.0, 0, 1.0, 7}, 0));
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    // From the second token on the step is a recording.
    if (cache && GetParam() == Where::recording) {
      EXPECT_GE(log_.replays, 19);
    }
  }
}

// Vectors that the graph pools, and token vectors that are pooled behind it, as for a file.
TEST_P(Devices, EmbedTheSameVectors) {
  models::BertConfig c;
  c.vocab_size = 31, c.hidden_size = 16, c.num_hidden_layers = 1, c.num_attention_heads = 2;
  c.intermediate_size = 24, c.max_position_embeddings = 20;
  c.task = {.head = models::Head::embedding, .pooling = {models::Pooling::mean}};
  const models::ModelPtr model = c.model();
  const auto weights = models::made_weights(*model, models::initial_weights(*model, 1));
  const std::vector<int32_t> ids{3, 1, 4, 1, 5};
  const std::vector<infer::EncoderRow> rows{{ids, {}}, {std::span(ids).first(2), {}}};
  for (const bool is_pooled_by_graph : {true, false}) {
    std::map<size_t, std::vector<float>> vectors[2];
    for (const bool there : {false, true}) {
      const Backend on = backend(there ? GetParam() : Where::host);
      std::shared_ptr<const Runnable> runnable =
          infer::forward_runnable(model, weights, infer::text_layout(*model, on));
      if (!is_pooled_by_graph) {
        Graph table;
        const Value tokens = table.input("input_ids", {2, 5}, DType::i64);
        const Value mask = table.input("attention_mask", {2, 5}, DType::i64);
        const Value x = cast(tokens * 3 + mask, DType::f32);
        table.output("last_hidden_state",
                     reshape(x, {2, 5, 1}) * full(table, {1, 1, 4}, 0.3f, f32));
        runnable = runnable_of(table);
      }
      infer::Encoder encoder(runnable, on, {.name = "test", .task = c.task, .context = 20});
      encoder.run(rows, [&](size_t row, std::span<const float> numbers) {
        vectors[there][row].assign(numbers.begin(), numbers.end());
      });
    }
    EXPECT_EQ(vectors[0].size(), 2u);
    EXPECT_EQ(vectors[0], vectors[1]);
    if (!is_pooled_by_graph) {
      EXPECT_NEAR(vectors[1][1][0], 0.3 * (3 * 2 + 1), 1e-6) << "the mean of 3 and 1, 3 times";
    }
  }
}

}  // namespace
}  // namespace brrr::train
