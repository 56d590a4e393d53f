// Properties of the CUDA device alone, over the simulated driver.
#include "device/cuda/cuda_device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "tests/contract/device_contract.hpp"
#include "tests/support/cuda_driver/simulator.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::device {
namespace {

using testing::AlignedBytes;
using testing::CudaSimulator;

TEST(CudaSearch, ListsTheSimulatedGpu) {
  const CudaSimulator simulator;
  const CudaSearch search = find_cuda_devices();
  ASSERT_EQ(search.devices.size(), 1u);
  EXPECT_EQ(search.devices[0].name, "Simulated GPU 0");
  EXPECT_EQ(search.devices[0].compute_major, 9);
  EXPECT_TRUE(search.devices[0].virtual_memory);
  EXPECT_EQ(search.devices[0].numa_node, -1);
  EXPECT_EQ(search.devices[0].memory_bytes, 2 * kGiB);
  EXPECT_EQ(free_cuda_bytes(0), 2 * kGiB);
  EXPECT_EQ(simulator.objects().contexts, 0u);
}

TEST(CudaSearch, RefusesAnAbsentGpuInOneSentence) {
  const std::string message = testing::message_of<InputError>(
      [&] { make_cuda_device({.ordinal = 3, .capacity_bytes = kMiB}); });
  EXPECT_TRUE(testing::mentions(message, "no GPU 3"));
  EXPECT_THROW(make_cuda_device({.capacity_bytes = 4 * kGiB}), InputError);
  EXPECT_THROW(make_cuda_device({.ordinal = -1}), InputError);
}

TEST(CudaDevice, TakesTheFreeMemoryIfNoCapIsGiven) {
  EXPECT_EQ(make_cuda_device({})->facts().capacity_bytes, 2 * kGiB);
}

// The GPU may have less than the cap: another process uses memory.
TEST(CudaDevice, AFullGpuIsOutOfMemoryAndNamesTheFreeBytes) {
  const CudaSimulator simulator;
  const auto first = make_cuda_device({.capacity_bytes = 2 * kGiB});
  const auto second = make_cuda_device({.capacity_bytes = 2 * kGiB});
  const PhysicalBlock most = first->create_block(2 * kGiB - 4 * kMiB);
  const RawBuffer fits = second->allocate(2 * kMiB);
  const auto error = testing::thrown_by<OutOfMemory>([&] { second->create_block(4 * kMiB); });
  EXPECT_EQ(error.requested_bytes, 4 * kMiB);
  EXPECT_EQ(error.available_bytes, 2 * kMiB);
  EXPECT_THROW(second->allocate(4 * kMiB), OutOfMemory);
  EXPECT_EQ(second->counters().live_bytes, 2 * kMiB);
}

// A transfer from registered memory is queued, not made: the host sees later work of another stream
// before it.
TEST(CudaStream, WorkIsAsynchronousAndNativeIsTheDriversStream) {
  const CudaSimulator simulator;
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  const auto gate = device->create_stream("gate");
  const auto stream = device->create_stream("work");
  ASSERT_NE(stream->native(), nullptr);
  ASSERT_NE(stream->native(), gate->native());
  AlignedBytes pages(8192);
  std::memset(pages.at(), 1, pages.bytes());
  const HostRegistration registration = device->register_host(pages.at(), pages.bytes());
  const RawBuffer buffer = device->allocate(pages.bytes());
  const auto open = device->create_event();
  const auto copied = device->create_event();

  // cuLaunchHostFunc is how an emulated kernel gets onto a stream.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto launch_host = reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(
      ::dlsym(library, "cuLaunchHostFunc"));
  std::atomic<bool> opened = false;
  gate->launch([&] {
    ASSERT_EQ(launch_host(
                  gate->native(),
                  [](void* flag) {
                    while (!static_cast<std::atomic<bool>*>(flag)->load()) {
                      std::this_thread::yield();
                    }
                  },
                  &opened),
              0);
  });
  gate->record(*open);
  stream->wait(*open);
  stream->copy(buffer.data(), pages.at(), pages.bytes(), CopyKind::kHostToDevice);
  stream->record(*copied);
  EXPECT_FALSE(open->done());
  EXPECT_FALSE(copied->done());
  EXPECT_EQ(device->counters().copied_bytes[0], 0u);
  EXPECT_THROW(static_cast<void>(copied->time_ns()), InternalError);
  EXPECT_THROW(copied->synchronize(Deadline::after_seconds(0.02), "the copy"), TimeoutError);
  EXPECT_THROW(stream->synchronize(Deadline::after_seconds(0.02)), TimeoutError);
  opened = true;
  copied->synchronize(contract_deadline(), "the copy");
  EXPECT_TRUE(open->done());
  EXPECT_LE(open->time_ns(), copied->time_ns());
  EXPECT_EQ(device->counters().copied_bytes[0], pages.bytes());
}

// The driver refuses a copy that is partly in a registration; the device cuts it at every border.
TEST(CudaStream, CopiesAreCutWhereRegistrationsBeginAndEnd) {
  const CudaSimulator simulator;
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  const auto stream = device->create_stream("cut");
  AlignedBytes pages(16 * 4096);
  const auto pattern = contract_pattern(pages.bytes(), 3);
  std::memcpy(pages.at(), pattern.data(), pages.bytes());
  const RawBuffer buffer = device->allocate(pages.bytes());
  const HostRegistration low = device->register_host(pages.at(2 * 4096), 3 * 4096);
  const HostRegistration high = device->register_host(pages.at(7 * 4096), 4096);
  stream->copy(buffer.data(), pages.at(), pages.bytes(), CopyKind::kHostToDevice);
  stream->synchronize(contract_deadline());
  std::memset(pages.at(), 0, pages.bytes());
  stream->copy(pages.at(100), buffer.data() + 100, 10 * 4096, CopyKind::kDeviceToHost);
  stream->synchronize(contract_deadline());
  EXPECT_EQ(std::memcmp(pages.at(100), pattern.data() + 100, 10 * 4096), 0);
  EXPECT_EQ(device->counters().copied_bytes[1], 10u * 4096);
}

TEST(CudaStream, CopiesOfAStreamThatIsGoneStayCounted) {
  const CudaSimulator simulator;
  const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
  const auto bytes = contract_pattern(5000, 4);
  const RawBuffer buffer = device->allocate(bytes.size());
  for (int i = 0; i < 3; ++i) {
    device->create_stream("short")->copy(buffer.data(), bytes.data(), bytes.size(),
                                         CopyKind::kHostToDevice);
  }
  EXPECT_EQ(device->counters().copied_bytes[0], 3 * bytes.size());
}

// A fault of a kernel reaches every thread that waits for it, and nothing hangs.
TEST(CudaStream, AFaultOfTheGpuIsThrownByEveryWait) {
  CudaSimulator simulator;
  {
    const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
    const auto stream = device->create_stream("faulty");
    const auto event = device->create_event();
    stream->record(*event);
    constexpr int kIllegalAddress = 700;
    simulator.fault(kIllegalAddress);
    const std::string message =
        testing::message_of<DeviceError>([&] { stream->synchronize(contract_deadline()); });
    EXPECT_TRUE(testing::mentions(message, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_THROW(event->synchronize(contract_deadline(), "an event"), DeviceError);
    EXPECT_THROW(device->allocate(100), DeviceError);
    simulator.heal();
  }
  EXPECT_EQ(simulator.objects().buffers, 0u);
}

// A run has thousands of blocks: each one's own error is reported, a fault of the GPU once.
TEST(CudaDevice, AFaultIsReportedOnceByAllReleases) {
  constexpr int kIllegalAddress = 700, kInvalidValue = 1, kBlocks = 5;
  const auto warnings = [](int status) {
    CudaSimulator simulator;
    const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
    std::vector<PhysicalBlock> blocks;
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(device->create_block(kPageBytes));
    int lines = 0;
    set_log_sink([&](LogLevel, const std::string& line) {
      lines += line.find("releasing device memory failed: CUDA_ERROR_") != std::string::npos;
    });
    simulator.fail("cuMemRelease", 0, status, true);
    blocks.clear();
    set_log_sink({});
    return lines;
  };
  EXPECT_EQ(warnings(kIllegalAddress), 1);
  EXPECT_EQ(warnings(kInvalidValue), kBlocks);
}

TEST(CudaDevice, LeavesNothingBehindWhateverTheOrderOfRelease) {
  const CudaSimulator simulator;
  {
    const auto device = make_cuda_device({.capacity_bytes = 64 * kMiB});
    const auto event = device->create_event();
    auto stream = device->create_stream("order");
    AddressRange range = device->reserve(4 * kPageBytes);
    PhysicalBlock block = device->create_block(kPageBytes);
    Mapping first = device->map(range, 0, block);
    Mapping second = device->map(range, kPageBytes, block);
    stream->record(*event);
    block = PhysicalBlock();
    range = AddressRange();
    EXPECT_EQ(device->counters().live_bytes, kPageBytes);  // two mappings still show it
    first = Mapping();
    EXPECT_EQ(device->counters().live_bytes, kPageBytes);
    second = Mapping();
    EXPECT_EQ(device->counters().live_bytes, 0u);
    stream.reset();
    EXPECT_TRUE(event->done());
  }
  EXPECT_EQ(simulator.object_count(), 0u);
}

}  // namespace
}  // namespace sluice::device
