// Structs that have grown since they were published: programs of every age are served.
#include "engine/capi/call.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace {

// Version 1.0 ended with `first`; `second` was appended later.
struct GrownOptions {
  std::uint32_t struct_size;
  std::int32_t first;
  std::uint64_t second;
};

}  // namespace

namespace sluice::capi {

SLUICE_FIRST_VERSION(GrownOptions, first);

namespace {

template <typename Work>
sluice_status status_of(const Work& work) {
  return run_call("a test", work);
}

TEST(CapiStructs, AnOldProgramLacksTheMembersThatWereAppended) {
  const GrownOptions old{8, 7, 99};  // built when the struct had 8 bytes
  const GrownOptions read = read_struct(&old, "options");
  EXPECT_EQ(read.first, 7);
  EXPECT_EQ(read.second, 0u);
}

TEST(CapiStructs, AnOldProgramsStructIsFilledAsFarAsItGoes) {
  GrownOptions out{8, 0, 99};
  write_struct(&out, GrownOptions{0, 5, 6}, "out");
  EXPECT_EQ(out.struct_size, 8u);
  EXPECT_EQ(out.first, 5);
  EXPECT_EQ(out.second, 99u);  // after what the program says that it has
}

TEST(CapiStructs, NoVersionIsSmallerThanTheFirst) {
  for (const std::uint32_t size : {0u, 4u, 7u}) {
    const GrownOptions wrong{size, 7, 0};
    EXPECT_EQ(status_of([&] { read_struct(&wrong, "options"); }), SLUICE_E_INPUT);
    EXPECT_EQ(status_of([&] { check_struct(&wrong, "options"); }), SLUICE_E_INPUT);
  }
}

TEST(CapiStructs, ANewerProgramMayNotAskForUnknownThings) {
  struct {
    GrownOptions known{24, 7, 8};
    std::uint64_t unknown = 0;
  } newer;
  EXPECT_EQ(read_struct(&newer.known, "options").second, 8u);
  newer.unknown = 1;
  EXPECT_EQ(status_of([&] { read_struct(&newer.known, "options"); }), SLUICE_E_VERSION);
}

}  // namespace
}  // namespace sluice::capi
