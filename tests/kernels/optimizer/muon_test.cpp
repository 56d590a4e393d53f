#include <limits>

#include "kernels/host/optimizer/rules.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

OptimizerOptions muon_options(DType weight) {
  OptimizerOptions options;
  options.rule = OptimizerRule::kMuon;
  options.weight = weight;
  options.momentum = 0.95;
  return options;
}

using Matrix = std::vector<double>;

// c[m, n] = a[m, k] b[k, n]
Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t k, std::size_t n) {
  Matrix c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t l = 0; l < k; ++l) {
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, std::size_t rows, std::size_t cols) {
  Matrix t(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) t[i % cols * rows + i / cols] = a[i];
  return t;
}

// torch's: transposed where rows > cols, X <- a X + (b A + c A A) X with A = X X^T.
Matrix orthogonalized(Matrix x, std::size_t rows, std::size_t cols) {
  double squares = 0;
  for (const double number : x) squares += number * number;
  for (double& number : x) number /= std::max(std::sqrt(squares), 1e-7);
  if (rows > cols)
    return transposed(orthogonalized(transposed(x, rows, cols), cols, rows), cols, rows);
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x, rows, cols), rows, cols, rows);
    Matrix sum = product(gram, gram, rows, rows, rows);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = -4.7750 * gram[i] + 2.0315 * sum[i];
    const Matrix next = product(sum, x, rows, rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + next[i];
  }
  return x;
}

void muon_in_fp64(OracleTensor& t, const UpdateScalars& scalars) {
  const auto lr = static_cast<double>(scalars.lr * t.segment.lr_scale);
  const double decay = static_cast<double>(t.segment.weight_decay);
  if (!t.segment.tensor.hidden_matrix) {
    const auto step = static_cast<double>(scalars.step);
    for (std::size_t i = 0; i < t.w.size(); ++i) {
      t.m[i] = 0.9 * t.m[i] + 0.1 * t.g[i];
      t.statistics[i] = 0.95 * t.statistics[i] + 0.05 * t.g[i] * t.g[i];
      const double root = std::sqrt(t.statistics[i] / (1 - std::pow(0.95, step))) + 1e-8;
      t.w[i] *= 1 - lr * decay;
      t.w[i] -= lr * (t.m[i] / (1 - std::pow(0.9, step))) / root;
    }
    return;
  }
  Matrix update(t.w.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    t.m[i] = 0.95 * t.m[i] + 0.05 * t.g[i];
    update[i] = 0.05 * t.g[i] + 0.95 * t.m[i];
  }
  update = orthogonalized(update, t.rows(), t.cols());
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(t.rows(), t.cols())));
  for (std::size_t i = 0; i < update.size(); ++i) {
    t.w[i] -= lr * decay * t.w[i];
    t.w[i] -= lr * scale * update[i];
  }
}

std::vector<TensorView> shapes() {
  std::vector<TensorView> all = odd_shapes();
  all.push_back({64, 64, true});
  all.push_back({1, 40, true});
  return all;
}

class MuonOf : public ::testing::TestWithParam<Formats> {};
INSTANTIATE_TEST_SUITE_P(Formats, MuonOf, ::testing::ValuesIn(all_formats()),
                         [](const auto& formats) { return formats_name(formats.param); });

TEST_P(MuonOf, StaysNearFp64OverTwoHundredSteps) {
  TensorChunk chunk(muon_options(GetParam().weight), GetParam().grad, GetParam().round_to, shapes(),
                    21);
  const double worst = worst_over_steps(chunk, 200, 1e-2f, muon_in_fp64);
  chunk.expect_whole();
  // 400 roundings of a parameter at random, 20 * 2^-25 or 6e-7, and four times that.
  EXPECT_LT(worst, 3e-6);
}

// Every step's update, seen alone: parameters are zero before it. Five iterations make rounding
// errors of 2^-24 grow 3.4445^5 times at most, in the directions that the update hardly has.
TEST_P(MuonOf, EachStepsDirectionIsFp64s) {
  TensorChunk chunk(muon_options(GetParam().weight), GetParam().grad, GetParam().round_to, shapes(),
                    41);
  std::vector<OracleTensor> tensors;
  for (const ParameterSegment& segment : chunk.segments) tensors.emplace_back(chunk, segment);
  for (int step = 1; step <= 20; ++step) {
    chunk.set_grad(normal_floats(chunk.elems, static_cast<unsigned>(step), 1e-2f));
    const UpdateScalars scalars = scalars_of(step);
    for (OracleTensor& tensor : tensors) {
      for (std::int64_t i = tensor.segment.begin; i < tensor.segment.end; ++i) {
        chunk.set_master(i, 0);
      }
      tensor.w.assign(tensor.w.size(), 0);
      tensor.read_grad(chunk, scalars.grad_scale);
      muon_in_fp64(tensor, scalars);
    }
    chunk.update(Parallel(2), scalars);
    for (const OracleTensor& tensor : tensors) {
      double apart = 0, size = 0;
      for (std::size_t i = 0; i < tensor.w.size(); ++i) {
        const auto at = tensor.segment.begin + static_cast<std::int64_t>(i);
        apart += std::pow(static_cast<double>(chunk.master_at(at)) - tensor.w[i], 2);
        size += tensor.w[i] * tensor.w[i];
      }
      EXPECT_LT(std::sqrt(apart / size), 5e-6) << step << " " << tensor.rows();
    }
  }
}

TEST_P(MuonOf, GivesTheSameBitsForAnyThreadsTargetsAndCompany) {
  expect_same_bits_everywhere(muon_options(GetParam().weight), GetParam());
}

TEST(Muon, StepsHaveTheSizeOfAdamWs) {
  // 0.2 * sqrt(max(rows, cols)) makes the RMS of an orthogonal matrix's step 0.2 * lr; five
  // iterations leave singular values between 0.7 and 1.2.
  TensorChunk chunk(muon_options(DType::kF32), DType::kF32, DType::kF32, {{96, 200, true}}, 42);
  ParameterSegment& segment = chunk.segments[0];
  segment.weight_decay = 0;
  for (std::int64_t i = segment.begin; i < segment.end; ++i) chunk.set_master(i, 0);
  chunk.set_grad(normal_floats(chunk.elems, 43, 1e-2f));
  chunk.update(Parallel(2), scalars_of(1, 1.0f));
  double squares = 0;
  for (std::int64_t i = segment.begin; i < segment.end; ++i) {
    squares += std::pow(static_cast<double>(chunk.master_at(i)), 2);
  }
  const double rms = std::sqrt(squares / (96 * 200));
  EXPECT_GT(rms, 0.7 * 0.2);
  EXPECT_LT(rms, 1.2 * 0.2);
}

TEST(Muon, TreatsOtherTensorsAsAdamWDoesToTheBit) {
  OptimizerOptions options = muon_options(DType::kBF16);
  TensorChunk muon(options, DType::kBF16, DType::kF32, {{1, 300, false}, {40, 30, false}}, 44);
  options.rule = OptimizerRule::kAdamW;
  // AdamW's second moment lies as its elements do.
  DTypeArray moment2(DType::kF32, std::vector<float>(static_cast<std::size_t>(muon.elems)));
  TensorChunk adamw = muon;
  for (int step = 1; step <= 3; ++step) {
    muon.set_grad(normal_floats(muon.elems, static_cast<unsigned>(step), 1e-2f));
    adamw.grad = muon.grad;
    muon.update(Parallel(2), scalars_of(step));
    UpdateBuffers buffers = adamw.buffers();
    buffers.moment2 = moment2.data();
    host::adamw(Parallel(2), options, buffers, adamw.segments, scalars_of(step));
  }
  EXPECT_TRUE(muon.weight == adamw.weight && muon.master == adamw.master &&
              muon.moment1 == adamw.moment1);
  for (const ParameterSegment& segment : muon.segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      const std::uint64_t at =
          segment.moment2_begin + static_cast<std::uint64_t>(i - segment.begin);
      ASSERT_EQ(muon.moment2[at], moment2[static_cast<std::size_t>(i)]);
    }
  }
}

TEST(Muon, NotFiniteGradientsLeaveOtherTensorsAlone) {
  const TensorChunk start(muon_options(DType::kF32), DType::kF32, DType::kF32, shapes(), 46);
  std::vector<float> grad = normal_floats(start.elems, 47, 1e-2f);
  TensorChunk good = start;
  good.set_grad(grad);
  good.update(Parallel(1), scalars_of(1));
  const ParameterSegment& hit = start.segments[1];
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    grad[static_cast<std::size_t>(hit.begin + 10)] = bad;
    TensorChunk chunk = start;
    chunk.set_grad(grad);
    chunk.update(Parallel(2), scalars_of(1));
    EXPECT_TRUE(std::isnan(chunk.master_at(hit.begin + 10)));
    for (std::int64_t i = 0; i < chunk.elems; ++i) {
      if (i >= hit.begin && i < hit.end) continue;
      ASSERT_EQ(chunk.master_at(i), good.master_at(i));
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
