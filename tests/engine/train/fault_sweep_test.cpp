// Every storage operation of a short run, and every system call of one, fails once and forever, in
// every way, on both engines.
#include "tests/support/fault_sweep.hpp"

#include <tuple>

namespace sluice::train {
namespace {

using Case = std::tuple<std::string, offload::StorageFault, bool>;  // engine, fault, forever

class TrainingFaultSweep : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingFaultSweep, EndsRightOrWithAnError) {
  const auto& [engine, fault, forever] = GetParam();
  const std::string reason = engine == "io_uring" ? offload::io_uring_unavailable_reason() : "";
  if (!reason.empty()) GTEST_SKIP() << reason;
  const testing::FaultSweep run(engine);
  for (std::uint64_t n = 0; n < run.operations(fault); ++n) {
    run.expect_right_bits_or_error({fault, n, forever});
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& test) {
  static constexpr std::array kNames{
      "None",           "Eio",           "Enospc",     "ShortTransfer", "FlippedRead",
      "FlippedWrite",   "LostWrite",     "CallEagain", "CallEintr",     "CallShortByHalf",
      "CallShortByOne", "CallShortBy511"};
  const auto& [engine, fault, forever] = test.param;
  return engine + kNames.at(static_cast<std::size_t>(fault)) + (forever ? "Forever" : "Once");
}

INSTANTIATE_TEST_SUITE_P(All, TrainingFaultSweep,
                         ::testing::Combine(::testing::Values("posix", "io_uring"),
                                            ::testing::ValuesIn(testing::kEveryFault),
                                            ::testing::Bool()),
                         name_of);

}  // namespace
}  // namespace sluice::train
