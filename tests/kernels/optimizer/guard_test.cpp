// A guard sees every element of a chunk once as it was found and once as it was left.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/contract/update_chunk.hpp"
#include "tests/kernels/host_backend.hpp"

namespace sluice::kernels::host {
namespace {

using testing::fp32_formats;
using testing::options_of;
using testing::scalars_of;
using testing::tensor_segments;
using testing::UpdateChunk;

// An fp32 chunk of three tensors with gaps, for any rule; its last block is short.
UpdateChunk chunk_of(OptimizerRule rule) {
  const std::vector<ParameterSegment> segments =
      tensor_segments(options_of(rule), {{130, 1100, true}, {1, 2300, false}, {37, 129, true}});
  UpdateChunk chunk(fp32_formats(options_of(rule)), segments.back().end + 77, segments, 2);
  chunk.draw_grad(1, 0.1f);
  return chunk;
}

void update(UpdateChunk& chunk, int threads, const HostUpdate& how) {
  UpdateBuffers buffers = chunk.buffers();
  buffers.host = how;
  run_update(*make_host_kernels({.threads = threads}), chunk.formats.options, buffers,
             chunk.segments, scalars_of(1));
}

// Keeps the weights that it sees.
class SeeingGuard final : public UpdateGuard {
 public:
  explicit SeeingGuard(const UpdateChunk& chunk)
      : found(chunk.weights().size()), left(found), chunk_(chunk) {}

  void before(std::int64_t begin, std::int64_t end) override { see(begin, end, found); }
  void after(std::int64_t begin, std::int64_t end) override { see(begin, end, left); }

  UpdateChunk::Bytes found, left;
  std::atomic<std::int64_t> elems_seen = 0;  // each twice: found and left
  std::atomic<std::int64_t> off_the_grid = 0;

 private:
  void see(std::int64_t begin, std::int64_t end, UpdateChunk::Bytes& into) {
    if (begin % kElems != 0 || (end % kElems != 0 && end != chunk_.elems)) ++off_the_grid;
    const auto first = begin * 4, last = end * 4;
    std::copy(chunk_.weights().begin() + first, chunk_.weights().begin() + last,
              into.begin() + first);
    elems_seen += end - begin;
  }

  const UpdateChunk& chunk_;
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
  const UpdateChunk start = chunk_of(GetParam());
  UpdateChunk alone = start;
  update(alone, 1, {});
  ASSERT_NE(alone.weights(), start.weights());
  for (const auto& [threads, one_thread] :
       {std::pair(1, false), std::pair(3, false), std::pair(3, true)}) {
    UpdateChunk guarded = start;
    SeeingGuard guard(guarded);
    update(guarded, threads, {&guard, one_thread});
    EXPECT_EQ(guard.elems_seen, 2 * guarded.elems);
    EXPECT_EQ(guard.off_the_grid, 0);
    EXPECT_EQ(guard.found, start.weights());
    EXPECT_EQ(guard.left, alone.weights());
    EXPECT_TRUE(guarded == alone);
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
  UpdateChunk chunk = chunk_of(GetParam());
  if (needs_whole_tensors(chunk.formats.options)) GTEST_SKIP() << "sees whole tensors";
  NamingGuard guard;
  for (int i = 0; i < 20; ++i) update(chunk, 3, {&guard, true});
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
  UpdateChunk chunk = chunk_of(GetParam());
  const UpdateChunk::Bytes start = chunk.weights();
  RefusingGuard guard;
  try {
    update(chunk, 2, {&guard});
    FAIL() << "updated a block that was refused";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a wrong block");
  }
  constexpr std::size_t kBlockBytes = UpdateGuard::kElems * sizeof(float);
  EXPECT_EQ(std::memcmp(&chunk.weights()[8 * kBlockBytes], &start[8 * kBlockBytes], kBlockBytes),
            0);
}

}  // namespace
}  // namespace sluice::kernels::host
