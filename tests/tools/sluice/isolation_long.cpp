// The whole count; isolation_test.cpp takes a sample.
#include "tests/tools/sluice/concurrent_starts.hpp"

namespace sluice::testing {
namespace {

TEST_F(ConcurrentStarts, TwoHundredTimesNeverMeet) {
  start_together(200);
}

}  // namespace
}  // namespace sluice::testing
