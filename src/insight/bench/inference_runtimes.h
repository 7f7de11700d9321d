#pragma once
// What `brrr bench inference` runs: texts as token ids, their batches, and the runtimes that
// compute vectors of them, ours and those of a Python environment.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/weight_source.h"
#include "infer/run_precision.h"
#include "insight/bench/bench_inference.h"
#include "models/model.h"
#include "runtime/backend.h"
#include "text/tokenizer.h"

namespace brrr::insight {

struct TextSet {
  std::string name;                     // "mixed", or the length
  int64_t length = 0;                   // tokens of every text; 0: they differ
  std::vector<io::ModelInput> inputs;   // ids and types
  std::vector<std::string> lines = {};  // the texts themselves; empty: made of ids
};

/// Texts of `length` tokens: the ids of `mixed` one after the other, from the beginning again where
/// they end.
TextSet texts_of_length(const TextSet& mixed, int64_t length, int64_t count);

/// The batches of one measurement.
struct TextBatches {
  const TextSet* texts = nullptr;
  int64_t batch = 0;
  TextOrder order = TextOrder::random;
  bool is_sorted = false;
  std::vector<std::vector<size_t>> batches;  // indices of texts

  /// Number of tokens, without padding.
  int64_t real_tokens() const;
  /// Number of tokens if each batch is padded to `padded(longest)`.
  int64_t padded_tokens(const std::function<int64_t(int64_t longest)>& padded) const;
};
TextBatches batches_of(const TextSet& texts, int64_t batch, TextOrder order, bool is_sorted);

using Vectors = std::vector<std::vector<float>>;

class InferenceRuntime {
 public:
  virtual ~InferenceRuntime() = default;
  virtual std::string name() const = 0;
  virtual Precision precision() const = 0;
  virtual bool runs(const TextBatches& work) const = 0;
  /// Number of tokens that are computed, padding included.
  virtual int64_t computed_tokens(const TextBatches& work) const = 0;
  /// Computes all batches and returns the milliseconds. `vectors` gets those of the texts `wanted`.
  virtual double run(const TextBatches& work, std::span<const size_t> wanted, Vectors& vectors) = 0;
  /// Called behind a measurement.
  virtual void pause() {}
};

/// The encoder that all runtimes run.
struct BenchEncoder {
  std::string name;             // for people
  models::ModelPtr definition;  // Head::embedding, one pooling, vectors keep their length
  std::shared_ptr<const WeightSource> weights;
  std::unique_ptr<io::Tokenizer> tokenizer;
  std::optional<infer::RunPrecision> own = {};  // of a folder with quantised weights
  int64_t longest = 0;                          // tokens of a text
  fs::path folder, root;                        // of the encoder; of sentence-transformers' modules

  bool pools_first_token() const;  // else the mean over the tokens
};

enum class RowLayout { packed, padded };
std::unique_ptr<InferenceRuntime> own_runtime(const BenchEncoder& model, Precision precision,
                                              RowLayout layout);

/// The inputs that peers need besides the model.
struct PeersSetup {
  fs::path environment;  // with bin/python
  fs::path folder;       // for the script, texts and an ONNX file; outlives the runtimes
  std::vector<Precision> precisions;
  bool quick = false;  // ONNX Runtime, OpenVINO and PyTorch at fp32 only
  int threads = 1;
  double timeout_seconds = 300;
  std::function<bool()> stop;
  std::function<void(const std::string& note)> note;
};

struct Peers {
  std::vector<std::unique_ptr<InferenceRuntime>> runtimes;
  std::vector<std::pair<std::string, std::string>> versions;  // of packages
};

/// Throws UserError for an environment without bin/python.
void check_peers(const fs::path& environment);
/// Starts a process for each runtime whose packages the environment has; what is missing or fails
/// is a note. Their run() throws PeerError (insight/bench/peer_process.h).
Peers open_peers(const BenchEncoder& model, const std::vector<const TextSet*>& texts,
                 const PeersSetup& setup);

}  // namespace brrr::insight
