// Inference with encoders: what a text gets does not depend on the texts beside it, and a published
// sentence encoder gives the vectors that transformers gives.

#include "infer/encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "base/file.h"
#include "folders/model_folder.h"
#include "folders/sentence_folder.h"
#include "formats/safetensors.h"
#include "infer/generator.h"
#include "models/bert/bert_config.h"
#include "models/initialise.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace brrr::infer {
namespace {

using models::Head;

models::ModelPtr small_model(models::Task task) {
  models::BertConfig c;
  c.vocab_size = 101, c.hidden_size = 24, c.num_hidden_layers = 2, c.num_attention_heads = 3;
  c.intermediate_size = 40, c.max_position_embeddings = 70, c.initializer_range = 0.3;
  c.task = std::move(task);
  return c.model();
}

/// Texts of 1 to 70 tokens, the second half of every other one of type 1.
struct Texts {
  std::vector<std::vector<int32_t>> ids, types;
  std::vector<EncoderRow> rows;

  explicit Texts(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const size_t length = 1 + i * 37 % 70;
      auto& own = ids.emplace_back();
      for (size_t t = 0; t < length; ++t)
        own.push_back(static_cast<int32_t>((i * 31 + t * t * 7) % 101));
      auto& type = types.emplace_back();
      if (i % 2 == 0)
        for (size_t t = 0; t < length; ++t) type.push_back(2 * t >= length);
    }
    for (size_t i = 0; i < count; ++i) rows.push_back({ids[i], types[i]});
  }
};

using Results = std::map<size_t, std::vector<float>>;

Results run_all(Encoder& encoder, std::span<const EncoderRow> rows) {
  Results results;
  encoder.run(rows, [&](size_t row, std::span<const float> numbers) {
    EXPECT_TRUE(results.emplace(row, std::vector(numbers.begin(), numbers.end())).second);
  });
  return results;
}

Encoder encoder_for(const models::ModelPtr& model, int64_t batch) {
  return Encoder(model, cpu::cpu_backend(),
                 models::made_weights(*model, models::initial_weights(*model, 3)),
                 {.batch_size = batch});
}

TEST(Encoder, ATextGetsWhatItGetsAlone) {
  const std::vector<std::pair<models::Task, size_t>> tasks = {
      {{.head = Head::embedding, .pooling = {models::Pooling::mean}, .normalize = true}, 24},
      {{.head = Head::embedding,
        .pooling = {models::Pooling::cls, models::Pooling::max, models::Pooling::last_token}},
       72},
      {{.head = Head::embedding,
        .pooling = {models::Pooling::weighted_mean, models::Pooling::mean_sqrt_len}},
       48},
      {{.head = Head::classes, .labels = {"a", "b", "c"}}, 3},
      {{.head = Head::token_classes, .labels = {"x", "y"}}, 0}};
  const Texts texts(23);
  for (const auto& [task, width] : tasks) {
    const models::ModelPtr model = small_model(task);
    Encoder together = encoder_for(model, 8), alone = encoder_for(model, 1);
    const Results expected = run_all(alone, texts.rows), got = run_all(together, texts.rows);
    ASSERT_EQ(got.size(), texts.rows.size());
    for (const auto& [row, numbers] : expected) {
      EXPECT_EQ(numbers.size(), width > 0 ? width : 2 * texts.ids[row].size());
      ASSERT_EQ(got.at(row).size(), numbers.size());
      EXPECT_EQ(std::memcmp(got.at(row).data(), numbers.data(), numbers.size() * sizeof(float)), 0)
          << "row " << row << " of " << width;
    }
  }
}

// Logits of masked tokens are the same bits alone, beside other places and beside other texts.
TEST(Encoder, MasksAreToldOneByOneOrTogether) {
  const models::ModelPtr model = small_model({.head = Head::masked_token});
  Encoder together = encoder_for(model, 0), alone = encoder_for(model, 1);
  Texts texts(9);
  std::vector<std::vector<int32_t>> places;
  for (EncoderRow& row : texts.rows) {
    const auto last = static_cast<int32_t>(row.ids.size() - 1);
    places.push_back({last, 0, last / 2});
  }
  for (size_t i = 0; i < texts.rows.size(); ++i) texts.rows[i].places = places[i];
  const Results got = run_all(together, texts.rows);
  for (size_t i = 0; i < texts.rows.size(); ++i) {
    ASSERT_EQ(got.at(i).size(), 3u * 101);
    for (size_t p = 0; p < 3; ++p) {
      EncoderRow row = texts.rows[i];
      row.places = row.places.subspan(p, 1);
      const Results one = run_all(alone, std::span(&row, 1));
      EXPECT_EQ(std::memcmp(one.at(0).data(), got.at(i).data() + p * 101, 101 * sizeof(float)), 0)
          << "text " << i << ", place " << p;
    }
  }
}

std::vector<std::vector<size_t>> batches_of(const std::vector<size_t>& lengths, BatchLimits limits,
                                            const std::function<int64_t(int64_t)>& padded = {},
                                            size_t places = 0) {
  static const std::vector<int32_t> zeros(100);
  std::vector<EncoderRow> rows;
  for (const size_t n : lengths)
    rows.push_back({std::span(zeros).first(n), {}, std::span(zeros).first(places)});
  std::vector<std::vector<size_t>> batches;
  run_in_batches(rows, limits, padded, [&](std::span<const size_t> chosen) {
    batches.emplace_back(chosen.begin(), chosen.end());
  });
  return batches;
}

using Batches = std::vector<std::vector<size_t>>;

TEST(Batches, AreBoundedByTokensRowsAndPlaces) {
  const std::vector<size_t> lengths{3, 50, 4, 9, 4};
  EXPECT_EQ(batches_of(lengths, {.tokens = 1000}), (Batches{{1, 3, 2, 4, 0}}));
  EXPECT_EQ(batches_of(lengths, {.tokens = 13}), (Batches{{1}, {3, 2}, {4, 0}}))
      << "a text longer than a batch goes alone";
  EXPECT_EQ(batches_of(lengths, {.tokens = 1}), (Batches{{1}, {3}, {2}, {4}, {0}}));
  EXPECT_EQ(batches_of(lengths, {.tokens = 1000, .rows = 2}), (Batches{{1, 3}, {2, 4}, {0}}));
  EXPECT_EQ(batches_of(lengths, {.tokens = 100}, [](int64_t n) { return (n + 7) / 8 * 8; }),
            (Batches{{1}, {3, 2, 4, 0}}))
      << "padding counts";
  EXPECT_EQ(batches_of(lengths, {.tokens = 1000, .places = 4}, {}, 2),
            (Batches{{1, 3}, {2, 4}, {0}}));
  EXPECT_EQ(batches_of({}, {}), Batches());
}

TEST(Batches, AreHalvedWhereMemoryIsShort) {
  static const std::vector<int32_t> zeros(8);
  const std::vector<EncoderRow> rows(10, EncoderRow{zeros, {}});
  BatchLimits limits;
  std::vector<size_t> sizes;
  run_in_batches(rows, limits, {}, [&](std::span<const size_t> chosen) {
    sizes.push_back(chosen.size());
    if (chosen.size() > 3) throw UserError("too large", ExitCode::kNoMemory);
  });
  EXPECT_EQ(sizes, (std::vector<size_t>{10, 5, 2, 2, 2, 2, 2}));
  EXPECT_THROW(run_in_batches(rows, limits, {},
                              [](std::span<const size_t>) {
                                throw UserError("too large", ExitCode::kNoMemory);
                              }),
               UserError);
}

TEST(Encoder, RefusesWhatTheModelCannotRead) {
  Encoder encoder = encoder_for(small_model({.head = Head::embedding}), 4);
  const std::vector<int32_t> outside = {3, 101}, negative = {-1}, too_long(71, 1);
  const auto message_of = [&](const std::vector<int32_t>& ids) {
    const EncoderRow row{ids, {}};
    return test::user_error_of([&] { run_all(encoder, std::span(&row, 1)); });
  };
  EXPECT_NE(message_of(outside).find("token 101 lies outside the vocabulary of 101"),
            std::string::npos);
  EXPECT_NE(message_of(negative).find("token -1"), std::string::npos);
  EXPECT_NE(message_of(too_long).find("a text has 71 tokens, more than the model's limit of 70"),
            std::string::npos);
}

// Alone and in batches, by the largest difference of a number.
TEST(Encoder, PublishedEmbeddings) {
  const auto data = env::get("BRRR_DATA");
  const fs::path folder = test::models_folder() / "minilm";
  if (!fs::exists(folder / "model.safetensors"))
    GTEST_SKIP() << folder << " has no model.safetensors: a published sentence encoder";
  if (!data || !fs::exists(fs::path(*data) / "sentences")) GTEST_SKIP() << "BRRR_DATA/sentences";
  std::vector<std::string> sentences;
  for (const char* name : {"editorials", "movies", "products", "tweets"}) {
    const std::string text =
        read_file(fs::path(*data) / "sentences" / (std::string(name) + ".tsv"));
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size()), tab = text.find('\t', at);
      if (end > at) sentences.push_back(text.substr(tab + 1, end - tab - 1));
      at = end + 1;
    }
  }
  const io::SafetensorsFile golden(fs::path(BRRR_SOURCE_DIR) /
                                   "tests/golden/minilm_embeddings.safetensors");
  std::vector<int32_t> lines(200);
  std::memcpy(lines.data(), golden.get("lines").bytes.data(), lines.size() * sizeof(int32_t));
  std::vector<float> expected(200 * 384);
  io::copy_as_f32(golden.get("embeddings"), expected);

  const io::SentenceSettings settings = io::read_sentence_settings(folder);
  ASSERT_EQ(settings.longest, 256);
  const io::ModelFolder model = io::open_model(folder, {.task = settings.task});
  std::vector<io::ModelInput> inputs;
  for (const int32_t line : lines)
    inputs.push_back(model.tokenizer->model_input(sentences[static_cast<size_t>(line)],
                                                  std::nullopt, settings.longest));
  std::vector<EncoderRow> rows;
  for (const io::ModelInput& input : inputs) rows.push_back({input.ids, input.types});
  for (const int64_t batch : {1, 32}) {
    Encoder encoder(model.definition, cpu::cpu_backend(), model.weights, {.batch_size = batch});
    double worst = 0;
    encoder.run(rows, [&](size_t row, std::span<const float> numbers) {
      ASSERT_EQ(numbers.size(), 384u);
      for (size_t i = 0; i < numbers.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(numbers[i]) -
                                         static_cast<double>(expected[row * 384 + i])));
    });
    EXPECT_LT(worst, 2e-5) << "batches of " << batch;
    RecordProperty("worst_" + std::to_string(batch), std::to_string(worst));
  }
}

}  // namespace
}  // namespace brrr::infer
