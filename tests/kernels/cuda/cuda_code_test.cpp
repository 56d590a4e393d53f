#include "kernels/backend/cuda_code.hpp"

#include <gtest/gtest.h>

namespace sluice::kernels {
namespace {

constexpr const char* kShipped = "80,90,120";

TEST(CudaCode, TheShippedBuildRunsOnTheCardsThatPeopleHave) {
  // A100, RTX 30, RTX 40, H100, B200, RTX 50.
  for (const int capability : {80, 86, 89, 90, 100, 120, 121}) {
    EXPECT_EQ(missing_cuda_code(kShipped, capability / 10, capability % 10), "") << capability;
  }
}

TEST(CudaCode, MachineCodeRunsWithinItsMajorVersionFromItsMinorVersionOn) {
  EXPECT_EQ(missing_cuda_code("80-real", 8, 9), "");
  EXPECT_EQ(missing_cuda_code("89-real", 8, 9), "");
  EXPECT_NE(missing_cuda_code("89-real", 8, 6), "");
  EXPECT_NE(missing_cuda_code("80-real", 9, 0), "");
  EXPECT_NE(missing_cuda_code("90a", 10, 0), "");
  EXPECT_EQ(missing_cuda_code("90a", 9, 0), "");
}

TEST(CudaCode, TheDriverCompilesPtxForLaterGpus) {
  EXPECT_EQ(missing_cuda_code("80-virtual", 12, 0), "");
  EXPECT_EQ(missing_cuda_code("90", 10, 3), "");
  EXPECT_NE(missing_cuda_code("90", 8, 9), "");
}

TEST(CudaCode, ARefusalNamesTheCodeOfTheBuildAndTheWayOut) {
  EXPECT_EQ(missing_cuda_code("90", 8, 9),
            "it has compute capability 8.9, but this build has code for 9.0; configure it with "
            "-DCMAKE_CUDA_ARCHITECTURES=89");
  EXPECT_EQ(missing_cuda_code(kShipped, 7, 5),
            "it has compute capability 7.5, but Sluice's kernels need 8.0 or later");
  EXPECT_EQ(list_cuda_code("120,80-real,90,80-virtual"), "8.0, 9.0 and 12.0");
}

}  // namespace
}  // namespace sluice::kernels
