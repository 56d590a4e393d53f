// pack_lifetimes divides the problem and calls the searches.
//
// Buffers are split into components that share no position, and each component's time is compressed
// to the ranks of its starts. The component with the largest sum of live bytes is packed first: the
// others then only need to stay below its capacity. Components with equal boxes, such as those of
// micro-batches, share one packing. search_packing finds a packing by orders
// (packing_search.hpp). With kThorough, improve_exactly then asks pack_exactly (exact_packing.hpp)
// for a packing at the lower bound, and bisects between the capacities that failed and the best one
// found.
#include "allocator/packing/arena_packing.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "allocator/packing/exact_packing.hpp"
#include "allocator/packing/packing_memo.hpp"
#include "allocator/packing/packing_search.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::packing {
namespace {

// In units of PlacedBoxes::work. A unit takes 2 to 4 ns on a 2-core server, so this is 10 to 20 ms.
// The first greedy order of a component always runs to its end, which may take longer.
// Twenty times as much gained less than 0.5% of capacity on the shapes of training steps.
constexpr std::uint64_t kWorkBudget = 5'000'000;

// Budgets of the exhaustive search at the bound, and at each capacity above it. If it gives up,
// they take some 3 s and 1 s on the same server.
constexpr std::uint64_t kBoundWorkBudget = 800'000'000;
constexpr std::uint64_t kBetweenWorkBudget = 300'000'000;
// The largest component for the exhaustive search, whose set-up takes quadratic time.
constexpr std::size_t kMostExactBoxes = 16384;
// The bisection ends when the gap between capacities is this part of the bound.
constexpr double kCloseEnough = 1e-3;

using Indices = std::vector<std::uint32_t>;

void check_lifetimes(std::span<const Lifetime> lifetimes) {
  SLUICE_CHECK(lifetimes.size() < std::numeric_limits<std::int32_t>::max());
  std::uint64_t total_bytes = 0;
  for (const Lifetime& lifetime : lifetimes) {
    SLUICE_CHECK_MSG(lifetime.lower < lifetime.upper, std::to_string(lifetime.lower));
    SLUICE_CHECK(lifetime.bytes > 0);
    SLUICE_CHECK(!__builtin_add_overflow(total_bytes, lifetime.bytes, &total_bytes));
  }
  // This leaves room to round every size up.
  SLUICE_CHECK(total_bytes < std::uint64_t{1} << 62);
}

Indices sorted_indices(std::span<const Lifetime> lifetimes, std::uint64_t Lifetime::*key) {
  Indices indices(lifetimes.size());
  std::iota(indices.begin(), indices.end(), 0u);
  std::stable_sort(indices.begin(), indices.end(), [&](std::uint32_t a, std::uint32_t b) {
    return lifetimes[a].*key < lifetimes[b].*key;
  });
  return indices;
}

// Calls end(i) and begin(i) in the order of time. At one position, ends come first.
template <typename Begin, typename End>
void sweep(std::span<const Lifetime> lifetimes, const Begin& begin, const End& end) {
  const Indices by_lower = sorted_indices(lifetimes, &Lifetime::lower);
  const Indices by_upper = sorted_indices(lifetimes, &Lifetime::upper);
  auto next_end = by_upper.begin();
  for (const std::uint32_t i : by_lower) {
    while (lifetimes[*next_end].upper <= lifetimes[i].lower) end(*next_end++);
    begin(i);
  }
  std::for_each(next_end, by_upper.end(), end);
}

// Buffers that share no position with any other component's, in compressed time.
struct Component {
  Indices members;
  std::vector<Box> boxes;
  std::vector<std::uint64_t> durations;  // by box, in uncompressed time
  std::int32_t position_count = 0;
  std::uint64_t bound_bytes = 0;
};

// Time is compressed to the ranks of the distinct starts: [l, u) and [l', u') meet exactly when
// l < u' and l' < u, and a start's rank is below the count of starts before an end exactly when the
// start is below that end.
Component make_component(std::span<const Lifetime> padded, Indices members) {
  Component component;
  std::vector<std::uint64_t> starts;
  for (const std::uint32_t i : members) starts.push_back(padded[i].lower);
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  const auto rank_of = [&](std::uint64_t position) {
    return static_cast<std::int32_t>(std::lower_bound(starts.begin(), starts.end(), position) -
                                     starts.begin());
  };
  std::vector<Lifetime> own;
  for (const std::uint32_t i : members) {
    own.push_back(padded[i]);
    component.boxes.push_back({rank_of(padded[i].lower), rank_of(padded[i].upper), padded[i].bytes,
                               padded[i].alignment_bytes});
    component.durations.push_back(padded[i].upper - padded[i].lower);
  }
  component.position_count = static_cast<std::int32_t>(starts.size());
  component.bound_bytes = peak_live(own);
  component.members = std::move(members);
  return component;
}

std::vector<Component> split_components(std::span<const Lifetime> padded) {
  std::vector<Component> components;
  Indices members;
  std::uint64_t end = 0;
  for (const std::uint32_t i : sorted_indices(padded, &Lifetime::lower)) {
    if (!members.empty() && padded[i].lower >= end) {
      components.push_back(make_component(padded, std::move(members)));
      members = {};
    }
    members.push_back(i);
    end = std::max(end, padded[i].upper);
  }
  if (!members.empty()) components.push_back(make_component(padded, std::move(members)));
  return components;
}

// Searches exhaustively at the target, then by bisection between the largest capacity that failed
// and the best one found.
void improve_exactly(const Component& component, std::uint64_t target_bytes, BoxPacking& found) {
  std::uint64_t missed_bytes = target_bytes;  // the largest capacity that failed
  for (std::uint64_t capacity = target_bytes; capacity < found.capacity_bytes;
       capacity = missed_bytes + (found.capacity_bytes - missed_bytes) / 2) {
    ExactPacking exact =
        pack_exactly(component.boxes, component.durations, component.position_count, capacity,
                     capacity == target_bytes ? kBoundWorkBudget : kBetweenWorkBudget);
    if (exact.outcome == SkylineOutcome::kPacked) {
      found.capacity_bytes = 0;
      for (std::size_t i = 0; i < component.boxes.size(); ++i) {
        found.capacity_bytes =
            std::max(found.capacity_bytes, exact.offsets_bytes[i] + component.boxes[i].bytes);
      }
      found.offsets_bytes = std::move(exact.offsets_bytes);
    } else {
      missed_bytes = capacity;
    }
    if (found.capacity_bytes <= missed_bytes + 1) return;
    const auto gap = static_cast<double>(found.capacity_bytes - missed_bytes);
    if (gap < kCloseEnough * static_cast<double>(target_bytes)) return;
  }
}

void place_component(const Component& component, const BoxPacking& found, Packing& packing) {
  for (std::size_t k = 0; k < component.members.size(); ++k) {
    packing.offsets_bytes[component.members[k]] = found.offsets_bytes[k];
  }
}

// The packings of components by their boxes. Micro-batches are often alike, and one packing serves
// all of them: it fits below the capacity that it has set itself.
class PackedBefore {
 public:
  const BoxPacking* find(const Component& component) const {
    const auto [begin, end] = found_.equal_range(hash_of(component.boxes));
    const auto same = std::find_if(begin, end, [&](const auto& each) {
      return each.second.component->boxes == component.boxes;
    });
    return same == end ? nullptr : &same->second.packing;
  }
  // `component` must outlive this.
  void add(const Component& component, BoxPacking packing) {
    found_.emplace(hash_of(component.boxes), Found{&component, std::move(packing)});
  }

 private:
  struct Found {
    const Component* component;
    BoxPacking packing;
  };
  std::multimap<std::uint64_t, Found> found_;
};

}  // namespace

std::uint64_t peak_live(std::span<const Lifetime> lifetimes) {
  std::uint64_t live = 0;
  std::uint64_t largest = 0;
  sweep(
      lifetimes,
      [&](std::uint32_t i) {
        live += lifetimes[i].bytes;
        largest = std::max(largest, live);
      },
      [&](std::uint32_t i) { live -= lifetimes[i].bytes; });
  return largest;
}

Packing pack_lifetimes(std::span<const Lifetime> lifetimes, std::uint64_t alignment_bytes,
                       PackingEffort effort, std::uint64_t enough_bytes, std::uint64_t base_bytes,
                       PackingMemo* memo) {
  SLUICE_CHECK(alignment_bytes > 0 && base_bytes % alignment_bytes == 0);
  check_lifetimes(lifetimes);
  for (const Lifetime& lifetime : lifetimes) {
    if (lifetime.alignment_bytes == 1) continue;
    SLUICE_CHECK(effort != PackingEffort::kThorough && lifetime.alignment_bytes > 0 &&
                 lifetime.alignment_bytes % alignment_bytes == 0);
  }
  Packing packing;
  packing.offsets_bytes.resize(lifetimes.size());
  packing.lower_bound_bytes = peak_live(lifetimes);

  // Once every size is rounded up, offsets that stack them are aligned.
  std::vector<Lifetime> padded(lifetimes.begin(), lifetimes.end());
  for (Lifetime& lifetime : padded) lifetime.bytes = round_up(lifetime.bytes, alignment_bytes);
  std::vector<Component> components = split_components(padded);
  // The hardest component comes first: the others need only stay below its capacity.
  std::stable_sort(components.begin(), components.end(),
                   [](const auto& a, const auto& b) { return a.bound_bytes > b.bound_bytes; });
  std::uint64_t target_bytes = enough_bytes;
  if (!components.empty()) target_bytes = std::max(target_bytes, components.front().bound_bytes);
  PackedBefore before;
  for (const Component& component : components) {
    if (const BoxPacking* same = before.find(component); same != nullptr) {
      place_component(component, *same, packing);
      continue;
    }
    const std::uint64_t all = effort == PackingEffort::kCoarse ? kWorkBudget / 20 : kWorkBudget;
    const std::uint64_t budget = all * component.members.size() / lifetimes.size();
    BoxPacking found = memo == nullptr ? search_packing(component.boxes, component.position_count,
                                                        target_bytes, budget, base_bytes)
                                       : memo->search(component.boxes, component.position_count,
                                                      target_bytes, budget, base_bytes);
    const bool exact =
        effort == PackingEffort::kThorough && component.boxes.size() <= kMostExactBoxes;
    if (exact) improve_exactly(component, target_bytes, found);
    target_bytes = std::max(target_bytes, found.capacity_bytes);
    place_component(component, found, packing);
    before.add(component, std::move(found));
  }
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    packing.capacity_bytes =
        std::max(packing.capacity_bytes, packing.offsets_bytes[i] + lifetimes[i].bytes);
  }
  return packing;
}

SlotAssignment assign_slots(std::span<const Lifetime> lifetimes_in_slots) {
  check_lifetimes(lifetimes_in_slots);
  SlotAssignment assignment;
  const std::uint64_t count = peak_live(lifetimes_in_slots);
  SLUICE_CHECK(count <= std::numeric_limits<std::uint32_t>::max());
  assignment.slot_count = static_cast<std::uint32_t>(count);
  assignment.slots.resize(lifetimes_in_slots.size());
  // Slots in the order in which they became free.
  std::deque<std::uint32_t> free_slots(assignment.slot_count);
  std::iota(free_slots.begin(), free_slots.end(), 0u);
  sweep(
      lifetimes_in_slots,
      [&](std::uint32_t i) {
        // Enough slots are free, because the live sum never exceeds the count.
        const auto needed = static_cast<std::ptrdiff_t>(lifetimes_in_slots[i].bytes);
        assignment.slots[i].assign(free_slots.begin(), free_slots.begin() + needed);
        free_slots.erase(free_slots.begin(), free_slots.begin() + needed);
      },
      [&](std::uint32_t i) {
        const auto& slots = assignment.slots[i];
        free_slots.insert(free_slots.end(), slots.begin(), slots.end());
      });
  return assignment;
}

void check_packing(std::span<const Lifetime> lifetimes, const Packing& packing,
                   std::uint64_t alignment_bytes, std::uint64_t base_bytes) {
  SLUICE_CHECK(packing.offsets_bytes.size() == lifetimes.size());
  std::uint64_t capacity_bytes = 0;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    const std::uint64_t offset = packing.offsets_bytes[i];
    SLUICE_CHECK_MSG(
        offset % alignment_bytes == 0 && (base_bytes + offset) % lifetimes[i].alignment_bytes == 0,
        "buffer " + std::to_string(i));
    SLUICE_CHECK(offset <= std::numeric_limits<std::uint64_t>::max() - lifetimes[i].bytes);
    capacity_bytes = std::max(capacity_bytes, offset + lifetimes[i].bytes);
  }
  SLUICE_CHECK(packing.capacity_bytes == capacity_bytes);
  SLUICE_CHECK(packing.lower_bound_bytes == peak_live(lifetimes));

  // Live buffers are disjoint, so a new one can only collide with its neighbours by offset.
  std::map<std::uint64_t, std::uint32_t> live;
  const auto end_of = [&](std::uint32_t i) {
    return packing.offsets_bytes[i] + lifetimes[i].bytes;
  };
  sweep(
      lifetimes,
      [&](std::uint32_t i) {
        const auto [place, fresh] = live.emplace(packing.offsets_bytes[i], i);
        const bool below = !fresh || (place != live.begin() &&
                                      end_of(std::prev(place)->second) > packing.offsets_bytes[i]);
        const bool above = std::next(place) != live.end() && end_of(i) > std::next(place)->first;
        SLUICE_CHECK_MSG(!below && !above,
                         "buffer " + std::to_string(i) + " shares bytes with one that lives then");
      },
      [&](std::uint32_t i) { live.erase(packing.offsets_bytes[i]); });
}

}  // namespace sluice::packing
