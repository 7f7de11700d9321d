#pragma once
// `brrr bench inference`: how many sentences per second a text encoder computes, in Brrr and in
// other runtimes of a Python environment, by precision, batch size, order of the texts and their
// length. Texts are tokenised once, before any clock starts. What is timed is the encoder with its
// pooling, batch by batch; vectors of every runtime are compared with ours.
//
// For each batch size and length, each runtime runs all its orders in turn, and so several times:
// what is compared lies side by side in time. The process of a peer that is not measured is
// stopped.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "insight/machine/timing.h"
#include "passes/precision/precision.h"

namespace brrr::insight {

/// Whether a list has an element.
template <typename T, typename U>
bool holds(const std::vector<T>& list, const U& element) {
  return std::ranges::find(list, element) != list.end();
}

/// The order in which texts form batches.
enum class TextOrder {
  random,  // padded rows in a seeded random order
  sorted,  // padded rows sorted by length, the longest first
  packed,  // texts one behind the other without padding, in either order
};
const char* name_of(TextOrder order);

struct InferenceOptions {
  std::string model;                  // as io::find_model has it; "": random weights
  std::vector<Precision> precisions;  // empty: that of a quantised folder, else fp32 and bf16
  std::vector<int64_t> batches, lengths;
  bool has_default_lengths = false;  // lengths that the model does not take are left out
  std::string text;                  // a file with a sentence on each line; "": the default
  int64_t sentences = 0;             // lines that are read; 0: 1,000, or 80 with `quick`
  bool quick = false;  // fewer sentences, repeats and peers, so that it takes a minute
  std::string peers;   // a Python virtual environment; "": none
  double peer_timeout_seconds = 300;
  std::function<bool()> stop =
      {};  // asked between measurements: true ends them with what is measured
};

/// Thrown when InferenceOptions::stop said so before a batch size or length was measured.
struct InferenceStopped {};

/// One runtime at one precision, batch size, order and length.
struct InferenceRow {
  std::string runtime;  // "brrr", "onnxruntime", ...
  Precision precision = Precision::fp32;
  int64_t batch = 0;
  TextOrder order = TextOrder::random;
  bool is_sorted = false;  // whether the texts are sorted by length; always for TextOrder::sorted
  int64_t length = 0;      // tokens of every text; 0: the texts as they are
  Timing ms;               // per sentence
  int repeats = 0;         // that the figures are of
  int64_t real_tokens = 0, padded_tokens = 0;  // of all sentences; computed tokens
  double max_difference = 0;  // the largest from ours at fp32, of vectors of length 1
  bool agrees = true;         // whether the vectors are those of our fp32 model

  bool is_ours() const { return runtime == "brrr"; }
  double sentences_per_second() const { return 1e3 / ms.median; }
  /// "packed", "packed, sorted", "sorted", "random".
  std::string order_text() const;
};

/// A published finding, and the same comparison made with the rows measured here.
struct Finding {
  std::string name, published, here;
  std::vector<std::pair<std::string, double>> figures;  // by runtime
};

struct InferenceReport {
  std::string model;     // as it was named, or "random weights of MiniLM's size"
  std::string subtitle;  // sizes, texts, threads
  std::string processor;
  int threads = 0, repeats = 0;
  int64_t sentences = 0;
  std::vector<InferenceRow> rows;
  std::vector<std::pair<std::string, std::string>> versions;  // of the peers' packages
  std::vector<std::string> notes;  // what was skipped, failed or disagrees
  std::vector<Finding> findings;
  double other_processors = 0;  // that other work had while ours was timed
};

/// Measures. Notes go to stderr as they come, too. Throws UserError for a model that is no encoder,
/// a text without lines, and an environment without Python; what goes wrong in a peer is a note.
InferenceReport bench_inference(const InferenceOptions& options);

/// The precisions of the rows, in their order.
std::vector<Precision> precisions_of(const std::vector<InferenceRow>& rows);
/// The fastest other runtime that agrees, at the precision, batch size and length of `row`;
/// nullptr: none.
const InferenceRow* best_peer(const InferenceReport& report, const InferenceRow& row);

std::vector<Finding> inference_findings(const std::vector<InferenceRow>& rows);
/// "5 interleaved repeats" or, where time was short, "2 to 3 interleaved repeats".
std::string repeats_text(const InferenceReport& report);
std::string inference_table(const InferenceReport& report);
nlohmann::ordered_json inference_json(const InferenceReport& report);
/// The page with the curves, as HTML.
std::string inference_page(const InferenceReport& report);

}  // namespace brrr::insight
