// A guard sees every element of a chunk once as it was found and once as it was left.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/kernels/optimizer/tensor_chunk.hpp"

namespace sluice::kernels::host {
namespace {

// An fp32 chunk of three tensors with gaps, for any rule.
struct Chunk {
  explicit Chunk(OptimizerRule rule) {
    options.rule = rule;
    options.weight = DType::kF32;
    std::int64_t end = 0;
    std::uint64_t of_tensors = 0;
    for (const TensorView& shape :
         {TensorView{130, 1100, true}, TensorView{1, 2300, false}, TensorView{37, 129, true}}) {
      ParameterSegment segment;
      segment.begin = round_up(end, 128);
      segment.end = end = segment.begin + shape.rows * shape.cols;
      segment.tensor = shape;
      segment.moment2_begin = of_tensors;
      if (state_layout(options, StateKind::kMoment2).extent == StateExtent::kPerTensor) {
        of_tensors += state_elems(options, StateKind::kMoment2, shape);
      }
      segments.push_back(segment);
    }
    elems = end + 77;  // its last block is short
    grad = normal_floats(elems, 1, 0.1f);
    weight = normal_floats(elems, 2, 1.0f);
    moment1.resize(size_of(StateKind::kMoment1, of_tensors));
    moment2.resize(size_of(StateKind::kMoment2, of_tensors));
  }

  static std::int64_t round_up(std::int64_t value, std::int64_t to) {
    return (value + to - 1) / to * to;
  }
  std::size_t size_of(StateKind kind, std::uint64_t of_tensors) const {
    switch (state_layout(options, kind).extent) {
      case StateExtent::kAbsent:
        return 0;
      case StateExtent::kPerElement:
        return static_cast<std::size_t>(elems);
      default:
        return of_tensors;
    }
  }

  void update(const Parallel& parallel, const HostUpdate& how) {
    UpdateBuffers buffers;
    buffers.grad = grad.data();
    buffers.grad_dtype = DType::kF32;
    buffers.weight = weight.data();
    buffers.moment1 = moment1.empty() ? nullptr : moment1.data();
    buffers.moment2 = moment2.empty() ? nullptr : moment2.data();
    buffers.elems = elems;
    buffers.host = how;
    const Gemm gemm(parallel, Bf16Gemm::kViaF32);
    GuardedWorkspace workspace(update_workspace_bytes(gemm, options, segments));
    host::update(parallel, gemm, options, buffers, segments, scalars_of(1), workspace.data());
  }

  OptimizerOptions options;
  std::vector<ParameterSegment> segments;
  std::int64_t elems = 0;
  std::vector<float> grad, weight, moment1, moment2;
};

// Keeps the weights that it sees.
class SeeingGuard final : public UpdateGuard {
 public:
  explicit SeeingGuard(const Chunk& chunk)
      : found(chunk.weight.size(), -1.0f), left(chunk.weight.size(), -1.0f), chunk_(chunk) {}

  void before(std::int64_t begin, std::int64_t end) override { see(begin, end, found); }
  void after(std::int64_t begin, std::int64_t end) override { see(begin, end, left); }

  std::vector<float> found, left;
  std::atomic<std::int64_t> elems_seen = 0;  // each twice: found and left
  std::atomic<std::int64_t> off_the_grid = 0;

 private:
  void see(std::int64_t begin, std::int64_t end, std::vector<float>& into) {
    if (begin % kElems != 0 || (end % kElems != 0 && end != chunk_.elems)) ++off_the_grid;
    std::copy(chunk_.weight.begin() + begin, chunk_.weight.begin() + end, into.begin() + begin);
    elems_seen += end - begin;
  }

  const Chunk& chunk_;
};

class UpdateGuardTest : public ::testing::TestWithParam<OptimizerRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, UpdateGuardTest,
                         ::testing::Values(OptimizerRule::kAdamW, OptimizerRule::kAdam,
                                           OptimizerRule::kSgd, OptimizerRule::kLion,
                                           OptimizerRule::kAdafactor, OptimizerRule::kSm3,
                                           OptimizerRule::kMuon),
                         [](const auto& rule) {
                           return std::string(optimizer_rule_name(rule.param));
                         });

TEST_P(UpdateGuardTest, SeesWeightsBeforeAndAfterAndChangesNothing) {
  Chunk alone(GetParam());
  const std::vector<float> start = alone.weight;
  alone.update(Parallel(1), {});
  ASSERT_NE(alone.weight, start);
  for (const auto& [threads, one_thread] :
       {std::pair(1, false), std::pair(3, false), std::pair(3, true)}) {
    Chunk guarded(GetParam());
    SeeingGuard guard(guarded);
    guarded.update(Parallel(threads), {&guard, one_thread});
    EXPECT_EQ(guard.elems_seen, 2 * guarded.elems);
    EXPECT_EQ(guard.off_the_grid, 0);
    EXPECT_EQ(guard.found, start);
    EXPECT_EQ(guard.left, alone.weight);
    EXPECT_EQ(guarded.weight, alone.weight);
    EXPECT_EQ(guarded.moment1, alone.moment1);
    EXPECT_EQ(guarded.moment2, alone.moment2);
  }
}

// Rules that see whole tensors use the team in any case.
TEST_P(UpdateGuardTest, OneThreadIsTheCaller) {
  class NamingGuard final : public UpdateGuard {
   public:
    void before(std::int64_t, std::int64_t) override { note(); }
    void after(std::int64_t, std::int64_t) override { note(); }
    std::atomic<int> elsewhere = 0;

   private:
    void note() {
      if (std::this_thread::get_id() != caller_) ++elsewhere;
    }
    const std::thread::id caller_ = std::this_thread::get_id();
  };
  Chunk chunk(GetParam());
  if (needs_whole_tensors(chunk.options)) GTEST_SKIP() << "sees whole tensors";
  NamingGuard guard;
  for (int i = 0; i < 20; ++i) chunk.update(Parallel(3), {&guard, true});
  EXPECT_EQ(guard.elsewhere, 0);
}

TEST_P(UpdateGuardTest, ItsExceptionEndsTheUpdateBeforeTheBlockIsUsed) {
  class RefusingGuard final : public UpdateGuard {
   public:
    void before(std::int64_t begin, std::int64_t) override {
      if (begin == 8 * kElems) throw std::runtime_error("a wrong block");
    }
    void after(std::int64_t, std::int64_t) override {}
  };
  Chunk chunk(GetParam());
  const std::vector<float> start = chunk.weight;
  RefusingGuard guard;
  try {
    chunk.update(Parallel(2), {&guard});
    FAIL() << "updated a block that was refused";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a wrong block");
  }
  constexpr std::size_t kBegin = 8 * UpdateGuard::kElems;
  EXPECT_EQ(std::memcmp(chunk.weight.data() + kBegin, start.data() + kBegin,
                        UpdateGuard::kElems * sizeof(float)),
            0);
}

}  // namespace
}  // namespace sluice::kernels::host
