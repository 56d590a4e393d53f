// Every method of Kernels by both implementations: the host's, and the GPU's, queued on a stream
// between the copies that bring its arguments and fetch its results. Each family has tests of its
// own results. This test shows that each call reaches its family with its arguments in their
// places, in stream order.
#include "kernels/backend/cuda_kernels.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"
#include "tests/kernels/cuda/host_results.hpp"
#ifdef SLUICE_CUDA_EMULATION
#include "tests/support/cuda_driver/simulator.hpp"
#endif

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

constexpr DType kType = DType::kBF16;

// The emulated GPU runs only code that we compile, so no library.
#ifdef SLUICE_CUDA_EMULATION
constexpr CudaLibraries kLibraries = CudaLibraries::kNone;
#else
constexpr CudaLibraries kLibraries = CudaLibraries::kInstalled;
#endif

// The arguments of one call, in memory of the host or of a device. They live as long as it does.
class Arguments {
 public:
  // Null: on the host.
  explicit Arguments(device::Device* device) : device_(device) {
    if (device != nullptr) stream_ = device->create_stream("arguments");
  }

  void* put(const void* bytes, std::size_t size) {
    host_.push_back(std::make_unique<std::byte[]>(size + 1));
    std::byte* const kept = host_.back().get();
    if (size != 0) std::memcpy(kept, bytes, size);
    if (stream_ == nullptr) return kept;
    buffers_.push_back(device_->allocate(size + 1));
    stream_->copy(buffers_.back().data(), kept, size, device::CopyKind::kHostToDevice);
    return buffers_.back().data();
  }
  void* put(const kernels::host::DTypeArray& values) {
    return put(values.data(), values.size() * dtype_bytes(values.type()));
  }
  void* normal(DType type, std::int64_t elems, unsigned seed, float scale = 1.0f) {
    return put(kernels::host::DTypeArray(type, kernels::host::normal_floats(elems, seed, scale)));
  }
  const std::int32_t* tokens(std::vector<std::int32_t> values) {
    return static_cast<const std::int32_t*>(put(values.data(), values.size() * 4));
  }
  void* workspace(std::uint64_t bytes) {
    const std::vector<std::byte> garbage(bytes, std::byte{0xff});
    return put(garbage.data(), bytes);
  }
  // The same, as a result: read once the call is done.
  void* result(const kernels::host::DTypeArray& before) {
    results_.push_back({before.type(), before.size(), put(before)});
    return results_.back().data;
  }
  void* result(DType type, std::int64_t elems) {
    return result(kernels::host::DTypeArray(type, elems));
  }
  double* result_f64(std::size_t elems) {
    const std::vector<double> before(elems, -1.0);
    results_.push_back({DType::kF64, elems, put(before.data(), elems * 8)});
    return static_cast<double*>(results_.back().data);
  }

  void run(Kernels& kernels, const std::function<void(Kernels&, Arguments&)>& call) {
    if (stream_ == nullptr) {
      call(kernels, *this);
      return;
    }
    stream_->launch([&] {
      kernels.set_stream(stream_->native());
      call(kernels, *this);
    });
  }
  // All results as numbers, one after the other.
  std::vector<double> read() {
    std::vector<double> numbers;
    for (const Result& result : results_) {
      std::vector<std::byte> bytes(result.elems * dtype_bytes(result.type));
      if (stream_ == nullptr) {
        std::memcpy(bytes.data(), result.data, bytes.size());
      } else {
        stream_->copy(bytes.data(), result.data, bytes.size(), device::CopyKind::kDeviceToHost);
        stream_->synchronize(Deadline::after_seconds(60));
      }
      for (std::size_t i = 0; i < result.elems; ++i) {
        numbers.push_back(number(result.type, bytes.data(), i));
      }
    }
    return numbers;
  }

 private:
  struct Result {
    DType type;
    std::size_t elems;
    void* data;
  };
  static double number(DType type, const std::byte* bytes, std::size_t i) {
    double wide;
    if (type == DType::kF64) {
      std::memcpy(&wide, bytes + 8 * i, 8);
      return wide;
    }
    kernels::host::DTypeArray one(type, 1);
    std::memcpy(one.data(), bytes + dtype_bytes(type) * i, dtype_bytes(type));
    return one[0];
  }

  device::Device* device_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
  std::vector<device::RawBuffer> buffers_;
  std::vector<Result> results_;
  std::unique_ptr<device::Stream> stream_;  // ends first, with all that it queued done
};

using Call = std::function<void(Kernels&, Arguments&)>;

class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const device::CudaSearch search = device::find_cuda_devices();
    if (search.devices.empty()) GTEST_SKIP() << search.missing;
    device_ = device::make_cuda_device({.capacity_bytes = 1 * kGiB});
    kernels_ = make_cuda_kernels({.ordinal = 0, .libraries = kLibraries});
  }

  // Results within `relative` of the largest; 0: the same numbers.
  void compare(const char* what, double relative, const Call& call) {
    Arguments on_host(nullptr), on_device(device_.get());
    on_host.run(host_kernels(), call);
    on_device.run(*kernels_, call);
    const std::vector<double> want = on_host.read(), got = on_device.read();
    ASSERT_EQ(want.size(), got.size());
    double largest = 0.0, worst = 0.0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(std::isfinite(want[i]) && std::isfinite(got[i])) << what << "[" << i << "]";
      largest = std::max(largest, std::abs(want[i]));
      worst = std::max(worst, std::abs(want[i] - got[i]));
    }
    EXPECT_GT(largest, 0.0) << what;
    EXPECT_LE(worst, relative * largest) << what;
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Kernels> kernels_;
};

float* floats(void* data) {
  return static_cast<float*>(data);
}

constexpr double kRounding = 0x1p-7;  // two of bf16

TEST_F(CudaKernelsTest, Products) {
  compare("gemm", kRounding, [](Kernels& kernels, Arguments& at) {
    const GemmShape shape{24, 40, 32, false, true, kType, kType};
    kernels.gemm(shape, at.normal(kType, 24 * 32, 1), at.normal(kType, 40 * 32, 2),
                 at.normal(kType, 40, 3), at.result(kType, 24 * 40),
                 at.workspace(kernels.gemm_workspace_bytes(shape)));
  });
  const HeadShape shape{6, 32, 40, kType};
  compare("head_forward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.head_forward(shape, at.normal(kType, 6 * 32, 1), at.normal(kType, 40 * 32, 2),
                         at.tokens({0, 39, 5, 5, 17, 2}), 0.5f, at.result_f64(1),
                         floats(at.result(DType::kF32, 6)), at.result(kType, 6 * 32),
                         at.workspace(kernels.head_workspace_bytes(shape)));
  });
  compare("head_backward_weight", kRounding, [&](Kernels& kernels, Arguments& at) {
    const std::vector<float> lse(6, 20.0f);
    kernels.head_backward_weight(shape, at.normal(kType, 6 * 32, 1), at.normal(kType, 40 * 32, 2),
                                 at.tokens({0, 39, 5, 5, 17, 2}), 0.5f,
                                 floats(at.put(kernels::host::DTypeArray(DType::kF32, lse))),
                                 at.result(kType, 40 * 32),
                                 at.workspace(kernels.head_workspace_bytes(shape)));
  });
}

TEST_F(CudaKernelsTest, ProductsWithGelu) {
  const GemmShape shape{24, 40, 32, false, true, kType, kType};
  compare("gemm_gelu", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.gemm_gelu(shape, at.normal(kType, 24 * 32, 1), at.normal(kType, 40 * 32, 2, 0.2f),
                      at.normal(kType, 40, 3), at.result(kType, 24 * 40), at.result(kType, 24 * 40),
                      at.workspace(kernels.gemm_workspace_bytes(shape)));
  });
  compare("gemm_gelu_backward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.gemm_gelu_backward(shape, at.normal(kType, 24 * 32, 1),
                               at.normal(kType, 40 * 32, 2, 0.2f), at.normal(kType, 24 * 40, 4),
                               at.result(kType, 24 * 40),
                               at.workspace(kernels.gemm_workspace_bytes(shape)));
  });
}

TEST_F(CudaKernelsTest, Attention) {
  const AttentionShape shape{2, 20, 4, 2, 16, kType};
  const std::int64_t qkv = 2 * 20 * 8 * 16, out = 2 * 20 * 4 * 16;
  compare("rope", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.rope(shape, 10000.0f, true,
                 at.result(kernels::host::DTypeArray(kType, kernels::host::normal_floats(qkv, 1))));
  });
  compare("attention_forward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.attention_forward(shape, at.normal(kType, qkv, 1), at.result(kType, out),
                              floats(at.result(DType::kF32, 2 * 4 * 20)),
                              at.workspace(kernels.attention_workspace_bytes(shape)));
  });
  // The results of the forward pass, for both.
  kernels::host::DTypeArray before_qkv(kType, kernels::host::normal_floats(qkv, 1)),
      before_out(kType, out), lse(DType::kF32, 2 * 4 * 20);
  std::vector<std::byte> workspace(host_kernels().attention_workspace_bytes(shape));
  host_kernels().attention_forward(shape, before_qkv.data(), before_out.data(), floats(lse.data()),
                                   workspace.data());
  compare("attention_backward", 2 * kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.attention_backward(shape, at.normal(kType, out, 2), at.put(before_qkv),
                               at.put(before_out), floats(at.put(lse)), at.result(kType, qkv),
                               at.workspace(kernels.attention_workspace_bytes(shape)));
  });
}

TEST_F(CudaKernelsTest, Norms) {
  const NormShape shape{5, 64, false, 1e-5f, kType};
  const kernels::host::DTypeArray mean(DType::kF32, kernels::host::normal_floats(5, 7)),
      rstd(DType::kF32, kernels::host::normal_floats(5, 8));
  compare("norm_forward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.norm_forward(shape, at.normal(kType, 320, 1), at.normal(kType, 64, 2),
                         at.normal(kType, 64, 3), at.result(kType, 320),
                         floats(at.result(DType::kF32, 5)), floats(at.result(DType::kF32, 5)));
  });
  compare("norm_backward_input", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.norm_backward_input(shape, at.normal(kType, 320, 1), at.normal(kType, 320, 2),
                                at.normal(kType, 64, 3), floats(at.put(mean)), floats(at.put(rstd)),
                                at.normal(kType, 320, 4), at.result(kType, 320));
  });
  compare("norm_backward_weight", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.norm_backward_weight(shape, at.normal(kType, 320, 1), at.normal(kType, 320, 2),
                                 floats(at.put(mean)), floats(at.put(rstd)), at.result(kType, 64),
                                 at.result(kType, 64));
  });
}

TEST_F(CudaKernelsTest, ElementwiseLayers) {
  const std::int64_t elems = 6 * 40;
  compare("add", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.add(at.normal(kType, elems, 1), at.normal(kType, elems, 2), at.result(kType, elems),
                elems, kType);
  });
  compare("column_sum", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.column_sum(at.normal(kType, elems, 1), at.result(kType, 40), 6, 40, kType);
  });
  compare("gelu_forward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.gelu_forward(at.normal(kType, elems, 1), at.result(kType, elems), elems, kType);
  });
  compare("gelu_backward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.gelu_backward(at.normal(kType, elems, 1), at.normal(kType, elems, 2),
                          at.result(kType, elems), elems, kType);
  });
  compare("swiglu_forward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.swiglu_forward(at.normal(kType, 2 * elems, 1), at.result(kType, elems), 6, 40, kType);
  });
  compare("swiglu_backward", kRounding, [&](Kernels& kernels, Arguments& at) {
    kernels.swiglu_backward(at.normal(kType, elems, 1), at.normal(kType, 2 * elems, 2),
                            at.result(kType, 2 * elems), 6, 40, kType);
  });
}

TEST_F(CudaKernelsTest, Embeddings) {
  const std::vector<std::int32_t> tokens{3, 0, 3, 8, 8, 3};
  compare("embedding_forward", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.embedding_forward(at.tokens(tokens), at.normal(kType, 9 * 16, 1),
                              at.normal(kType, 4 * 16, 2), at.result(kType, 6 * 16), 6, 3, 16,
                              kType);
  });
  compare("embedding_backward", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.embedding_backward(at.tokens(tokens), at.normal(kType, 6 * 16, 1),
                               at.result(kType, 9 * 16), at.result(kType, 4 * 16), 6, 3, 9, 4, 16,
                               kType,
                               at.workspace(kernels.embedding_backward_workspace_bytes(6, 9)));
  });
}

TEST_F(CudaKernelsTest, Gradients) {
  const kernels::host::DTypeArray ones(DType::kF32, std::vector<float>(300, 1.0f));
  compare("zero", 0.0, [&](Kernels& kernels, Arguments& at) {
    void* const data = at.result(ones);
    kernels.zero(floats(data) + 7, 100 * sizeof(float));
  });
  compare("accumulate", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.accumulate(floats(at.result(ones)), at.normal(kType, 300, 1), kType, false, 300);
    kernels.accumulate(floats(at.result(ones)), at.normal(kType, 300, 2), kType, true, 300);
  });
  compare("fold", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.fold(at.result(kernels::host::DTypeArray(kType, kernels::host::normal_floats(300, 1))),
                 at.normal(kType, 300, 2), kType, 300);
  });
  compare("squared_norm_blocks", 0.0, [&](Kernels& kernels, Arguments& at) {
    const Kernels::Block blocks[] = {{0, 100}, {100, 300}, {7, 9}};
    kernels.squared_norm_blocks(at.normal(DType::kF32, 300, 1), DType::kF32, DType::kBF16, blocks,
                                at.result_f64(3));
  });
  compare("cast", 0.0, [&](Kernels& kernels, Arguments& at) {
    kernels.cast(at.normal(DType::kF32, 300, 1), DType::kF32, at.result(DType::kBF16, 300),
                 DType::kBF16, true, 300);
  });
}

TEST_F(CudaKernelsTest, UpdatesToTheBit) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdafactor, OptimizerRule::kSm3}) {
    compare("update", 0.0, [&](Kernels& kernels, Arguments& at) {
      OptimizerOptions options;
      options.rule = rule;
      ParameterSegment segment;
      segment.end = 30 * 40;
      segment.weight_decay = 0.1f;
      segment.tensor = {30, 40, true};
      const auto state = [&](StateKind kind) -> void* {
        const StateLayout layout = state_layout(options, kind);
        if (layout.extent == StateExtent::kAbsent) return nullptr;
        const auto elems =
            layout.extent == StateExtent::kPerElement
                ? segment.end
                : static_cast<std::int64_t>(state_elems(options, kind, segment.tensor));
        std::vector<float> values = kernels::host::normal_floats(elems, 5, 0.1f);
        if (kind != StateKind::kMaster) {
          for (float& value : values) value = std::abs(value);
        }
        return at.result(kernels::host::DTypeArray(layout.dtype, values));
      };
      UpdateBuffers buffers;
      buffers.grad = at.normal(kType, segment.end, 1);
      buffers.weight = at.result(
          kernels::host::DTypeArray(kType, kernels::host::normal_floats(segment.end, 5, 0.1f)));
      buffers.master = state(StateKind::kMaster);
      buffers.moment1 = state(StateKind::kMoment1);
      buffers.moment2 = state(StateKind::kMoment2);
      buffers.elems = segment.end;
      const std::span<const ParameterSegment> segments(&segment, 1);
      kernels.update(options, buffers, segments, {1e-2f, 0.5f, 3},
                     at.workspace(kernels.update_workspace_bytes(options, segments)));
    });
  }
}

#ifdef SLUICE_CUDA_EMULATION
// Libraries' handles must not outlive it, and kernels may outlive the device.
TEST_F(CudaKernelsTest, HoldTheirContext) {
  const sluice::testing::CudaSimulator simulator;
  device_.reset();
  EXPECT_EQ(simulator.objects().contexts, 1u);
  kernels_.reset();
  EXPECT_EQ(simulator.objects().contexts, 0u);
}
#endif

TEST_F(CudaKernelsTest, NameTheArithmeticBehindTheirBits) {
  const std::string arithmetic = kernels_->arithmetic();
  EXPECT_EQ(arithmetic.rfind("cuda/", 0), 0u) << arithmetic;
  EXPECT_NE(arithmetic.find("/sm_"), std::string::npos) << arithmetic;
}

TEST_F(CudaKernelsTest, AreRefusedForAGpuThatIsNotThere) {
  EXPECT_THROW(make_cuda_kernels({.ordinal = 99}), DeviceError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
