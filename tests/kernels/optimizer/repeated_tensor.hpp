// A matrix of more than 2^31 elements with repeated rows, and the small one that it repeats. A rule
// finds the same of a row in both. It also finds the same of a column, because these gradients have
// exact sums of squares.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "kernels/split_master.hpp"
#include "tests/kernels/host_backend.hpp"
#include "tests/kernels/optimizer/sparse_memory.hpp"

namespace sluice::kernels::host {

// 17 * 2^17 elements: where a number of an element or byte wrapped at 2^31 or 2^32, it would meet
// another element of the period. Each state of a period is whole pages: 544 = 17 * 32 groups of
// 8-bit moments, of 4,224 bytes.
inline constexpr TensorView kPeriod{544, 4096};
inline constexpr std::int64_t kPeriods = 964;
inline constexpr TensorView kRepeated{kPeriods * kPeriod.rows, kPeriod.cols};
inline constexpr std::int64_t kPeriodElems = kPeriod.rows * kPeriod.cols;
static_assert(kPeriods * kPeriodElems > std::int64_t{1} << 31);

// A period of bytes, repeated at addresses of their own: memory is that of one period.
class RepeatedMemory {
 public:
  RepeatedMemory(std::span<const std::byte> period, std::int64_t times)
      : addresses_(period.size() * static_cast<std::size_t>(times)) {
    const int file = memfd_create("period", MFD_CLOEXEC);
    whole_ = addresses_.whole() && file >= 0 &&
             write(file, period.data(), period.size()) == static_cast<ssize_t>(period.size());
    for (std::int64_t i = 0; whole_ && i < times; ++i) {
      std::byte* const at = data() + static_cast<std::size_t>(i) * period.size();
      whole_ =
          mmap(at, period.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at;
    }
    if (file >= 0) close(file);
  }
  bool whole() const { return whole_; }
  std::byte* data() const { return addresses_.as<std::byte>(); }

 private:
  SparseMemory addresses_;
  bool whole_ = false;
};

// One period: bf16 gradient and weight, 16 bits of the master, 8-bit momenta, statistics.
struct Period {
  std::vector<bf16> grad, weight;
  std::vector<std::int16_t> remainder;
  std::vector<std::byte> moment1;
  std::vector<float> statistics;  // rows, then columns

  explicit Period(float weight_size)
      : moment1(bytes_of(DType::kBlock8, static_cast<std::uint64_t>(kPeriodElems))) {
    std::mt19937 random(7);
    for (std::int64_t i = 0; i < kPeriodElems; ++i) {
      // At most 112: the squares of 1,024 of them add up to less than 2^24.
      const int size = static_cast<int>(random() % 15) - 7;
      const std::int64_t scale = (1 << i / kPeriod.cols % 3) * (1 << i % kPeriod.cols % 3);
      grad.push_back(bf16_from_float(static_cast<float>(size * scale) * 0x1p-10f));
    }
    for (const float number : normal_floats(kPeriodElems, 8, weight_size)) {
      const SplitMaster split = split_master(number);
      weight.push_back(split.weight);
      remainder.push_back(split.remainder);
    }
    for (const float number : normal_floats(kPeriod.rows + kPeriod.cols, 9, 0x1p-10f)) {
      statistics.push_back(number * number);
    }
  }
  float master(std::size_t i) const { return join_master({weight[i], remainder[i]}); }
  // Statistics of the large matrix: its rows have those of the period.
  std::vector<float> repeated_statistics() const {
    const auto columns = statistics.begin() + kPeriod.rows;
    std::vector<float> repeated;
    for (std::int64_t i = 0; i < kPeriods; ++i) {
      repeated.insert(repeated.end(), statistics.begin(), columns);
    }
    repeated.insert(repeated.end(), columns, statistics.end());
    return repeated;
  }
};

inline OptimizerOptions split_block8(OptimizerRule rule) {
  OptimizerOptions options;
  options.rule = rule;
  options.split_master = true;
  options.moments = DType::kBlock8;
  return options;
}

inline constexpr float kRepeatedDecay = 0.1f;
inline UpdateScalars repeated_scalars() {
  UpdateScalars scalars;
  scalars.lr = 1e-3f;
  scalars.grad_scale = 0.5f;  // keeps sums exact
  scalars.step = 2;
  return scalars;
}

// One tensor of `shape` from its beginning.
inline void update_matrix(int threads, const OptimizerOptions& options, const TensorView& shape,
                          UpdateBuffers buffers) {
  buffers.elems = shape.rows * shape.cols;
  if (state_layout(options, StateKind::kMoment1).extent == StateExtent::kAbsent) {
    buffers.moment1 = nullptr;
  }
  const ParameterSegment segments[] = {
      {.begin = 0, .end = buffers.elems, .weight_decay = kRepeatedDecay, .tensor = shape}};
  run_update(*make_host_kernels({.threads = threads}), options, buffers, segments,
             repeated_scalars());
}

inline void update_matrix(int threads, const OptimizerOptions& options, Period& period) {
  UpdateBuffers buffers;
  buffers.grad = period.grad.data();
  buffers.weight = period.weight.data();
  buffers.master = period.remainder.data();
  buffers.moment1 = period.moment1.data();
  buffers.moment2 = period.statistics.data();
  update_matrix(threads, options, kPeriod, buffers);
}

}  // namespace sluice::kernels::host
