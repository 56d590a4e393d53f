// A cache of weights on the device, managed with full knowledge of the future.
//
// The generator gives the list of all compute instructions and the units that each reads. Before an
// instruction this stream fetches the weights that it needs, then those of the next `prefetch`
// distinct units. A fetch needs free slots. It takes them from the window with the farthest next
// use, which is Belady's optimal rule (A study of replacement algorithms, IBM Systems Journal
// 1966). A window is never evicted for a unit that is used later than the window itself; such a
// fetch waits for a later instruction. An evicted weight is only dropped, since its home still has
// it.
//
// From pinned memory a unit is uploaded chunk by chunk. From storage it goes through staged pieces
// in pinned memory, with the read of the next pieces ahead of the upload of the current one.
#include "engine/schedule/compile/weight_stream.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"

namespace sluice::schedule {
namespace {
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
}

WeightStream::WeightStream(StepBuilder& builder, std::vector<std::vector<std::int32_t>> uses,
                           std::function<void(std::int32_t unit)> before_use)
    : builder_(builder), uses_(std::move(uses)), before_use_(std::move(before_use)) {
  const auto units = static_cast<std::size_t>(builder.unit_count());
  use_positions_.resize(units);
  windows_.assign(units, kNoId);
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    for (const std::int32_t unit : uses_[i]) {
      use_positions_[static_cast<std::size_t>(unit)].push_back(i);
    }
  }
  capacity_slots_ = std::max(builder.options().weight_slots, just_enough_slots());
}

bool WeightStream::resident_on_device(std::int32_t unit) const {
  return builder_.home_tier(StateKind::kWeight, unit) == Tier::kDevice;
}

std::uint64_t WeightStream::slots_of(std::int32_t unit) const {
  return ceil_div(builder_.unit_elems(unit) * dtype_bytes(builder_.model().dtype),
                  builder_.options().chunk_bytes);
}

std::size_t WeightStream::next_use(std::int32_t unit, std::size_t from) const {
  const auto& positions = use_positions_[static_cast<std::size_t>(unit)];
  const auto it = std::lower_bound(positions.begin(), positions.end(), from);
  return it == positions.end() ? kNever : *it;
}

// The next distinct units to be fetched after use_index, nearest first.
std::vector<std::int32_t> WeightStream::ahead(std::size_t use_index) const {
  std::vector<std::int32_t> units;
  const auto wanted = static_cast<std::size_t>(builder_.options().prefetch);
  const auto& now = uses_[use_index];
  for (std::size_t i = use_index + 1; i < uses_.size() && units.size() < wanted; ++i) {
    for (const std::int32_t unit : uses_[i]) {
      if (resident_on_device(unit) || units.size() >= wanted) continue;
      if (std::find(now.begin(), now.end(), unit) != now.end()) continue;
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
  }
  return units;
}

// The most slots that one instruction needs for its own units and those fetched ahead.
std::uint64_t WeightStream::just_enough_slots() const {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    std::uint64_t slots = 0;
    for (const std::int32_t unit : uses_[i]) {
      if (!resident_on_device(unit)) slots += slots_of(unit);
    }
    for (const std::int32_t unit : ahead(i)) slots += slots_of(unit);
    most = std::max(most, slots);
  }
  return most;
}

// Frees slots for `unit`, which is next used at target_use. Keeps every window that is needed at
// use_index or before target_use. Returns false if that leaves too few slots.
bool WeightStream::make_room(std::int32_t unit, std::size_t use_index, std::size_t target_use) {
  while (used_slots_ + slots_of(unit) > capacity_slots_) {
    std::int32_t victim = -1;
    std::size_t farthest = target_use;
    for (std::int32_t other = 0; other < builder_.unit_count(); ++other) {
      if (windows_[static_cast<std::size_t>(other)] == kNoId) continue;
      const std::size_t next = next_use(other, use_index);
      if (next > farthest) {
        farthest = next;
        victim = other;
      }
    }
    if (victim < 0) return false;
    windows_[static_cast<std::size_t>(victim)] = kNoId;
    used_slots_ -= slots_of(victim);
  }
  return true;
}

void WeightStream::fetch(std::int32_t unit) {
  const StepModel& model = builder_.model();
  const std::uint64_t elems = builder_.unit_elems(unit);
  const BufferId home = builder_.home(StateKind::kWeight, unit);
  if (before_use_) before_use_(unit);
  const std::int32_t version = builder_.weight_version();
  const BufferId window =
      builder_.add_window(StateKind::kWeight, unit, elems, model.dtype, -1, version);
  windows_[static_cast<std::size_t>(unit)] = window;
  used_slots_ += slots_of(unit);

  if (builder_.home_tier(StateKind::kWeight, unit) == Tier::kPinned) {
    const std::uint64_t chunk_elems = builder_.options().chunk_bytes / dtype_bytes(model.dtype);
    std::int32_t chunk = 0;
    for (std::uint64_t begin = 0; begin < elems; begin += chunk_elems, ++chunk) {
      const ElemRange range{begin, std::min(begin + chunk_elems, elems)};
      builder_.move(Op::kUpload, Lane::kH2D, unit, -1, chunk, builder_.part(home, range),
                    builder_.part(window, range), range.elems() * dtype_bytes(model.dtype));
    }
    return;
  }
  const std::vector<ElemRange> pieces = builder_.pieces(elems);
  std::vector<BufferId> staged(pieces.size());
  pipeline_pieces(
      pieces.size(), static_cast<std::size_t>(builder_.options().stream_lookahead),
      [&](std::size_t i) {
        const ElemRange range = pieces[i];
        staged[i] = builder_.add_piece(Ring::kWeights, StateKind::kWeight, unit, range, model.dtype,
                                       version);
        builder_.move(Op::kStorageRead, Lane::kStorageRead, unit, -1, static_cast<std::int32_t>(i),
                      builder_.part(home, range), builder_.part(staged[i], range),
                      range.elems() * dtype_bytes(model.dtype));
      },
      [&](std::size_t i) {
        const ElemRange range = pieces[i];
        builder_.move(Op::kUpload, Lane::kH2D, unit, -1, static_cast<std::int32_t>(i),
                      builder_.part(staged[i], range), builder_.part(window, range),
                      range.elems() * dtype_bytes(model.dtype));
      },
      [](std::size_t) {});
}

void WeightStream::advance(std::size_t use_index) {
  for (const std::int32_t unit : uses_[use_index]) {
    if (resident_on_device(unit)) {
      if (before_use_) before_use_(unit);
      continue;
    }
    if (windows_[static_cast<std::size_t>(unit)] != kNoId) continue;
    SLUICE_CHECK(make_room(unit, use_index, use_index));
    fetch(unit);
  }
  for (const std::int32_t unit : ahead(use_index)) {
    if (windows_[static_cast<std::size_t>(unit)] != kNoId) continue;
    if (!make_room(unit, use_index, next_use(unit, use_index))) break;
    fetch(unit);
  }
}

BufferId WeightStream::window(std::int32_t unit) const {
  if (resident_on_device(unit)) return builder_.home(StateKind::kWeight, unit);
  const BufferId window = windows_[static_cast<std::size_t>(unit)];
  SLUICE_CHECK(window != kNoId);
  return window;
}

}  // namespace sluice::schedule
