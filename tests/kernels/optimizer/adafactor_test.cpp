#include <limits>

#include "base/error.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

OptimizerOptions adafactor_options(DType weight) {
  OptimizerOptions options;
  options.rule = OptimizerRule::kAdafactor;
  options.weight = weight;
  return options;
}

double sum_of_squares(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number * number;
  return sum;
}

// torch.optim.Adafactor's formulas, in fp64.
void adafactor_in_fp64(OracleTensor& t, const UpdateScalars& scalars) {
  const double eps1 = 0x1p-23, eps2 = 1e-3, d = 1.0;
  const auto elems = static_cast<double>(t.w.size());
  const auto step = static_cast<double>(scalars.step);
  const double lr = static_cast<double>(scalars.lr * t.segment.lr_scale);
  const double rate = std::pow(step, -0.8);
  const double alpha =
      std::max(eps2, std::sqrt(sum_of_squares(t.w) / elems)) * std::min(lr, 1 / std::sqrt(step));
  for (double& w : t.w) w *= 1 - lr * static_cast<double>(t.segment.weight_decay);
  const std::size_t rows = t.rows(), cols = t.cols();
  std::vector<double> variance(t.w.size());
  if (rows > 1) {
    double* const row_var = t.statistics.data();
    double* const col_var = row_var + rows;
    std::vector<double> means(rows + cols);
    for (std::size_t i = 0; i < t.g.size(); ++i) {
      const double square = t.g[i] * t.g[i];
      means[i / cols] += square / static_cast<double>(cols);
      means[rows + i % cols] += square / static_cast<double>(rows);
    }
    double mean = 0;
    for (std::size_t i = 0; i < means.size(); ++i) {
      t.statistics[i] += rate * (means[i] - t.statistics[i]);
      if (i < rows) mean += t.statistics[i] / static_cast<double>(rows);
    }
    for (std::size_t i = 0; i < variance.size(); ++i) {
      variance[i] = row_var[i / cols] * col_var[i % cols] / std::max(mean, eps1);
    }
  } else {
    for (std::size_t i = 0; i < variance.size(); ++i) {
      t.statistics[i] += rate * (t.g[i] * t.g[i] - t.statistics[i]);
      variance[i] = t.statistics[i];
    }
  }
  std::vector<double> update(t.w.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    update[i] = t.g[i] / std::sqrt(std::max(variance[i], eps1 * eps1));
  }
  const double denominator = std::max(1.0, std::sqrt(sum_of_squares(update) / elems) / d);
  for (std::size_t i = 0; i < update.size(); ++i) t.w[i] -= alpha / denominator * update[i];
}

// --- the arithmetic of optimizer.hpp, one fp32 operation at a time
// ----------------------------------------------------------------------------------------

float squares_in_lanes(const std::vector<float>& numbers) {
  float lanes[16] = {};
  for (std::size_t i = 0; i < numbers.size(); ++i) lanes[i % 16] += numbers[i] * numbers[i];
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// By tiles of 64 rows and 1,024 columns; a tile's row in fp32, all else in fp64.
double squares_in_tiles(const std::vector<float>& all, std::size_t rows, std::size_t cols) {
  double sum = 0;
  for (std::size_t top = 0; top < rows; top += 64) {
    for (std::size_t left = 0; left < cols; left += 1024) {
      double tile = 0;
      for (std::size_t r = top; r < std::min(rows, top + 64); ++r) {
        const auto* const from = all.data() + r * cols;
        tile += static_cast<double>(
            squares_in_lanes({from + left, from + std::min(cols, left + 1024)}));
      }
      sum += tile;
    }
  }
  return sum;
}

float mean_of_row(const std::vector<float>& g, std::size_t r, std::size_t cols) {
  double sum = 0;
  for (std::size_t left = 0; left < cols; left += 1024) {
    const auto* const from = g.data() + r * cols;
    sum += static_cast<double>(squares_in_lanes({from + left, from + std::min(cols, left + 1024)}));
  }
  return static_cast<float>(sum / static_cast<double>(cols));
}

float mean_of_col(const std::vector<float>& g, std::size_t c, std::size_t rows, std::size_t cols) {
  double sum = 0;
  for (std::size_t top = 0; top < rows; top += 64) {
    float part = 0;
    for (std::size_t r = top; r < std::min(rows, top + 64); ++r) {
      part += g[r * cols + c] * g[r * cols + c];
    }
    sum += static_cast<double>(part);
  }
  return static_cast<float>(sum / static_cast<double>(rows));
}

float lerp(float from, float to, float rate) {
  if (rate < 0.5f) return from + rate * (to - from);
  return to - (to - from) * (1.0f - rate);
}

void adafactor_documented(TensorChunk& chunk, const ParameterSegment& segment,
                          const UpdateScalars& scalars) {
  const auto rows = static_cast<std::size_t>(segment.tensor.rows);
  const auto cols = static_cast<std::size_t>(segment.tensor.cols);
  const auto step = static_cast<double>(scalars.step);
  const auto elems = static_cast<double>(rows * cols);
  const float rate = static_cast<float>(std::pow(step, -0.8));
  std::vector<float> w, g;
  for (std::int64_t i = segment.begin; i < segment.end; ++i) {
    w.push_back(chunk.master_at(i));
    g.push_back(chunk.rounded_grad(i) * scalars.grad_scale);
  }
  const std::size_t lines = rows > 1 ? rows + cols : cols;
  std::vector<float> statistics;
  for (std::size_t line = 0; line < lines; ++line) {
    float now = rows == 1 ? g[line] * g[line]
                          : (line < rows ? mean_of_row(g, line, cols)
                                         : mean_of_col(g, line - rows, rows, cols));
    now = lerp(chunk.moment2[segment.moment2_begin + line], now, rate);
    chunk.moment2.set(segment.moment2_begin + line, now);
    statistics.push_back(now);
  }
  double sum = 0;
  for (std::size_t r = 0; r < rows; ++r) sum += static_cast<double>(statistics[r]);
  const float mean = std::max(static_cast<float>(sum / static_cast<double>(rows)), 0x1p-23f);
  std::vector<float> update(g.size());
  for (std::size_t i = 0; i < g.size(); ++i) {
    float root = 1.0f / std::sqrt(statistics[rows > 1 ? rows + i % cols : i]);
    if (rows > 1) root = 1.0f / std::sqrt(statistics[i / cols] / mean) * root;
    update[i] = g[i] * std::min(root, 0x1p23f);
  }
  const float lr = scalars.lr * segment.lr_scale;
  const double size = std::sqrt(squares_in_tiles(w, rows, cols) / elems);
  const double alpha =
      std::max(size, 1e-3) * std::min(static_cast<double>(lr), 1.0 / std::sqrt(step));
  const double rms = std::sqrt(squares_in_tiles(update, rows, cols) / elems);
  const auto step_size = static_cast<float>(alpha / std::max(rms / 1.0, 1.0));
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float decayed = w[i] - lr * segment.weight_decay * w[i];
    chunk.set_master(segment.begin + static_cast<std::int64_t>(i), decayed - step_size * update[i]);
  }
}

class AdafactorOf : public ::testing::TestWithParam<Formats> {};
INSTANTIATE_TEST_SUITE_P(Formats, AdafactorOf, ::testing::ValuesIn(all_formats()),
                         [](const auto& formats) { return formats_name(formats.param); });

TEST_P(AdafactorOf, StaysNearFp64OverAThousandSteps) {
  TensorChunk chunk(adafactor_options(GetParam().weight), GetParam().grad, GetParam().round_to,
                    odd_shapes(), 21);
  const double worst = worst_over_steps(chunk, 1000, 1e-2f, adafactor_in_fp64);
  chunk.expect_whole();
  // Each of 2,000 roundings of a parameter (|w| < 2) is off by at most 2^-24, at random: 45 * 2^-25
  // or 1.3e-6 is usual, four times that rare. The steps' own errors are smaller.
  EXPECT_LT(worst, 6e-6);
}

TEST_P(AdafactorOf, IsTheDocumentedArithmeticToTheBit) {
  std::vector<TensorView> shapes = odd_shapes();
  for (const TensorView& shape : shapes_of_many_tiles()) shapes.push_back(shape);
  TensorChunk chunk(adafactor_options(GetParam().weight), GetParam().grad, GetParam().round_to,
                    shapes, 31);
  TensorChunk want = chunk;
  for (int step = 1; step <= 4; ++step) {  // the rate passes 1/2
    const auto grad = normal_floats(chunk.elems, static_cast<unsigned>(step), 1e-2f);
    chunk.set_grad(grad);
    want.set_grad(grad);
    chunk.update(Parallel(2), scalars_of(step));
    for (const ParameterSegment& segment : want.segments) {
      adafactor_documented(want, segment, scalars_of(step));
    }
    ASSERT_TRUE(chunk == want) << step;
  }
}

TEST_P(AdafactorOf, GivesTheSameBitsForAnyThreadsTargetsAndCompany) {
  expect_same_bits_everywhere(adafactor_options(GetParam().weight), GetParam());
}

// Parameters below the second epsilon, and gradients so small that the first takes over: for the
// mean of the rows' statistics, for the roots, until updates are below the clip.
TEST(Adafactor, FloorsAndClips) {
  for (const float grad_size : {1e-4f, 1e-6f, 1e-8f}) {
    TensorChunk chunk(adafactor_options(DType::kF32), DType::kF32, DType::kF32, odd_shapes(), 22);
    for (const ParameterSegment& segment : chunk.segments) {
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        chunk.set_master(i, chunk.master_at(i) * 1e-4f);
      }
    }
    // 50 steps of about 3e-6 * 0.1 or more: parameters move by 1e-5 at least.
    EXPECT_LT(worst_over_steps(chunk, 50, grad_size, adafactor_in_fp64), 1e-9) << grad_size;
  }
}

TEST(Adafactor, LetsNotFinitePassWithinTheirTensorAlone) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const TensorChunk start(adafactor_options(DType::kF32), DType::kF32, DType::kF32, odd_shapes(),
                            24);
    std::vector<float> grad = normal_floats(start.elems, 25, 1e-2f);
    TensorChunk good = start;
    good.set_grad(grad);
    good.update(Parallel(1), scalars_of(1));
    const ParameterSegment& hit = start.segments[0];
    grad[static_cast<std::size_t>(hit.begin + 10)] = bad;
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      TensorChunk chunk = start;
      chunk.set_grad(grad);
      chunk.update(parallel, scalars_of(1));
      EXPECT_FALSE(std::isfinite(chunk.master_at(hit.begin + 10))) << name;
      for (std::int64_t i = hit.end; i < chunk.elems; ++i) {
        ASSERT_EQ(chunk.master_at(i), good.master_at(i)) << name;
      }
    });
  }
}

}  // namespace
}  // namespace sluice::kernels::host
