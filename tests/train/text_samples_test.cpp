// The texts that a run writes, for every decoder of tests/golden/tokenizer_cases.json: with a
// prompt of the user they show it, without one they do not.
#include "train/text_samples.h"

#include <gtest/gtest.h>

#include "support/golden_tokenizer.h"

namespace brrr::train {
namespace {

TEST(TextSamples, ShowThePromptOnlyWhereItIsTheUsers) {
  const io::Json all = test::read_golden("tokenizer_cases.json");
  size_t checked = 0;
  for (const io::Json& item : all["cases"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const auto tokenizer = test::tokenizer_of(test::tokenizer_json_of(all, item));
    const std::vector<int32_t> next = tokenizer->encode("the cat", {.inside = true});
    const TextSamples::Continue more = [&](std::span<const int32_t>, int64_t, infer::Sampler) {
      return next;
    };
    TrainOptions o;
    o.samples = 1;
    o.sample_prompt = "a hat";
    // What the decoder makes of the tokens that are text.
    const auto text_of = [&](const std::vector<int32_t>& ids) {
      io::DecodeState state{.skip_special_tokens = true};
      std::string text;
      tokenizer->decode(ids, state, text);
      tokenizer->finish(state, text);
      return text;
    };
    std::vector<int32_t> ids = tokenizer->encode(o.sample_prompt, {.add_special_tokens = true});
    const std::string prompt = text_of(ids);
    ids.insert(ids.end(), next.begin(), next.end());
    const std::string whole = text_of(ids);
    if (!whole.starts_with(prompt)) continue;
    EXPECT_EQ(TextSamples(o, *tokenizer).write(0, more)[0], whole);
    ++checked;
  }
  EXPECT_GT(checked, 100u);
}

}  // namespace
}  // namespace brrr::train
