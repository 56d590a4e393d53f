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
// With delayed updates each version of a unit's weights is a value of its own, with a window of its
// own. A version that is not made yet cannot be fetched ahead.
//
// If several ranks share the weights (ZeRO stage 3), each fetches its own shard into its place in
// the window, and a Gather completes the window. So the same rules decide whether a gathered unit
// is kept for its backward pass or gathered again.
//
// From pinned memory a unit is uploaded in a few dozen parts, each of whole chunks. From storage it
// goes through staged pieces in pinned memory, with the read of the next pieces ahead of the upload
// of the current one.
#include "engine/schedule/compile/weight_stream.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/schedule/compile/pipeline_pieces.hpp"
#include "engine/schedule/compile/rank_exchange.hpp"

namespace sluice::schedule {
namespace {
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
// Copies of a unit from pinned memory. An update hands on that many parts of the unit while it goes
// on, and more instructions only lengthen the time to plan.
constexpr std::uint64_t kMostUploads = 64;
}  // namespace

WeightStream::WeightStream(StepBuilder& builder, const WeightVersions& versions,
                           const std::vector<std::vector<WeightUse>>& uses,
                           std::function<void(std::int32_t unit)> before_use)
    : builder_(builder), versions_(versions), before_use_(std::move(before_use)) {
  const auto values =
      static_cast<std::size_t>(update_count(builder.model()) * builder.unit_count());
  use_positions_.resize(values);
  windows_.assign(values, kNoId);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    std::vector<Value>& read = uses_.emplace_back();
    for (const WeightUse& weights : uses[i]) {
      read.push_back(value_of(weights));
      use_positions_[static_cast<std::size_t>(read.back())].push_back(i);
    }
  }
  next_position_.assign(values, 0);
  look_ahead();
  capacity_slots_ = std::max(builder.options().weight_slots, just_enough_slots());
}

bool WeightStream::resident_on_device(Value value) const {
  return builder_.home_tier(StateKind::kWeight, weights_of(value).unit) == Tier::kDevice &&
         !builder_.view().shards_weights();
}

std::uint64_t WeightStream::slots_of(Value value) const {
  return ceil_div(builder_.unit_elems(weights_of(value).unit) * dtype_bytes(builder_.model().dtype),
                  builder_.options().chunk_bytes);
}

std::size_t WeightStream::next_use(Value value) const {
  const auto at = static_cast<std::size_t>(value);
  const auto& positions = use_positions_[at];
  return next_position_[at] == positions.size() ? kNever : positions[next_position_[at]];
}

// Walks backwards with the streamed values in the order of their next use. Only the first
// `prefetch` of them, and those that an instruction itself uses, can be asked for.
void WeightStream::look_ahead() {
  const auto wanted = static_cast<std::size_t>(builder_.options().prefetch);
  std::size_t most_used = 0;
  for (const auto& used : uses_) most_used = std::max(most_used, used.size());
  std::vector<Value> next;  // nearest first
  ahead_begin_.resize(uses_.size() + 1);
  for (std::size_t i = uses_.size(); i-- > 0;) {
    const std::vector<Value>& now = uses_[i];
    // ahead_ is filled from its end; its values are the farthest first until it is reversed.
    ahead_begin_[i + 1] = ahead_.size();
    std::size_t count = 0;
    for (const Value value : next) {
      if (count == wanted) break;
      if (std::find(now.begin(), now.end(), value) != now.end()) continue;
      ahead_.push_back(value);
      ++count;
    }
    std::reverse(ahead_.end() - static_cast<std::ptrdiff_t>(count), ahead_.end());
    for (auto value = now.rbegin(); value != now.rend(); ++value) {
      if (resident_on_device(*value)) continue;
      const auto before = std::find(next.begin(), next.end(), *value);
      if (before != next.end()) next.erase(before);
      next.insert(next.begin(), *value);
    }
    if (next.size() > wanted + most_used) next.resize(wanted + most_used);
  }
  std::reverse(ahead_.begin(), ahead_.end());
  ahead_begin_[0] = ahead_.size();
  for (std::size_t& begin : ahead_begin_) begin = ahead_.size() - begin;
}

std::span<const WeightStream::Value> WeightStream::ahead(std::size_t use_index) const {
  return std::span(ahead_).subspan(ahead_begin_[use_index],
                                   ahead_begin_[use_index + 1] - ahead_begin_[use_index]);
}

// The most slots that one instruction needs for its own weights and those fetched ahead.
std::uint64_t WeightStream::just_enough_slots() const {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    std::uint64_t slots = 0;
    for (const Value value : uses_[i]) {
      if (!resident_on_device(value)) slots += slots_of(value);
    }
    for (const Value value : ahead(i)) slots += slots_of(value);
    most = std::max(most, slots);
  }
  return most;
}

// Frees slots for `value`, which is next used at target_use. Keeps every window that is needed at
// the current instruction or before target_use. Returns false if that leaves too few slots.
bool WeightStream::make_room(Value value, std::size_t target_use) {
  while (used_slots_ + slots_of(value) > capacity_slots_) {
    if (on_device_.empty()) return false;
    const std::size_t farthest = on_device_.rbegin()->first;
    if (farthest <= target_use) return false;
    // If several windows are needed last, the one of the first unit goes.
    const auto victim = on_device_.lower_bound({farthest, 0});
    windows_[static_cast<std::size_t>(victim->second)] = kNoId;
    used_slots_ -= slots_of(victim->second);
    on_device_.erase(victim);
  }
  return true;
}

// The uses of the instruction before lie in the past now.
void WeightStream::pass_uses(std::size_t use_index) {
  if (use_index == 0) return;
  for (const Value value : uses_[use_index - 1]) {
    const auto at = static_cast<std::size_t>(value);
    const bool held = windows_[at] != kNoId;
    if (held) on_device_.erase({next_use(value), value});
    while (next_use(value) < use_index) ++next_position_[at];
    if (held) on_device_.insert({next_use(value), value});
  }
}

void WeightStream::fetch(Value value) {
  const auto [unit, version] = weights_of(value);
  if (before_use_) before_use_(unit);
  const BufferId window =
      builder_.add_window(StateKind::kWeight, unit, builder_.unit_elems(unit),
                          builder_.model().dtype, -1, builder_.weight_version() + version);
  windows_[static_cast<std::size_t>(value)] = window;
  used_slots_ += slots_of(value);
  on_device_.insert({next_use(value), value});
  const bool on_device = builder_.home_tier(StateKind::kWeight, unit) == Tier::kDevice;
  if (!on_device) bring_home(value, window);
  if (!builder_.view().shards_weights()) return;
  emit_gather(builder_, unit, on_device ? versions_.place({unit, version}) : window, window);
}

// Brings the elements of this rank's home to their place in the window.
void WeightStream::bring_home(Value value, BufferId window) {
  const std::int32_t unit = weights_of(value).unit;
  const std::int32_t version = builder_.weight_version() + weights_of(value).version;
  const StepModel& model = builder_.model();
  const ElemRange own = builder_.home_range(StateKind::kWeight, unit);
  const BufferId home = versions_.place(weights_of(value));
  if (builder_.home_tier(StateKind::kWeight, unit) == Tier::kPinned) {
    const std::uint64_t chunk_elems = builder_.options().chunk_bytes / dtype_bytes(model.dtype);
    const std::uint64_t copied = round_up(ceil_div(own.elems(), kMostUploads), chunk_elems);
    std::int32_t piece = 0;
    for (std::uint64_t begin = own.begin; begin < own.end; begin += copied, ++piece) {
      const ElemRange range{begin, std::min(begin + copied, own.end)};
      builder_.move(Op::kUpload, Lane::kH2D, unit, -1, piece, builder_.part(home, range),
                    builder_.part(window, range), range.elems() * dtype_bytes(model.dtype));
    }
    return;
  }
  const std::vector<ElemRange> pieces = builder_.pieces(own);
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
  pass_uses(use_index);
  for (const Value value : uses_[use_index]) {
    if (resident_on_device(value)) {
      if (before_use_) before_use_(weights_of(value).unit);
      continue;
    }
    if (windows_[static_cast<std::size_t>(value)] != kNoId) continue;
    SLUICE_CHECK(make_room(value, use_index));
    fetch(value);
  }
  for (const Value value : ahead(use_index)) {
    if (windows_[static_cast<std::size_t>(value)] != kNoId) continue;
    if (!versions_.is_made(weights_of(value))) continue;
    if (!make_room(value, next_use(value))) break;
    fetch(value);
  }
}

BufferId WeightStream::window(WeightUse weights) const {
  const Value value = value_of(weights);
  if (resident_on_device(value)) return versions_.place(weights);
  const BufferId window = windows_[static_cast<std::size_t>(value)];
  SLUICE_CHECK(window != kNoId);
  return window;
}

}  // namespace sluice::schedule
