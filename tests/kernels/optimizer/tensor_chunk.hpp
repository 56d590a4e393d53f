// A chunk of whole tensors with all its states, for suites of the rules that look at whole tensors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/host/gemm.hpp"
#include "kernels/host/optimizer/update.hpp"
#include "kernels/host/parallel.hpp"
#include "tests/kernels/guarded_workspace.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {

struct Formats {
  DType grad = DType::kF32;
  DType round_to = DType::kF32;
  DType weight = DType::kF32;
};
inline std::string formats_name(const Formats& formats) {
  return std::string(dtype_name(formats.grad)) +
         (formats.round_to != DType::kF32 ? "Rounded" : "") + "To" +
         std::string(dtype_name(formats.weight));
}
inline std::vector<Formats> all_formats() {
  return {{DType::kBF16, DType::kF32, DType::kBF16},
          {DType::kF32, DType::kBF16, DType::kBF16},
          {DType::kF32, DType::kF32, DType::kF32}};
}

// Rows above and below columns, a vector, a column, more tiles than one either way.
inline std::vector<TensorView> odd_shapes() {
  return {{33, 7, true}, {7, 33, true}, {1, 50, false}, {50, 1, true}, {70, 20, false}};
}
inline std::vector<TensorView> shapes_of_many_tiles() {
  return {{1, 2300, false}, {130, 1100, true}, {300, 65, true}, {1, 7, false}, {65, 2049, false}};
}

// Tensors begin at multiples of 128 elements, as in a chunk of bf16; the gaps between them hold 777
// and stay so.
class TensorChunk {
 public:
  static constexpr float kGap = 777.0f;

  TensorChunk(const OptimizerOptions& of, DType grad_dtype, DType round_grad_to,
              const std::vector<TensorView>& shapes, unsigned seed)
      : options(of), round_to(round_grad_to) {
    std::int64_t end = 0, statistics = 0;
    for (const TensorView& shape : shapes) {
      ParameterSegment segment;
      segment.begin = (end + 127) / 128 * 128;
      segment.end = end = segment.begin + shape.rows * shape.cols;
      segment.weight_decay = 0.1f;
      segment.lr_scale = segments.size() % 2 == 0 ? 1.0f : 0.5f;
      segment.first_key = 1000 + static_cast<std::uint64_t>(segment.begin);
      segment.tensor = shape;
      segment.moment2_begin = static_cast<std::uint64_t>(statistics);
      statistics += static_cast<std::int64_t>(state_elems(options, StateKind::kMoment2, shape)) + 3;
      segments.push_back(segment);
    }
    elems = (end + 5 + 4095) / 4096 * 4096;
    const auto gaps = [](std::int64_t count) {
      return std::vector<float>(static_cast<std::size_t>(count), kGap);
    };
    grad = DTypeArray(grad_dtype, gaps(elems));
    weight = DTypeArray(options.weight, gaps(elems));
    master = moment1 = DTypeArray(DType::kF32, gaps(elems));
    moment2 = DTypeArray(DType::kF32, gaps(statistics));
    const std::vector<float> start = normal_floats(elems, seed, 0.3f);
    for (const ParameterSegment& segment : segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) set_master(i, at(start, i));
      fill(moment1, segment.begin, segment.end - segment.begin, 0);
      const std::uint64_t count = state_elems(options, StateKind::kMoment2, segment.tensor);
      fill(moment2, static_cast<std::int64_t>(segment.moment2_begin),
           static_cast<std::int64_t>(count), 0);
    }
  }

  void set_grad(const std::vector<float>& values) {
    for (const ParameterSegment& segment : segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        grad.set(static_cast<std::size_t>(i), at(values, i));
      }
    }
  }
  // Gradient as the rule sees it, before grad_scale.
  float rounded_grad(std::int64_t i) const {
    const float value = grad[static_cast<std::size_t>(i)];
    return round_to == DType::kBF16 ? to_float(bf16_from_float(value)) : value;
  }
  float master_at(std::int64_t i) const {
    return options.has_master() ? master[static_cast<std::size_t>(i)]
                                : weight[static_cast<std::size_t>(i)];
  }
  void set_master(std::int64_t i, float value) {
    const auto index = static_cast<std::size_t>(i);
    if (options.has_master()) master.set(index, value);
    weight.set(index, options.has_master() ? to_float(bf16_weight_from_float(value)) : value);
  }

  UpdateBuffers buffers() {
    UpdateBuffers all;
    all.grad = grad.data();
    all.grad_dtype = grad.type();
    all.round_grad_to = round_to;
    all.weight = weight.data();
    all.master = options.has_master() ? master.data() : nullptr;
    const bool has_moment1 =
        state_layout(options, StateKind::kMoment1).extent != StateExtent::kAbsent;
    all.moment1 = has_moment1 ? moment1.data() : nullptr;
    all.moment2 = moment2.data();
    all.elems = elems;
    return all;
  }

  void update(const Parallel& parallel, const UpdateScalars& scalars) {
    update(parallel, scalars, segments);
  }
  void update(const Parallel& parallel, const UpdateScalars& scalars,
              std::span<const ParameterSegment> some) {
    const Gemm gemm(parallel, Bf16Gemm::kViaF32);
    GuardedWorkspace workspace(update_workspace_bytes(gemm, options, some));
    host::update(parallel, gemm, options, buffers(), some, scalars, workspace.data());
  }

  // The weight is the master rounded, and the gaps between tensors are as they were.
  void expect_whole() const {
    std::size_t broken = 0;
    std::int64_t end = 0;
    const auto check_gap = [&](std::int64_t until) {
      for (; end < until; ++end) {
        const auto i = static_cast<std::size_t>(end);
        broken += weight[i] != kGapOf(weight.type()) || master[i] != kGap || moment1[i] != kGap;
      }
    };
    for (const ParameterSegment& segment : segments) {
      check_gap(segment.begin);
      end = segment.end;
      for (std::int64_t i = segment.begin; options.has_master() && i < end; ++i) {
        const auto index = static_cast<std::size_t>(i);
        broken += weight[index] != to_float(bf16_weight_from_float(master[index]));
      }
      const auto behind = static_cast<std::size_t>(
          segment.moment2_begin + state_elems(options, StateKind::kMoment2, segment.tensor));
      for (std::size_t i = behind; i < behind + 3; ++i) broken += moment2[i] != kGap;
    }
    check_gap(elems);
    EXPECT_EQ(broken, 0u);
    for (const DTypeArray* array : {&grad, &weight, &master, &moment1, &moment2}) {
      EXPECT_TRUE(array->guard_is_whole());
    }
  }

  bool operator==(const TensorChunk& other) const {
    return weight == other.weight && master == other.master && moment1 == other.moment1 &&
           moment2 == other.moment2;
  }

  OptimizerOptions options;
  DType round_to;
  std::vector<ParameterSegment> segments;
  std::int64_t elems = 0;
  DTypeArray grad{DType::kF32, 0}, weight{DType::kF32, 0}, master{DType::kF32, 0},
      moment1{DType::kF32, 0}, moment2{DType::kF32, 0};

 private:
  static float at(const std::vector<float>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }
  static float kGapOf(DType type) {
    return type == DType::kBF16 ? to_float(bf16_from_float(kGap)) : kGap;
  }
  static void fill(DTypeArray& array, std::int64_t begin, std::int64_t count, float value) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      array.set(static_cast<std::size_t>(i), value);
    }
  }
};

inline UpdateScalars scalars_of(std::int64_t step, float lr = 3e-3f) {
  UpdateScalars scalars;
  scalars.lr = lr;
  scalars.grad_scale = 0.731f;
  scalars.step = step;
  return scalars;
}

// The first `steps` updates, with gradients that a seed gives.
inline TensorChunk after_steps(TensorChunk chunk, const Parallel& parallel, int steps) {
  for (int step = 1; step <= steps; ++step) {
    chunk.set_grad(normal_floats(chunk.elems, static_cast<unsigned>(100 + step), 1e-2f));
    chunk.update(parallel, scalars_of(step));
  }
  return chunk;
}

// Any thread count, instruction set, and company in the call: the same bits.
inline void expect_same_bits_everywhere(const OptimizerOptions& options, const Formats& formats) {
  constexpr int kSteps = 3;
  const TensorChunk start(options, formats.grad, formats.round_to, shapes_of_many_tiles(), 11);
  const TensorChunk want = after_steps(start, Parallel(1), kSteps);
  want.expect_whole();
  EXPECT_FALSE(want == start);
  for (const int threads : {2, 4}) {
    EXPECT_TRUE(after_steps(start, Parallel(threads), kSteps) == want) << threads;
  }
  on_every_target([&](const Parallel& parallel, const std::string& name) {
    EXPECT_TRUE(after_steps(start, parallel, kSteps) == want) << name;
  });
  TensorChunk alone = start;
  for (int step = 1; step <= kSteps; ++step) {
    alone.set_grad(normal_floats(alone.elems, static_cast<unsigned>(100 + step), 1e-2f));
    for (const ParameterSegment& segment : start.segments) {
      alone.update(Parallel(2), scalars_of(step), {&segment, 1});
    }
  }
  EXPECT_TRUE(alone == want);
}

// One tensor of an oracle: all in fp64.
struct OracleTensor {
  ParameterSegment segment;
  std::vector<double> w, g, m, statistics;

  OracleTensor(const TensorChunk& chunk, const ParameterSegment& of) : segment(of) {
    for (std::int64_t i = of.begin; i < of.end; ++i) {
      w.push_back(static_cast<double>(chunk.master_at(i)));
    }
    g = m = std::vector<double>(w.size());
    statistics.resize(state_elems(chunk.options, StateKind::kMoment2, of.tensor));
  }
  std::size_t rows() const { return static_cast<std::size_t>(segment.tensor.rows); }
  std::size_t cols() const { return static_cast<std::size_t>(segment.tensor.cols); }
  void read_grad(const TensorChunk& chunk, float scale) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      const auto at = segment.begin + static_cast<std::int64_t>(i);
      g[i] = static_cast<double>(chunk.rounded_grad(at)) * static_cast<double>(scale);
    }
  }
};

// The largest |master - oracle| over all tensors after `steps` steps; oracle(tensor, scalars) makes
// a step from g.
template <class Oracle>
double worst_over_steps(TensorChunk& chunk, int steps, float grad_size, const Oracle& oracle) {
  std::vector<OracleTensor> tensors;
  for (const ParameterSegment& segment : chunk.segments) tensors.emplace_back(chunk, segment);
  const Parallel parallel(2);
  double worst = 0;
  for (int step = 1; step <= steps; ++step) {
    chunk.set_grad(normal_floats(chunk.elems, static_cast<unsigned>(1000 + step), grad_size));
    const UpdateScalars scalars = scalars_of(step);
    chunk.update(parallel, scalars);
    for (OracleTensor& tensor : tensors) {
      tensor.read_grad(chunk, scalars.grad_scale);
      oracle(tensor, scalars);
      for (std::size_t i = 0; i < tensor.w.size(); ++i) {
        const auto at = tensor.segment.begin + static_cast<std::int64_t>(i);
        const double apart = std::abs(static_cast<double>(chunk.master_at(at)) - tensor.w[i]);
        worst = apart <= worst ? worst : apart;  // NaN is the worst
      }
    }
  }
  return worst;
}

}  // namespace sluice::kernels::host
