// Products, attention and the language-model head in fp64, as plainly as they can be written. The
// kernels of every device are held to these. Shapes and layouts as in kernels/kernels.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace sluice::reference {

using Doubles = std::vector<double>;

inline std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

struct GemmResult {
  Doubles c;
  Doubles magnitude;  // sum of |a b| (+ |bias|): rounding errors are relative to it
};

inline GemmResult gemm(const kernels::GemmShape& shape, const Doubles& a, const Doubles& b,
                       const Doubles& bias) {
  GemmResult result{Doubles(at(shape.m * shape.n)), Doubles(at(shape.m * shape.n))};
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t j = 0; j < shape.n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[at(j)];
      double magnitude = std::abs(sum);
      for (std::int64_t p = 0; p < shape.k; ++p) {
        const double term = a[at(shape.transpose_a ? p * shape.m + i : i * shape.k + p)] *
                            b[at(shape.transpose_b ? j * shape.k + p : p * shape.n + j)];
        sum += term;
        magnitude += std::abs(term);
      }
      result.c[at(i * shape.n + j)] = sum;
      result.magnitude[at(i * shape.n + j)] = magnitude;
    }
  }
  return result;
}

struct AttentionResult {
  Doubles out, lse;
};

inline AttentionResult attention(const kernels::AttentionShape& s, const Doubles& qkv) {
  const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  AttentionResult result{Doubles(at(s.batch * s.time * s.heads * s.head_dim)),
                         Doubles(at(s.batch * s.heads * s.time))};
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv = h / (s.heads / s.kv_heads);
      const auto value = [&](std::int64_t t, std::int64_t slot, std::int64_t d) {
        return qkv[at((b * s.time + t) * width + slot * s.head_dim + d)];
      };
      for (std::int64_t t = 0; t < s.time; ++t) {
        Doubles p(at(t + 1));
        double largest = -HUGE_VAL, sum = 0.0;
        for (std::int64_t u = 0; u <= t; ++u) {
          double dot = 0.0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            dot += value(t, h, d) * value(u, s.heads + kv, d);
          }
          p[at(u)] = dot * scale;
          largest = std::max(largest, p[at(u)]);
        }
        for (double& score : p) sum += score = std::exp(score - largest);
        result.lse[at((b * s.heads + h) * s.time + t)] = largest + std::log(sum);
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          double out = 0.0;
          for (std::int64_t u = 0; u <= t; ++u) {
            out += p[at(u)] / sum * value(u, s.heads + s.kv_heads + kv, d);
          }
          result.out[at(((b * s.time + t) * s.heads + h) * s.head_dim + d)] = out;
        }
      }
    }
  }
  return result;
}

struct HeadResult {
  double loss_sum = 0.0;
  Doubles lse;
};

inline HeadResult head(const kernels::HeadShape& s, const Doubles& x, const Doubles& w,
                       const std::vector<std::int32_t>& targets) {
  HeadResult result;
  Doubles logits(at(s.vocab));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    double largest = -HUGE_VAL, sum = 0.0;
    for (std::int64_t v = 0; v < s.vocab; ++v) {
      double logit = 0.0;
      for (std::int64_t h = 0; h < s.hidden; ++h) {
        logit += x[at(r * s.hidden + h)] * w[at(v * s.hidden + h)];
      }
      logits[at(v)] = logit;
      largest = std::max(largest, logit);
    }
    for (const double logit : logits) sum += std::exp(logit - largest);
    result.lse.push_back(largest + std::log(sum));
    result.loss_sum += result.lse.back() - logits[at(targets[at(r)])];
  }
  return result;
}

// Central difference of a function of `values` in element i.
template <class Function>
double derivative(const Function& function, Doubles values, std::size_t i, double step = 1e-5) {
  const double here = values[i];
  values[i] = here + step;
  const double above = function(values);
  values[i] = here - step;
  return (above - function(values)) / (2.0 * step);
}

}  // namespace sluice::reference
