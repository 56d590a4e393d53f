// The communicator over the real NCCL: one rank on any GPU, two where there are two.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "collectives/nccl/nccl_communicator.hpp"
#include "collectives/nccl/nccl_library.hpp"
#include "collectives/socket.hpp"
#include "device/cuda/cuda_device.hpp"

namespace sluice::collectives {
namespace {

constexpr double kSeconds = 120;

// A rank on GPU `options.place.rank`.
struct Rank {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  device::RawBuffer scratch;
  std::unique_ptr<Communicator> group;

  Rank(NcclOptions options, const device::CudaDeviceInfo& info)
      : device(device::make_cuda_device({info.ordinal, 64 * kMiB})),
        stream(device->create_stream("comm")),
        scratch(device->allocate(nccl_scratch_bytes(options.place.size))) {
    options.device = device.get();
    options.stream = stream.get();
    options.scratch = scratch.data();
    options.gpu = info.pci_bus_id;
    group = make_nccl_communicator(options);
  }

  device::RawBuffer upload(const std::vector<float>& values) {
    device::RawBuffer buffer = device->allocate(values.size() * sizeof(float));
    stream->copy(buffer.data(), values.data(), buffer.bytes(), device::CopyKind::kHostToDevice);
    stream->synchronize(Deadline::after_seconds(kSeconds));
    return buffer;
  }
  std::vector<float> download(const device::RawBuffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    stream->copy(values.data(), buffer.data(), buffer.bytes(), device::CopyKind::kDeviceToHost);
    stream->synchronize(Deadline::after_seconds(kSeconds));
    return values;
  }
};

TEST(NcclOnGpu, OneRankCopies) {
  const device::CudaSearch found = device::find_cuda_devices();
  if (found.devices.empty()) GTEST_SKIP() << found.missing;
  Rank own({}, found.devices[0]);
  const std::vector<float> values{1, 2, 3};
  const device::RawBuffer source = own.upload(values), gathered = own.upload({0, 0, 0});
  own.group->all_gather(source.data(), gathered.data(), 3, DType::kF32);
  own.group->barrier();
  EXPECT_EQ(own.download(gathered), values);
}

void reduce_on(Rank& own) {
  const int rank = own.group->rank();
  std::vector<float> values, want;
  for (int i = 0; i < 1001; ++i) {
    const float first = 0x1p24f + static_cast<float>(i), second = 1.5f / static_cast<float>(i + 1);
    values.push_back(rank == 0 ? first : second);
    want.push_back(first + second);
  }
  const device::RawBuffer data = own.upload(values);
  const device::RawBuffer workspace =
      own.device->allocate(own.group->all_reduce_workspace_bytes(1001, DType::kF32));
  own.stream->launch(
      [&] { own.group->all_reduce(data.data(), 1001, DType::kF32, workspace.data()); });
  EXPECT_EQ(own.download(data), want);
  own.stream->launch([&] { own.group->barrier(); });
  own.stream->synchronize(Deadline::after_seconds(kSeconds));
}

TEST(NcclOnGpu, TwoRanksReduceInRankOrder) {
  const device::CudaSearch found = device::find_cuda_devices();
  if (found.devices.size() < 2) {
    GTEST_SKIP() << (found.missing.empty() ? "one GPU; two are needed" : found.missing);
  }
  const std::uint16_t port = port_of(listen_at("127.0.0.1", 0));
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      NcclOptions options;
      options.place.rank = i;
      options.place.size = 2;
      options.place.port = port;
      try {
        Rank own(options, found.devices[static_cast<std::size_t>(i)]);
        reduce_on(own);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
}

// The library is there: its functions are found and answer. It needs no GPU.
TEST(NcclOnGpu, TheLibraryHasEveryFunctionThatWeCall) {
  try {
    int version = 0;
    ASSERT_EQ(nccl_library().get_version(&version), ncclSuccess);
    EXPECT_GE(version, 21400);
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace sluice::collectives
