// Merges the staging pieces of rings into few boxes before they are packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::schedule {

// A buffer that is to be packed. ring < 0: it stays a box of its own. Pieces of a ring share memory
// one after another only within a class.
struct RingPiece {
  packing::Lifetime life;
  std::int32_t ring = -1;
  std::uint32_t piece_class = 0;
  bool apart = false;  // episodes of the ring do not share a box
};

struct RingBoxes {
  struct Place {
    std::uint32_t box = 0;
    std::uint64_t offset_bytes = 0;  // within the box
  };
  std::vector<packing::Lifetime> boxes;
  std::vector<Place> places;  // by piece
};

// kEpisode makes the fewest boxes. kPlace keeps the places of a ring apart, and kPiece all pieces,
// which leaves the packer more ways to stack them.
enum class MergedUnit : std::uint8_t { kEpisode, kPlace, kPiece };

// Pieces in one box never overlap while both live, and offsets are multiples of `alignment_bytes`.
// With all sizes rounded up to the alignment, the largest sum of sizes live at once is the same for
// the boxes as for the pieces. Linear in pieces and in the last position of a lifetime, but for the
// logarithm of the pieces that live at once.
RingBoxes merge_rings(std::span<const RingPiece> pieces, std::uint64_t alignment_bytes,
                      MergedUnit unit);

}  // namespace sluice::schedule
