#include "train/step_shares.h"

#include <bit>

namespace brrr::train {

int64_t StepShares::number_of(int64_t i, int64_t of_rank) const {
  const int64_t slot = i / per_slot(), own = slots / ranks;
  const int64_t number = is_strided() ? slot * ranks + of_rank : of_rank * own + slot;
  return number * per_slot() + i % per_slot();
}

optim::GradientSums StepShares::sums_of(int64_t i) const {
  optim::GradientSums sums;
  sums.slots = slots;
  sums.ranks = ranks;
  sums.zero = zero;
  const int64_t place = i % per_slot();
  sums.continues_slot = place > 0;
  sums.ends_slot = place + 1 == per_slot();
  if (sums.ends_slot) sums.merged = std::countr_one(static_cast<uint64_t>(i / per_slot()));
  sums.ends_step = i + 1 == local();
  // Every rank updates its buffers in its first slot, because all ranks run the same programs;
  // those of rank 0, whose first slot is the first of all, are kept (Session::share_buffers).
  sums.updates_buffers = slots == 1 || i == 0;
  return sums;
}

}  // namespace brrr::train
