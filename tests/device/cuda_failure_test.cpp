// Every driver call fails in turn: the result is a typed error, and nothing is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "device/cuda/cuda_device.hpp"
#include "tests/contract/device_contract.hpp"
#include "tests/support/cuda_driver/simulator.hpp"
#include "tests/support/parts_of.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::device {
namespace {

using testing::CudaSimulator;

constexpr int kUnknown = 999;  // CUDA_ERROR_UNKNOWN
constexpr int kOutOfMemory = 2;

// Kept for good: later use of the same addresses must not meet a registration that could not be
// undone.
std::byte* fresh_pages() {
  static std::deque<testing::AlignedBytes> kept;
  return kept.emplace_back(8192).at();
}

// Uses every part of the device once. Returns the bytes that came back through it.
std::vector<std::byte> use_all(const std::vector<std::byte>& pattern) {
  std::byte* const pages = fresh_pages();
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  const auto stream = device->create_stream("first");
  const auto other = device->create_stream("other");
  const auto event = device->create_event();
  const HostRegistration registration = device->register_host(pages, 4096);
  const AddressRange range = device->reserve(2 * kPageBytes);
  const PhysicalBlock block = device->create_block(kPageBytes);
  const Mapping mapping = device->map(range, kPageBytes, block);
  const RawBuffer buffer = device->allocate(8192);
  std::memcpy(pages, pattern.data(), 8192);
  stream->copy(mapping.data(), pages, 8192, CopyKind::kHostToDevice);
  stream->copy(buffer.data(), mapping.data(), 8192, CopyKind::kDeviceToDevice);
  stream->record(*event);
  other->wait(*event);
  std::vector<std::byte> result(8192);
  other->copy(result.data(), buffer.data(), 8192, CopyKind::kDeviceToHost);
  other->record(*event);
  event->synchronize(contract_deadline(), "the last copy");
  EXPECT_TRUE(event->done());
  static_cast<void>(event->time_ns());
  stream->synchronize(contract_deadline());
  other->synchronize(contract_deadline());
  static_cast<void>(device->counters());
  return result;
}

const std::string kFunctions =
    "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceTotalMem "
    "cuDeviceGetAttribute cuDeviceGetPCIBusId cuDevicePrimaryCtxRetain "
    "cuDevicePrimaryCtxRelease cuCtxPushCurrent cuCtxPopCurrent cuStreamCreate "
    "cuStreamDestroy cuStreamQuery cuStreamWaitEvent cuEventCreate cuEventDestroy "
    "cuEventRecord cuEventQuery cuEventElapsedTime cuMemAlloc cuMemFree cuMemHostRegister "
    "cuMemHostUnregister cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync "
    "cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate "
    "cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess";

// Releases report failures of earlier work; they have only the log to report to.
const std::vector<std::string> kReleases = testing::parts_of(
    "cuDevicePrimaryCtxRelease cuCtxPopCurrent cuStreamDestroy cuEventDestroy cuMemFree "
    "cuMemHostUnregister cuMemAddressFree cuMemRelease cuMemUnmap");

class CudaFailures : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaFailures, EachCallThatFailsIsATypedErrorAndLeaksNothing) {
  CudaSimulator simulator;
  const std::string& function = GetParam();
  const auto pattern = contract_pattern(8192, 1);
  ASSERT_EQ(use_all(pattern), pattern);
  std::uint64_t before = simulator.object_count();
  simulator.fail(function.c_str(), -1, 0);
  use_all(pattern);
  const auto calls = static_cast<std::int64_t>(simulator.calls());
  ASSERT_GT(calls, 0) << "nothing calls it";
  // Polls are as many as the machine is slow; the first some say it all.
  for (std::int64_t call = 0; call < std::min<std::int64_t>(calls, 60); ++call) {
    SCOPED_TRACE(function + " call " + std::to_string(call));
    simulator.fail(function.c_str(), call, kUnknown);
    std::vector<std::byte> result;
    const std::string error = testing::refusal_of<Error>([&] { result = use_all(pattern); });
    const bool thrown = !error.empty();
    simulator.heal();
    EXPECT_TRUE(thrown ? testing::mentions(error, "CUDA_ERROR_UNKNOWN")
                       : ::testing::AssertionResult(result == pattern));
    EXPECT_FALSE(thrown && std::count(kReleases.begin(), kReleases.end(), function) > 0);
    // If a context cannot be made current, nothing that needs it can be released either.
    if (function == "cuCtxPushCurrent") before = simulator.object_count();
    ASSERT_EQ(simulator.object_count(), before);
  }
}
INSTANTIATE_TEST_SUITE_P(Calls, CudaFailures, ::testing::ValuesIn(testing::parts_of(kFunctions)),
                         [](const auto& call) { return call.param; });

TEST(CudaFailure, OutOfMemoryOfTheDriverIsOurs) {
  CudaSimulator simulator;
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  simulator.fail("cuMemCreate", 0, kOutOfMemory);
  EXPECT_THROW(device->create_block(kPageBytes), OutOfMemory);
  simulator.fail("cuMemAlloc", 0, kOutOfMemory);
  EXPECT_THROW(device->allocate(100), OutOfMemory);
  EXPECT_EQ(device->counters().live_bytes, 0u);
  EXPECT_EQ(device->counters().allocation_calls, 0u);
}

TEST(CudaFailure, AGpuThatNeverAnswersAgainEndsInAnErrorNotInAWait) {
  CudaSimulator simulator;
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  const auto stream = device->create_stream("lost");
  const auto event = device->create_event();
  const RawBuffer buffer = device->allocate(100);
  simulator.fail("cuMemcpyHtoDAsync", 0, kUnknown, true);
  const std::vector<std::byte> bytes(100);
  stream->copy(buffer.data(), bytes.data(), bytes.size(), CopyKind::kHostToDevice);
  bool ran = false;
  stream->launch([&] { ran = true; });
  stream->record(*event);
  EXPECT_FALSE(ran);
  EXPECT_THROW(event->synchronize(contract_deadline(), "the copy"), DeviceError);
  EXPECT_THROW(stream->synchronize(contract_deadline()), DeviceError);
  EXPECT_EQ(device->counters().copied_bytes[0], 0u);
}

}  // namespace
}  // namespace sluice::device
