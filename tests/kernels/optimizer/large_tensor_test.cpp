// One tensor of more than 2^31 elements, for rules that see whole tensors, in memory of its own and
// by all threads: wants 11 GiB and half a minute, so it does not run by default (label long).
#include "base/topology.hpp"
#include "base/units.hpp"
#include "tests/kernels/optimizer/repeated_tensor.hpp"

namespace sluice::kernels::host {
namespace {

class LargeTensor : public ::testing::TestWithParam<OptimizerRule> {};
// No Muon: its workspace alone would be 16 GiB (the update and its next iterate, in fp32), and with
// weights (8 GiB) and 8-bit momenta (2 GiB) it would want 26.
INSTANTIATE_TEST_SUITE_P(Rules, LargeTensor,
                         ::testing::Values(OptimizerRule::kAdafactor, OptimizerRule::kSm3),
                         [](const auto& rule) {
                           return std::string(optimizer_rule_name(rule.param));
                         });

// Holds kPeriods copies of a period, as the tensor does.
class Copies {
 public:
  template <class T>
  explicit Copies(const std::vector<T>& period)
      : bytes_(period.size() * sizeof(T)), memory_(kPeriods * bytes_) {
    for (std::size_t i = 0; memory_.whole() && i < kPeriods; ++i) {
      std::memcpy(data() + i * bytes_, period.data(), bytes_);
    }
  }
  bool whole() const { return memory_.whole(); }
  std::byte* data() const { return memory_.as<std::byte>(); }
  // How many are not `period`.
  template <class T>
  std::size_t unlike(const std::vector<T>& period) const {
    std::size_t unlike = 0;
    for (std::size_t i = 0; i < kPeriods; ++i) {
      unlike += std::memcmp(data() + i * bytes_, period.data(), bytes_) != 0;
    }
    return unlike;
  }

 private:
  std::size_t bytes_;
  SparseMemory memory_;
};

TEST_P(LargeTensor, RepeatedRowsAreUpdatedAsOnePeriod) {
  constexpr std::uint64_t kWantedBytes = 12 * kGiB;
  const std::uint64_t available = read_host_topology().available_bytes;
  if (available < kWantedBytes) {
    GTEST_SKIP() << "12 GiB of memory are needed, " << format_bytes(available) << " are available";
  }
  const OptimizerOptions options = split_block8(GetParam());
  const Period start(0.3f);
  const RepeatedMemory grad(std::as_bytes(std::span(start.grad)), kPeriods);
  const Copies weight(start.weight), remainder(start.remainder), moment1(start.moment1);
  ASSERT_TRUE(grad.whole() && weight.whole() && remainder.whole() && moment1.whole());
  std::vector<float> statistics = start.repeated_statistics();
  UpdateBuffers buffers;
  buffers.grad = grad.data();
  buffers.weight = weight.data();
  buffers.master = remainder.data();
  buffers.moment1 = moment1.data();
  buffers.moment2 = statistics.data();
  update_matrix(0, options, kRepeated, buffers);
  Period once = start;
  update_matrix(2, options, once);
  EXPECT_NE(once.statistics, start.statistics);
  EXPECT_NE(once.remainder, start.remainder);
  EXPECT_TRUE(statistics == once.repeated_statistics());
  EXPECT_EQ(weight.unlike(once.weight), 0u);
  EXPECT_EQ(remainder.unlike(once.remainder), 0u);
  EXPECT_EQ(moment1.unlike(once.moment1), 0u);
}

}  // namespace
}  // namespace sluice::kernels::host
