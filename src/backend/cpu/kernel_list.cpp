#include "backend/cpu/kernel_list.h"

#include <iterator>

namespace brrr::cpu {

std::vector<KernelEntry> cpu_kernels() {
  std::vector<KernelEntry> all;
  for (auto* group : {matmul_kernels,        integer_matmul_kernels,
                      exact_matmul_kernels,  attention_kernels,
                      elementwise_kernels,   cast_kernels,
                      quantize_kernels,      random_kernels,
                      softmax_kernels,       norm_kernels,
                      cross_entropy_kernels, loss_head_kernels,
                      reduction_kernels,     movement_kernels,
                      store_kernels,         store_integer_kernels,
                      embedding_kernels,     gather_kernels,
                      segment_kernels,       line_kernels,
                      rotary_kernels,        optimizer_kernels,
                      block_norm_kernels,    optimizer_8bit_kernels,
                      adafactor_kernels,     leaf_kernels,
                      fused_kernels,         channels_last_window_kernels,
                      conv_kernels,          pool_kernels,
                      scalar_pool_kernels,   max_pool_grad_kernels,
                      recurrent_kernels,     control_kernels}) {
    std::vector<KernelEntry> entries = group();
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace brrr::cpu
