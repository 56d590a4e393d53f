// Every rule over many steps on the host: compared with its fp64 oracle, and compared with
// torch.optim. The contract has each step's bits, which are those of every device.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "tests/contract/update_chunk.hpp"
#include "tests/kernels/host_backend.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::kernels::host {
namespace {

using testing::DoublePrecision;
using testing::fp32_formats;
using testing::odd_shapes;
using testing::options_of;
using testing::rule_name;
using testing::scalars_of;
using testing::UpdateChunk;
using testing::UpdateFormats;

constexpr int kSteps = 1000;

struct TrainedWeights {
  std::vector<double> start, ours, oracle;
  std::vector<double> path;  // sum of the steps' lengths
  double worst = 0;          // of |ours - oracle| after any step
};

using Gradient = std::function<std::vector<float>(std::int64_t elems, int step)>;

TrainedWeights train_beside_fp64(UpdateChunk chunk, int steps, float lr, const Gradient& gradient) {
  const auto kernels = HostBackend::make();
  std::vector<DoublePrecision> tensors;
  TrainedWeights run;
  for (const ParameterSegment& segment : chunk.segments) {
    tensors.push_back(chunk.tensor<double>(segment, 1.0f, {}, {}));
    run.start.insert(run.start.end(), tensors.back().w.begin(), tensors.back().w.end());
  }
  run.path.resize(run.start.size());
  for (int step = 1; step <= steps; ++step) {
    chunk.set_grad(gradient(chunk.elems, step));
    const UpdateScalars scalars = scalars_of(step, lr);
    chunk.update<HostBackend>(*kernels, scalars);
    run.ours.clear();
    run.oracle.clear();
    for (DoublePrecision& tensor : tensors) {
      const DoublePrecision now = chunk.tensor<double>(tensor.segment, scalars.grad_scale, {}, {});
      const std::vector<double> before = tensor.w;
      tensor.g = now.g;
      step_in_fp64(chunk.formats.options, scalars, tensor);
      for (std::size_t i = 0; i < now.w.size(); ++i) {
        run.path[run.ours.size()] += std::abs(tensor.w[i] - before[i]);
        const double apart = std::abs(now.w[i] - tensor.w[i]);
        run.worst = apart <= run.worst ? run.worst : apart;  // NaN is the worst
        run.ours.push_back(now.w[i]);
        run.oracle.push_back(tensor.w[i]);
      }
    }
  }
  return run;
}

// 4,096 elements. Their gradients are noise about means of their own, of scales that differ a
// hundredfold.
TrainedWeights train_elements(OptimizerRule rule, DType moments = DType::kF32) {
  UpdateFormats formats = fp32_formats(options_of(rule));
  formats.options.moments = moments;
  if (rule == OptimizerRule::kLion) formats.options.beta2 = 0.99;
  UpdateChunk chunk(formats, 4096, {{0, 4096, 0.1f}});
  const std::vector<float> start = normal_floats(4096, 1), mean = normal_floats(4096, 2, 0.5f);
  for (std::size_t i = 0; i < start.size(); ++i) {
    chunk.set_number(static_cast<std::int64_t>(i), start[i]);
  }
  return train_beside_fp64(chunk, kSteps, 1e-3f, [&](std::int64_t elems, int step) {
    std::vector<float> values = normal_floats(elems, static_cast<unsigned>(1000 + step));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = (values[i] + mean[i]) * (i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.1f : 0.01f);
    }
    return values;
  });
}

class Oracle : public ::testing::TestWithParam<OptimizerRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, Oracle,
                         ::testing::Values(OptimizerRule::kAdamW, OptimizerRule::kAdam,
                                           OptimizerRule::kSgd),
                         [](const auto& test) {
                           return std::string(optimizer_rule_name(test.param));
                         });

TEST_P(Oracle, IsNearFp64After1000Steps) {
  const TrainedWeights run = train_elements(GetParam());
  for (std::size_t i = 0; i < run.ours.size(); ++i) {
    // Each step rounds w (at most 4 in magnitude, in practice) once or twice to half an ulp, 2^-24
    // relative, and the step itself is right to some 2^-22 of its length.
    const double largest = std::abs(run.start[i]) + run.path[i];
    const double bound = 0x1p-24 * kSteps * std::min(largest, 4.0) + 0x1p-21 * run.path[i];
    ASSERT_NEAR(run.ours[i], run.oracle[i], bound) << i;
  }
}

// A step of lion is lr in either direction: if rounding decides the sign, fp32 and fp64 part by two
// steps. Such cases must be rare; elsewhere they agree as above.
TEST(OracleLion, IsNearFp64After1000Steps) {
  const TrainedWeights run = train_elements(OptimizerRule::kLion);
  int parted = 0;
  for (std::size_t i = 0; i < run.ours.size(); ++i) {
    const double off = std::abs(run.ours[i] - run.oracle[i]);
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
    distance += std::pow(run.ours[i] - run.oracle[i], 2);
    way += std::pow(run.oracle[i] - run.start[i], 2);
  }
  return std::sqrt(distance / way);
}

TEST(NarrowMoments, StayNearTheOracle) {
  for (const OptimizerRule rule :
       {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd}) {
    const double of_bf16 = relative_distance(train_elements(rule, DType::kBF16));
    const double of_8bit = relative_distance(train_elements(rule, DType::kBlock8));
    RecordProperty(std::string(optimizer_rule_name(rule)) + "_bf16", std::to_string(of_bf16));
    RecordProperty(std::string(optimizer_rule_name(rule)) + "_block8", std::to_string(of_8bit));
    EXPECT_LT(of_bf16, 0.003) << optimizer_rule_name(rule);
    EXPECT_LT(of_8bit, 0.08) << optimizer_rule_name(rule);
  }
}

struct TensorBound {
  OptimizerRule rule;
  int steps;
  double bound;
};

// Each of 2,000 roundings of a parameter (|w| < 2) is off by at most 2^-24, at random: 45 * 2^-25
// or 1.3e-6 is usual, four times that rare (muon's 400: 6e-7). The steps' own errors are smaller,
// but for sm3's first ones, which add as much.
TEST(OracleOfTensors, IsNearFp64AfterManySteps) {
  std::vector<TensorView> shapes = odd_shapes();
  shapes.insert(shapes.end(), {{64, 64, true}, {1, 40, true}});
  for (const TensorBound& of : {TensorBound{OptimizerRule::kAdafactor, kSteps, 6e-6},
                                TensorBound{OptimizerRule::kSm3, kSteps, 1e-5},
                                TensorBound{OptimizerRule::kMuon, 200, 3e-6}}) {
    const OptimizerOptions options = options_of(of.rule);
    for (const UpdateFormats& formats : testing::sampled<UpdateFormats>(
             {UpdateFormats{options, DType::kBF16, DType::kF32},
              UpdateFormats{options, DType::kF32, DType::kBF16}, fp32_formats(options)})) {
      const auto run = train_beside_fp64(
          UpdateChunk(formats, shapes, 21), of.steps, 3e-3f, [](std::int64_t elems, int step) {
            return normal_floats(elems, static_cast<unsigned>(1000 + step), 1e-2f);
          });
      EXPECT_LT(run.worst, of.bound) << format_name(formats);
    }
  }
}

// Parameters below the second epsilon, and gradients so small that the first takes over: for the
// mean of the rows' statistics, for the roots, until updates are below the clip.
TEST(Adafactor, FloorsAndClips) {
  for (const float grad_size : {1e-4f, 1e-6f, 1e-8f}) {
    UpdateChunk chunk(fp32_formats(options_of(OptimizerRule::kAdafactor)), odd_shapes(), 22);
    for (std::int64_t i = 0; i < chunk.elems; ++i) chunk.set_number(i, chunk.number(i) * 1e-4f);
    const auto run = train_beside_fp64(chunk, 50, 3e-3f, [&](std::int64_t elems, int step) {
      return normal_floats(elems, static_cast<unsigned>(1000 + step), grad_size);
    });
    // 50 steps of about 3e-6 * 0.1 or more: parameters move by 1e-5 at least.
    EXPECT_LT(run.worst, 1e-9) << grad_size;
  }
}

TEST(TensorUpdates, WorkspaceDependsOnShapesOnlyAndIsSmall) {
  for (const OptimizerOptions& options : testing::tensor_rules()) {
    const auto segments = testing::tensor_segments(options, {{1024, 2048}, {1, 2048}});
    const std::uint64_t bytes =
        make_host_kernels({.threads = 1})->update_workspace_bytes(options, segments);
    for (const int threads : {2, 4}) {
      const auto kernels = make_host_kernels({.threads = threads});
      EXPECT_EQ(kernels->update_workspace_bytes(options, segments), bytes);
    }
    // Partial results of rows and columns: at most 1/30 of the elements here.
    EXPECT_LT(bytes, 1024u * 2048u * 4u / 30u) << rule_name(options);
  }
}

// --- torch's own results: the header of data/torch_optimizers.txt says how weights and gradients
// are made

// The finisher of a 32-bit hash: each input bit changes each output bit in about half of all cases.
std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
std::uint32_t word(std::uint32_t tensor, std::uint32_t step, std::uint32_t index) {
  return mix(mix(mix(tensor + 1) + step) + index);
}
// 22 bits, half of them below zero.
std::int32_t centred(std::uint32_t w) {
  return static_cast<std::int32_t>(w >> 10) - 2097152;
}
float scaled(std::int32_t number, std::uint32_t w) {
  return std::ldexp(static_cast<float>(number), -21 - static_cast<int>(w & 7));
}
// Step 0: the weight.
float golden_input(std::uint32_t tensor, std::uint32_t step, std::uint32_t i) {
  const std::uint32_t w = word(tensor, step, i);
  if (step == 0) return scaled(centred(w), w);
  if (i % 29 == 28) return 0;
  return scaled(centred(w) + (centred(word(tensor, 0x80000000u, i)) >> 2), w);
}

struct Golden {
  double f32 = 0, f64 = 0;
};
struct GoldenState {
  std::map<std::size_t, Golden> elements;
  Golden sum;
};
// [step][tensor]
using GoldenRun = std::map<int, std::map<std::uint32_t, GoldenState>>;

GoldenRun read_golden(const std::string& optimizer) {
  std::ifstream file(SLUICE_TEST_DATA "/torch_optimizers.txt");
  GoldenRun run;
  GoldenState* state = nullptr;
  bool wanted = false;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string first, second, third;
    line >> first >> second >> third;
    if (first == "optimizer") {
      wanted = second == optimizer;
    } else if (!wanted || first == "#" || first == "tensor" || first == "squares") {
      continue;
    } else if (first == "after") {
      std::uint32_t tensor = 0;
      line >> tensor;
      state = &run[std::stoi(second)][tensor];
    } else {
      const Golden golden{std::strtod(second.c_str(), nullptr),
                          std::strtod(third.c_str(), nullptr)};
      (first == "sum" ? state->sum : state->elements[std::stoul(first)]) = golden;
    }
  }
  return run;
}

struct TorchRule {
  std::string name;
  OptimizerOptions options;
  float lr;
};

std::vector<TorchRule> torch_rules() {
  std::vector<TorchRule> rules{{"adamw", options_of(OptimizerRule::kAdamW), 1e-3f},
                               {"adam", options_of(OptimizerRule::kAdam), 1e-3f},
                               {"sgd_momentum", options_of(OptimizerRule::kSgd), 1e-3f},
                               {"sgd_nesterov", options_of(OptimizerRule::kSgd), 1e-3f},
                               {"adafactor", options_of(OptimizerRule::kAdafactor), 1e-2f},
                               {"muon_exact", options_of(OptimizerRule::kMuon), 1e-3f}};
  rules[0].options.beta2 = rules[1].options.beta2 = 0.999;
  rules[3].options.nesterov = true;
  return rules;
}

// muon_exact iterates in the column's dtype, as we do; its steps are scaled by
// sqrt(max(1, rows / cols)), ours by 0.2 * sqrt(max(rows, cols)): the learning rate and the decay
// of each tensor make up for it. It has matrices alone.
void scale_as_torch(OptimizerRule rule, ParameterSegment& segment) {
  segment.weight_decay = 0.01f;
  segment.lr_scale = 1;
  if (rule != OptimizerRule::kMuon) return;
  const auto rows = static_cast<double>(segment.tensor.rows);
  const auto cols = static_cast<double>(segment.tensor.cols);
  const double ratio =
      std::sqrt(std::max(1.0, rows / cols)) / (0.2 * std::sqrt(std::max(rows, cols)));
  segment.lr_scale = static_cast<float>(ratio);
  segment.weight_decay = static_cast<float>(0.1 / ratio);
}

// An element of an elementwise rule is as near as roundings allow: lr is rounded to fp32 (2^-25 of
// the way), each step rounds w to half an ulp; SGD's steps are as long as the gradients'. Torch's
// own fp32 column is as far off. One of a whole tensor may be as far from torch's fp64 as torch's
// fp32 is at the worst element, and 1e-7 more.
void expect_torchs(const UpdateChunk& chunk, const ParameterSegment& segment,
                   const GoldenState& golden, int step) {
  ASSERT_GE(golden.elements.size(), 24u);
  const bool whole = needs_whole_tensors(chunk.formats.options);
  double torchs = 0;
  for (const auto& [i, value] : golden.elements) {
    torchs = std::max(torchs, std::abs(value.f32 - value.f64));
  }
  for (const auto& [i, value] : golden.elements) {
    const double w = std::abs(value.f64) + 0.25;
    const double ours = chunk.number(segment.begin + static_cast<std::int64_t>(i));
    EXPECT_NEAR(ours, value.f64, whole ? torchs + 1e-7 : 0x1p-24 * w * (2 + step))
        << "element " << i << " step " << step << ", torch in fp32: " << value.f32;
  }
  double sum = 0;
  for (std::int64_t i = segment.begin; i < segment.end; ++i) {
    sum += static_cast<double>(chunk.number(i));
  }
  const auto count = static_cast<double>(segment.end - segment.begin);
  EXPECT_NEAR(sum / count, golden.sum.f64 / count, torchs + 1e-7);
}

TEST(TorchOptimizers, GiveTheSameWeightsAsOursOver1000Steps) {
  const auto kernels = make_host_kernels({.threads = 1});
  for (const TorchRule& rule : torch_rules()) {
    SCOPED_TRACE(rule.name);
    const bool muon = rule.options.rule == OptimizerRule::kMuon;
    const std::vector<std::uint32_t> numbers =
        muon ? std::vector<std::uint32_t>{0, 2} : std::vector<std::uint32_t>{0, 1, 2};
    std::vector<TensorView> shapes{{48, 96, muon}, {1, 96}, {33, 7, muon}};
    if (muon) shapes.erase(shapes.begin() + 1);
    UpdateChunk chunk(fp32_formats(rule.options), shapes);
    for (ParameterSegment& segment : chunk.segments) scale_as_torch(rule.options.rule, segment);
    std::vector<float> values(static_cast<std::size_t>(chunk.elems));
    const auto draw = [&](int step) {
      for (std::size_t t = 0; t < numbers.size(); ++t) {
        const ParameterSegment& segment = chunk.segments[t];
        for (std::int64_t i = segment.begin; i < segment.end; ++i) {
          values[static_cast<std::size_t>(i)] =
              golden_input(numbers[t], static_cast<std::uint32_t>(step),
                           static_cast<std::uint32_t>(i - segment.begin));
        }
      }
    };
    draw(0);
    for (std::int64_t i = 0; i < chunk.elems; ++i) {
      chunk.set_number(i, values[static_cast<std::size_t>(i)]);
    }
    const GoldenRun run = read_golden(rule.name);
    ASSERT_EQ(run.size(), 4u);
    for (int step = 1; step <= kSteps; ++step) {
      draw(step);
      chunk.set_grad(values);
      run_update(*kernels, chunk.formats.options, chunk.buffers(), chunk.segments,
                 {.lr = rule.lr, .step = step});
      for (std::size_t t = 0; run.contains(step) && t < numbers.size(); ++t) {
        expect_torchs(chunk, chunk.segments[t], run.at(step).at(numbers[t]), step);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::host
