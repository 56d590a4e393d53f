// The optimizers' rules on one tensor, twice: as kernels/optimizer.hpp words them, one fp32
// operation at a time, and in fp64 as their papers and torch.optim write them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer.hpp"

namespace sluice::testing {

using kernels::OptimizerOptions;
using kernels::OptimizerRule;
using kernels::ParameterSegment;
using kernels::UpdateScalars;

// A tensor, or a segment of an elementwise rule. g: rounded and scaled; v: second moments or a
// tensor's statistics.
template <class Number>
struct TensorNumbers {
  ParameterSegment segment;
  std::vector<Number> w, g, m, v;

  std::size_t rows() const { return static_cast<std::size_t>(segment.tensor.rows); }
  std::size_t cols() const { return static_cast<std::size_t>(segment.tensor.cols); }
};
using Floats = TensorNumbers<float>;
using DoublePrecision = TensorNumbers<double>;

// --- fp32, operation by operation

// w - (lr decay) w where the decay is decoupled; g + decay w where it is L2.
inline void elementwise_documented(const OptimizerOptions& options, const UpdateScalars& at,
                                   Floats& t) {
  const kernels::AdamConstants c = adam_constants(options, at.step);
  const float lr = at.lr * t.segment.lr_scale, decay = t.segment.weight_decay;
  const auto momentum = static_cast<float>(options.momentum);
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    float &w = t.w[i], &m = t.m[i], &v = t.v[i], g = t.g[i];
    switch (options.rule) {
      case OptimizerRule::kSgd: {
        g = g + decay * w;
        float u = g;
        if (options.momentum != 0) {
          m = momentum * m + g;
          u = options.nesterov ? g + momentum * m : m;
        }
        w = w - lr * u;
        break;
      }
      case OptimizerRule::kLion: {
        const float a = c.beta1 * m + c.one_minus_beta1 * g;
        const float u = a > 0 ? 1.0f : a < 0 ? -1.0f : a;
        w = w - (lr * decay) * w;
        w = w - lr * u;
        m = c.beta2 * m + c.one_minus_beta2 * g;
        break;
      }
      default:  // adam; adamw, and muon of tensors that are no hidden matrices
        const bool decoupled = options.rule != OptimizerRule::kAdam;
        if (!decoupled) g = g + decay * w;
        m = c.beta1 * m + c.one_minus_beta1 * g;
        v = c.beta2 * v + c.one_minus_beta2 * (g * g);
        if (decoupled) w = w - (lr * decay) * w;
        w = w - (lr / c.bias_correction1) * (m / (std::sqrt(v) * c.root_scale + c.epsilon));
    }
  }
}

// Numbers [begin, end) in 16 lanes.
inline float squares_in_lanes(const std::vector<float>& numbers, std::size_t begin,
                              std::size_t end) {
  float lanes[16] = {};
  for (std::size_t i = begin; i < end; ++i) lanes[(i - begin) % 16] += numbers[i] * numbers[i];
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// The sums of adafactor: by tiles of 64 rows and 1,024 columns. A tile's row, and a column of its
// rows, are summed in fp32, all else in fp64.
struct TileSums {
  std::size_t rows, cols;

  double row(const std::vector<float>& numbers, std::size_t r) const {
    double sum = 0;
    for (std::size_t left = 0; left < cols; left += 1024) sum += part(numbers, r, left);
    return sum;
  }
  double col(const std::vector<float>& numbers, std::size_t c) const {
    double sum = 0;
    for (std::size_t top = 0; top < rows; top += 64) {
      float part = 0;
      for (std::size_t r = top; r < std::min(rows, top + 64); ++r) {
        part += numbers[r * cols + c] * numbers[r * cols + c];
      }
      sum += static_cast<double>(part);
    }
    return sum;
  }
  double rms(const std::vector<float>& numbers) const {
    double sum = 0;
    for (std::size_t top = 0; top < rows; top += 64) {
      for (std::size_t left = 0; left < cols; left += 1024) {
        double tile = 0;
        for (std::size_t r = top; r < std::min(rows, top + 64); ++r) tile += part(numbers, r, left);
        sum += tile;
      }
    }
    return std::sqrt(sum / static_cast<double>(rows * cols));
  }

 private:
  double part(const std::vector<float>& numbers, std::size_t r, std::size_t left) const {
    const std::size_t begin = r * cols;
    return static_cast<double>(
        squares_in_lanes(numbers, begin + left, begin + std::min(cols, left + 1024)));
  }
};

inline float lerp_documented(float from, float to, float rate) {
  if (rate < 0.5f) return from + rate * (to - from);
  return to - (to - from) * (1.0f - rate);
}

inline void adafactor_documented(const UpdateScalars& scalars, Floats& t) {
  const std::size_t rows = t.rows(), cols = t.cols();
  const TileSums sums{rows, cols};
  const auto step = static_cast<double>(scalars.step);
  const float rate = static_cast<float>(std::pow(step, -0.8));
  for (std::size_t line = 0; line < t.v.size(); ++line) {
    float now = 0;
    if (rows == 1) {
      now = t.g[line] * t.g[line];
    } else if (line < rows) {
      now = static_cast<float>(sums.row(t.g, line) / static_cast<double>(cols));
    } else {
      now = static_cast<float>(sums.col(t.g, line - rows) / static_cast<double>(rows));
    }
    t.v[line] = lerp_documented(t.v[line], now, rate);
  }
  double sum = 0;
  for (std::size_t r = 0; r < rows; ++r) sum += static_cast<double>(t.v[r]);
  const float mean = std::max(static_cast<float>(sum / static_cast<double>(rows)), 0x1p-23f);
  std::vector<float> update(t.g.size());
  for (std::size_t i = 0; i < t.g.size(); ++i) {
    float root = 1.0f / std::sqrt(t.v[rows > 1 ? rows + i % cols : i]);
    if (rows > 1) root = 1.0f / std::sqrt(t.v[i / cols] / mean) * root;
    update[i] = t.g[i] * std::min(root, 0x1p23f);
  }
  const float lr = scalars.lr * t.segment.lr_scale;
  // In this order std::max passes over a NaN.
  const double alpha =
      std::max(1e-3, sums.rms(t.w)) * std::min(static_cast<double>(lr), 1.0 / std::sqrt(step));
  const auto length = static_cast<float>(alpha / std::max(1.0, sums.rms(update)));
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    t.w[i] = t.w[i] - lr * t.segment.weight_decay * t.w[i];
    t.w[i] = t.w[i] - length * update[i];
  }
}

// SM3-II, in either precision: the new statistics are the largest accumulators of each line.
template <class Number>
void sm3(const UpdateScalars& scalars, TensorNumbers<Number>& t) {
  const auto lr = static_cast<Number>(scalars.lr * t.segment.lr_scale);
  const Number lr_decay = lr * static_cast<Number>(t.segment.weight_decay);
  const auto beta = static_cast<Number>(0.9), rest = static_cast<Number>(1.0 - 0.9);
  const bool matrix = t.rows() > 1;
  std::vector<Number> next = matrix ? std::vector<Number>(t.v.size()) : t.v;
  for (std::size_t i = 0; i < t.g.size(); ++i) {
    const std::size_t row = matrix ? i / t.cols() : i;
    const std::size_t col = matrix ? t.rows() + i % t.cols() : i;
    const Number accumulator = std::min(t.v[row], t.v[col]) + t.g[i] * t.g[i];
    const Number root = std::sqrt(accumulator + static_cast<Number>(1e-30f));
    t.m[i] = beta * t.m[i] + rest * (t.g[i] / root);
    t.w[i] = t.w[i] - lr_decay * t.w[i];
    t.w[i] = t.w[i] - lr * t.m[i];
    if (matrix) {
      next[row] = std::max(next[row], accumulator);
      next[col] = std::max(next[col], accumulator);
    } else {
      next[i] = accumulator;
    }
  }
  t.v = next;
}

// Not muon's hidden matrices: their products depend on the device.
inline void documented_step(const OptimizerOptions& options, const UpdateScalars& at, Floats& t) {
  if (options.rule == OptimizerRule::kAdafactor) return adafactor_documented(at, t);
  if (options.rule == OptimizerRule::kSm3) return sm3(at, t);
  elementwise_documented(options, at, t);
}

// --- fp64

inline void adam_in_fp64(const OptimizerOptions& options, const UpdateScalars& at,
                         DoublePrecision& t, double lr, double decay) {
  const bool decoupled = options.rule != OptimizerRule::kAdam;
  const auto steps = static_cast<double>(at.step);
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    const double g = decoupled ? t.g[i] : t.g[i] + decay * t.w[i];
    if (decoupled) t.w[i] *= 1 - lr * decay;
    t.m[i] += (1 - options.beta1) * (g - t.m[i]);
    t.v[i] += (1 - options.beta2) * (g * g - t.v[i]);
    const double mean = t.m[i] / (1 - std::pow(options.beta1, steps));
    const double variance = t.v[i] / (1 - std::pow(options.beta2, steps));
    t.w[i] -= lr * mean / (std::sqrt(variance) + options.epsilon);
  }
}

inline void sgd_in_fp64(const OptimizerOptions& options, DoublePrecision& t, double lr,
                        double decay) {
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    const double total = t.g[i] + decay * t.w[i];
    t.m[i] = options.momentum * t.m[i] + total;
    t.w[i] -= lr * (options.nesterov ? total + options.momentum * t.m[i] : t.m[i]);
  }
}

inline void lion_in_fp64(const OptimizerOptions& options, DoublePrecision& t, double lr,
                         double decay) {
  for (std::size_t i = 0; i < t.w.size(); ++i) {
    const double direction = options.beta1 * t.m[i] + (1 - options.beta1) * t.g[i];
    const double sign = direction > 0 ? 1.0 : direction < 0 ? -1.0 : 0.0;
    t.w[i] = t.w[i] * (1 - lr * decay) - lr * sign;
    t.m[i] = options.beta2 * t.m[i] + (1 - options.beta2) * t.g[i];
  }
}

inline double squares_of(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number * number;
  return sum;
}

// torch.optim.Adafactor's formulas.
inline void adafactor_in_fp64(const UpdateScalars& scalars, DoublePrecision& t, double lr,
                              double decay) {
  const double eps1 = 0x1p-23, eps2 = 1e-3, d = 1.0;
  const auto elems = static_cast<double>(t.w.size());
  const auto step = static_cast<double>(scalars.step);
  const double rate = std::pow(step, -0.8);
  const double alpha =
      std::max(eps2, std::sqrt(squares_of(t.w) / elems)) * std::min(lr, 1 / std::sqrt(step));
  for (double& w : t.w) w *= 1 - lr * decay;
  const std::size_t rows = t.rows(), cols = t.cols();
  std::vector<double> now(t.v.size());
  for (std::size_t i = 0; i < t.g.size(); ++i) {
    const double square = t.g[i] * t.g[i];
    now[rows > 1 ? i / cols : i] += rows > 1 ? square / static_cast<double>(cols) : square;
    if (rows > 1) now[rows + i % cols] += square / static_cast<double>(rows);
  }
  double mean = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    t.v[i] += rate * (now[i] - t.v[i]);
    if (i < rows) mean += t.v[i] / static_cast<double>(rows);
  }
  std::vector<double> update(t.w.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    const double variance =
        rows > 1 ? t.v[i / cols] * t.v[rows + i % cols] / std::max(mean, eps1) : t.v[i];
    update[i] = t.g[i] / std::sqrt(std::max(variance, eps1 * eps1));
  }
  const double denominator = std::max(1.0, std::sqrt(squares_of(update) / elems) / d);
  for (std::size_t i = 0; i < update.size(); ++i) t.w[i] -= alpha / denominator * update[i];
}

using Matrix = std::vector<double>;

// c[m, n] = a[m, k] b[k, n]
inline Matrix product(const Matrix& a, const Matrix& b, std::size_t m, std::size_t k,
                      std::size_t n) {
  Matrix c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t l = 0; l < k; ++l) {
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

inline Matrix transposed(const Matrix& a, std::size_t rows, std::size_t cols) {
  Matrix t(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) t[i % cols * rows + i / cols] = a[i];
  return t;
}

// torch's: transposed where rows > cols, X <- a X + (b A + c A A) X with A = X X^T.
inline Matrix orthogonalized(Matrix x, std::size_t rows, std::size_t cols) {
  const double norm = std::max(std::sqrt(squares_of(x)), 1e-7);
  for (double& number : x) number /= norm;
  if (rows > cols) {
    return transposed(orthogonalized(transposed(x, rows, cols), cols, rows), cols, rows);
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x, rows, cols), rows, cols, rows);
    Matrix sum = product(gram, gram, rows, rows, rows);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = -4.7750 * gram[i] + 2.0315 * sum[i];
    const Matrix next = product(sum, x, rows, rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + next[i];
  }
  return x;
}

inline void muon_in_fp64(const OptimizerOptions& options, DoublePrecision& t, double lr,
                         double decay) {
  const double mu = options.momentum;
  Matrix update(t.w.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    t.m[i] = mu * t.m[i] + (1 - mu) * t.g[i];
    update[i] = (1 - mu) * t.g[i] + mu * t.m[i];
  }
  update = orthogonalized(update, t.rows(), t.cols());
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(t.rows(), t.cols())));
  for (std::size_t i = 0; i < update.size(); ++i) {
    t.w[i] -= lr * decay * t.w[i];
    t.w[i] -= lr * scale * update[i];
  }
}

inline void step_in_fp64(const OptimizerOptions& options, const UpdateScalars& at,
                         DoublePrecision& t) {
  const auto lr = static_cast<double>(at.lr * t.segment.lr_scale);
  const auto decay = static_cast<double>(t.segment.weight_decay);
  switch (options.rule) {
    case OptimizerRule::kSgd:
      return sgd_in_fp64(options, t, lr, decay);
    case OptimizerRule::kLion:
      return lion_in_fp64(options, t, lr, decay);
    case OptimizerRule::kAdafactor:
      return adafactor_in_fp64(at, t, lr, decay);
    case OptimizerRule::kSm3:
      return sm3(at, t);
    default:
      if (t.segment.tensor.hidden_matrix) return muon_in_fp64(options, t, lr, decay);
      return adam_in_fp64(options, at, t, lr, decay);
  }
}

}  // namespace sluice::testing
