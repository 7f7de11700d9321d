#pragma once
// Samples that only the CPU's kernels take: operands and results in panels (ops/panels.h).

#include "ops/ops.h"
#include "ops/update.h"

namespace brrr::test {

inline bool concerns_panels(const OpDef& op, const Sample& sample) {
  return op.name == "panels" || sample.attrs.get_or<bool>("panels", false) ||
         ops::has_copies_in_panels(sample.attrs);
}

}  // namespace brrr::test
