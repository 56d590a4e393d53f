// The values that PyTorch's own optimizers gave over 1,000 steps. The header of
// data/torch_optimizers.txt says how weights and gradients are made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/kernels/optimizer/golden_inputs.hpp"
#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

float scaled(std::int32_t number, std::uint32_t w) {
  return std::ldexp(static_cast<float>(number), -21 - static_cast<int>(w & 7));
}

float weight_of(std::uint32_t tensor, std::uint32_t i) {
  const std::uint32_t w = word(tensor, 0, i);
  return scaled(centred(w), w);
}

float gradient_of(std::uint32_t tensor, std::uint32_t step, std::uint32_t i) {
  if (i % 29 == 28) return 0;
  const std::uint32_t w = word(tensor, step, i);
  return scaled(centred(w) + (centred(word(tensor, 0x80000000u, i)) >> 2), w);
}

struct Golden {
  double f32 = 0, f64 = 0;
};
struct GoldenState {
  std::map<std::size_t, Golden> elements;
  Golden sum, squares;
};
// [step][tensor]
using GoldenRun = std::map<int, std::map<std::uint32_t, GoldenState>>;

Golden golden_of(std::istringstream& line) {
  std::string f32, f64;
  line >> f32 >> f64;
  return {std::strtod(f32.c_str(), nullptr), std::strtod(f64.c_str(), nullptr)};
}

GoldenRun read_golden(const std::string& optimizer) {
  std::ifstream file(SLUICE_TEST_DATA "/torch_optimizers.txt");
  GoldenRun run;
  GoldenState* state = nullptr;
  bool wanted = false;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream line(text);
    std::string first, second;
    line >> first;
    if (first == "optimizer") {
      line >> second;
      wanted = second == optimizer;
    } else if (!wanted || first == "#" || first == "tensor") {
      continue;
    } else if (first == "after") {
      int step = 0;
      std::uint32_t tensor = 0;
      line >> step >> second >> tensor;
      state = &run[step][tensor];
    } else if (first == "sum") {
      state->sum = golden_of(line);
    } else if (first == "squares") {
      state->squares = golden_of(line);
    } else {
      state->elements[std::stoul(first)] = golden_of(line);
    }
  }
  return run;
}

// Our own 1,000 steps beside torch's. An element may be `slack` times as far from torch's fp64 as
// torch's fp32 is at the worst element of its tensor, and 1e-7 more.
void expect_torchs(const std::string& optimizer, TensorChunk chunk,
                   const std::vector<std::uint32_t>& numbers, float lr, double slack) {
  const GoldenRun run = read_golden(optimizer);
  ASSERT_EQ(run.size(), 4u) << "data/torch_optimizers.txt has no " << optimizer;
  std::vector<float> grad(static_cast<std::size_t>(chunk.elems));
  const auto for_elements = [&](const auto& body) {
    for (std::size_t t = 0; t < numbers.size(); ++t) {
      const ParameterSegment& segment = chunk.segments[t];
      for (std::int64_t i = segment.begin; i < segment.end; ++i) {
        body(numbers[t], static_cast<std::uint32_t>(i - segment.begin), i);
      }
    }
  };
  for_elements([&](std::uint32_t tensor, std::uint32_t i, std::int64_t at) {
    chunk.set_master(at, weight_of(tensor, i));
  });
  for (int step = 1; step <= 1000; ++step) {
    for_elements([&](std::uint32_t tensor, std::uint32_t i, std::int64_t at) {
      grad[static_cast<std::size_t>(at)] = gradient_of(tensor, static_cast<std::uint32_t>(step), i);
    });
    chunk.set_grad(grad);
    UpdateScalars scalars;
    scalars.lr = lr;
    scalars.step = step;
    chunk.update(Parallel(1), scalars);
    const auto at_step = run.find(step);
    if (at_step == run.end()) continue;
    for (std::size_t t = 0; t < numbers.size(); ++t) {
      const GoldenState& golden = at_step->second.at(numbers[t]);
      ASSERT_GE(golden.elements.size(), 20u);
      double torchs = 0, ours = 0;
      for (const auto& [i, value] : golden.elements) {
        const auto at = chunk.segments[t].begin + static_cast<std::int64_t>(i);
        torchs = std::max(torchs, std::abs(value.f32 - value.f64));
        const double apart = std::abs(static_cast<double>(chunk.master_at(at)) - value.f64);
        ours = apart <= ours ? ours : apart;
      }
      EXPECT_LE(ours, slack * torchs + 1e-7)
          << optimizer << " step " << step << " tensor " << numbers[t] << ": torch's own fp32 is "
          << torchs << " from its fp64";
      double sum = 0;
      for (std::int64_t i = chunk.segments[t].begin; i < chunk.segments[t].end; ++i) {
        sum += static_cast<double>(chunk.master_at(i));
      }
      const auto count = static_cast<double>(chunk.segments[t].end - chunk.segments[t].begin);
      EXPECT_NEAR(sum / count, golden.sum.f64 / count, slack * torchs + 1e-7);
    }
  }
}

TEST(TorchGolden, Adafactor) {
  OptimizerOptions options;
  options.rule = OptimizerRule::kAdafactor;
  options.weight = DType::kF32;
  TensorChunk chunk(options, DType::kF32, DType::kF32, {{48, 96}, {1, 96}, {33, 7}}, 1);
  for (ParameterSegment& segment : chunk.segments) {
    segment.weight_decay = 0.01f;
    segment.lr_scale = 1;
  }
  expect_torchs("adafactor", chunk, {0, 1, 2}, 0.01f, 1.0);
}

// muon_exact iterates in the column's dtype, as we do; its steps are scaled by
// sqrt(max(1, rows / cols)), ours by 0.2 * sqrt(max(rows, cols)): the learning rate and the decay
// of each tensor make up for it.
TEST(TorchGolden, Muon) {
  OptimizerOptions options;
  options.rule = OptimizerRule::kMuon;
  options.weight = DType::kF32;
  options.momentum = 0.95;
  TensorChunk chunk(options, DType::kF32, DType::kF32, {{48, 96, true}, {33, 7, true}}, 1);
  for (ParameterSegment& segment : chunk.segments) {
    const auto rows = static_cast<double>(segment.tensor.rows);
    const auto cols = static_cast<double>(segment.tensor.cols);
    const double theirs = std::sqrt(std::max(1.0, rows / cols));
    const double own = 0.2 * std::sqrt(std::max(rows, cols));
    segment.lr_scale = static_cast<float>(theirs / own);
    segment.weight_decay = static_cast<float>(0.1 * own / theirs);
  }
  expect_torchs("muon_exact", chunk, {0, 2}, 0.001f, 1.0);
}

}  // namespace
}  // namespace sluice::kernels::host
