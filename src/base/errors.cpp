#include "base/errors.h"

namespace brrr {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("internal error: {}:{}: {} does not hold{}{}", file, line,
                                  condition, message.empty() ? "" : ": ", message));
}

}  // namespace brrr
