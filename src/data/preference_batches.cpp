#include "data/preference_batches.h"

#include "base/errors.h"
#include "base/sha256.h"

namespace brrr::io {

PreferenceBatches::PreferenceBatches(const TokenSource& source,
                                     std::span<const PreferencePair> pairs,
                                     std::span<const uint8_t> learnt,
                                     std::span<const float> reference, const BatchOptions& options)
    : source_(source),
      pairs_(pairs),
      learnt_(learnt),
      reference_(reference),
      options_(options),
      order_(
          pairs.size(), [pairs](size_t i) { return pairs[i].tokens(); }, options) {
  check_options(options);
  BRRR_CHECK(options.flat && options.sequences_per_row == 2, "rows of {} sequences",
             options.sequences_per_row);
  BRRR_CHECK(std::ssize(learnt) == source.tokens(), "{} marks for {} tokens", learnt.size(),
             source.tokens());
  BRRR_CHECK(reference.empty() || reference.size() == 2 * pairs.size(),
             "{} log probabilities for {} pairs", reference.size(), pairs.size());
  for (const PreferencePair& pair : pairs) tokens_ += pair.tokens();
}

std::string fingerprint_of(const TokenSource& source, std::span<const PreferencePair> pairs,
                           std::span<const uint8_t> learnt) {
  Sha256 hash;
  const std::string tokens = source.fingerprint();
  hash.update(tokens.data(), tokens.size());
  hash.update(pairs.data(), pairs.size_bytes());
  hash.update(learnt.data(), learnt.size());
  return hash.finish_hex();
}

void PreferenceBatches::fill(int64_t index, Batch& batch) const {
  const auto [rows, length] = order_.batch(index);
  std::vector<int64_t> lengths;
  for (const size_t row : rows)
    for (const Document& d : {pairs_[row].chosen, pairs_[row].rejected})
      lengths.push_back(d.end - d.begin - 1);
  const auto [tokens, begins] = batch.make_rows(lengths, options_, length, 0);
  const auto targets = batch.make("targets", tokens.size(), kIgnoreId);
  const auto reference = batch.make("reference", static_cast<size_t>(options_.sequences()), 0.0f);
  batch.count = std::ssize(rows);
  for (size_t b = 0; b < rows.size(); ++b) {
    const PreferencePair& pair = pairs_[rows[b]];
    for (const size_t which : {size_t{0}, size_t{1}}) {
      const size_t sequence = 2 * b + which;
      const auto n = static_cast<size_t>(lengths[sequence]);
      read_with_targets(source_, (which == 0 ? pair.chosen : pair.rejected).begin, learnt_,
                        options_.vocab, tokens.subspan(begins[sequence], n),
                        targets.subspan(begins[sequence], n));
      if (!reference_.empty()) reference[sequence] = reference_[2 * rows[b] + which];
    }
  }
}

}  // namespace brrr::io
