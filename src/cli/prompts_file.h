#pragma once
// The prompts of `brrr generate --prompts`: a JSON object on each line, with "prompt" and, if the
// line wants others than the command line gives, an "id" and sampling options.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "infer/options.h"
#include "sampling/sampler.h"

namespace brrr::cli {

struct Prompt {
  nlohmann::json id;  // a string or an integer; the number of the line if it names none
  int64_t line = 0;   // from 1
  std::string text;
  infer::Sampling sampling;
  std::optional<int64_t> max_new_tokens;
  std::vector<std::string> stop;  // a text ends before any of these strings
  int64_t answers = 1;
};

struct PromptsFile {
  std::vector<Prompt> prompts;
  std::vector<std::string> problems;  // lines that cannot be run: "prompts.jsonl, line 7: ..."
};

/// Reads the file, "-" for standard input, packed by gzip or Zstandard or not. Empty lines are
/// passed over. Lines take what they leave out from `defaults`, whose id and text are ignored.
/// Throws UserError if the file cannot be read.
PromptsFile read_prompts(const std::string& file, const Prompt& defaults);

}  // namespace brrr::cli
