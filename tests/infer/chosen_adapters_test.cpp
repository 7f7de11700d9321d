// Texts of several adapters side by side over one base: each has the bits that it has alone, and
// keys and values are shared only between texts of one adapter.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "backend/cpu/target.h"
#include "base/rng.h"
#include "infer/batcher.h"
#include "infer/beam_search.h"
#include "models/adapters/adapted_model.h"
#include "models/initialise.h"
#include "passes/adapters/choose_adapters.h"
#include "passes/pipeline.h"
#include "support/long_proof.h"

namespace brrr::infer {
namespace {

using models::AdaptedModel;
using models::Adapter;

constexpr int64_t kAdaptedVocabulary = 61, kAdaptedContext = 96;
constexpr int32_t kAdapterCount = 8;

struct AdaptedKind {
  std::string architecture;
  KeyValues settings;
};

models::ModelPtr base_of_kind(const AdaptedKind& kind, const char* width = "64") {
  KeyValues settings = kind.settings;
  for (const auto& [name, value] : KeyValues{{"n-layer", "2"}, {"n-head", "4"}, {"n-embd", width}})
    settings.emplace_back(name, value);
  return models::find_architecture(kind.architecture)
      .describe({.settings = std::move(settings),
                 .vocabulary = kAdaptedVocabulary,
                 .context = kAdaptedContext});
}

/// Adapters of different ranks, scales and layers; some adapt the head, whose rows are the tokens
/// whose logits are wanted.
std::vector<Adapter> adapters_over(const models::Model& base) {
  const std::vector<models::LinearLayer> layers = models::linear_layers(base);
  std::vector<Adapter> adapters;
  for (int32_t i = 0; i < kAdapterCount; ++i) {
    Adapter adapter{.name = std::to_string(i + 1)};
    adapter.title = "adapter-" + adapter.name;
    for (size_t at = 0; at < layers.size(); ++at) {
      const bool is_chosen =
          layers[at].is_head ? i % 3 == 0 : at % static_cast<size_t>(1 + i % 4) == 0;
      const int64_t rank = 1 + (i * 5 + static_cast<int64_t>(at)) % 9;
      if (is_chosen)
        adapter.layers.push_back({layers[at], rank, static_cast<double>(rank) * (0.5 + 0.25 * i)});
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

/// Weights large enough for texts to differ; those of adapters, too. The value of a parameter
/// depends on its name alone, whatever other adapters the model has.
std::shared_ptr<const WeightSource> adapted_weights(const models::Model& model) {
  const models::Model& base = model.adapted() != nullptr ? *model.adapted()->base() : model;
  return models::made_weights(model, [initial = models::initial_weights(base, 5)](
                                         std::string_view name, std::span<float> out) {
    if (models::is_of_adapter(name)) {
      uint32_t stream = 1;
      for (const char c : name) stream = stream * 31 + static_cast<uint8_t>(c);
      RngStream random({9, 0}, stream);
      for (float& x : out) x = static_cast<float>(random.next_below(2001)) / 4000 - 0.25f;
      return;
    }
    initial(name, out);
    if (name.find("norm") != std::string_view::npos || name.find("ln_") != std::string_view::npos)
      return;
    for (float& x : out) x *= 6;
  });
}

struct MadeText {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  bool operator==(const MadeText&) const = default;
};

std::vector<SequenceRequest> requests_of_adapters(size_t count) {
  std::vector<SequenceRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    SequenceRequest r;
    // The same prompts under every adapter, all of them together, and none.
    const auto length = static_cast<int32_t>(3 + i / (kAdapterCount + 2) * 17 % 41);
    for (int32_t n = 0; n < length; ++n) r.prompt.push_back((n * n + 3 * n) % kAdaptedVocabulary);
    r.adapter = static_cast<int32_t>(i % (kAdapterCount + 2)) - 1;
    static_assert(kAllAdapters == -1);
    r.max_new_tokens = 9 + static_cast<int64_t>(i % 11);
    r.sampling.temperature = i % 2 == 0 ? 0 : 1;
    r.sampling.seed = static_cast<uint32_t>(i);
    r.prompt_lookup = i % 5 == 1 ? 4 : 0;
    r.wants_logprobs = true;
    requests.push_back(std::move(r));
  }
  return requests;
}

std::vector<MadeText> generate_all(Batcher& batcher, const std::vector<SequenceRequest>& requests) {
  std::vector<MadeText> made(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SequenceRequest request = requests[i];
    request.on_token = [&made, i](int32_t token, double logprob) {
      made[i].tokens.push_back(token);
      made[i].logprobs.push_back(logprob);
      return true;
    };
    batcher.add(std::move(request));
    if (i % 3 == 0) batcher.step();  // they arrive one after the other
  }
  while (batcher.step()) {
  }
  return made;
}

/// The logits behind a prompt.
std::vector<float> logits_behind(Batcher& batcher, std::vector<int32_t> prompt, int32_t adapter) {
  std::vector<float> row;
  SequenceRequest request;
  request.prompt = std::move(prompt);
  request.adapter = adapter;
  request.on_logits = [&](SequenceId id, std::span<const float> logits) {
    row.assign(logits.begin(), logits.end());
    batcher.cancel(id);
  };
  batcher.add(std::move(request));
  while (batcher.step()) {
  }
  return row;
}

double distance_between(const std::vector<float>& got, const std::vector<float>& expected) {
  double gap = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    gap += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(gap / norm);
}

const std::vector<int32_t> kAdaptedPrompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8};

class ChosenAdapters : public testing::TestWithParam<AdaptedKind> {
 protected:
  static std::unique_ptr<Batcher> batcher_of(const models::ModelPtr& of,
                                             const BatcherOptions& options) {
    return std::make_unique<Batcher>(of, cpu::cpu_backend(), adapted_weights(*of), options);
  }
  models::ModelPtr base = base_of_kind(GetParam());
  std::vector<Adapter> adapters = adapters_over(*base);
  models::ModelPtr model = std::make_shared<AdaptedModel>(base, adapters);
};
INSTANTIATE_TEST_SUITE_P(Architectures, ChosenAdapters,
                         testing::Values(AdaptedKind{"gpt2", {}},
                                         AdaptedKind{"llama", {{"num-key-value-heads", "2"}}}),
                         [](const auto& row) { return row.param.architecture; });

TEST_P(ChosenAdapters, EachTextHasTheBitsThatItHasAlone) {
  const auto requests = requests_of_adapters(test::is_sanitized() ? 9 : 30);
  std::vector<std::pair<DType, WeightQuantization>> ways{{DType::f32, {}}, {DType::bf16, {}}};
  for (const Precision precision :
       {Precision::int8, Precision::int8_weight_only, Precision::int4, Precision::int4_weight_only})
    ways.emplace_back(DType::bf16, quantization_of_precision(precision));
  if (test::is_sanitized()) ways.resize(1);
  for (const auto& [precision, quantization] : ways) {
    BatcherOptions options{
        .precision = precision, .quantization = quantization, .chooses_adapters = true};
    options.parallel = 1;
    const auto single = batcher_of(model, options);
    std::vector<MadeText> alone;
    for (SequenceRequest request : requests) {
      request.prompt_lookup = 0;
      alone.push_back(generate_all(*single, {request})[0]);
    }
    for (const auto& [parallel, pool] : {std::pair(16, int64_t{0}), {5, 2 * kAdaptedContext}}) {
      options.parallel = parallel;
      options.pool_positions = pool;
      options.prefill_tokens = pool > 0 ? 7 : 256;
      options.guessed_tokens = 16;
      const auto batcher = batcher_of(model, options);
      EXPECT_EQ(generate_all(*batcher, requests), alone)
          << name_of(precision) << ", " << quantization.bits << " bits, " << parallel << " at once";
    }
    // The same prompt has other texts under other adapters.
    EXPECT_NE(alone[0].logprobs[0], alone[2].logprobs[0]);
    EXPECT_NE(alone[2].logprobs[0], alone[4].logprobs[0]);
  }
}

TEST_P(ChosenAdapters, TextsWithoutOneAreThoseOfTheBase) {
  std::vector<SequenceRequest> requests = requests_of_adapters(9);
  for (SequenceRequest& request : requests) request.adapter = 0;
  std::vector<std::pair<DType, WeightQuantization>> ways{{DType::f32, {}}, {DType::bf16, {}}};
  for (const Precision precision : {Precision::int8, Precision::int4_weight_only})
    ways.emplace_back(DType::bf16, quantization_of_precision(precision));
  for (const auto& [precision, quantization] : ways) {
    BatcherOptions options{.precision = precision, .quantization = quantization};
    const std::vector<MadeText> plain = generate_all(*batcher_of(base, options), requests);
    options.chooses_adapters = true;
    const std::vector<MadeText> chosen = generate_all(*batcher_of(model, options), requests);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(chosen[i].tokens, plain[i].tokens) << name_of(precision) << quantization.bits;
      EXPECT_EQ(chosen[i].logprobs, plain[i].logprobs) << name_of(precision) << quantization.bits;
    }
  }
}

// What is infinite in one adapter is no NaN in texts of others.
TEST_P(ChosenAdapters, ABrokenAdapterBreaksItsOwnTextsOnly) {
  const auto weights = models::made_weights(
      *model, [good = adapted_weights(*model)](std::string_view name, std::span<float> out) {
        read_as(*good, *good->find(name), DType::f32, std::as_writable_bytes(out));
        if (name.find("lora_A.5") != std::string_view::npos)
          std::ranges::fill(out, std::numeric_limits<float>::infinity());
      });
  const BatcherOptions options{.chooses_adapters = true};
  Batcher broken(model, cpu::cpu_backend(), weights, options);
  const auto whole = batcher_of(model, options);
  for (const int32_t adapter : {0, 4, 6})
    EXPECT_EQ(logits_behind(broken, kAdaptedPrompt, adapter),
              logits_behind(*whole, kAdaptedPrompt, adapter));
  EXPECT_FALSE(std::isfinite(logits_behind(broken, kAdaptedPrompt, 5)[0]));
}

// The adapter alone on the base, added as `--adapter FOLDER` adds it.
TEST_P(ChosenAdapters, GiveTheLogitsOfTheAdapterAlone) {
  const auto batcher = batcher_of(model, {.chooses_adapters = true});
  const auto low = batcher_of(model, {.precision = DType::bf16, .chooses_adapters = true});
  for (int32_t i = 0; i < kAdapterCount; ++i) {
    const auto single =
        std::make_shared<AdaptedModel>(base, std::vector{adapters[static_cast<size_t>(i)]});
    const std::vector<float> expected = logits_behind(*batcher_of(single, {}), kAdaptedPrompt, 0);
    const std::vector<float> got = logits_behind(*batcher, kAdaptedPrompt, i + 1);
    EXPECT_LT(distance_between(got, expected), 1e-6) << i;
    EXPECT_EQ(got, expected) << i;
    // In bf16 both round, at different places where scales differ: neither is more exact by much.
    const std::vector<float> rounded = logits_behind(*low, kAdaptedPrompt, i + 1);
    const std::vector<float> alone =
        logits_behind(*batcher_of(single, {.precision = DType::bf16}), kAdaptedPrompt, 0);
    EXPECT_LT(distance_between(rounded, expected), 2 * distance_between(alone, expected)) << i;
    EXPECT_LT(distance_between(alone, expected), 0.05) << i;
    EXPECT_GT(distance_between(logits_behind(*batcher, kAdaptedPrompt, 0), expected), 0.01) << i;
  }
}

// All adapters together give what their sum on the base gives.
TEST_P(ChosenAdapters, AllTogetherAreTheirSum) {
  adapters.resize(3);
  model = std::make_shared<AdaptedModel>(base, adapters);
  const std::vector<float> expected = logits_behind(*batcher_of(model, {}), kAdaptedPrompt, 0);
  const auto batcher = batcher_of(model, {.chooses_adapters = true});
  EXPECT_LT(distance_between(logits_behind(*batcher, kAdaptedPrompt, kAllAdapters), expected),
            1e-5);
  for (const int32_t one : {0, 1, 2, 3})
    EXPECT_GT(distance_between(logits_behind(*batcher, kAdaptedPrompt, one), expected), 1e-3);
}

TEST_P(ChosenAdapters, ShareKeysOnlyWithTextsOfTheSameAdapter) {
  std::vector<SequenceRequest> requests;
  for (const int32_t adapter : {0, 1, kAllAdapters, 0, 1, kAllAdapters}) {
    SequenceRequest request;
    request.prompt.assign(50, 9);
    request.adapter = adapter;
    request.max_new_tokens = 5;
    request.sampling.temperature = 0;
    request.wants_logprobs = true;
    requests.push_back(std::move(request));
  }
  const auto batcher = batcher_of(model, {.chooses_adapters = true});
  const std::vector<MadeText> made = generate_all(*batcher, requests);
  // The second text of each adapter finds the three full blocks of the first.
  EXPECT_EQ(batcher->counts().shared, 3 * 48);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(made[i], made[i + 3]) << i;
  EXPECT_NE(made[0].logprobs, made[1].logprobs);
  EXPECT_NE(made[1].logprobs, made[2].logprobs);
}

TEST_P(ChosenAdapters, BeamsKeepTheirAdapter) {
  const auto batcher = batcher_of(model, {.chooses_adapters = true});
  std::map<int32_t, std::vector<Hypothesis>> together;
  const auto search = [](Batcher& of, int32_t adapter, auto& into) {
    return std::make_unique<BeamSearch>(
        of, std::vector<int32_t>(40, 7),
        BeamOptions{.beams = 3, .max_new_tokens = 20, .adapter = adapter},
        [&into, adapter](std::vector<Hypothesis> found) { into[adapter] = std::move(found); });
  };
  const auto a = search(*batcher, 2, together), b = search(*batcher, 3, together);
  while (batcher->step()) {
  }
  for (const int32_t adapter : {2, 3}) {
    const auto single = std::make_shared<AdaptedModel>(
        base, std::vector{adapters[static_cast<size_t>(adapter - 1)]});
    const auto own = batcher_of(single, {.parallel = 3});
    std::vector<Hypothesis> found;
    const BeamSearch beams(*own, std::vector<int32_t>(40, 7), {.beams = 3, .max_new_tokens = 20},
                           [&](std::vector<Hypothesis> all) { found = std::move(all); });
    while (own->step()) {
    }
    ASSERT_EQ(together[adapter].size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(together[adapter][i].ids, found[i].ids);
      EXPECT_NEAR(together[adapter][i].score, found[i].score, 1e-5);
    }
  }
}

// The stacks are made when weights are loaded, in the dtype of products: no step copies them, and
// they do not lie in memory twice.
TEST(ChosenAdaptersMemory, HoldsEachAdapterOnce) {
  const AdaptedKind kind{"llama", {}};
  const models::ModelPtr base = base_of_kind(kind, "128");
  const auto adapters = [&](int64_t count) {
    std::vector<Adapter> all;
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(
          models::make_adapter(*base, {.rank = 32, .alpha = 64, .targets = {"all-linear"}}));
      all.back().name = all.back().title = std::to_string(i + 1);
    }
    return std::make_shared<AdaptedModel>(base, all);
  };
  for (const DType precision : {DType::f32, DType::bf16}) {
    const auto needed = [&](int64_t count) {
      const auto model = adapters(count);
      Batcher batcher(
          model, cpu::cpu_backend(), adapted_weights(*model),
          {.precision = precision, .chooses_adapters = true, .parallel = 4, .context = 16});
      return batcher.weight_bytes();
    };
    const int64_t more = needed(8) - needed(4);
    const int64_t expected =
        4 * adapters(1)->trained_count() * static_cast<int64_t>(bytes_of(precision));
    EXPECT_GE(more, expected) << name_of(precision);
    EXPECT_LE(more, expected + expected / 10) << name_of(precision);
  }
}

TEST(ChosenAdaptersRefusals, NameWhatTextsWouldShare) {
  const models::ModelPtr base = base_of_kind({"llama", {}});
  std::vector<Adapter> adapters = adapters_over(*base);
  adapters.resize(2);
  const auto refusal = [&] {
    try {
      AdaptedModel(base, adapters).check_choosable();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(), "");
  adapters[1].saved = {"model.norm.weight"};
  EXPECT_NE(refusal().find("adapter-2 has a trained copy of model.norm.weight"), std::string::npos)
      << refusal();
  adapters[1].saved.clear();
  adapters[1].layers.erase(adapters[1].layers.begin(), adapters[1].layers.end() - 1);
  adapters[0].layers.erase(adapters[0].layers.begin() + 1, adapters[0].layers.end());
  adapters[0].layers[0].has_factor = true;
  EXPECT_NE(refusal().find("adapter-1 has a factor (DoRA) of "), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("brrr merge"), std::string::npos);
}

}  // namespace
}  // namespace brrr::infer
