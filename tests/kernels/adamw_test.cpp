#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "tests/kernels/dtype_array.hpp"

namespace sluice::host {
namespace {

struct State {
  DTypeArray master, moment1, moment2, weight;

  State(std::int64_t elems, DType weight_dtype, unsigned seed)
      : master(DType::kF32, normal_floats(elems, seed)),
        moment1(DType::kF32, normal_floats(elems, seed + 1, 1e-3f)),
        moment2(DType::kF32, normal_floats(elems, seed + 2, 1e-6f)),
        weight(weight_dtype, elems) {
    for (std::size_t i = 0; i < moment2.size(); ++i) moment2.set(i, std::abs(moment2[i]));
  }
  bool operator==(const State& other) const {
    return master == other.master && moment1 == other.moment1 && moment2 == other.moment2 &&
           weight == other.weight;
  }
};

AdamWBuffers buffers_of(State& state, const DTypeArray& grad, bool round) {
  AdamWBuffers buffers;
  buffers.grad = grad.data();
  buffers.grad_dtype = grad.type();
  buffers.round_grad_to_bf16 = round;
  buffers.master = static_cast<float*>(state.master.data());
  buffers.moment1 = static_cast<float*>(state.moment1.data());
  buffers.moment2 = static_cast<float*>(state.moment2.data());
  buffers.weight = state.weight.data();
  buffers.weight_dtype = state.weight.type();
  buffers.elems = static_cast<std::int64_t>(grad.size());
  return buffers;
}

AdamWScalars scalars_of_step(int step) {
  AdamWScalars scalars;
  scalars.lr = 3e-4f;
  scalars.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step));
  scalars.bias_correction2 = static_cast<float>(1.0 - std::pow(0.95, step));
  scalars.grad_scale = 0.731f;
  return scalars;
}

void set_weight(DTypeArray& weight, std::size_t i, float master) {
  const float rounded =
      weight.type() == DType::kBF16 ? to_float(bf16_weight_from_float(master)) : master;
  weight.set(i, rounded);
}

// The update as kernels.hpp words it, one fp32 operation at a time.
void update_one(State& state, const DTypeArray& grad, bool round, float weight_decay,
                const AdamWScalars& at, std::size_t i) {
  float g = grad[i];
  if (round && grad.type() == DType::kF32) g = to_float(bf16_from_float(g));
  g = g * at.grad_scale;
  const float m = at.beta1 * state.moment1[i] + (1.0f - at.beta1) * g;
  const float v = at.beta2 * state.moment2[i] + (1.0f - at.beta2) * (g * g);
  float w = state.master[i];
  w = w - at.lr * weight_decay * w;
  w = w - at.lr * (m / at.bias_correction1) / (std::sqrt(v / at.bias_correction2) + at.epsilon);
  state.moment1.set(i, m);
  state.moment2.set(i, v);
  state.master.set(i, w);
  set_weight(state.weight, i, w);
}

struct Variant {
  DType grad;
  bool round;
  DType weight;
};

class AdamWOf : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(Variants, AdamWOf,
                         testing::Values(Variant{DType::kBF16, false, DType::kBF16},
                                         Variant{DType::kF32, true, DType::kBF16},
                                         Variant{DType::kF32, false, DType::kBF16},
                                         Variant{DType::kF32, false, DType::kF32},
                                         Variant{DType::kBF16, false, DType::kF32}),
                         [](const auto& variant) {
                           return std::string(dtype_name(variant.param.grad)) +
                                  (variant.param.round ? "Rounded" : "") + "To" +
                                  std::string(dtype_name(variant.param.weight));
                         });

TEST_P(AdamWOf, IsTheDocumentedArithmeticToTheBit) {
  const std::int64_t elems = 40000;
  // Gaps (alignment padding), odd bounds, an empty segment, one that spans pieces of 16,384.
  const ParameterSegment segments[] = {
      {0, 1001, 0.1f}, {1024, 1024, 0.5f}, {1152, 36001, 0.01f}, {36001, 39999, 0.0f}};
  const DTypeArray grad(GetParam().grad, normal_floats(elems, 11, 1e-2f));
  State want(elems, GetParam().weight, 12);
  for (const ParameterSegment& segment : segments) {
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      update_one(want, grad, GetParam().round, segment.weight_decay, scalars_of_step(3),
                 static_cast<std::size_t>(i));
    }
  }
  on_every_target([&](const Parallel& parallel, const std::string& name) {
    State state(elems, GetParam().weight, 12);
    adamw(parallel, buffers_of(state, grad, GetParam().round), segments, scalars_of_step(3));
    EXPECT_TRUE(state == want) << name;
  });
}

TEST_P(AdamWOf, StaysNearFp64OverManySteps) {
  const std::int64_t elems = 333;
  const float decay = 0.1f;
  const ParameterSegment whole[] = {{0, elems, decay}};
  State state(elems, GetParam().weight, 21);
  std::vector<double> w(static_cast<std::size_t>(elems)), m = w, v = w;
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = state.master[i];
    m[i] = state.moment1[i];
    v[i] = state.moment2[i];
  }
  const Parallel parallel(2);
  constexpr int kSteps = 300;
  for (int step = 1; step <= kSteps; ++step) {
    const auto seed = static_cast<unsigned>(1000 + step);
    const DTypeArray grad(GetParam().grad, normal_floats(elems, seed, 1e-2f));
    const AdamWScalars at = scalars_of_step(step);
    adamw(parallel, buffers_of(state, grad, GetParam().round), whole, at);
    for (std::size_t i = 0; i < w.size(); ++i) {
      double g = grad[i];
      if (GetParam().round) g = to_float(bf16_from_float(grad[i]));
      g *= static_cast<double>(at.grad_scale);
      m[i] = static_cast<double>(at.beta1) * m[i] + (1.0 - static_cast<double>(at.beta1)) * g;
      v[i] = static_cast<double>(at.beta2) * v[i] + (1.0 - static_cast<double>(at.beta2)) * g * g;
      w[i] -= static_cast<double>(at.lr) * static_cast<double>(decay) * w[i];
      w[i] -= static_cast<double>(at.lr) * (m[i] / static_cast<double>(at.bias_correction1)) /
              (std::sqrt(v[i] / static_cast<double>(at.bias_correction2)) +
               static_cast<double>(at.epsilon));
    }
  }
  // Each step rounds w three times (half an ulp of at most 4 each) and takes a step of about lr
  // that is right to a few 2^-24; the moments forget, so their error does not grow.
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(state.master[i], w[i], kSteps * 1.5 * 0x1p-24 * std::max(1.0, std::abs(w[i])));
    EXPECT_NEAR(state.moment1[i], m[i], 1e-8);
    EXPECT_NEAR(state.moment2[i], v[i], 1e-5 * v[i]);
    EXPECT_NEAR(state.weight[i], w[i],
                rounding_of(GetParam().weight) * std::abs(w[i]) + kSteps * 2.0 * 0x1p-24);
  }
}

TEST(AdamW, DoesNotSeeWhereAChunkIsCut) {
  const std::int64_t elems = 5 * 4096;
  const DTypeArray grad(DType::kBF16, normal_floats(elems, 31, 1e-2f));
  State whole(elems, DType::kBF16, 32);
  const ParameterSegment all[] = {{0, elems, 0.1f}};
  adamw(Parallel(2), buffers_of(whole, grad, false), all, scalars_of_step(7));
  for (const std::int64_t chunk : {std::int64_t{4096}, std::int64_t{8192}, std::int64_t{12288}}) {
    State cut(elems, DType::kBF16, 32);
    for (std::int64_t begin = 0; begin < elems; begin += chunk) {
      AdamWBuffers part = buffers_of(cut, grad, false);
      part.elems = std::min(chunk, elems - begin);
      part.grad = static_cast<const bf16*>(part.grad) + begin;
      part.master += begin;
      part.moment1 += begin;
      part.moment2 += begin;
      part.weight = static_cast<bf16*>(part.weight) + begin;
      const ParameterSegment here[] = {{0, part.elems, 0.1f}};
      adamw(Parallel(2), part, here, scalars_of_step(7));
    }
    EXPECT_TRUE(cut == whole) << chunk;
  }
}

TEST(AdamW, WritesNoWeightWhereTheMasterIsTheWeight) {
  const std::int64_t elems = 1000;
  const DTypeArray grad(DType::kF32, normal_floats(elems, 41, 1e-2f));
  const ParameterSegment all[] = {{0, elems, 0.1f}};
  State with(elems, DType::kF32, 42), without(elems, DType::kF32, 42);
  adamw(Parallel(1), buffers_of(with, grad, false), all, scalars_of_step(1));
  AdamWBuffers buffers = buffers_of(without, grad, false);
  buffers.weight = nullptr;
  adamw(Parallel(1), buffers, all, scalars_of_step(1));
  EXPECT_TRUE(with.master == without.master);
  EXPECT_TRUE(without.weight == DTypeArray(DType::kF32, elems));
}

// Zero, denormal, huge, infinite and NaN gradients on every kind of state, to the bit except that
// one NaN is as good as another.
TEST(AdamW, TreatsSpecialNumbersAsScalarCodeDoes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> special = {0.0f,   -0.0f, 1e-45f,   -1e-40f,   1e-30f, 1e20f,
                                      -3e38f, 1.0f,  infinity, -infinity, nan};
  const std::size_t kinds = special.size();
  const auto elems = static_cast<std::int64_t>(kinds * kinds);
  std::vector<float> grads, masters, moments;
  for (std::size_t i = 0; i < kinds * kinds; ++i) {
    grads.push_back(special[i % kinds]);
    masters.push_back(special[i / kinds]);
    moments.push_back(special[(i + i / kinds) % kinds]);
  }
  const DTypeArray grad(DType::kF32, grads);
  const auto start = [&] {
    State state(elems, DType::kBF16, 51);
    state.master = DTypeArray(DType::kF32, masters);
    state.moment1 = DTypeArray(DType::kF32, moments);
    state.moment2 = DTypeArray(DType::kF32, moments);
    return state;
  };
  State want = start();
  for (std::size_t i = 0; i < grads.size(); ++i) {
    update_one(want, grad, false, 0.1f, scalars_of_step(1), i);
  }
  const ParameterSegment all[] = {{0, elems, 0.1f}};
  const auto same = [](float a, float b) {
    return (std::isnan(a) && std::isnan(b)) ||
           std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  on_every_target([&](const Parallel& parallel, const std::string& name) {
    State state = start();
    adamw(parallel, buffers_of(state, grad, false), all, scalars_of_step(1));
    for (std::size_t i = 0; i < grads.size(); ++i) {
      EXPECT_TRUE(same(state.master[i], want.master[i])) << name << " " << i;
      EXPECT_TRUE(same(state.moment1[i], want.moment1[i])) << name << " " << i;
      EXPECT_TRUE(same(state.moment2[i], want.moment2[i])) << name << " " << i;
      EXPECT_TRUE(same(state.weight[i], want.weight[i])) << name << " " << i;
    }
  });
}

TEST(AdamW, DoesNothingToNothing) {
  AdamWBuffers none;
  adamw(Parallel(2), none, {}, scalars_of_step(1));
  const DTypeArray grad(DType::kBF16, normal_floats(100, 61));
  State state(100, DType::kBF16, 62), before(100, DType::kBF16, 62);
  adamw(Parallel(2), buffers_of(state, grad, false), {}, scalars_of_step(1));
  EXPECT_TRUE(state == before);
}

TEST(AdamW, RefusesSegmentsOutOfOrderOrBounds) {
  const DTypeArray grad(DType::kBF16, normal_floats(100, 71));
  State state(100, DType::kBF16, 72), before(100, DType::kBF16, 72);
  const AdamWBuffers buffers = buffers_of(state, grad, false);
  const std::vector<ParameterSegment> wrong[] = {{{0, 101, 0}},
                                                 {{-1, 5, 0}},
                                                 {{5, 4, 0}},
                                                 {{0, 50, 0}, {49, 60, 0}},
                                                 {{50, 60, 0}, {0, 5, 0}}};
  for (const auto& segments : wrong) {
    EXPECT_THROW(adamw(Parallel(1), buffers, segments, scalars_of_step(1)), InternalError);
  }
  EXPECT_TRUE(state == before);
}

}  // namespace
}  // namespace sluice::host
