// Rules that look at whole tensors, on a GPU against the host: adafactor and sm3 to the bit; muon
// to the bit where it is AdamW, and near where products are in it.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "tests/kernels/cuda/update_chunk.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::normal_floats;

UpdateScalars tensor_scalars(std::int64_t step) {
  UpdateScalars scalars;
  scalars.lr = 3e-3f;
  scalars.grad_scale = 0.731f;
  scalars.step = step;
  return scalars;
}

// Vectors and columns, rows above and below columns, more tiles than one either way, an odd length.
std::vector<TensorView> odd_shapes() {
  return {{33, 7, true},     {1, 50, false},  {50, 1, true}, {1, 2300, false},
          {130, 1100, true}, {300, 65, true}, {1, 7, false}, {65, 2049, false}};
}

std::vector<ParameterSegment> tensor_segments(const OptimizerOptions& options,
                                              const std::vector<TensorView>& shapes) {
  std::vector<ParameterSegment> segments;
  std::int64_t end = 0;
  std::uint64_t statistics = 0;
  for (const TensorView& shape : shapes) {
    ParameterSegment segment;
    segment.begin = (end + 127) / 128 * 128;
    segment.end = end = segment.begin + shape.rows * shape.cols;
    segment.weight_decay = 0.1f;
    segment.lr_scale = segments.size() % 2 == 0 ? 1.0f : 0.5f;
    segment.first_key = 1000 + static_cast<std::uint64_t>(segment.begin);
    segment.tensor = shape;
    segment.moment2_begin = statistics;
    statistics += state_elems(options, StateKind::kMoment2, shape) + 3;
    segments.push_back(segment);
  }
  return segments;
}

struct Training {
  std::vector<ParameterSegment> segments;
  UpdateChunk host, device;
};

Training training_of(const UpdateFormats& formats, const std::vector<TensorView>& shapes) {
  const std::vector<ParameterSegment> segments = tensor_segments(formats.options, shapes);
  const std::int64_t elems = (segments.back().end + 4095) / 4096 * 4096;
  const std::uint64_t statistics =
      segments.back().moment2_begin +
      state_elems(formats.options, StateKind::kMoment2, segments.back().tensor);
  UpdateChunk chunk(formats, elems, statistics + 3);
  std::vector<float> weights(static_cast<std::size_t>(elems));
  const std::vector<float> start = kernels::host::normal_floats(elems, 11, 0.3f);
  for (const ParameterSegment& segment : segments) {
    std::copy(start.begin() + segment.begin, start.begin() + segment.end,
              weights.begin() + segment.begin);
  }
  chunk.set_weights(weights);
  return {segments, chunk, chunk};
}

class UpdateTensors : public CudaKernelTest {
 protected:
  void step(Training& training, std::int64_t number, const std::vector<float>& gradient) {
    training.host.set_grad(gradient);
    training.device.set_grad(gradient);
    training.host.update_on_host(*host_, training.segments, tensor_scalars(number));
    training.device.update_on_device(*gemm_, training.segments, tensor_scalars(number));
  }

  void expect_the_hosts_bits(const OptimizerOptions& rule, bool moments,
                             const std::vector<TensorView>& shapes, int steps) {
    for (const UpdateFormats& formats : all_formats(rule, moments)) {
      SCOPED_TRACE(format_name(formats));
      Training training = training_of(formats, shapes);
      for (int number = 1; number <= steps; ++number) {
        step(training, number,
             kernels::host::normal_floats(training.host.elems, static_cast<unsigned>(100 + number),
                                          1e-2f));
        training.device.expect_same(training.host);
        if (HasFatalFailure()) return;
      }
    }
  }

  std::unique_ptr<Kernels> host_ = make_host_kernels({.threads = 1});
  std::unique_ptr<GemmBackend> gemm_ = make_plain_gemm();
};

OptimizerOptions rule_of(OptimizerRule rule) {
  OptimizerOptions options;
  options.rule = rule;
  options.seed = 77;
  return options;
}

// Some numbers that a diverged or a sparse run has.
std::vector<float> special_tensor_gradient(std::int64_t elems) {
  std::vector<float> values = kernels::host::normal_floats(elems, 3, 1e-2f);
  for (std::size_t i = 0; i < values.size(); i += 501) values[i] = 0x1p-140f;
  for (std::size_t i = 100; i < values.size(); i += 20011) values[i] = NAN;
  for (std::size_t i = 200; i < values.size(); i += 30011) values[i] = INFINITY;
  for (std::size_t i = 300; i < values.size(); i += 40009) values[i] = 0x1p90f;
  return values;
}

TEST_F(UpdateTensors, AdafactorIsTheHosts) {
  expect_the_hosts_bits(rule_of(OptimizerRule::kAdafactor), false, odd_shapes(), 2);
}

TEST_F(UpdateTensors, Sm3IsTheHosts) {
  expect_the_hosts_bits(rule_of(OptimizerRule::kSm3), true,
                        {{33, 7, true},
                         {1, 50, false},
                         {50, 1, true},
                         {70, 1100, true},
                         {1, 300, false},
                         {66, 65, true}},
                        2);
}

TEST_F(UpdateTensors, SpecialNumbersAreTreatedAsByTheHost) {
  for (const OptimizerRule rule : {OptimizerRule::kAdafactor, OptimizerRule::kSm3}) {
    UpdateFormats formats{rule_of(rule), DType::kF32, DType::kBF16};
    formats.options.split_master = true;
    SCOPED_TRACE(format_name(formats));
    Training training = training_of(formats, odd_shapes());
    step(training, 1, special_tensor_gradient(training.host.elems));
    training.device.expect_same(training.host);
    step(training, 2, kernels::host::normal_floats(training.host.elems, 4, 1e-2f));
    training.device.expect_same(training.host);
  }
}

// More tensors than one launch's parameters hold.
TEST_F(UpdateTensors, ManySmallTensors) {
  std::vector<TensorView> shapes;
  for (std::int64_t i = 0; i < 150; ++i) shapes.push_back({i % 4 + 1, i % 7 + 1, false});
  for (const OptimizerRule rule :
       {OptimizerRule::kAdafactor, OptimizerRule::kSm3, OptimizerRule::kMuon}) {
    UpdateFormats formats{rule_of(rule), DType::kBF16, DType::kF32};
    Training training = training_of(formats, shapes);
    step(training, 1, kernels::host::normal_floats(training.host.elems, 5, 1e-2f));
    training.device.expect_same(training.host);
  }
}

// No hidden matrix: AdamW, second moments in fp32.
TEST_F(UpdateTensors, MuonIsTheHostsWhereItIsAdamW) {
  expect_the_hosts_bits(rule_of(OptimizerRule::kMuon), true,
                        {{33, 7, false}, {1, 50, false}, {13, 300, false}}, 2);
}

// The momentum is the host's to the bit; the step, of which X is orthogonalized by other products,
// is near: X's error of some 1e-6 of its size, at steps of 0.2 * lr of each weight's own.
TEST_F(UpdateTensors, MuonsHiddenMatricesAreNearTheHosts) {
  for (const DType moments : {DType::kF32, DType::kBF16, DType::kBlock8}) {
    UpdateFormats formats{rule_of(OptimizerRule::kMuon), DType::kF32, DType::kF32};
    formats.options.weight = DType::kF32;
    formats.options.moments = moments;
    Training training = training_of(formats, {{33, 70, true}, {70, 33, true}, {40, 40, true}});
    const Bytes start = training.host.weight;
    for (int number = 1; number <= 2; ++number) {
      step(training, number,
           kernels::host::normal_floats(training.host.elems, 6u + static_cast<unsigned>(number),
                                        1e-2f));
    }
    EXPECT_TRUE(training.device.moment1 == training.host.moment1);
    double apart = 0, moved = 0;
    for (std::size_t i = 0; i < start.size(); i += 4) {
      float before, host, device;
      std::memcpy(&before, &start[i], 4);
      std::memcpy(&host, &training.host.weight[i], 4);
      std::memcpy(&device, &training.device.weight[i], 4);
      ASSERT_TRUE(std::isfinite(device));
      apart = std::max(apart, std::abs(static_cast<double>(host) - static_cast<double>(device)));
      moved = std::max(moved, std::abs(static_cast<double>(host) - static_cast<double>(before)));
    }
    EXPECT_GT(moved, 1e-4);
    EXPECT_LT(apart, 1e-3 * moved);
  }
}

TEST_F(UpdateTensors, PartsOfTensorsAreRefused) {
  const UpdateFormats formats{rule_of(OptimizerRule::kAdafactor), DType::kF32, DType::kF32};
  Training training = training_of(formats, {{8, 8, true}});
  training.segments[0].end -= 8;
  EXPECT_THROW(training.device.update_on_device(*gemm_, training.segments, tensor_scalars(1)),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::cuda
