#include "text/unigram/unigram.h"
#include "base/threads/thread_local.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

// How far below the least score an unknown character is.
constexpr double kUnknownPenalty = 10;
// Beyond this sum `sentencepiece` (0.2.3) counts anew from 0, so that floats stay exact enough in
// long texts.
constexpr float kLargestFloatSum = 100'000;
constexpr uint32_t kUnreached = 0xffffffffu;

/// The best path that ends at a place of the text.
template <typename Sum>
struct BestPath {
  Sum score = 0;
  uint32_t begin = kUnreached;  // of its last token
  int32_t id = 0;
};

}  // namespace

UnigramEncoder::UnigramEncoder(UnigramModel model) : model_(std::move(model)) {
  BRRR_CHECK(model_.scores.size() == model_.size());
  BRRR_CHECK(model_.size() < static_cast<uint32_t>(WordCache::kIdLimit));
  BRRR_CHECK(model_.byte_ids.empty() || model_.byte_ids.size() == 256);
  std::vector<PieceTrie::Entry> entries;
  entries.reserve(model_.size());
  for (uint32_t id = 0; id < model_.size(); ++id)
    if (!model_.token(id).empty() &&
        (model_.tokens_are_found.empty() || model_.tokens_are_found[id]))
      entries.emplace_back(model_.token(id), id);
  trie_ = PieceTrie(std::move(entries));
  unknown_score_ =
      model_.double_sums
          ? model_.least_score - kUnknownPenalty
          : double{static_cast<float>(model_.least_score) - static_cast<float>(kUnknownPenalty)};
}

template <typename Sum>
void UnigramEncoder::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() >= kUnreached)
    user_error("a text of {} bytes cannot be encoded at once: the limit is 4 GiB; split it",
               piece.size());
  BRRR_THREAD_LOCAL std::vector<BestPath<Sum>> best;
  best.clear();
  best.resize(piece.size() + 1);
  const uint8_t* const begin = as_bytes(piece.data());
  const uint8_t* const end = begin + piece.size();
  size_t reached = 0;  // the furthest end of a path
  const auto offer = [&](const uint8_t* stop, Sum score, uint32_t from, int32_t id) {
    const auto at = static_cast<size_t>(stop - begin);
    BestPath<Sum>& path = best[at];
    reached = std::max(reached, at);
    if (path.begin == kUnreached || score > path.score) path = {score, from, id};
  };
  const double* const scores = model_.scores.data();
  for (const uint8_t* p = begin; p < end;) {
    const auto from = static_cast<uint32_t>(p - begin);
    if (std::is_same_v<Sum, float> && std::abs(best[from].score) > kLargestFloatSum) {
      const Sum base = best[from].score;
      for (size_t at = from; at <= reached; ++at) best[at].score -= base;
    }
    const Sum here = best[from].score;
    const uint8_t* const next = p + decode_utf8(p, end).bytes;
    bool is_known = false;
    trie_.visit(p, end, [&](const uint8_t* stop, uint32_t id) {
      offer(stop, static_cast<Sum>(scores[id]) + here, from, static_cast<int32_t>(id));
      is_known |= stop == next;
    });
    if (!is_known) {
      if (model_.unknown < 0)
        user_error(
            "no token spells the text {} (at byte {}), and the model has no unknown token; use "
            "text of the kind that it was made from",
            in_quotes(std::string(p, next)), from);
      offer(next, static_cast<Sum>(unknown_score_) + here, from, model_.unknown);
    }
    p = next;
  }
  const size_t first = ids.size();
  for (size_t stop = piece.size(); stop > 0;) {
    size_t from = best[stop].begin;
    if (best[stop].id != model_.unknown) {
      ids.push_back(best[stop].id);
    } else {
      if (model_.fuse_unknown)
        while (from > 0 && best[from].id == model_.unknown) from = best[from].begin;
      add_unknown_backwards(piece.substr(from, stop - from), ids);
    }
    stop = from;
  }
  std::reverse(ids.begin() + static_cast<ptrdiff_t>(first), ids.end());
}

void UnigramEncoder::add_unknown_backwards(std::string_view text, std::vector<int32_t>& ids) const {
  // `tokenizers` looks the text up: several unknown characters may be a token together.
  if (const uint32_t id = trie_.find(text); id != PieceTrie::kNone && model_.double_sums) {
    ids.push_back(static_cast<int32_t>(id));
    return;
  }
  const auto has_token = [&](char c) { return model_.byte_ids[static_cast<uint8_t>(c)] >= 0; };
  if (model_.byte_ids.empty() || !std::all_of(text.begin(), text.end(), has_token)) {
    ids.push_back(model_.unknown);
    return;
  }
  for (auto c = text.rbegin(); c != text.rend(); ++c)
    ids.push_back(model_.byte_ids[static_cast<uint8_t>(*c)]);
}

void UnigramEncoder::encode(std::span<const std::string_view> pieces, const char* readable_end,
                            std::vector<int32_t>& ids) const {
  const WordCaches::Lease cache(caches_);
  std::vector<int32_t> word_ids;
  const auto encode_anew = [&](std::string_view piece, std::vector<int32_t>& out) {
    if (model_.double_sums)
      encode_piece<double>(piece, out);
    else
      encode_piece<float>(piece, out);
  };
  for (const std::string_view piece : pieces) {
    const size_t length = piece.size();
    const uint8_t* const p = as_bytes(piece.data());
    if (length == 0) continue;
    if (length > WordCache::kLongestWord) {
      encode_anew(piece, ids);
      continue;
    }
    const bool is_short = length <= ShortWord::kLongest;
    ShortWord word{};
    if (is_short) {
      word = ShortWord::load(p, length, static_cast<size_t>(readable_end - piece.data()));
      if (const WordCache::Short* const found = cache->find(word)) {
        ids.push_back(found->ids[0] & (WordCache::kIdLimit - 1));
        ids.insert(ids.end(), found->ids + 1, found->ids + found->count());
        continue;
      }
    }
    const uint64_t hash = hash_bytes(p, length);
    if (const auto known = cache->find_long(p, length, hash); !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      continue;
    }
    word_ids.clear();
    encode_anew(piece, word_ids);
    if (is_short && word_ids.size() <= 4)
      cache->insert(word, word_ids);
    else
      cache->insert_long(p, length, hash, word_ids);
    ids.insert(ids.end(), word_ids.begin(), word_ids.end());
  }
}

void UnigramEncoder::save(const std::filesystem::path&) const {
  BRRR_CHECK(false, "a Unigram model is saved by the files that it was read from");
}

}  // namespace brrr::io
