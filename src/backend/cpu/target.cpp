#include "backend/cpu/target.h"

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/fused_product.h"
#include "backend/cpu/products/gemm_node.h"

namespace brrr::cpu {

Backend cpu_backend() {
  Backend backend;
  backend.name = fmt::format("cpu:{}", isa_name(best_isa()));
  backend.kernels = cpu_kernels();
  backend.alignment = 64;
  backend.gains_by_epilogue = gains_by_epilogue;
  backend.gains_by_bias_gradient = gains_by_bias_gradient;
  backend.reads_panels = reads_panels;
  backend.gains_by_panels = gains_by_panels;
  return backend;
}

}  // namespace brrr::cpu
