#include "data/row_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/errors.h"
#include "base/integers.h"
#include "data/permutation.h"

namespace brrr::io {

std::vector<int64_t> padded_lengths(int64_t context) {
  std::vector<int64_t> lengths;
  for (int64_t length = 8, step = 2; length < context; length += step) {
    lengths.push_back(length);
    if (length >= 16 * step) step *= 2;
  }
  lengths.push_back(context);
  return lengths;
}

int64_t flat_length(int64_t tokens) {
  constexpr int64_t kLeastStep = 4, kSteps = 8;
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
  return round_up(tokens, std::max(kLeastStep, octave / kSteps));
}

std::vector<int64_t> flat_lengths(int64_t most) {
  constexpr int64_t kRange = 64;
  std::vector<int64_t> lengths;
  for (int64_t n = flat_length(std::max<int64_t>(1, most / kRange)); n < most;
       n = flat_length(n + 1))
    lengths.push_back(n);
  lengths.push_back(most);
  return lengths;
}

namespace {

// LengthGroupedSampler of Hugging Face's transformers sorts within this many batches.
constexpr int64_t kMegabatch = 50;

}  // namespace

RowOrder::RowOrder(size_t rows, std::function<int64_t(size_t)> length, const BatchOptions& options)
    : rows_(rows),
      length_(std::move(length)),
      options_(options),
      batch_rows_(options.batch),
      step_rows_(batch_rows_ * options.batches_per_step) {
  BRRR_CHECK(rows > 0, "no rows");
  for (size_t i = 0; i < rows; ++i) {
    BRRR_CHECK(length_(i) >= 1 && length_(i) <= options.context, "row {} has {} tokens", i,
               length_(i));
    if (length_(i) > length_(longest_)) longest_ = i;
  }
  const int64_t steps =
      options.mode == Sampling::kGroupByLength
          ? std::clamp(static_cast<int64_t>(rows) / (4 * step_rows_), int64_t{1}, kMegabatch)
          : 1;
  megabatch_rows_ = steps * step_rows_;
}

int64_t RowOrder::batches_per_pass() const {
  return ceil_div(static_cast<int64_t>(rows_), step_rows_) * options_.batches_per_step;
}

// As LengthGroupedSampler orders them, but as a function of the place.
std::shared_ptr<const RowOrder::Megabatch> RowOrder::megabatch(int64_t epoch,
                                                               int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ && last_->epoch == epoch && last_->number == number) return last_;
  }
  auto made = std::make_shared<Megabatch>();
  made->epoch = epoch;
  made->number = number;
  const Permutation order(rows_, {options_.seed, static_cast<uint32_t>(epoch)});
  const bool grouped = options_.mode == Sampling::kGroupByLength;
  const auto begin = static_cast<uint64_t>(number * megabatch_rows_);
  const auto end = std::min(begin + static_cast<uint64_t>(megabatch_rows_), order.size());
  for (uint64_t i = begin; i < end; ++i) {
    size_t row = options_.mode == Sampling::kSequential ? i : order(i);
    if (grouped) {  // the longest and the first change places
      if (row == longest_)
        row = order(0);
      else if (i == 0)
        row = longest_;
    }
    made->rows.push_back(row);
  }
  if (grouped)
    std::stable_sort(made->rows.begin(), made->rows.end(),
                     [this](size_t a, size_t b) { return length_(a) > length_(b); });
  const std::lock_guard lock(mutex_);
  last_ = made;
  return made;
}

RowOrder::BatchRows RowOrder::batch(int64_t index) const {
  const int64_t first = index % batches_per_pass() * batch_rows_;  // row of the epoch
  const auto all = megabatch(epoch_of(index), first / megabatch_rows_);
  // A batch of the last step may have nothing left.
  const auto begin = std::min(static_cast<size_t>(first % megabatch_rows_), all->rows.size());
  const auto end = std::min(begin + static_cast<size_t>(batch_rows_), all->rows.size());
  BatchRows found;
  int64_t longest = 0;
  for (size_t i = begin; i < end; ++i) {
    longest = std::max(longest, length_(all->rows[i]));
    found.rows.push_back(all->rows[i]);
  }
  const auto& lengths = options_.lengths;
  const auto fitting = std::lower_bound(lengths.begin(), lengths.end(), longest);
  found.length = fitting == lengths.end() ? options_.context : *fitting;
  return found;
}

}  // namespace brrr::io
