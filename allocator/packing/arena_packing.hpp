// Offline packing: finds offsets for buffers with known lifetimes (dynamic storage allocation).
//
// lower and upper are positions in a linear order; a buffer lives in [lower, upper). Two buffers
// that live at a common position never share a byte. Deterministic: a pure function of its input.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::packing {

class PackingMemo;

struct Lifetime {
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;  // exclusive; upper > lower
  std::uint64_t bytes = 0;  // > 0
  // The buffer's address is a multiple of this. It is 1, or a multiple of the alignment of all.
  std::uint64_t alignment_bytes = 1;
};

struct Packing {
  std::vector<std::uint64_t> offsets_bytes;  // in the order of the input
  std::uint64_t capacity_bytes = 0;          // max(offset + bytes)
  std::uint64_t lower_bound_bytes = 0;       // the largest sum of sizes live at once
};

// The time that packing may take. The local search takes 10 to 20 ms in all, beyond
// a first greedy order of every part, and comes within 0.5%
// of the bound on the shapes of training steps. Some instances of a few hundred buffers defeat
// every order; there the exhaustive search closes the remaining gap, in seconds.
// kCoarse has a twentieth of the local search's time, for packings that are only compared.
enum class PackingEffort : std::uint8_t { kCoarse, kQuick, kThorough };

// Every offset is a multiple of `alignment_bytes`. The result is the best of several greedy orders
// (by size, area, start, length and contention; with best and first fit), improved by a local
// search over orders. kThorough then searches exhaustively (parts of at most 16,384 buffers) at the
// bound, and at larger capacities if that gives up. A count of operations bounds each search, never
// time. An order costs at most O(n^2); buffers that do not overlap cost 1/64 of one that does,
// and nothing if there are many and they are short.
//
// Sizes are rounded up to the alignment while packing, so the capacity may be up to alignment_bytes
// - 1 above that of unrounded sizes. The search stops once the capacity is at most `enough_bytes`.
// base_bytes is the address of offset 0; it matters for buffers with an alignment of their own,
// which kThorough does not support. `memo`, if not null, answers searches that it knows; the
// result is the same. Preconditions (InternalError): lower < upper, bytes > 0, and the sum of
// bytes is below 2^62.
Packing pack_lifetimes(std::span<const Lifetime> lifetimes, std::uint64_t alignment_bytes,
                       PackingEffort effort = PackingEffort::kQuick, std::uint64_t enough_bytes = 0,
                       std::uint64_t base_bytes = 0, PackingMemo* memo = nullptr);

// The largest sum of sizes live at once.
std::uint64_t peak_live(std::span<const Lifetime> lifetimes);

// Assigns slots to items of equal size. It uses as many slots as the deepest overlap, which is the
// least number for intervals. An item takes the slots that have been free longest, so that it waits
// least for their last user. Returns each item's slots, in no particular order, and their number.
struct SlotAssignment {
  std::vector<std::vector<std::uint32_t>> slots;
  std::uint32_t slot_count = 0;
};
SlotAssignment assign_slots(
    std::span<const Lifetime> lifetimes_in_slots);  // `bytes` is the number of slots

// Throws InternalError if two overlapping lifetimes share bytes or an offset is misaligned.
void check_packing(std::span<const Lifetime> lifetimes, const Packing& packing,
                   std::uint64_t alignment_bytes, std::uint64_t base_bytes = 0);

}  // namespace sluice::packing
