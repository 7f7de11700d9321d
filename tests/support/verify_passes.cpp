// In every test binary: the graphs that tests compile, and those of the programs that they start,
// are verified after each pass. BRRR_VERIFY=0 leaves it out.

#include <cstdlib>

namespace {

[[maybe_unused]] const int kVerifies = ::setenv("BRRR_VERIFY", "1", 0);

}  // namespace
