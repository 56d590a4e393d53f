// The elementwise rules over 1,000 steps: beside their fp64 oracle, and beside torch.optim.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "tests/kernels/optimizer/golden_inputs.hpp"
#include "tests/kernels/optimizer/rule_reference.hpp"
#include "tests/kernels/optimizer/update_state.hpp"

namespace sluice::kernels::host {
namespace {

constexpr int kSteps = 1000;

OptimizerOptions rule_of(OptimizerRule rule, DType moments = DType::kF32) {
  OptimizerOptions options;
  options.rule = rule;
  options.weight = DType::kF32;
  options.moments = moments;
  options.beta2 = rule == OptimizerRule::kLion ? 0.99 : 0.95;
  options.seed = 3;
  return options;
}

struct TrainedWeights {
  std::vector<float> start, ours;
  std::vector<double> oracle;
  std::vector<double> path;  // sum of the steps' lengths
};

// kSteps steps of 4,096 elements. Their gradients are noise about means of their own, of scales
// that differ a hundredfold.
TrainedWeights run_beside_oracle(const OptimizerOptions& options) {
  constexpr std::int64_t kElems = 4096;
  const UpdateFormats formats{options, DType::kF32, DType::kF32};
  UpdateState state(formats, kElems);
  const std::vector<float> mean = normal_floats(kElems, 2, 0.5f);
  const float decay = 0.1f;
  const ParameterSegment whole[] = {{0, kElems, decay}};
  TrainedWeights run{normal_floats(kElems, 1), {}, {}, std::vector<double>(kElems)};
  std::vector<RuleOracle> oracle(kElems);
  for (std::int64_t i = 0; i < kElems; ++i) {
    const auto at = static_cast<std::size_t>(i);
    state.set_number(i, run.start[at]);
    oracle[at].w = static_cast<double>(run.start[at]);
  }
  const Parallel parallel(2);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<float> values = normal_floats(kElems, static_cast<unsigned>(1000 + step));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = (values[i] + mean[i]) * (i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.1f : 0.01f);
    }
    UpdateScalars at;
    at.lr = 1e-3f;
    at.grad_scale = 0.731f;
    at.step = step;
    const DTypeArray grad(DType::kF32, values);
    run_update(parallel, formats, state.buffers(grad), whole, at);
    for (std::size_t i = 0; i < oracle.size(); ++i) {
      const double before = oracle[i].w;
      oracle[i].step(options, at, static_cast<double>(decay), static_cast<double>(values[i]));
      run.path[i] += std::abs(oracle[i].w - before);
    }
  }
  for (std::int64_t i = 0; i < kElems; ++i) {
    run.ours.push_back(state.number(i));
    run.oracle.push_back(oracle[static_cast<std::size_t>(i)].w);
  }
  return run;
}

class Oracle : public ::testing::TestWithParam<OptimizerRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, Oracle,
                         ::testing::Values(OptimizerRule::kAdamW, OptimizerRule::kAdam,
                                           OptimizerRule::kSgd),
                         [](const auto& test) {
                           return std::string(optimizer_rule_name(test.param));
                         });

TEST_P(Oracle, IsNearFp64After1000Steps) {
  const TrainedWeights run = run_beside_oracle(rule_of(GetParam()));
  for (std::size_t i = 0; i < run.ours.size(); ++i) {
    // Each step rounds w (at most 4 in magnitude, in practice) once or twice to half an ulp, 2^-24
    // relative, and the step itself is right to some 2^-22 of its length.
    const double largest = std::abs(static_cast<double>(run.start[i])) + run.path[i];
    const double bound = 0x1p-24 * kSteps * std::min(largest, 4.0) + 0x1p-21 * run.path[i];
    ASSERT_NEAR(static_cast<double>(run.ours[i]), run.oracle[i], bound) << i;
  }
}

// A step of lion is lr in either direction: if rounding decides the sign, fp32 and fp64 part by two
// steps. Such cases must be rare; elsewhere they agree as above.
TEST(OracleLion, IsNearFp64After1000Steps) {
  const TrainedWeights run = run_beside_oracle(rule_of(OptimizerRule::kLion));
  int parted = 0;
  for (std::size_t i = 0; i < run.ours.size(); ++i) {
    const double off = std::abs(static_cast<double>(run.ours[i]) - run.oracle[i]);
    if (off > 1e-3) {
      ++parted;
    } else {
      ASSERT_LE(off, 0x1p-24 * kSteps * 4 + 1e-3 * 0x1p-14 * kSteps) << i;
    }
  }
  EXPECT_LE(parted, 40);  // of 4,096
}

// The cost of narrower moments: the RMS distance from the oracle, relative to the RMS of the way
// that the oracle's weights went.
double relative_distance(const TrainedWeights& run) {
  double distance = 0, way = 0;
  for (std::size_t i = 0; i < run.ours.size(); ++i) {
    const double off = static_cast<double>(run.ours[i]) - run.oracle[i];
    const double moved = run.oracle[i] - static_cast<double>(run.start[i]);
    distance += off * off;
    way += moved * moved;
  }
  return std::sqrt(distance / way);
}

TEST(NarrowMoments, StayNearTheOracle) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd}) {
    const double of_bf16 = relative_distance(run_beside_oracle(rule_of(rule, DType::kBF16)));
    const double of_8bit = relative_distance(run_beside_oracle(rule_of(rule, DType::kBlock8)));
    RecordProperty(std::string(optimizer_rule_name(rule)) + "_bf16", std::to_string(of_bf16));
    RecordProperty(std::string(optimizer_rule_name(rule)) + "_block8", std::to_string(of_8bit));
    EXPECT_LT(of_bf16, 0.003) << optimizer_rule_name(rule);
    EXPECT_LT(of_8bit, 0.08) << optimizer_rule_name(rule);
  }
}

// --- torch's own results (tests/kernels/data/torch_optimizers.txt says how they came about)
// ---------------------------------------------------------------------------------------

float golden_weight(std::uint32_t t, std::uint32_t i) {
  const std::uint32_t w = word(t, 0, i);
  return std::ldexp(static_cast<float>(centred(w)), -21 - static_cast<int>(w & 7));
}
float golden_grad(std::uint32_t t, std::uint32_t step, std::uint32_t i) {
  if (i % 29 == 28) return 0;
  const std::uint32_t w = word(t, step, i);
  const std::int32_t sum = centred(w) + (centred(word(t, 0x80000000u, i)) >> 2);
  return std::ldexp(static_cast<float>(sum), -21 - static_cast<int>(w & 7));
}

struct GoldenElement {
  std::uint32_t step = 0, index = 0;
  double f32 = 0, f64 = 0;
};

// [optimizer][tensor]: the elements after some steps. sizes: of the tensors.
struct OracleGolden {
  std::vector<std::int64_t> sizes;
  std::map<std::string, std::map<int, std::vector<GoldenElement>>> of;
};

OracleGolden read_oracle_golden() {
  OracleGolden golden;
  std::ifstream file(SLUICE_TEST_DATA "/torch_optimizers.txt");
  std::string line, optimizer;
  std::uint32_t step = 0;
  int tensor = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string first, second, third;
    fields >> first >> second >> third;
    if (first == "tensor") {
      std::int64_t cols = 0;
      fields >> cols;
      golden.sizes.push_back(std::stoll(third) * std::max<std::int64_t>(cols, 1));
    } else if (first == "optimizer") {
      optimizer = second;
    } else if (first == "after") {
      step = static_cast<std::uint32_t>(std::stoul(second));
      fields >> tensor;
    } else if (!first.empty() && first.find_first_not_of("0123456789") == std::string::npos) {
      golden.of[optimizer][tensor].push_back({step, static_cast<std::uint32_t>(std::stoul(first)),
                                              std::strtod(second.c_str(), nullptr),
                                              std::strtod(third.c_str(), nullptr)});
    }
  }
  return golden;
}

struct TorchRule {
  std::string name;
  OptimizerOptions options;
};

std::vector<TorchRule> torch_rules() {
  OptimizerOptions adam = rule_of(OptimizerRule::kAdamW);
  adam.beta2 = 0.999;
  OptimizerOptions l2 = adam;
  l2.rule = OptimizerRule::kAdam;
  const OptimizerOptions sgd = rule_of(OptimizerRule::kSgd);
  OptimizerOptions nesterov = sgd;
  nesterov.nesterov = true;
  return {{"adamw", adam}, {"adam", l2}, {"sgd_momentum", sgd}, {"sgd_nesterov", nesterov}};
}

TEST(TorchOptimizers, GiveTheSameWeightsAsOursOver1000Steps) {
  const OracleGolden golden = read_oracle_golden();
  ASSERT_EQ(golden.sizes.size(), 3u);
  for (const TorchRule& rule : torch_rules()) {
    ASSERT_EQ(golden.of.at(rule.name).size(), 3u);
    for (const auto& [tensor, elements] : golden.of.at(rule.name)) {
      const std::int64_t elems = golden.sizes[static_cast<std::size_t>(tensor)];
      const UpdateFormats formats{rule.options, DType::kF32, DType::kF32};
      UpdateState state(formats, elems);
      const auto t = static_cast<std::uint32_t>(tensor);
      for (std::int64_t i = 0; i < elems; ++i) {
        state.set_number(i, golden_weight(t, static_cast<std::uint32_t>(i)));
      }
      const ParameterSegment whole[] = {{0, elems, 0.01f}};
      ASSERT_GE(elements.size(), 4 * 24u);
      for (std::uint32_t step = 1; step <= kSteps; ++step) {
        std::vector<float> values(static_cast<std::size_t>(elems));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = golden_grad(t, step, static_cast<std::uint32_t>(i));
        }
        UpdateScalars at;
        at.lr = 1e-3f;
        at.step = step;
        run_update(Parallel(1), formats, state.buffers(DTypeArray(DType::kF32, values)), whole, at);
        for (const GoldenElement& element : elements) {
          if (element.step != step) continue;
          // lr is rounded to fp32 (2^-25 of the way), each step rounds w to half an ulp; SGD's
          // steps are as long as the gradients'. Torch's own fp32 column is as far off.
          const double w = std::abs(element.f64) + 0.25;
          EXPECT_NEAR(static_cast<double>(state.number(element.index)), element.f64,
                      0x1p-24 * w * (2 + step))
              << rule.name << " tensor " << tensor << " element " << element.index << " step "
              << step << ", torch in fp32: " << element.f32;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
