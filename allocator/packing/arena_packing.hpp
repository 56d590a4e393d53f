// Offline packing: offsets for buffers whose lifetimes are known (dynamic storage allocation).
//
// lower/upper are positions in a linear order; a buffer lives in [lower, upper). Two buffers that
// live at a common position never share a byte. Deterministic: a pure function of its input.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::packing {

struct Lifetime {
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;  // exclusive; upper > lower
  std::uint64_t bytes = 0;  // > 0
  // Of its address, where that is more than all must have: a multiple of that.
  std::uint64_t alignment_bytes = 1;
};

struct Packing {
  std::vector<std::uint64_t> offsets_bytes;  // as the input's order
  std::uint64_t capacity_bytes = 0;          // max(offset + bytes)
  std::uint64_t lower_bound_bytes = 0;       // the largest sum of sizes live at once
};

// What packing may take. The local search (10 to 20 ms in all) comes within 0.5% of the bound on
// the shapes of training steps; what it leaves, the exhaustive one closes, in seconds, on instances
// of some hundred buffers that defeat every order.
enum class PackingEffort : std::uint8_t { kQuick, kThorough };

// Every offset is a multiple of `alignment_bytes`. Best of several greedy orders (by size, area,
// start, length, contention; best and first fit), then of a local search over orders towards the
// bound; thorough: then of exhaustive search (parts of at most 16,384 buffers) at the bound and,
// where that gives up, between. Cut off by a count of operations, never by time. At most O(n^2) per
// order, with 1/64 of the constant for what does not overlap. Sizes are rounded up to the alignment
// while packing, so the result may be up to alignment_bytes - 1 above what unrounded sizes allow.
// lower < upper, bytes > 0, their sum below 2^62 (InternalError). Does not look for less than
// `enough_bytes`. base_bytes: the address of offset 0, where items have alignments of their own
// (which the exhaustive search does not know: InternalError).
Packing pack_lifetimes(std::span<const Lifetime> lifetimes, std::uint64_t alignment_bytes,
                       PackingEffort effort = PackingEffort::kQuick, std::uint64_t enough_bytes = 0,
                       std::uint64_t base_bytes = 0);

// The largest sum of sizes live at once.
std::uint64_t peak_live(std::span<const Lifetime> lifetimes);

// Equal-sized items: assigns slots (optimal for intervals: as many as the deepest overlap). Among
// free slots takes the one that has been free longest, so that reuse waits least.
// Returns slots per item, in no given order, and their number.
struct SlotAssignment {
  std::vector<std::vector<std::uint32_t>> slots;
  std::uint32_t slot_count = 0;
};
SlotAssignment assign_slots(std::span<const Lifetime> lifetimes_in_slots);  // bytes: slots needed

// Throws InternalError where two overlapping lifetimes share bytes or an offset is misaligned.
void check_packing(std::span<const Lifetime> lifetimes, const Packing& packing,
                   std::uint64_t alignment_bytes, std::uint64_t base_bytes = 0);

}  // namespace sluice::packing
