#include "data/masked_batches.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/rng.h"
#include "base/sha256.h"

namespace brrr::io {
namespace {

constexpr uint32_t kMaskStream = 0x4d4c0000u;
constexpr int64_t kAround = 2;  // [CLS] and [SEP]

/// `part` of 2^32: a word below it is drawn with that probability.
uint64_t threshold(double part) { return static_cast<uint64_t>(part * 0x1p32); }

}  // namespace

MaskOptions mask_options(const Tokenizer& tokenizer, double probability) {
  const NamedTokens& named = tokenizer.named_tokens();
  MaskOptions m;
  m.cls = named.classifier;
  m.sep = named.separator;
  m.pad = named.pad;
  m.mask = named.mask;
  if (m.cls < 0 || m.sep < 0 || m.pad < 0 || m.mask < 0)
    user_error(
        "the {} tokenizer has no {} token, which a masked language model needs: use --tokenizer "
        "wordpiece:N, or the folder of an encoder",
        tokenizer.kind(),
        m.mask < 0  ? "mask"
        : m.pad < 0 ? "padding"
        : m.cls < 0 ? "class"
                    : "separator");
  m.vocab = tokenizer.vocab_size();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id)) m.special_ids.push_back(id);
  m.probability = probability;
  m.has_types = true;
  return m;
}

std::vector<bool> ids_that_continue_words(const Tokenizer& tokenizer) {
  const auto is_ascii_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  // Punctuation follows a word without a space, too. All that is not ASCII counts as letters.
  const auto is_of_word = [&](char c) {
    return is_ascii_letter(c) || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
  };
  const int32_t vocab = tokenizer.vocab_size();
  std::vector<bool> continues(static_cast<size_t>(vocab));
  const auto text_of = [&](std::vector<int32_t> ids) { return tokenizer.decode(ids); };
  int32_t word = 0;
  std::string before;
  for (; word < vocab; ++word) {
    if (tokenizer.is_special(word)) continue;
    before = text_of({word});
    if (!before.empty() && std::all_of(before.begin(), before.end(), is_ascii_letter)) break;
  }
  for (int32_t id = 0; word < vocab && id < vocab; ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string both = text_of({word, id});
    continues[static_cast<size_t>(id)] =
        both.size() > before.size() && both.starts_with(before) && is_of_word(both[before.size()]);
  }
  return continues;
}

BatchOptions MaskedBatches::options_for_text(const BatchOptions& options) {
  if (options.context <= kAround)
    usage_error(
        "the context is {} tokens; [CLS], [SEP] and a token of text need at least {} in masked "
        "language modelling",
        options.context, kAround + 1);
  BatchOptions text = options;
  text.context -= kAround;
  text.lengths.clear();
  text.flat = false;
  if (options.flat) return text;
  for (const int64_t length : options.lengths)
    if (length > kAround) text.lengths.push_back(length - kAround);
  return text;
}

MaskedBatches::MaskedBatches(std::unique_ptr<BatchSource> text, const BatchOptions& options,
                             const MaskOptions& mask)
    : text_(std::move(text)), options_(options), mask_(mask) {
  check_options(options);
  BRRR_CHECK(mask.vocab > 0, "vocab {}", mask.vocab);
  if (!(mask.probability > 0 && mask.probability <= 1))
    usage_error("tokens are masked with probability {}; expected more than 0 and at most 1",
                mask.probability);
  if (!(mask.masked >= 0 && mask.randomised >= 0 && mask.masked + mask.randomised <= 1))
    usage_error(
        "of the chosen tokens {} become [MASK] and {} a random token; expected fractions whose sum "
        "is at most 1",
        mask.masked, mask.randomised);
  const auto vocab = static_cast<size_t>(mask.vocab);
  BRRR_CHECK(mask.continues_word.empty() || mask.continues_word.size() == vocab,
             "{} ids that may continue a word, {} in the vocabulary", mask.continues_word.size(),
             vocab);
  special_.resize(vocab);
  std::vector<int32_t> special = mask.special_ids;
  special.insert(special.end(), {mask.cls, mask.sep, mask.pad, mask.mask});
  for (const int32_t id : special) {
    BRRR_CHECK(id >= 0 && id < mask.vocab, "special id {} of {}", id, mask.vocab);
    special_[static_cast<size_t>(id)] = true;
  }
  for (int32_t id = 0; id < mask.vocab; ++id)
    if (!is_special(id)) replacements_.push_back(id);
  if (replacements_.empty())
    usage_error("all {} tokens of the vocabulary are special; expected some for text", mask.vocab);
}

std::string MaskedBatches::fingerprint() const {
  Sha256 hash;
  hash.update(text_->fingerprint());
  std::string text =
      fmt::format("masked {} {} {} {} {} {} {} {}", mask_.cls, mask_.sep, mask_.pad, mask_.mask,
                  mask_.vocab, mask_.probability, mask_.masked, mask_.randomised);
  for (const bool special : special_) text += special ? 's' : '.';
  for (const bool continues : mask_.continues_word) text += continues ? 'c' : '.';
  hash.update(text);
  return hash.finish_hex();
}

/// Chooses tokens of a text: moves them to `targets` and replaces them in `inputs`. Returns how
/// many.
int64_t MaskedBatches::mask_row(int64_t row, std::span<int32_t> inputs,
                                std::span<int32_t> targets) const {
  const auto wide = static_cast<uint64_t>(row);
  const auto words_at = [&](size_t position) {
    return philox({options_.seed, static_cast<uint32_t>(wide)},
                  kMaskStream + static_cast<uint32_t>(wide >> 32), position);
  };
  const auto continues = [&](size_t i) {
    return !mask_.continues_word.empty() && mask_.continues_word[static_cast<size_t>(inputs[i])];
  };
  // A unit is a token, or all tokens of a word. It is chosen when its draw is small.
  struct Unit {
    size_t begin, end;
    uint32_t draw;
  };
  std::vector<Unit> units;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_special(inputs[i])) continue;
    if (!units.empty() && units.back().end == i && continues(i))
      units.back().end = i + 1;
    else
      units.push_back({i, i + 1, words_at(i)[0]});
  }
  const uint64_t chosen_below = threshold(mask_.probability);
  const auto first = std::min_element(units.begin(), units.end(),
                                      [](const Unit& a, const Unit& b) { return a.draw < b.draw; });
  int64_t count = 0;
  for (auto unit = units.begin(); unit != units.end(); ++unit) {
    // With a greater probability `first` would be the first to be chosen.
    if (unit->draw >= chosen_below && unit != first) continue;
    for (size_t i = unit->begin; i < unit->end; ++i, ++count) {
      targets[i] = inputs[i];
      const auto words = words_at(i);
      if (words[1] < threshold(mask_.masked)) {
        inputs[i] = mask_.mask;
      } else if (words[1] < threshold(mask_.masked + mask_.randomised)) {
        // By multiplication; with ids of less than 32 bits the bias is below 2^-32.
        const uint64_t high = words[2] * uint64_t{replacements_.size()};
        const uint64_t low = words[3] * uint64_t{replacements_.size()} >> 32;
        inputs[i] = replacements_[(high + low) >> 32];
      }
    }
  }
  return count;
}

void MaskedBatches::fill(int64_t index, Batch& batch) const {
  Batch text;
  text_->fill(index, text);
  const auto B = static_cast<size_t>(options_.batch);
  const size_t length = text.positions() / B, T = length + static_cast<size_t>(kAround);
  // Text tokens of each row; an empty row gets neither [CLS] nor [SEP].
  std::vector<int64_t> counts, lengths;
  for (size_t b = 0; b < B; ++b) {
    const auto scored = std::span(text.ids("targets")).subspan(b * length, length);
    counts.push_back(std::ranges::find(scored, kIgnoreId) - scored.begin());
    lengths.push_back(counts[b] > 0 ? counts[b] + kAround : 0);
  }
  const auto [all_inputs, begins] =
      batch.make_rows(lengths, options_, static_cast<int64_t>(T), mask_.pad);
  const auto all_targets = batch.make("targets", all_inputs.size(), kIgnoreId);
  if (mask_.has_types) batch.make<int32_t>("types", all_inputs.size(), 0);
  batch.count = 0;
  for (size_t b = 0; b < B; ++b) {
    const auto n = static_cast<size_t>(counts[b]);
    if (n == 0) continue;
    const auto from = std::span(text.ids("tokens")).subspan(b * length, length);
    const auto inputs = all_inputs.subspan(begins[b], n + static_cast<size_t>(kAround));
    const auto targets = all_targets.subspan(begins[b], n + static_cast<size_t>(kAround));
    for (size_t i = 0; i < n; ++i)
      BRRR_CHECK(from[i] >= 0 && from[i] < mask_.vocab, "id {} of {}", from[i], mask_.vocab);
    std::copy_n(from.begin(), n, inputs.begin() + 1);
    batch.count += mask_row(options_.row(index, static_cast<int64_t>(b)), inputs.subspan(1, n),
                            targets.subspan(1, n));
    inputs[0] = mask_.cls;
    inputs[n + 1] = mask_.sep;
  }
}

}  // namespace brrr::io
