#pragma once
// The options of `brrr bench`, and values that several benchmarks read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "passes/precision/cache_precision.h"
#include "passes/precision/precision.h"

namespace brrr::cli {

struct BenchOptions {
  std::vector<std::string> shapes;      // "MxKxN"
  std::vector<std::string> dtypes;      // names; which ones depends on the benchmark
  std::vector<std::string> ops;         // substrings of names
  std::vector<std::string> lengths;     // of attention, inference
  std::vector<std::string> precisions;  // of a step, decoding, inference
  std::vector<std::string> rematerialize;
  std::string preset;  // "": char-cpu for step, gpt2 for decode
  std::string model;
  std::vector<std::string> batches;
  int64_t context = 0, prompt = 0, rows = 1024, elements = 0;
  CachePrecision kv_cache = CachePrecision::computed;  // of decoding
  bool compile = true;
  std::string device = "auto";
  int64_t layers = 0, heads = 0, width = 0;
  bool json = false;
  double seconds = 2;
  int64_t steps = 4;
  bool peaks = true;
  std::string svg;
  int64_t threads = 0;
  // inference
  std::string text, html, peers;
  int64_t sentences = 0;
  double peer_timeout = 300;
  bool quick = false;
  std::string comm = "auto";  // of ranks
};

const OptionTable<BenchOptions>& bench_table();

/// A whole number from 1 to `most`. `option` is named in the error.
int64_t positive(std::string_view text, const char* option, int64_t most = INT64_MAX);
inline constexpr int64_t kLargestBatch = 1 << 16;
/// Returns the batch size of a benchmark that takes only one; 0: not given.
int64_t single_batch(const BenchOptions& options, const char* question);

/// The values of --precision for a model that only runs, each once.
std::vector<Precision> inference_precisions(const std::vector<std::string>& given);
/// brrr bench inference; prints its result.
int bench_inference_main(const BenchOptions& options);

}  // namespace brrr::cli
