#include "allocator/record/format/torch_snapshot.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "allocator/record/format/torch_frames.hpp"
#include "allocator/record/memory_action_names.hpp"
#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::int32_t kMaxDevices = 1024;
constexpr std::size_t kMaxEvents = 50'000'000;
constexpr std::size_t kMaxPools = 65536;  // MemoryEvent::pool
constexpr std::size_t kMaxKeys = 256;     // of one event, block or segment; today's have at most 11

// Reads the values of known keys from many dicts that are alike.
template <std::size_t N>
class Fields {
 public:
  using Values = std::array<std::optional<PickleValue>, N>;

  Fields(const PickleTree& tree, const std::array<std::string_view, N>& keys) : tree_(tree) {
    for (std::size_t k = 0; k < N; ++k) {
      const auto id = tree.text_id(keys[k]);
      if (!id) continue;
      if (places_.size() <= *id) places_.resize(*id + 1, kUnknown);
      places_[*id] = static_cast<std::uint8_t>(k);
    }
  }

  // Returns false if the value is not a dict, or has too many keys.
  bool read(PickleValue dict, Values& values) const {
    values.fill(std::nullopt);
    const std::span<const PickleValue> items = tree_.items(dict);
    if (dict.kind() != PickleKind::kDict || items.size() > 2 * kMaxKeys) return false;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind() != PickleKind::kText || items[i].id() >= places_.size()) continue;
      const std::uint8_t place = places_[items[i].id()];
      if (place != kUnknown) values[place] = items[i + 1];
    }
    return true;
  }

 private:
  static constexpr std::uint8_t kUnknown = 255;
  const PickleTree& tree_;
  std::vector<std::uint8_t> places_;  // by id of the key
};

enum EventKey : std::uint8_t {
  kEventAction,
  kEventAddr,
  kEventDeviceFree,
  kEventSize,
  kEventStream,
  kEventTime,
  kEventFrames,
  kEventCategory,
  kEventPool,
};
constexpr std::array<std::string_view, 9> kEventKeys{
    "action", "addr", "device_free", "size", "stream", "time_us", "frames", "category", "pool_id"};

enum SegmentKey : std::uint8_t {
  kSegmentDevice,
  kSegmentAddress,
  kSegmentTotalSize,
  kSegmentStream,
  kSegmentType,
  kSegmentPool,
  kSegmentExpandable,
  kSegmentBlocks,
};
constexpr std::array<std::string_view, 8> kSegmentKeys{
    "device",       "address",         "total_size",    "stream",
    "segment_type", "segment_pool_id", "is_expandable", "blocks"};

enum BlockKey : std::uint8_t {
  kBlockSize,
  kBlockRequested,
  kBlockState,
  kBlockFrames,
  kBlockHistory,
  kBlockCategory,
};
constexpr std::array<std::string_view, 6> kBlockKeys{"size",   "requested_size", "state",
                                                     "frames", "history",        "category"};

Category parse_category(std::string_view word) {
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    if (category_name(static_cast<Category>(i)) == word) return static_cast<Category>(i);
  }
  // The categories of torch.profiler.
  if (word == "parameter") return Category::kWeight;
  if (word == "optimizer_state") return Category::kOptimizer;
  if (word == "autograd_detail") return Category::kActivation;
  if (word == "temporary") return Category::kWorkspace;
  return Category::kExternal;
}

class Importer {
 public:
  Importer(const PickleTree& tree, const std::string& source)
      : tree_(tree),
        source_(source),
        event_fields_(tree, kEventKeys),
        segment_fields_(tree, kSegmentKeys),
        block_fields_(tree, kBlockKeys),
        frames_(tree, snapshot_.names) {}

  MemorySnapshot run(std::optional<std::int32_t> device) {
    if (tree_.root.kind() == PickleKind::kList) {
      segments_ = tree_.root;  // torch.cuda.memory_snapshot() returns only segments
    } else {
      const auto segments = tree_.find(tree_.root, "segments");
      const auto traces = tree_.find(tree_.root, "device_traces");
      if (!segments && !traces) {
        refuse("",
               "is not a memory snapshot of PyTorch: must be a dict with the keys 'segments' and "
               "'device_traces'");
      }
      if (segments) segments_ = *segments;
      if (traces) traces_ = *traces;
    }
    choose_device(device);
    read_segments();
    const auto trace_index = static_cast<std::size_t>(snapshot_.device);
    const auto traces = tree_.items(traces_);
    if (trace_index < traces.size()) read_events(traces[trace_index]);
    if (const auto settings = tree_.find(tree_.root, "allocator_settings")) {
      read_settings(*settings);
    }
    if (const auto host = tree_.find(tree_.root, "host_segments")) read_host_segments(*host);
    for (const SnapshotSegment& segment : snapshot_.segments) {
      snapshot_.expandable_segments |= segment.is_expandable;
    }
    return std::move(snapshot_);
  }

 private:
  // `place` is written like a Python expression.
  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw InputError("'" + source_ + "'" + (place.empty() ? "" : " " + place + ":") + " " + reason);
  }

  std::string place(const char* list, std::size_t index) const {
    return std::string(list) + "[" + std::to_string(index) + "]";
  }

  // 0 if the key is absent or None.
  template <typename Place>
  std::uint64_t number(std::optional<PickleValue> value, std::string_view key,
                       const Place& where) const {
    if (!value || value->kind() == PickleKind::kNone) return 0;
    const auto bits = tree_.as_bits(*value);
    if (!bits) {
      refuse(where(), "'" + std::string(key) + "' must be a whole number of 64 bits, not a " +
                          std::string(pickle_kind_name(value->kind())));
    }
    return *bits;
  }

  void choose_device(std::optional<std::int32_t> wanted) {
    const auto traces = tree_.items(traces_);
    if (traces.size() > static_cast<std::size_t>(kMaxDevices)) {
      refuse("device_traces", "must be of at most " + std::to_string(kMaxDevices) + " devices");
    }
    std::vector<std::pair<std::size_t, std::uint64_t>> used(traces.size());  // events, reserved
    for (std::size_t d = 0; d < traces.size(); ++d) used[d].first = tree_.items(traces[d]).size();
    const auto segments = tree_.items(segments_);
    decltype(segment_fields_)::Values values;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const auto where = [&] { return place("segments", s); };
      if (!segment_fields_.read(segments[s], values)) refuse(where(), "must be a dict");
      const std::uint64_t device = number(values[kSegmentDevice], "device", where);
      if (device >= kMaxDevices) {
        refuse(where(), "'device' must be below " + std::to_string(kMaxDevices));
      }
      if (used.size() <= device) used.resize(device + 1);
      const std::uint64_t bytes = number(values[kSegmentTotalSize], "total_size", where);
      used[device].second += std::min(bytes, UINT64_MAX - used[device].second);
    }
    if (wanted) {
      if (*wanted < 0 || static_cast<std::size_t>(*wanted) >= used.size()) {
        refuse("", "has no device " + std::to_string(*wanted) + ": must be below " +
                       std::to_string(used.size()));
      }
      snapshot_.device = *wanted;
      return;
    }
    const auto best = std::max_element(used.begin(), used.end());
    snapshot_.device = static_cast<std::int32_t>(best == used.end() ? 0 : best - used.begin());
  }

  void read_segments() {
    const auto segments = tree_.items(segments_);
    decltype(segment_fields_)::Values values;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const auto where = [&] { return place("segments", s); };
      segment_fields_.read(segments[s], values);
      if (number(values[kSegmentDevice], "device", where) !=
          static_cast<std::uint64_t>(snapshot_.device)) {
        continue;
      }
      SnapshotSegment segment;
      segment.address = number(values[kSegmentAddress], "address", where);
      segment.bytes = number(values[kSegmentTotalSize], "total_size", where);
      segment.stream = number(values[kSegmentStream], "stream", where);
      segment.is_expandable = number(values[kSegmentExpandable], "is_expandable", where) != 0;
      segment.is_small = values[kSegmentType] && tree_.text(*values[kSegmentType]) == "small";
      if (values[kSegmentPool]) segment.pool = pool_of(*values[kSegmentPool]);
      if (segment.bytes == 0) continue;
      if (segment.bytes > UINT64_MAX - segment.address) {
        refuse(where(), "must end below 2^64");
      }
      if (values[kSegmentBlocks]) read_blocks(*values[kSegmentBlocks], segment, s);
      snapshot_.segments.push_back(std::move(segment));
    }
  }

  // Pinned memory: its blocks are no part of the device's record.
  void read_host_segments(PickleValue list) {
    decltype(segment_fields_)::Values values;
    const auto segments = tree_.items(list);
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const auto where = [&] { return place("host_segments", s); };
      if (!segment_fields_.read(segments[s], values)) refuse(where(), "must be a dict");
      const std::uint64_t bytes = number(values[kSegmentTotalSize], "total_size", where);
      snapshot_.host_bytes += std::min(bytes, UINT64_MAX - snapshot_.host_bytes);
      ++snapshot_.host_segment_count;
    }
  }

  // A pool id is two numbers: of a capture, and of a pool that the user made. Private pools are
  // numbered from 1 on as they come; (0, 0) is the default one.
  std::uint16_t pool_of(PickleValue pair) {
    const auto parts = tree_.items(pair);
    if (parts.size() != 2) return 0;
    const std::pair id(tree_.as_bits(parts[0]).value_or(0), tree_.as_bits(parts[1]).value_or(0));
    const auto [found, is_new] = pools_.try_emplace(id, static_cast<std::uint16_t>(pools_.size()));
    if (is_new && pools_.size() > kMaxPools) {
      refuse("", "must have at most " + std::to_string(kMaxPools - 1) + " private pools");
    }
    return found->second;
  }

  void read_blocks(PickleValue list, SnapshotSegment& segment, std::size_t index) {
    const auto blocks = tree_.items(list);
    // No allocator writes a list that segments share. A hostile file could multiply blocks with
    // one.
    if (blocks.size() > kMaxEvents - block_count_) {
      refuse(place("segments", index),
             "all segments must have at most " + std::to_string(kMaxEvents) + " blocks together");
    }
    if (!blocks.empty() && !block_lists_.emplace(list.id(), index).second) {
      refuse(place("segments", index), "must have blocks of its own");
    }
    block_count_ += blocks.size();
    std::uint64_t address = segment.address;
    std::uint64_t left_bytes = segment.bytes;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const auto where = [&] { return place("segments", index) + place("['blocks']", b); };
      SnapshotBlock block = read_block(blocks[b], where);
      if (block.bytes > left_bytes) {
        refuse(where(), "ends after its segment: the sizes of blocks must be 'total_size' in sum");
      }
      block.address = address;
      address += block.bytes;
      left_bytes -= block.bytes;
      if (block.bytes > 0) segment.blocks.push_back(block);
    }
    if (left_bytes > 0) {
      segment.blocks.push_back({.address = address, .bytes = left_bytes});
    }
  }

  template <typename Place>
  SnapshotBlock read_block(PickleValue value, const Place& where) {
    decltype(block_fields_)::Values values;
    if (!block_fields_.read(value, values)) refuse(where(), "must be a dict");
    SnapshotBlock block;
    block.bytes = number(values[kBlockSize], "size", where);
    const std::string_view state =
        values[kBlockState] ? tree_.text(*values[kBlockState]) : std::string_view();
    if (state == "active_allocated") {
      block.state = BlockState::kAllocated;
    } else if (state == "active_pending_free" || state == "active_awaiting_free") {
      block.state = BlockState::kPendingFree;
    } else if (state != "inactive") {
      refuse(where(), "'state' must be active_allocated, active_pending_free or inactive");
    }
    if (block.state == BlockState::kFree) return block;
    block.requested_bytes = number(values[kBlockRequested], "requested_size", where);
    if (values[kBlockFrames]) block.name = frames_.name_of(*values[kBlockFrames]);
    if (values[kBlockHistory]) read_history(*values[kBlockHistory], block, where);
    if (block.requested_bytes == 0) block.requested_bytes = block.bytes;
    block.requested_bytes = std::min(block.requested_bytes, block.bytes);
    if (values[kBlockCategory]) {
      block.category = parse_category(tree_.text(*values[kBlockCategory]));
    }
    return block;
  }

  // Versions before 2.1 list the allocations that used the block, the latest first.
  template <typename Place>
  void read_history(PickleValue history, SnapshotBlock& block, const Place& where) {
    const auto entries = tree_.items(history);
    if (entries.empty() || tree_.items(entries[0]).size() > 2 * kMaxKeys) return;
    const auto real_size = tree_.find(entries[0], "real_size");
    const auto frames = tree_.find(entries[0], "frames");
    if (block.requested_bytes == 0) {
      block.requested_bytes = number(real_size, "real_size", where);
    }
    if (block.name == 0 && frames) block.name = frames_.name_of(*frames);
  }

  void read_events(PickleValue trace) {
    const auto events = tree_.items(trace);
    if (events.size() > kMaxEvents) {
      refuse(place("device_traces", static_cast<std::size_t>(snapshot_.device)),
             "must have at most " + std::to_string(kMaxEvents) + " events");
    }
    snapshot_.events.reserve(events.size());
    decltype(event_fields_)::Values values;
    for (std::size_t e = 0; e < events.size(); ++e) {
      const auto where = [&] {
        return place("device_traces", static_cast<std::size_t>(snapshot_.device)) + place("", e);
      };
      if (!event_fields_.read(events[e], values)) refuse(where(), "must be a dict");
      if (!values[kEventAction] || values[kEventAction]->kind() != PickleKind::kText) {
        refuse(where(), "'action' must be a string");
      }
      const auto action = parse_memory_action(tree_.text(*values[kEventAction]));
      if (!action) continue;
      MemoryEvent event;
      event.action = *action;
      const bool is_failure = event.action == MemoryAction::kOutOfMemory;
      event.address = number(values[is_failure ? kEventDeviceFree : kEventAddr], "addr", where);
      event.bytes = number(values[kEventSize], "size", where);
      event.stream = number(values[kEventStream], "stream", where);
      const auto time_us = static_cast<std::int64_t>(number(values[kEventTime], "time_us", where));
      constexpr std::int64_t kMaxTimeUs = INT64_MAX / 1000;
      event.time_ns = std::clamp(time_us, -kMaxTimeUs, kMaxTimeUs) * 1000;
      if (values[kEventPool]) event.pool = pool_of(*values[kEventPool]);
      if (values[kEventFrames]) event.name = frames_.name_of(*values[kEventFrames]);
      if (values[kEventCategory]) {
        event.category = parse_category(tree_.text(*values[kEventCategory]));
      }
      snapshot_.events.push_back(event);
    }
  }

  void read_settings(PickleValue settings) {
    const auto where = [] { return std::string("allocator_settings"); };
    if (const auto expandable = tree_.find(settings, "expandable_segments")) {
      snapshot_.expandable_segments = number(expandable, "expandable_segments", where) != 0;
    }
    // PyTorch writes its largest value, which means no limit, as -1.
    if (const auto split = tree_.find(settings, "max_split_size")) {
      const std::uint64_t bytes = number(split, "max_split_size", where);
      if (bytes > 0) snapshot_.max_split_bytes = bytes;
    }
    const auto divisions = tree_.find(settings, "roundup_power2_divisions");
    if (!divisions) return;
    if (divisions->kind() != PickleKind::kDict) {
      snapshot_.roundup_power2_divisions = number(divisions, "roundup_power2_divisions", where);
      return;
    }
    // {"1": n, "2": n, … "32768": n}, with sizes in MiB.
    std::vector<std::uint64_t> table;
    for (std::uint64_t mib = 1; mib <= 32768; mib *= 2) {
      table.push_back(
          number(tree_.find(*divisions, std::to_string(mib)), "roundup_power2_divisions", where));
    }
    if (std::adjacent_find(table.begin(), table.end(), std::not_equal_to<>()) == table.end()) {
      snapshot_.roundup_power2_divisions = table.front();
    } else {
      snapshot_.roundup_divisions_by_power = std::move(table);
    }
  }

  const PickleTree& tree_;
  const std::string& source_;
  MemorySnapshot snapshot_;
  PickleValue segments_;
  PickleValue traces_;
  Fields<kEventKeys.size()> event_fields_;
  Fields<kSegmentKeys.size()> segment_fields_;
  Fields<kBlockKeys.size()> block_fields_;
  TorchFrameNames frames_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint16_t> pools_{{{0, 0}, 0}};
  std::size_t block_count_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> block_lists_;  // ids of lists seen so far
};

}  // namespace

MemorySnapshot torch_snapshot(const PickleTree& pickle, const std::string& source,
                              std::optional<std::int32_t> device) {
  return Importer(pickle, source).run(device);
}

MemorySnapshot read_torch_snapshot(const std::string& path, std::optional<std::int32_t> device) {
  return torch_snapshot(read_pickle_file(path), path, device);
}

}  // namespace sluice::record
