#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/errors.h"

namespace brrr::infer {

BeamSearch::BeamSearch(Batcher& batcher, std::vector<int32_t> prompt, BeamOptions options,
                       OnFinish on_finish)
    : batcher_(batcher), options_(std::move(options)), on_finish_(std::move(on_finish)) {
  BRRR_CHECK(options_.beams > 0 && options_.max_new_tokens > 0, "a search without beams");
  SequenceRequest request;
  request.prompt = std::move(prompt);
  request.adapter = options_.adapter;
  request.on_logits = [this](Batcher::Id id, std::span<const float> logits) { read(id, logits); };
  beams_.push_back({.id = batcher_.add(std::move(request)), .ids = {}});
}

/// Number of candidates to keep, so that enough are left if all end tokens are among them.
size_t BeamSearch::candidates() const {
  return std::max<size_t>(2, 1 + options_.ends.size()) * static_cast<size_t>(options_.beams);
}

void BeamSearch::read(Batcher::Id id, std::span<const float> logits) {
  const auto at = std::ranges::find(beams_, id, &Beam::id);
  BRRR_CHECK(at != beams_.end(), "logits of an unknown beam");
  Beam& beam = *at;
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  const double log_total = top + std::log(sum);
  const size_t count = std::min(logits.size(), candidates());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::partial_sort(
      order, order.begin() + static_cast<ptrdiff_t>(count), [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
      });
  for (size_t i = 0; i < count; ++i)
    beam.next.push_back(
        {beam.score + static_cast<double>(logits[static_cast<size_t>(order[i])]) - log_total,
         static_cast<size_t>(at - beams_.begin()), order[i]});
  if (std::ranges::none_of(beams_, [](const Beam& b) { return b.next.empty(); })) select();
}

void BeamSearch::select() {
  std::vector<Candidate> all;
  for (const Beam& beam : beams_) all.insert(all.end(), beam.next.begin(), beam.next.end());
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  all.resize(std::min(all.size(), candidates()));
  const int64_t length = std::ssize(beams_[0].ids) + 1;
  std::vector<Candidate> chosen;
  for (size_t rank = 0; rank < all.size() && std::ssize(chosen) < options_.beams; ++rank) {
    const Candidate& c = all[rank];
    if (!options_.ends.contains(c.token))
      chosen.push_back(c);
    else if (std::cmp_less(rank, options_.beams))
      add_hypothesis(beams_[c.beam].ids, c.score, length, true);
  }
  const bool is_full = length == options_.max_new_tokens;
  if (is_full || chosen.empty() || cannot_improve(all[0].score, length)) {
    if (is_full)
      for (const Candidate& c : chosen) {
        std::vector<int32_t> ids = beams_[c.beam].ids;
        ids.push_back(c.token);
        add_hypothesis(std::move(ids), c.score, length, false);
      }
    return finish();
  }
  // The first child of a beam continues its sequence, the others fork it.
  std::vector<Beam> next;
  std::vector<bool> goes_on(beams_.size(), false);
  for (const Candidate& c : chosen) {
    Beam beam{.id = 0, .ids = beams_[c.beam].ids, .score = c.score};
    beam.ids.push_back(c.token);
    if (goes_on[c.beam]) beam.id = batcher_.fork(beams_[c.beam].id, c.token);
    goes_on[c.beam] = true;
    next.push_back(std::move(beam));
  }
  for (size_t i = 0; i < next.size(); ++i)
    if (next[i].id == 0) {
      next[i].id = beams_[chosen[i].beam].id;
      batcher_.append(next[i].id, chosen[i].token);
    }
  for (size_t b = 0; b < beams_.size(); ++b)
    if (!goes_on[b]) batcher_.cancel(beams_[b].id);
  beams_ = std::move(next);
}

void BeamSearch::add_hypothesis(std::vector<int32_t> ids, double sum, int64_t length,
                                bool has_ended) {
  Hypothesis h{std::move(ids), sum / std::pow(static_cast<double>(length), options_.length_penalty),
               has_ended};
  const auto worse =
      std::ranges::find_if(done_, [&](const Hypothesis& other) { return other.score < h.score; });
  done_.insert(worse, std::move(h));
  if (std::ssize(done_) > options_.beams) done_.pop_back();
}

/// Returns whether there are enough hypotheses and no beam can still beat the worst of them.
bool BeamSearch::cannot_improve(double best_sum, int64_t length) const {
  if (std::ssize(done_) < options_.beams) return false;
  return done_.back().score >=
         best_sum / std::pow(static_cast<double>(length), options_.length_penalty);
}

void BeamSearch::finish() {
  for (const Beam& beam : beams_) batcher_.cancel(beam.id);
  beams_.clear();
  on_finish_(std::move(done_));
}

}  // namespace brrr::infer
