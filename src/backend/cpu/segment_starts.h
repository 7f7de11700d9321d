#pragma once
// Validation of the first rows of concatenated sequences, an operand that comes from outside.

#include <cstdint>
#include <string_view>

#include "base/errors.h"

namespace brrr::cpu {

/// Throws UserError unless starts [sequences + 1] ascend within [0, rows].
inline void check_starts(std::string_view op, const int32_t* starts, int64_t sequences,
                         int64_t rows) {
  for (int64_t r = 0, least = 0; r <= sequences; least = starts[r++])
    if (starts[r] < least || starts[r] > rows)
      user_error("[{}] starts must ascend within 0 to {}: starts[{}] is {} after {}", op, rows, r,
                 starts[r], least);
}

}  // namespace brrr::cpu
