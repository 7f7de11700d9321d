#pragma once
// What the reference of a run on preferences says of its pairs: the log probabilities that the
// model gives every sequence before the first step. They are computed once and kept in every
// checkpoint, so that no step needs a second model, and a resumed run has the same bits.

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/loader.h"

namespace brrr {
class Communicator;
}

namespace brrr::train {

class Session;

/// The file of a checkpoint that keeps them.
inline constexpr const char* kReferenceFile = "reference.safetensors";

/// f32, two for each pair: of the chosen and of the rejected sequence.
struct ReferenceScores {
  std::vector<float> train, validation;
};

/// Computes the log probabilities of `pairs` pairs with the session's current weights. `source`:
/// all pairs in order (io::Sampling::kSequential), in batches that the session evaluates. With a
/// communicator the batches are divided among its ranks, all of which get the result.
std::vector<float> log_probabilities(Session& session, std::unique_ptr<io::BatchSource> source,
                                     const io::LoaderOptions& options, size_t pairs,
                                     Communicator* communicator);

/// Fingerprints (io::BatchSource::fingerprint) and numbers of the pairs that the scores belong to.
struct ReferenceData {
  std::string train = {}, validation = {};
  size_t train_pairs = 0, validation_pairs = 0;
};
void write_reference(const fs::path& file, const ReferenceScores& scores,
                     const ReferenceData& data);
/// Throws UserError for a file that is damaged, or has the scores of other pairs.
ReferenceScores read_reference(const fs::path& file, const ReferenceData& data);

}  // namespace brrr::train
