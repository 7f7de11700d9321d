#pragma once
// Samples that only the CPU's kernels take: operands and results in panels (base/panels.h).

#include <algorithm>

#include "ops/ops.h"
#include "ops/update.h"

namespace brrr::test {

inline bool has_stored_operand(const Sample& sample) {
  return std::ranges::any_of(
      sample.in, [](const Sample::Operand& operand) { return !operand.type.storage.is_plain(); });
}

inline bool concerns_panels(const OpDef& op, const Sample& sample) {
  return op.id == Op::store || has_stored_operand(sample) ||
         ops::has_copies_in_panels(sample.attrs);
}

}  // namespace brrr::test
