// The whole count of corruptions; tagged_space_test.cpp takes a sample.
#include "tests/support/corruption_trial.hpp"

namespace sluice::testing {
namespace {

TEST(TaggedSpaceLong, AHundredThousandCorruptionsAreFound) {
  const std::string engine = offload::io_uring_unavailable_reason().empty() ? "io_uring" : "posix";
  for (std::uint64_t seed = 0; seed < 10; ++seed) expect_all_found(engine, 100 + seed, 10'300);
}

}  // namespace
}  // namespace sluice::testing
