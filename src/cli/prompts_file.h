#pragma once
// Reads the file of `brrr generate --prompts`. Each line is a JSON object with a "prompt" and
// optionally an "id", an "adapter" and sampling options, which override the command line. What a
// line means does not depend on other lines.

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
  /// In place of --stop: the text ends before any of these strings. Absent: those of --stop.
  std::optional<std::vector<std::string>> stop = {};
  int64_t answers = 1;
  /// Name of the one adapter that the text uses; "" (null or "" in the file): none. Absent: the sum
  /// of all adapters of the command line, as without --prompts.
  std::optional<std::string> adapter = {};
};

struct PromptsFile {
  std::vector<Prompt> prompts;
  std::vector<std::string> problems;  // errors of invalid lines: "prompts.jsonl, line 7: ..."
};

/// Reads a file, which may be packed by gzip or Zstandard, or standard input ("-"). Empty lines are
/// skipped. Settings that a line does not have are those of `defaults`.
/// Throws UserError if the file cannot be read.
PromptsFile read_prompts(const std::string& file, const Prompt& defaults);

}  // namespace brrr::cli
