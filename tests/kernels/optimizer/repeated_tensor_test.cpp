// One tensor of more elements than 31 bits count, for rules that see whole tensors, in 1 GiB: its
// rows repeat, and so does their memory.
#include "tests/kernels/optimizer/repeated_tensor.hpp"

namespace sluice::kernels::host {
namespace {

class RepeatedTensor : public ::testing::TestWithParam<OptimizerRule> {};
// No Muon: at 2^31 elements its workspace alone is 16 GiB, the update and its next iterate in fp32.
INSTANTIATE_TEST_SUITE_P(Rules, RepeatedTensor,
                         ::testing::Values(OptimizerRule::kAdafactor, OptimizerRule::kSm3),
                         [](const auto& rule) {
                           return std::string(optimizer_rule_name(rule.param));
                         });

// The step subtracted from each element after the decay. A weight of zero has nothing else left.
std::vector<float> steps_of(const OptimizerOptions& options, Period period) {
  std::fill(period.weight.begin(), period.weight.end(), bf16_from_float(0.0f));
  std::fill(period.remainder.begin(), period.remainder.end(), std::int16_t{0});
  update_matrix(2, options, period);
  std::vector<float> steps;
  for (std::size_t i = 0; i < period.weight.size(); ++i) steps.push_back(-period.master(i));
  return steps;
}

// Each number of the memory is updated once for every row that shows it. One thread: two would
// update a number at once.
TEST_P(RepeatedTensor, TakesTheStepsOfItsRowsBeyond2To31Elements) {
  OptimizerOptions options = split_block8(GetParam());
  // All steps of an element are the same with these options.
  options.beta1 = 0;
  options.relative_floor = 1;
  const Period start(0.3f);
  const auto repeat = [](const auto& numbers) {
    return RepeatedMemory(std::as_bytes(std::span(numbers)), kPeriods);
  };
  const RepeatedMemory grad = repeat(start.grad), weight = repeat(start.weight),
                       remainder = repeat(start.remainder), moment1 = repeat(start.moment1);
  ASSERT_TRUE(grad.whole() && weight.whole() && remainder.whole() && moment1.whole());
  std::vector<float> statistics = start.repeated_statistics();
  UpdateBuffers buffers;
  buffers.grad = grad.data();
  buffers.weight = weight.data();
  buffers.master = remainder.data();
  buffers.moment1 = moment1.data();
  buffers.moment2 = statistics.data();
  update_matrix(1, options, kRepeated, buffers);

  Period once = start;
  update_matrix(2, options, once);
  EXPECT_NE(once.statistics, start.statistics);
  EXPECT_TRUE(statistics == once.repeated_statistics());
  EXPECT_EQ(std::memcmp(moment1.data(), once.moment1.data(), once.moment1.size()), 0);
  const std::vector<float> steps = steps_of(options, start);
  const float decay = repeated_scalars().lr * kRepeatedDecay;
  Period end = start;
  std::memcpy(end.weight.data(), weight.data(), 2 * end.weight.size());
  std::memcpy(end.remainder.data(), remainder.data(), 2 * end.remainder.size());
  for (std::size_t i = 0; i < steps.size(); i += 37) {
    float want = start.master(i);
    for (std::int64_t time = 0; time < kPeriods; ++time) {
      const float decayed = want * decay;
      want -= decayed;
      want -= steps[i];
    }
    ASSERT_EQ(end.master(i), want) << i;
  }
}

}  // namespace
}  // namespace sluice::kernels::host
