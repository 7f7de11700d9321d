#include <iterator>

#include "backend/cuda/kernels.h"

namespace brrr::cuda {

std::vector<PlanEntry> device_kernels() {
  std::vector<PlanEntry> all;
  for (auto* group :
       {cluster_entries, reduction_entries, matmul_entries, movement_entries, embedding_entries,
        rotary_entries, cross_entropy_entries, loss_head_entries, attention_entries, update_entries,
        global_norm_entries, update_8bit_entries, adafactor_entries}) {
    std::vector<PlanEntry> entries = group();
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace brrr::cuda
