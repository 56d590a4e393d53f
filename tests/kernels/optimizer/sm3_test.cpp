#include <bit>
#include <limits>

#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

OptimizerOptions sm3_options(DType weight) {
  OptimizerOptions options;
  options.rule = OptimizerRule::kSm3;
  options.weight = weight;
  return options;
}

// Number: double is the oracle, float the arithmetic that optimizer.hpp writes.
template <class Number>
struct Sm3Step {
  Number beta1, one_minus_beta1, lr, lr_decay;

  // accumulator: the least of the row's and the column's before, with g^2 added after.
  void operator()(Number g, Number& m, Number& w, Number& accumulator) const {
    accumulator = accumulator + g * g;
    const Number root = std::sqrt(accumulator + static_cast<Number>(1e-30f));
    m = beta1 * m + one_minus_beta1 * (g / root);
    w = w - lr_decay * w;
    w = w - lr * m;
  }
};

// SM3-II: the new statistics are the largest accumulators of each line.
template <class Number>
void sm3_of(const Sm3Step<Number>& step, std::size_t rows, std::size_t cols,
            const std::vector<Number>& g, std::vector<Number>& m, std::vector<Number>& w,
            std::vector<Number>& statistics) {
  if (rows == 1) {
    for (std::size_t i = 0; i < cols; ++i) step(g[i], m[i], w[i], statistics[i]);
    return;
  }
  std::vector<Number> next(rows + cols);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::size_t row = i / cols, col = rows + i % cols;
    Number accumulator = std::min(statistics[row], statistics[col]);
    step(g[i], m[i], w[i], accumulator);
    next[row] = std::max(next[row], accumulator);
    next[col] = std::max(next[col], accumulator);
  }
  statistics = next;
}

void sm3_in_fp64(OracleTensor& t, const UpdateScalars& scalars) {
  const auto lr = static_cast<double>(scalars.lr * t.segment.lr_scale);
  const Sm3Step<double> step{0.9, 0.1, lr, lr * static_cast<double>(t.segment.weight_decay)};
  sm3_of(step, t.rows(), t.cols(), t.g, t.m, t.w, t.statistics);
}

void sm3_documented(TensorChunk& chunk, const ParameterSegment& segment,
                    const UpdateScalars& scalars) {
  const float lr = scalars.lr * segment.lr_scale;
  const Sm3Step<float> step{0.9f, static_cast<float>(1.0 - 0.9), lr, lr * segment.weight_decay};
  std::vector<float> g, m, w, statistics;
  for (std::int64_t i = segment.begin; i < segment.end; ++i) {
    g.push_back(chunk.rounded_grad(i) * scalars.grad_scale);
    m.push_back(chunk.moment1[static_cast<std::size_t>(i)]);
    w.push_back(chunk.master_at(i));
  }
  const std::uint64_t lines = state_elems(chunk.options, StateKind::kMoment2, segment.tensor);
  for (std::uint64_t line = 0; line < lines; ++line) {
    statistics.push_back(chunk.moment2[segment.moment2_begin + line]);
  }
  sm3_of(step, static_cast<std::size_t>(segment.tensor.rows),
         static_cast<std::size_t>(segment.tensor.cols), g, m, w, statistics);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::int64_t at = segment.begin + static_cast<std::int64_t>(i);
    chunk.moment1.set(static_cast<std::size_t>(at), m[i]);
    chunk.set_master(at, w[i]);
  }
  for (std::uint64_t line = 0; line < lines; ++line) {
    chunk.moment2.set(segment.moment2_begin + line, statistics[line]);
  }
}

class Sm3Of : public ::testing::TestWithParam<Formats> {};
INSTANTIATE_TEST_SUITE_P(Formats, Sm3Of, ::testing::ValuesIn(all_formats()),
                         [](const auto& formats) { return formats_name(formats.param); });

TEST_P(Sm3Of, StaysNearFp64OverAThousandSteps) {
  TensorChunk chunk(sm3_options(GetParam().weight), GetParam().grad, GetParam().round_to,
                    odd_shapes(), 21);
  const double worst = worst_over_steps(chunk, 1000, 1e-2f, sm3_in_fp64);
  chunk.expect_whole();
  // Each of 2,000 roundings of a parameter (|w| < 2) is off by at most 2^-24, at random: 45 * 2^-25
  // or 1.3e-6 is usual, four times that rare. The first steps are large, and add as much.
  EXPECT_LT(worst, 1e-5);
}

TEST_P(Sm3Of, IsTheDocumentedArithmeticToTheBit) {
  std::vector<TensorView> shapes = odd_shapes();
  for (const TensorView& shape : shapes_of_many_tiles()) shapes.push_back(shape);
  TensorChunk chunk(sm3_options(GetParam().weight), GetParam().grad, GetParam().round_to, shapes,
                    31);
  TensorChunk want = chunk;
  for (int step = 1; step <= 3; ++step) {
    const auto grad = normal_floats(chunk.elems, static_cast<unsigned>(step), 1e-2f);
    chunk.set_grad(grad);
    want.set_grad(grad);
    chunk.update(Parallel(2), scalars_of(step));
    for (const ParameterSegment& segment : want.segments) {
      sm3_documented(want, segment, scalars_of(step));
    }
    ASSERT_TRUE(chunk == want) << step;
  }
}

TEST_P(Sm3Of, GivesTheSameBitsForAnyThreadsTargetsAndCompany) {
  expect_same_bits_everywhere(sm3_options(GetParam().weight), GetParam());
}

TEST(Sm3, NanStaysInItsElementAndRaisesNoAccumulator) {
  const TensorChunk start =
      after_steps(TensorChunk(sm3_options(DType::kF32), DType::kF32, DType::kF32, odd_shapes(), 24),
                  Parallel(1), 2);
  std::vector<float> grad = normal_floats(start.elems, 25, 1e-2f);
  TensorChunk good = start;
  good.set_grad(grad);
  good.update(Parallel(1), scalars_of(3));
  for (const ParameterSegment& hit : start.segments) {
    const std::int64_t bad = hit.begin + 6;
    const auto index = static_cast<std::size_t>(bad);
    std::vector<float> poisoned = grad;
    poisoned[index] = std::numeric_limits<float>::quiet_NaN();
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      TensorChunk chunk = start;
      chunk.set_grad(poisoned);
      chunk.update(parallel, scalars_of(3));
      EXPECT_TRUE(std::isnan(chunk.master_at(bad)) && std::isnan(chunk.moment1[index])) << name;
      for (std::int64_t i = 0; i < chunk.elems; ++i) {
        if (i == bad) continue;
        ASSERT_EQ(chunk.master_at(i), good.master_at(i)) << name << " " << i;
      }
      const std::uint64_t lines = state_elems(chunk.options, StateKind::kMoment2, hit.tensor);
      for (std::uint64_t line = 0; hit.tensor.rows > 1 && line < lines; ++line) {
        EXPECT_LE(chunk.moment2[hit.moment2_begin + line], good.moment2[hit.moment2_begin + line]);
      }
    });
  }
}

TEST(Sm3, InfiniteGradientsLeaveOtherTensorsAlone) {
  const TensorChunk start(sm3_options(DType::kF32), DType::kF32, DType::kF32, odd_shapes(), 26);
  std::vector<float> grad = normal_floats(start.elems, 27, 1e-2f);
  TensorChunk good = start;
  good.set_grad(grad);
  good.update(Parallel(1), scalars_of(1));
  const ParameterSegment& hit = start.segments[0];
  grad[static_cast<std::size_t>(hit.begin + 10)] = -std::numeric_limits<float>::infinity();
  TensorChunk chunk = start;
  chunk.set_grad(grad);
  chunk.update(Parallel(2), scalars_of(1));
  EXPECT_EQ(chunk.moment2[hit.moment2_begin + 1], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(chunk.master_at(hit.begin + 10)));
  for (std::int64_t i = hit.end; i < chunk.elems; ++i) {
    ASSERT_EQ(chunk.master_at(i), good.master_at(i));
  }
}

}  // namespace
}  // namespace sluice::kernels::host
