#pragma once
// The pairs of answers that a run learns from (--task dpo), with the log probabilities that the
// reference model gives each sequence. They are computed once, before the first step, and kept in
// every checkpoint, so that no step needs a second model and a resumed run has the same bits.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/loader.h"
#include "data/preference_batches.h"
#include "data/token_source.h"

namespace brrr {
class Communicator;
}

namespace brrr::train {

class Session;

/// The file of a checkpoint that keeps the reference's log probabilities.
inline constexpr const char* kReferenceFile = "reference.safetensors";

/// Pairs for training, or for validation.
struct PreferencePart {
  io::TokenSource tokens = io::TokenSource::from_ids({}, "no pairs");
  std::vector<uint8_t> learnt;  // for each token: 1 if it is a target
  std::vector<io::PreferencePair> pairs;
  /// Log probabilities under the reference, two for each pair: the preferred sequence's, then the
  /// other one's. Empty until they are known.
  std::vector<float> reference;

  /// Stores the reference's log probabilities and drops those of the padding pairs in the last
  /// batch. Throws UserError if one of them is NaN or infinite.
  void set_reference(std::vector<float> values);
  /// Returns the pairs as batches, which must not outlive this.
  std::unique_ptr<io::BatchSource> batches(const io::BatchOptions& options) const;
  /// Identifies the pairs (io::BatchSource::fingerprint); "" without pairs.
  std::string fingerprint() const;
  /// Tokens of the longest sequence; 0 without pairs.
  int64_t longest() const;
};

/// How the log probabilities are computed.
struct ReferencePass {
  Session& session;  // with the weights of the reference
  io::LoaderOptions loader;
  /// Divides the batches among its ranks, all of which get the result. Null: no others.
  Communicator* communicator = nullptr;
  std::function<void(int64_t pairs)> progress = {};  // receives the number of pairs done
  /// Asked by a single process after each batch, by several ranks once at the end. True ends the
  /// pass.
  std::function<bool()> stops = {};
};

struct PreferenceSet {
  PreferencePart train, validation;

  int64_t pairs() const { return std::ssize(train.pairs) + std::ssize(validation.pairs); }
  /// Bytes of the log probabilities.
  int64_t reference_bytes() const { return 2 * pairs() * static_cast<int64_t>(sizeof(float)); }
  /// Computes the log probabilities of all pairs. False: the pass was stopped, and nothing changed.
  /// Throws UserError for a model that gives NaN or infinity.
  bool compute_reference(const ReferencePass& pass);
  void write_reference(const fs::path& file) const;
  /// Throws UserError for a file that is damaged, or of other pairs.
  void read_reference(const fs::path& file);
};

}  // namespace brrr::train
