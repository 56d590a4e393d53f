#include "engine/schedule/compile/ring_boxes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

constexpr std::uint64_t kAlignment = 4096;

// The pinned transient buffers of a schedule, sizes rounded up to whole pages.
std::vector<RingPiece> pinned_pieces(const Schedule& schedule) {
  std::vector<packing::Lifetime> lives(schedule.buffers.size());
  for (const Instruction& instruction : schedule.instructions) {
    const bool release = instruction.op == Op::kRelease;
    for (const Use& use : instruction.writes) {
      packing::Lifetime& life = lives[use.buffer];
      if (life.bytes > 0) continue;
      life.lower = instruction.id;
      life.bytes = round_up(schedule.buffers[use.buffer].bytes, kAlignment);
    }
    for (const Use& use : instruction.reads) {
      if (release) lives[use.buffer].upper = instruction.id + std::uint64_t{1};
    }
  }
  std::vector<RingPiece> pieces;
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.persistent || buffer.tier != Tier::kPinned) continue;
    pieces.push_back(
        {lives[buffer.id], buffer.ring,
         static_cast<std::uint32_t>(buffer.kind) << 8 | static_cast<std::uint32_t>(buffer.dtype)});
  }
  return pieces;
}

std::vector<packing::Lifetime> lives_of(const std::vector<RingPiece>& pieces) {
  std::vector<packing::Lifetime> lives;
  for (const RingPiece& piece : pieces) lives.push_back(piece.life);
  return lives;
}

// Packs the boxes, expands them to the pieces, and checks those.
void check_boxes(const std::vector<RingPiece>& pieces, MergedUnit unit) {
  const std::vector<packing::Lifetime> lives = lives_of(pieces);
  const RingBoxes rings = merge_rings(pieces, kAlignment, unit);
  EXPECT_EQ(packing::peak_live(rings.boxes), packing::peak_live(lives));
  EXPECT_LE(rings.boxes.size(), pieces.size());
  const packing::Packing boxes = packing::pack_lifetimes(rings.boxes, kAlignment);
  packing::Packing expanded;
  expanded.lower_bound_bytes = packing::peak_live(lives);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const RingBoxes::Place& at = rings.places[i];
    expanded.offsets_bytes.push_back(boxes.offsets_bytes[at.box] + at.offset_bytes);
    expanded.capacity_bytes =
        std::max(expanded.capacity_bytes, expanded.offsets_bytes[i] + lives[i].bytes);
  }
  EXPECT_LE(expanded.capacity_bytes, boxes.capacity_bytes);
  packing::check_packing(lives, expanded, kAlignment);
}

Schedule random_schedule(std::uint64_t seed) {
  const StepModel model =
      testing::example_model(1 + static_cast<int>(seed % 5), seed % 2 == 0, DType::kBF16,
                             testing::example_optimizers()[seed % 7]);
  StepOptions options = testing::random_options(model, 1 + static_cast<int>(seed % 3), seed);
  options.update = static_cast<UpdatePlacement>(seed % 4);
  return compile(model, options, StepKind::kTraining);
}

TEST(RingBoxes, PiecesNeverOverlapAndNoPeakGrows) {
  for (std::uint64_t seed = 0; seed < sweep(150); ++seed) {
    const std::vector<RingPiece> pieces = pinned_pieces(random_schedule(seed));
    for (const MergedUnit unit : {MergedUnit::kEpisode, MergedUnit::kPlace, MergedUnit::kPiece}) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      check_boxes(pieces, unit);
    }
  }
}

// Rings that overlap in time, with sizes and classes of any kind.
TEST(RingBoxes, PiecesNeverOverlapInRandomRings) {
  for (std::uint64_t seed = 0; seed < sweep(200); ++seed) {
    const CounterRng rng(seed, stream_of("test/ring_boxes"));
    std::uint64_t draw = 0;
    std::vector<RingPiece> pieces;
    for (std::uint64_t i = 0; i < 20 + seed; ++i) {
      const std::uint64_t lower = rng.below(draw++, 300);
      const std::uint64_t length = 1 + rng.below(draw++, 20);
      const std::uint64_t pages = 1 + rng.below(draw++, 5);
      RingPiece piece{{lower, lower + length, pages * kAlignment},
                      static_cast<std::int32_t>(rng.below(draw++, 4)) - 1,
                      static_cast<std::uint32_t>(rng.below(draw++, 2))};
      piece.apart = piece.ring == 2;
      pieces.push_back(piece);
    }
    for (const MergedUnit unit : {MergedUnit::kEpisode, MergedUnit::kPlace}) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      check_boxes(pieces, unit);
    }
  }
}

// Three pieces at a time, a thousand in all: one box of three places.
TEST(RingBoxes, ALongStreamIsOneBox) {
  std::vector<RingPiece> pieces;
  for (std::uint64_t i = 0; i < 1000; ++i) pieces.push_back({{i, i + 3, kAlignment}, 0, 0});
  const RingBoxes rings = merge_rings(pieces, kAlignment, MergedUnit::kEpisode);
  ASSERT_EQ(rings.boxes.size(), 1u);
  EXPECT_EQ(rings.boxes.front().bytes, 3 * kAlignment);
}

// Measured: at most 1.0 on these schedules.
TEST(RingBoxes, PinnedStagingIsPackedWithinHalfAPercentOfItsBound) {
  for (std::uint64_t seed = 0; seed < sweep(150); ++seed) {
    const Schedule schedule = random_schedule(seed);
    std::uint64_t homes = 0;
    for (const Buffer& buffer : schedule.buffers) {
      if (buffer.persistent && buffer.tier == Tier::kPinned) {
        homes = round_up(homes + place_bytes(buffer), kAlignment);
      }
    }
    const std::uint64_t bound = homes + packing::peak_live(lives_of(pinned_pieces(schedule)));
    EXPECT_LE(static_cast<double>(schedule.pinned_arena_bytes), 1.005 * static_cast<double>(bound))
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::schedule
