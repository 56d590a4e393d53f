#include "kernels/host/rows.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {
namespace {

const std::int64_t kCounts[] = {1, 3, 8, 15, 16, 17, 33, 100, 1000};

TEST(Rows, ExpIsWithinTwoUlpsAndSumsItsRow) {
  on_every_target([](const Parallel&, const std::string& name) {
    for (const std::int64_t count : kCounts) {
      const std::vector<float> scores = normal_floats(count, 1, 20.0f);
      std::vector<float> row = scores;
      const float shift = row_max(row.data(), count);
      EXPECT_EQ(shift, *std::max_element(scores.begin(), scores.end())) << name;
      const float scale = 0.75f;
      const float sum = exp_row(row.data(), count, scale, scale * shift);
      double want_sum = 0.0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        // The argument as fp32 has it; exp of it to 2 ulps.
        const double want = std::exp(static_cast<double>(scale * scores[i] - scale * shift));
        EXPECT_NEAR(row[i], want, 0x1p-22 * want + 1e-44) << name << " " << scores[i];
        want_sum += want;
      }
      EXPECT_NEAR(sum, want_sum, 1e-6 * want_sum) << name;
      EXPECT_EQ(sum_exp_row(scores.data(), count, scale, scale * shift), sum) << name;
    }
  });
}

TEST(Rows, NanAndInfinityDoNotVanish) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  on_every_target([&](const Parallel&, const std::string& name) {
    for (const std::int64_t count : kCounts) {
      for (const std::int64_t bad : {std::int64_t{0}, count / 2, count - 1}) {
        std::vector<float> row(static_cast<std::size_t>(count), 1.0f);
        row[static_cast<std::size_t>(bad)] = nan;
        EXPECT_TRUE(std::isnan(row_max(row.data(), count))) << name << count << " " << bad;
        EXPECT_TRUE(std::isnan(exp_row(row.data(), count, 1.0f, 1.0f))) << name;
        row.assign(row.size(), 1.0f);
        row[static_cast<std::size_t>(bad)] = infinity;
        EXPECT_EQ(row_max(row.data(), count), infinity) << name;
        row.assign(row.size(), 1.0f);
        row[static_cast<std::size_t>(bad)] = -infinity;
        exp_row(row.data(), count, 1.0f, 1.0f);
        EXPECT_EQ(row[static_cast<std::size_t>(bad)], 0.0f) << name;
      }
    }
  });
}

TEST(Rows, NarrowsInPlaceAndWidensBack) {
  on_every_target([](const Parallel&, const std::string& name) {
    for (const std::int64_t count : kCounts) {
      const std::vector<float> values = normal_floats(count, 2);
      std::vector<float> row = values, wide(values.size());
      narrow_row_in_place(row.data(), count);
      widen_block(row.data(), DType::kBF16, count, 1, count, wide.data(), count);
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(wide[i], to_float(bf16_from_float(values[i]))) << name;
      }
    }
  });
}

TEST(Rows, StoreScalesAddsTheBiasAndRoundsOnce) {
  const std::int64_t rows = 3, cols = 21, stride = 30;
  const std::vector<float> from = normal_floats(rows * cols, 3), factor = {0.5f, 2.0f, -3.0f};
  for (const DType bias_type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const DTypeArray bias(bias_type, normal_floats(cols, 4));
    for (const DType to_type : {DType::kF32, DType::kBF16, DType::kF16}) {
      DTypeArray want(to_type, rows * stride);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto value = from[static_cast<std::size_t>(r * cols + c)];
          want.set(static_cast<std::size_t>(r * stride + c),
                   value * factor[static_cast<std::size_t>(r)] + bias[static_cast<std::size_t>(c)]);
        }
      }
      on_every_target([&](const Parallel&, const std::string& name) {
        DTypeArray to(to_type, rows * stride);
        store_block({.rows = rows,
                     .cols = cols,
                     .from = from.data(),
                     .from_stride = cols,
                     .to = to.data(),
                     .to_dtype = to_type,
                     .to_stride = stride,
                     .factor = factor.data(),
                     .bias = bias.data(),
                     .bias_dtype = bias_type});
        EXPECT_TRUE(to == want) << name;
      });
    }
  }
}

TEST(Rows, SoftmaxGradientAndDotMatchFp64) {
  for (const std::int64_t count : kCounts) {
    const std::vector<float> p = normal_floats(count, 5), start = normal_floats(count, 6);
    std::vector<float> grad = start;
    double dot = 0.0, magnitude = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double product = static_cast<double>(p[i]) * start[i];
      dot += product;
      magnitude += std::abs(product);
    }
    EXPECT_NEAR(dot_row(p.data(), start.data(), count), dot, 1e-6 * magnitude);
    softmax_grad_row(p.data(), grad.data(), count, 0.25f, 0.125f);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double want = static_cast<double>(p[i]) * (start[i] - 0.25) * 0.125;
      EXPECT_NEAR(grad[i], want, 1e-6 * (0.1 + std::abs(want)));
    }
    scale_row(grad.data(), count, 8.0f);
    EXPECT_NEAR(grad[0], p[0] * (start[0] - 0.25f), 1e-5);
  }
}

}  // namespace
}  // namespace sluice::kernels::host
