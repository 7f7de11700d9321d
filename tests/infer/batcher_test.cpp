// Batcher: a text has the tokens that it has when it is generated alone. Other texts, arrival
// times, the division of its prompt into chunks, and preemption do not change them.

#include "infer/batcher.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/target.h"
#include "base/threads/thread_team.h"
#include "infer/beam_search.h"
#include "infer/generator.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "support/long_proof.h"

namespace brrr::infer {
namespace {

constexpr int64_t kBatchedVocabulary = 61, kBatchedContext = 96;

models::ModelPtr model_of(const std::string& architecture, KeyValues settings) {
  for (const auto& [name, value] : KeyValues{{"n-layer", "2"}, {"n-head", "4"}, {"n-embd", "64"}})
    settings.emplace_back(name, value);
  return models::find_architecture(architecture)
      .describe({.settings = std::move(settings),
                 .vocabulary = kBatchedVocabulary,
                 .context = kBatchedContext});
}

/// Makes the initial weights larger, so that texts differ.
std::shared_ptr<const WeightSource> lively_weights(const models::Model& model) {
  return models::made_weights(model, [initial = models::initial_weights(model, 5)](
                                         std::string_view name, std::span<float> out) {
    initial(name, out);
    if (name.find("norm") != std::string_view::npos || name.find("ln_") != std::string_view::npos)
      return;
    for (float& x : out) x *= 6;
  });
}

struct BatchedText {
  SequenceRequest request;
  int64_t arrives = 0;                       // at this step
  std::optional<int64_t> cancelled_after{};  // so many tokens
};

std::vector<BatchedText> many_texts(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<int32_t> prefix(40);
  for (int32_t& token : prefix) token = static_cast<int32_t>(below(kBatchedVocabulary));
  std::vector<BatchedText> texts;
  for (size_t i = 0; i < count; ++i) {
    BatchedText t;
    // Every third prompt shares a prefix with others, often longer than a block.
    if (i % 3 == 0) t.request.prompt.assign(prefix.begin(), prefix.begin() + 7 + below(33));
    for (int64_t n = 1 + below(i % 7 == 0 ? 110 : 30); n > 0; --n)
      t.request.prompt.push_back(static_cast<int32_t>(below(kBatchedVocabulary)));
    t.request.max_new_tokens = 1 + below(i % 5 == 0 ? 120 : 25);
    t.request.sampling.temperature = i % 4 == 0 ? 0 : 1;
    t.request.sampling.top_k = i % 2 == 0 ? 0 : 20;
    t.request.sampling.repetition_penalty = i % 6 == 1 ? 1.2 : 1;
    t.request.sampling.seed = static_cast<uint32_t>(i);
    t.request.prompt_lookup = i % 3 == 1 ? 4 : 0;
    t.arrives = below(30);
    if (i % 9 == 4) t.cancelled_after = below(8);
    texts.push_back(std::move(t));
  }
  return texts;
}

class BatcherTexts : public testing::Test {
 protected:
  /// Adds and cancels the texts at their steps and returns the tokens of each.
  static std::vector<std::vector<int32_t>> generate(Batcher& batcher,
                                                    const std::vector<BatchedText>& texts) {
    std::vector<std::vector<int32_t>> made(texts.size());
    std::vector<Batcher::Id> ids(texts.size(), 0);
    std::vector<int> ends(texts.size(), 0);
    int64_t step = 0;
    for (bool more = true; more || step < 40; ++step) {
      for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].arrives != step) continue;
        SequenceRequest request = texts[i].request;
        request.on_token = [&, i](int32_t token, double) {
          made[i].push_back(token);
          return true;
        };
        request.on_finish = [&, i](Finish) { ++ends[i]; };
        ids[i] = batcher.add(std::move(request));
      }
      for (size_t i = 0; i < texts.size(); ++i)
        if (ids[i] != 0 && texts[i].cancelled_after &&
            std::ssize(made[i]) >= *texts[i].cancelled_after)
          batcher.cancel(ids[i]);
      more = batcher.step();
    }
    EXPECT_EQ(ends, std::vector<int>(texts.size(), 1));
    return made;
  }
  /// Generates each text alone.
  static std::vector<std::vector<int32_t>> alone(const models::ModelPtr& model,
                                                 BatcherOptions options,
                                                 const std::vector<BatchedText>& texts) {
    options.parallel = 1;
    Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), options);
    std::vector<std::vector<int32_t>> made;
    for (BatchedText text : texts) {
      text.arrives = 0;
      text.cancelled_after.reset();
      text.request.prompt_lookup = 0;
      made.push_back(generate(batcher, {text})[0]);
    }
    return made;
  }
  static void expect_same(const std::vector<std::vector<int32_t>>& got,
                          const std::vector<std::vector<int32_t>>& expected,
                          const std::vector<BatchedText>& texts, const std::string& how) {
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i].cancelled_after) {
        EXPECT_EQ(got[i], expected[i]) << how << ", text " << i;
        continue;
      }
      ASSERT_LE(got[i].size(), expected[i].size());
      EXPECT_TRUE(std::equal(got[i].begin(), got[i].end(), expected[i].begin()))
          << how << ", text " << i;
    }
  }
};

struct BatchedModel {
  const char* name;
  std::string architecture;
  KeyValues settings;
};
const BatchedModel kBatchedModels[] = {
    {"gpt2", "gpt2", {}},
    {"llama", "llama", {{"num-key-value-heads", "2"}}},
    {"mistral", "llama", {{"model-type", "mistral"}, {"sliding-window", "21"}}},
    {"gemma3", "gemma3", {{"num-key-value-heads", "1"}}},
    {"gpt_neox", "gpt_neox", {}},
};

class BatcherModels : public BatcherTexts, public testing::WithParamInterface<BatchedModel> {};
INSTANTIATE_TEST_SUITE_P(Architectures, BatcherModels, testing::ValuesIn(kBatchedModels),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(BatcherModels, TextsHaveTheTokensThatTheyHaveAlone) {
  const models::ModelPtr model = model_of(GetParam().architecture, GetParam().settings);
  const std::vector<BatchedText> texts = many_texts(test::is_sanitized() ? 10
                                                    : test::is_long()    ? 200
                                                                         : 30,
                                                    3);
  const int threads = thread_count();
  for (const DType precision : {DType::f32, DType::bf16, DType::f16}) {
    if (precision == DType::f16 && !test::is_long() && GetParam().architecture != "llama") continue;
    if (precision != DType::f32 && test::is_sanitized()) continue;
    const auto expected = alone(model, {.precision = precision}, texts);
    struct Way {
      int64_t parallel, prefill, pool;
      int threads;
    };
    const std::vector<Way> ways{{16, 256, 0, 2}, {3, 7, 0, 1}, {8, 64, 2 * kBatchedContext, 2}};
    for (const Way& way : test::is_sanitized() ? std::vector{ways[0]} : ways) {
      set_thread_count(way.threads);
      Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model),
                      {.precision = precision,
                       .parallel = way.parallel,
                       .prefill_tokens = way.prefill,
                       .pool_positions = way.pool,
                       .guessed_tokens = 16});
      const auto got = generate(batcher, texts);
      set_thread_count(threads);
      expect_same(
          got, expected, texts,
          fmt::format("{}, {} at once, {} tokens of prompts, pool of {}, {} threads",
                      name_of(precision), way.parallel, way.prefill, way.pool, way.threads));
      if (!test::is_sanitized()) {  // few texts share nothing
        EXPECT_GT(batcher.counts().shared, 0);
      }
      if (way.pool > 0) {
        EXPECT_GT(batcher.counts().preempted, 0);
      }
      EXPECT_EQ(batcher.running() + batcher.waiting(), 0);
    }
  }
}

// One row of a product reads integers as they lie, more rows read them unpacked or quantised.
TEST_F(BatcherTexts, QuantizedWeightsGiveTheTokensThatTheyGiveAlone) {
  const models::ModelPtr model = model_of("llama", {{"num-key-value-heads", "2"}});
  std::vector<BatchedText> texts = many_texts(test::is_sanitized() ? 4 : 12, 9);
  for (BatchedText& text : texts) text.cancelled_after.reset();
  for (const Precision precision : {Precision::int8, Precision::int8_weight_only, Precision::int4,
                                    Precision::int4_weight_only}) {
    BatcherOptions options;
    options.precision = DType::bf16;
    options.quantization = quantization_of_precision(precision);
    std::vector<std::vector<std::vector<int32_t>>> made;
    for (const int64_t parallel : {1, 3, 16}) {
      options.parallel = parallel;
      Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), options);
      made.push_back(generate(batcher, texts));
    }
    expect_same(made[1], made[0], texts, std::string(name_of(precision)));
    expect_same(made[2], made[0], texts, std::string(name_of(precision)));
  }
}

// Keys and values are quantised per head and token, so no token changes those of others.
TEST_P(BatcherModels, CachesOfInt8GiveTheTokensThatTheyGiveAlone) {
  const models::ModelPtr model = model_of(GetParam().architecture, GetParam().settings);
  const std::vector<BatchedText> texts = many_texts(test::is_sanitized() ? 6 : 20, 5);
  for (const DType precision : {DType::f32, DType::bf16}) {
    if (precision != DType::f32 && test::is_sanitized()) continue;
    BatcherOptions options{.precision = precision, .cache = CachePrecision::int8};
    const auto expected = alone(model, options, texts);
    for (const auto& [parallel, pool] : {std::pair(16, int64_t{0}), {3, 2 * kBatchedContext}}) {
      options.parallel = parallel;
      options.pool_positions = pool;
      options.prefill_tokens = pool > 0 ? 7 : 256;
      options.guessed_tokens = 16;
      Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), options);
      expect_same(generate(batcher, texts), expected, texts,
                  fmt::format("{}, {} at once", name_of(precision), parallel));
    }
  }
}

// Model::decode() keeps keys and values in other layouts than decode_sequences().
TEST_P(BatcherModels, CachesOfInt8ServeTheGenerator) {
  const models::ModelPtr model = model_of(GetParam().architecture, GetParam().settings);
  const std::vector<BatchedText> texts = many_texts(6, 8);
  const auto got = alone(model, {.cache = CachePrecision::int8}, texts);
  Generator generator(model, cpu::cpu_backend(), lively_weights(*model),
                      {.cache = CachePrecision::int8});
  for (size_t i = 0; i < texts.size(); ++i) {
    const SequenceRequest& r = texts[i].request;
    EXPECT_EQ(got[i], generator.generate(r.prompt, r.max_new_tokens, Sampler(r.sampling, 0))) << i;
  }
}

TEST_P(BatcherModels, CachesOfInt8ChangeLogitsLittle) {
  const models::ModelPtr model = model_of(GetParam().architecture, GetParam().settings);
  const models::ModelSizes sizes = model->sizes();
  std::vector<std::vector<float>> rows;
  for (const CachePrecision cache : {CachePrecision::computed, CachePrecision::int8}) {
    Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), {.cache = cache});
    const int64_t positions = batcher.pool_blocks() * models::kBlockRows;
    EXPECT_EQ(batcher.pool_bytes(), cache == CachePrecision::int8
                                        ? positions * (sizes.cache_width + 4 * sizes.cache_heads)
                                        : positions * 4 * sizes.cache_width);
    SequenceRequest request;
    for (int32_t i = 0; i < 70; ++i) request.prompt.push_back(i * i % kBatchedVocabulary);
    request.on_logits = [&](SequenceId, std::span<const float> logits) {
      rows.emplace_back(logits.begin(), logits.end());
    };
    batcher.add(request);
    while (batcher.step()) {
    }
  }
  ASSERT_EQ(rows.size(), 2);
  double square = 0, difference = 0;
  for (size_t i = 0; i < rows[0].size(); ++i) {
    square += std::pow(rows[0][i], 2);
    difference += std::pow(rows[1][i] - rows[0][i], 2);
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(std::sqrt(difference / square), 0.05);
}

// The generator of single texts runs other graphs, which compute the same sums.
TEST_P(BatcherModels, TextsAreThoseOfTheGenerator) {
  const models::ModelPtr model = model_of(GetParam().architecture, GetParam().settings);
  const std::vector<BatchedText> texts = many_texts(12, 8);
  const auto got = alone(model, {}, texts);
  Generator generator(model, cpu::cpu_backend(), lively_weights(*model));
  for (size_t i = 0; i < texts.size(); ++i) {
    const SequenceRequest& r = texts[i].request;
    EXPECT_EQ(got[i], generator.generate(r.prompt, r.max_new_tokens, Sampler(r.sampling, 0))) << i;
  }
}

TEST_F(BatcherTexts, AnswersToOnePromptShareItsBlocks) {
  const models::ModelPtr model = model_of("llama", {});
  std::vector<BatchedText> texts = many_texts(4, 1);
  for (uint32_t i = 0; i < 4; ++i) {
    texts[i] = texts[0];
    texts[i].request.prompt.resize(50, 9);
    texts[i].request.sampling.temperature = 1;
    texts[i].request.sample_number = i;
    texts[i].arrives = 0;
  }
  Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model));
  const auto made = generate(batcher, texts);
  // Three of the four answers find the three full blocks of the prompt.
  EXPECT_EQ(batcher.counts().shared, 3 * 48);
  EXPECT_NE(made[0], made[1]);
  expect_same(made, alone(model, {}, texts), texts, "four answers");
}

TEST_F(BatcherTexts, LookupKeepsTheTextAndSavesSteps) {
  const models::ModelPtr model = model_of("gpt2", {});
  BatchedText text;
  // Greedy texts of small models repeat themselves, so guesses are often right.
  for (int32_t i = 0; i < 20; ++i) text.request.prompt.push_back(i % 4);
  text.request.max_new_tokens = 70;
  text.request.sampling.temperature = 0;
  const auto expected = alone(model, {}, {text});
  text.request.prompt_lookup = 8;
  Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), {.guessed_tokens = 8});
  EXPECT_EQ(generate(batcher, {text}), expected);
  EXPECT_GT(batcher.counts().guessed_right, 10);
  EXPECT_EQ(batcher.counts().generated, 70);
  EXPECT_EQ(batcher.counts().steps, 70 - batcher.counts().guessed_right);
}

TEST_F(BatcherTexts, LogProbabilitiesAreThoseOfTheModel) {
  const models::ModelPtr model = model_of("gpt2", {});
  SequenceRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 3;
  request.sampling.temperature = 0;
  request.wants_logprobs = true;
  std::vector<double> got;
  std::vector<int32_t> text = request.prompt;
  request.on_token = [&](int32_t token, double logprob) {
    got.push_back(logprob);
    text.push_back(token);
    return true;
  };
  Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model));
  batcher.add(request);
  while (batcher.step()) {
  }
  ASSERT_EQ(got.size(), 3);
  for (const double x : got) {
    EXPECT_LT(x, 0);
    EXPECT_GT(x, -std::log(static_cast<double>(kBatchedVocabulary)));  // the likeliest of them
  }
}

// Beam search with as many beams as there are possible texts is exhaustive.
TEST_F(BatcherTexts, ManyBeamsFindTheLikeliestTexts) {
  constexpr int64_t kTokens = 4, kLength = 3, kEnd = 2;
  const models::ModelPtr model = models::find_architecture("gpt2").describe(
      {.settings = {{"n-layer", "2"}, {"n-head", "4"}, {"n-embd", "64"}},
       .vocabulary = kTokens,
       .context = kBatchedContext});
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 37; ++i) prompt.push_back(i * i % kTokens);
  // Returns the log probabilities of the next token of a single text.
  Batcher single(model, cpu::cpu_backend(), lively_weights(*model), {.parallel = 1});
  const auto next = [&](const std::vector<int32_t>& more) {
    std::vector<double> logprobs;
    SequenceRequest request;
    request.prompt = prompt;
    request.prompt.insert(request.prompt.end(), more.begin(), more.end());
    request.on_logits = [&](SequenceId id, std::span<const float> logits) {
      double sum = 0;
      for (const float x : logits) sum += std::exp(static_cast<double>(x));
      for (const float x : logits) logprobs.push_back(static_cast<double>(x) - std::log(sum));
      single.cancel(id);
    };
    single.add(std::move(request));
    while (single.step()) {
    }
    return logprobs;
  };
  struct Known {
    std::vector<int32_t> ids;
    double sum;
    bool has_ended;
  };
  std::vector<Known> open{{{}, 0, false}}, all;
  for (int64_t length = 0; length < kLength; ++length) {
    std::vector<Known> longer;
    for (const Known& k : open) {
      const std::vector<double> logprobs = next(k.ids);
      for (int32_t token = 0; token < kTokens; ++token) {
        Known more = k;
        more.sum += logprobs[static_cast<size_t>(token)];
        more.has_ended = token == kEnd;
        if (!more.has_ended) more.ids.push_back(token);
        (more.has_ended || length + 1 == kLength ? all : longer).push_back(more);
      }
    }
    open = longer;
  }
  const auto score = [](const Known& k) {
    return k.sum / static_cast<double>(std::ssize(k.ids) + (k.has_ended ? 1 : 0));
  };
  std::ranges::sort(all, std::greater<>(), score);
  Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), {.parallel = 64});
  std::vector<Hypothesis> found;
  const BeamSearch search(batcher, prompt, {.beams = 64, .max_new_tokens = kLength, .ends = {kEnd}},
                          [&](std::vector<Hypothesis> got) { found = std::move(got); });
  while (batcher.step()) {
  }
  ASSERT_EQ(found.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(found[i].score, score(all[i]), 1e-9) << i;
    EXPECT_EQ(found[i].ids, all[i].ids) << i;
    EXPECT_EQ(found[i].has_ended, all[i].has_ended) << i;
  }
  EXPECT_EQ(batcher.running() + batcher.waiting(), 0);
}

// A pool that is too small for all beams preempts some of them, which does not change the result.
TEST_F(BatcherTexts, BeamsDoNotDependOnThePool) {
  const models::ModelPtr model = model_of("llama", {});
  const auto search = [&](int64_t pool, int64_t* preempted) {
    Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model),
                    {.parallel = 6, .pool_positions = pool});
    std::vector<Hypothesis> found;
    const BeamSearch beams(batcher, {1, 2, 3, 4, 5}, {.beams = 6, .max_new_tokens = 80},
                           [&](std::vector<Hypothesis> got) { found = std::move(got); });
    while (batcher.step()) {
    }
    if (preempted != nullptr) *preempted = batcher.counts().preempted;
    return found;
  };
  int64_t preempted = 0;
  const auto expected = search(0, nullptr), got = search(kBatchedContext, &preempted);
  EXPECT_GT(preempted, 0);
  ASSERT_EQ(got.size(), 6);
  ASSERT_EQ(expected.size(), 6);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << i;
    EXPECT_EQ(got[i].score, expected[i].score) << i;
  }
}

TEST_F(BatcherTexts, RefusesPromptsThatNoModelReads) {
  const models::ModelPtr model = model_of("gpt2", {});
  Batcher batcher(model, cpu::cpu_backend(), lively_weights(*model), {.parallel = 1});
  SequenceRequest outside;
  outside.max_new_tokens = 1;
  EXPECT_THROW(batcher.add(outside), UserError);  // without a prompt
  outside.prompt = {static_cast<int32_t>(kBatchedVocabulary)};
  EXPECT_THROW(batcher.add(outside), UserError);
  EXPECT_FALSE(batcher.step());
}

}  // namespace
}  // namespace brrr::infer
