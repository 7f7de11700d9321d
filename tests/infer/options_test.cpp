// Options of generate and eval.
#include <gtest/gtest.h>

#include "infer/options.h"
#include "support/temp_folder.h"

namespace brrr::infer {
namespace {

TEST(GenerateOptions, NamesAndDefaults) {
  const GenerateOptions plain = resolve_generate({});
  EXPECT_EQ(plain, GenerateOptions{});
  const GenerateOptions o = resolve_generate({{"out_dir", "runs/a"},
                                              {"start", "To be"},
                                              {"max_new_tokens", "5"},
                                              {"num_samples", "2"},
                                              {"temperature", "0"},
                                              {"top_k", "0"},
                                              {"top_p", "0.5"},
                                              {"seed", "7"},
                                              {"use_cache", "false"},
                                              {"json", "true"}});
  EXPECT_EQ(o.model, "runs/a");
  EXPECT_EQ(o.prompt, "To be");
  EXPECT_EQ(o.max_new_tokens, 5);
  EXPECT_EQ(o.num_samples, 2);
  EXPECT_EQ(o.temperature, 0);
  EXPECT_EQ(o.top_k, 0);
  EXPECT_EQ(o.top_p, 0.5);
  EXPECT_EQ(o.seed, 7);
  EXPECT_FALSE(o.cache);
  EXPECT_TRUE(o.json);
}

TEST(GenerateOptions, PrecisionsOfTheCache) {
  EXPECT_EQ(resolve_generate({}).kv_cache, CachePrecision::computed);
  for (const char* name : {"int8", "q8_0"})
    EXPECT_EQ(resolve_generate({{"kv-cache", name}}).kv_cache, CachePrecision::int8) << name;
  EXPECT_EQ(resolve_generate({{"kv_cache_dtype", "auto"}}).kv_cache, CachePrecision::computed);
  EXPECT_USER_ERROR(resolve_generate({{"kv-cache", "int4"}}), "int8");
  EXPECT_USER_ERROR(resolve_generate({{"kv-cache", "int8"}, {"cache", "false"}}),
                    "--kv-cache: --no-cache keeps no keys and values");
}

TEST(GenerateOptions, NoCacheOnTheCommandLine) {
  const auto infos = generate_option_table().infos();
  const std::vector<std::string> args = {"--no-cache", "--no_stream", "--prompt", "--x y"};
  const GenerateOptions o = resolve_generate(parse_arguments(infos, args, "brrr generate").given);
  EXPECT_FALSE(o.cache);
  EXPECT_FALSE(o.stream);
  EXPECT_EQ(o.prompt, "--x y");
  EXPECT_TRUE(o.was_given("prompt") && o.was_given("cache") && !o.was_given("temperature"));
  // Only the model's folder knows whether an empty prompt has a token to begin with.
  EXPECT_EQ(resolve_generate({{"prompt", ""}}).prompt, "");
}

TEST(GenerateOptions, BadValues) {
  EXPECT_USER_ERROR(resolve_generate({{"temperature", "-1"}}), "--temperature: expected a number");
  EXPECT_USER_ERROR(resolve_generate({{"top_p", "0"}}), "above 0");
  EXPECT_USER_ERROR(resolve_generate({{"top_p", "1.1"}}), "at most 1");
  EXPECT_USER_ERROR(resolve_generate({{"max_new_tokens", "0"}}), "from 1");
  EXPECT_USER_ERROR(resolve_generate({{"promt", "x"}}), "did you mean 'prompt'");
}

TEST(GenerateOptions, PromptFile) {
  test::TempFolder folder;
  const std::string file = (folder / "p").string();
  write_file_atomically(file, "from a file");
  EXPECT_EQ(resolve_generate({{"prompt_file", file}}).prompt, "from a file");
  EXPECT_USER_ERROR(resolve_generate({{"prompt_file", file}, {"prompt", "x"}}), "not both");
  write_file_atomically(file, "");
  EXPECT_USER_ERROR(resolve_generate({{"prompt_file", file}}), "at least one character");
}

TEST(EvalOptions, OneSourceOfTokens) {
  const EvalOptions o = resolve_eval({{"text", "a"}, {"text", "b"}, {"block_size", "32"}});
  EXPECT_EQ(o.text, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.context, 32);
  EXPECT_USER_ERROR(resolve_eval({}), "got neither");
  EXPECT_USER_ERROR(resolve_eval({{"text", "a"}, {"data", "b"}}), "got both");
  EXPECT_USER_ERROR(resolve_eval({{"text", "a"}, {"batch_size", "0"}}), "--batch-size");
}

}  // namespace
}  // namespace brrr::infer
