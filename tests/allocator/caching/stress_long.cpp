// Linked where the seeded sequences are to be long, unless the environment says how long.
#include <cstdlib>

namespace {

[[maybe_unused]] const int kSetBeforeMain = ::setenv("SLUICE_STRESS_OPERATIONS", "1000000", 0);

}  // namespace
