#include "text/gguf/gguf_pre_tokenizers.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"

namespace brrr::io {
namespace {

// Stands for GPT-2's pattern, which the tokenizer has built in.
constexpr const char* kBuiltInPattern = "";
constexpr const char* kGgufLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGgufQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGgufQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGgufTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGgufGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizerRow {
  std::vector<std::string_view> names;
  std::vector<const char*> patterns;  // one after the other
  bool ignore_merges = false, adds_begin = false;
};

const std::vector<PreTokenizerRow>& pre_tokenizer_rows() {
  static const std::vector<PreTokenizerRow> rows = {
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kBuiltInPattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe", "jina-es", "jina-de",
        "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum", "modern-bert"},
       {kBuiltInPattern}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kGgufLlama3},
       true,
       true},
      {{"dbrx", "smaug-bpe"}, {kGgufLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez"}, {kGgufQwen2}},
      {{"qwen35"}, {kGgufQwen35}},
      {{"tekken"}, {kGgufTekken}, true, true},
      {{"gpt-4o", "llama4", "kanana2"}, {kGgufGpt4o}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"},
       {R"(\p{N})", kBuiltInPattern}},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        R"(\p{N})"}},
  };
  return rows;
}

Json bytes_stage(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

}  // namespace

std::vector<std::string_view> gguf_pre_tokenizer_names() {
  return {"gpt-2", "llama-bpe", "qwen2",     "tekken",         "gpt-4o",
          "dbrx",  "qwen35",    "starcoder", "deepseek-coder", "default"};
}

GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& where) {
  std::string known;
  for (const PreTokenizerRow& row : pre_tokenizer_rows()) {
    for (const std::string_view one : row.names)
      known.append(known.empty() ? "" : ", ").append(one);
    if (std::ranges::find(row.names, name) == row.names.end()) continue;
    Json stages = Json::array();
    const bool ends_with_gpt2 = *row.patterns.back() == '\0';
    for (const char* const pattern : row.patterns) {
      const bool is_gpt2 = *pattern == '\0';
      if (is_gpt2 && pattern == row.patterns.back()) continue;
      // A stage that spells bytes must be the last: here GPT-2's pattern is written out.
      stages.push_back(
          {{"type", "Split"},
           {"pattern",
            {{"Regex",
              is_gpt2
                  ? R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
                  : pattern}}},
           {"behavior", "Isolated"},
           {"invert", false}});
    }
    stages.push_back(bytes_stage(ends_with_gpt2));
    return {{{"type", "Sequence"}, {"pretokenizers", std::move(stages)}},
            row.ignore_merges,
            row.adds_begin};
  }
  user_error("{}: the pre-tokenizer {} (tokenizer.ggml.pre) is not supported; those that are: {}",
             where, in_quotes(name), known);
}

}  // namespace brrr::io
