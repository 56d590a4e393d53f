#include <algorithm>
#include <utility>

#include "allocator/record/format/pickle_writer.hpp"
#include "allocator/record/format/torch_frames.hpp"
#include "allocator/record/format/torch_snapshot.hpp"
#include "allocator/record/memory_action_names.hpp"
#include "base/error.hpp"

namespace sluice::record {
namespace {

class Exporter {
 public:
  Exporter(const MemorySnapshot& snapshot, std::function<void(std::string_view)> sink)
      : snapshot_(snapshot), out_(std::move(sink)), frames_(snapshot.names.size(), kNotWritten) {
    const auto has_category = [](const MemoryEvent& event) {
      return event.category != Category::kExternal;
    };
    has_categories_ = std::any_of(snapshot.events.begin(), snapshot.events.end(), has_category);
  }

  void run() {
    out_.begin_dict();
    out_.text("segments");
    out_.begin_list();
    for (const SnapshotSegment& segment : snapshot_.segments) write_segment(segment);
    out_.end_list();
    out_.text("device_traces");
    out_.begin_list();
    for (std::int32_t device = 0; device < snapshot_.device; ++device) {
      out_.begin_list();
      out_.end_list();
    }
    out_.begin_list();
    for (const MemoryEvent& event : snapshot_.events) write_event(event);
    // Viewers that know categories fail unless there is one "unknown". torch ends its records so,
    // too.
    if (has_categories_ && !has_unknown_) {
      write_event({.action = MemoryAction::kSnapshot, .time_ns = snapshot_.events.back().time_ns});
    }
    out_.end_list();
    out_.end_list();
    out_.text("allocator_settings");
    write_settings();
    out_.text("external_annotations");
    out_.begin_list();
    out_.end_list();
    out_.end_dict();
    out_.finish();
  }

 private:
  static constexpr std::uint32_t kNotWritten = UINT32_MAX;

  void number(std::string_view key, std::uint64_t value) {
    out_.text(key);
    out_.integer(static_cast<std::int64_t>(value));  // torch writes addresses and sizes so
  }
  void word(std::string_view key, std::string_view value) {
    out_.text(key);
    out_.text(value);
  }

  void write_frames(std::uint32_t name) {
    out_.text("frames");
    SLUICE_CHECK(name < frames_.size());
    if (frames_[name] != kNotWritten) {
      out_.recall(frames_[name]);
      return;
    }
    out_.begin_list();
    if (name != 0) {
      const TorchFrame frame = parse_frame_name(snapshot_.names[name]);
      out_.begin_dict();
      word("name", frame.function);
      word("filename", frame.filename);
      number("line", frame.line);
      out_.end_dict();
    }
    out_.end_list();
    frames_[name] = out_.remember();
  }

  void write_segment(const SnapshotSegment& segment) {
    std::uint64_t allocated_bytes = 0;
    std::uint64_t active_bytes = 0;
    std::uint64_t requested_bytes = 0;
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.state == BlockState::kFree) continue;
      active_bytes += block.bytes;
      requested_bytes += block.requested_bytes;
      if (block.state == BlockState::kAllocated) allocated_bytes += block.bytes;
    }
    out_.begin_dict();
    number("device", static_cast<std::uint64_t>(snapshot_.device));
    number("address", segment.address);
    number("total_size", segment.bytes);
    number("allocated_size", allocated_bytes);
    number("active_size", active_bytes);
    number("requested_size", requested_bytes);
    number("stream", segment.stream);
    word("segment_type", segment.is_small ? "small" : "large");
    out_.text("segment_pool_id");
    out_.pair_of(static_cast<std::int64_t>(segment.pool >> 32),
                 static_cast<std::int64_t>(segment.pool & UINT32_MAX));
    out_.text("is_expandable");
    out_.boolean(segment.is_expandable);
    write_frames(0);
    out_.text("blocks");
    out_.begin_list();
    for (const SnapshotBlock& block : segment.blocks) write_block(block);
    out_.end_list();
    out_.end_dict();
  }

  void write_block(const SnapshotBlock& block) {
    out_.begin_dict();
    number("address", block.address);
    number("size", block.bytes);
    number("requested_size", block.requested_bytes);
    word("state", block.state == BlockState::kAllocated     ? "active_allocated"
                  : block.state == BlockState::kPendingFree ? "active_pending_free"
                                                            : "inactive");
    write_frames(block.name);
    if (block.category != Category::kExternal) word("category", category_name(block.category));
    out_.end_dict();
  }

  void write_event(const MemoryEvent& event) {
    out_.begin_dict();
    word("action", memory_action_name(event.action));
    number(event.action == MemoryAction::kOutOfMemory ? "device_free" : "addr", event.address);
    number("size", event.bytes);
    number("stream", event.stream);
    out_.text("time_us");
    out_.integer(event.time_ns / 1000);
    if (event.pool != 0) {
      out_.text("pool_id");
      out_.pair_of(0, event.pool);
    }
    write_frames(event.name);
    if (has_categories_) {
      const bool is_unknown = event.category == Category::kExternal;
      word("category", is_unknown ? "unknown" : category_name(event.category));
      has_unknown_ |= is_unknown;
    }
    out_.end_dict();
  }

  void write_settings() {
    out_.begin_dict();
    word("PYTORCH_CUDA_ALLOC_CONF", "");
    number("max_split_size", snapshot_.max_split_bytes);
    out_.text("garbage_collection_threshold");
    out_.real(0.0);
    out_.text("expandable_segments");
    out_.boolean(snapshot_.expandable_segments);
    out_.text("roundup_power2_divisions");
    out_.begin_dict();
    for (std::size_t power = 0; power < 16; ++power) {
      const auto& table = snapshot_.roundup_divisions_by_power;
      number(std::to_string(1 << power),
             power < table.size() ? table[power] : snapshot_.roundup_power2_divisions);
    }
    out_.end_dict();
    out_.end_dict();
  }

  const MemorySnapshot& snapshot_;
  PickleWriter out_;
  std::vector<std::uint32_t> frames_;  // by name: the memo entry of its list
  bool has_categories_ = false;
  bool has_unknown_ = false;
};

}  // namespace

void write_torch_snapshot(const MemorySnapshot& snapshot,
                          std::function<void(std::string_view)> sink) {
  SLUICE_CHECK(snapshot.device >= 0 && snapshot.device < 1024);
  Exporter(snapshot, std::move(sink)).run();
}

}  // namespace sluice::record
