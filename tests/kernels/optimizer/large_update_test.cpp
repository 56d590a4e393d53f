// More elements than 32 bits count: wants 9 GiB of memory and some seconds, so it does not run by
// default (label long).
#include <sys/mman.h>

#include "tests/kernels/optimizer/update_state.hpp"

namespace sluice::host {
namespace {

// Zero pages of the kernel until they are written.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Mapping() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool whole() const { return data_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

// Plain SGD with fp32 weights and bf16 gradients. The gradient is only read, so its zero pages cost
// nothing; weights are 4 bytes for each element that a segment has. One segment lies across 2^31,
// one across 2^32, one at the end; between them nothing may change.
TEST(LargeUpdate, ReachesEveryElementAndNoOther) {
  constexpr std::int64_t kElems = (std::int64_t{1} << 32) + 3 * 4096;
  const Mapping grads(static_cast<std::size_t>(kElems) * 2),
      weights(static_cast<std::size_t>(kElems) * 4);
  ASSERT_TRUE(grads.whole() && weights.whole());
  UpdateFormats formats;
  formats.options.rule = OptimizerRule::kSgd;
  formats.options.momentum = 0;
  formats.options.weight = DType::kF32;
  constexpr std::int64_t k31 = std::int64_t{1} << 31, k32 = std::int64_t{1} << 32;
  const ParameterSegment segments[] = {
      {k31 - 100001, k31 + 100003}, {k32 - 513, k32 + 511}, {kElems - 77, kElems}};
  const auto each = [&](const auto& body) {
    for (const ParameterSegment& segment : segments) {
      for (std::int64_t i = segment.begin - 1; i < std::min(segment.end + 1, kElems); ++i) {
        body(i, i >= segment.begin && i < segment.end);
      }
    }
  };
  const auto value = [](std::int64_t i) { return static_cast<float>(i % 251 + 1); };
  each([&](std::int64_t i, bool) { grads.as<bf16>()[i] = bf16_from_float(value(i)); });
  UpdateBuffers buffers;
  buffers.grad = grads.as<bf16>();
  buffers.weight = weights.as<float>();
  buffers.elems = kElems;
  UpdateScalars scalars;
  scalars.lr = 0.5f;
  run_update(Parallel(0), formats, buffers, segments, scalars);
  each([&](std::int64_t i, bool inside) {
    ASSERT_EQ(weights.as<float>()[i], inside ? -0.5f * value(i) : 0.0f) << i;
  });
}

// One segment of 2^31 + 4,097 elements: 8 GiB of weights are written.
TEST(LargeUpdate, TakesOneSegmentOfMoreThan2To31Elements) {
  constexpr std::int64_t kElems = (std::int64_t{1} << 31) + 4097;
  const Mapping grads(static_cast<std::size_t>(kElems) * 2),
      weights(static_cast<std::size_t>(kElems) * 4);
  ASSERT_TRUE(grads.whole() && weights.whole());
  for (std::int64_t i = 0; i < kElems; i += 65537) grads.as<bf16>()[i] = bf16_from_float(2.0f);
  grads.as<bf16>()[kElems - 1] = bf16_from_float(2.0f);
  UpdateFormats formats;
  formats.options.rule = OptimizerRule::kSgd;
  formats.options.momentum = 0;
  formats.options.weight = DType::kF32;
  UpdateBuffers buffers;
  buffers.grad = grads.as<bf16>();
  buffers.weight = weights.as<float>();
  buffers.elems = kElems;
  UpdateScalars scalars;
  scalars.lr = 0.5f;
  const ParameterSegment whole[] = {{0, kElems}};
  run_update(Parallel(0), formats, buffers, whole, scalars);
  std::int64_t changed = 0;
  for (std::int64_t i = 0; i < kElems; ++i) {
    const float w = weights.as<float>()[i];
    if (w == 0) continue;
    ++changed;
    ASSERT_EQ(w, -1.0f) << i;
    ASSERT_TRUE(i % 65537 == 0 || i == kElems - 1) << i;
  }
  EXPECT_EQ(changed, kElems / 65537 + 2);
}

}  // namespace
}  // namespace sluice::host
