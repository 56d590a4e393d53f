#include "engine/schedule/schedule.hpp"

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

constexpr std::array<std::string_view, kOpCount> kOpNames{
    "Forward",         "Recompute",      "BackwardInput", "BackwardWeight", "Loss",
    "External",        "Gather",         "ReduceScatter", "AllReduce",      "AllToAll",
    "SendForward",     "RecvForward",    "SendBackward",  "RecvBackward",   "Upload",
    "Download",        "StorageRead",    "StorageWrite",  "Commit",         "SpillActivation",
    "FetchActivation", "AccumulateGrad", "FoldGrad",      "RoundGrad",      "GradNorm",
    "ClipFactor",      "OptimizerStep",  "Release"};
constexpr std::array<std::string_view, kLaneCount> kLaneNames{
    "compute", "h2d",     "d2h",          "comm",          "inner",
    "send",    "receive", "storage_read", "storage_write", "optimizer"};
constexpr std::array<std::string_view, kBufferRoleCount> kRoleNames{
    "state",          "tokens",    "activation", "saved",        "grad_out",
    "weight_context", "workspace", "loss",       "norm_partial", "scalar"};

}  // namespace

// State is counted in elements of its unit, so that a window and its pieces compare.
ElemRange elems_of(const Buffer& buffer, const Use& use) {
  if (use.bytes == 0)
    return {buffer.first_elem, buffer.first_elem + elems_in(buffer.dtype, buffer.bytes)};
  return {buffer.first_elem + elems_in(buffer.dtype, use.offset_bytes),
          buffer.first_elem + elems_in(buffer.dtype, use.offset_bytes + use.bytes)};
}

Use use_of(const Buffer& buffer, ElemRange range) {
  SLUICE_CHECK(range.begin >= buffer.first_elem && range.end <= buffer.first_elem + buffer.elems);
  return {buffer.id, bytes_of(buffer.dtype, range.begin - buffer.first_elem),
          bytes_of(buffer.dtype, range.elems())};
}

namespace {

// The memory ranges of bytes [begin, end) of a window over these slots.
std::vector<MemoryRange> ranges_in_slots(const Schedule& schedule,
                                         const std::vector<std::uint32_t>& slots,
                                         std::uint64_t begin, std::uint64_t end) {
  const std::size_t memory =
      schedule.shares_device ? static_cast<std::size_t>(Tier::kDevice) : kTierCount;
  std::vector<MemoryRange> ranges;
  while (begin < end) {
    const std::uint64_t within = begin % schedule.slot_bytes;
    const std::uint64_t stop = std::min(end, begin - within + schedule.slot_bytes);
    const std::uint64_t at = slots[begin / schedule.slot_bytes] * schedule.slot_bytes + within;
    if (!ranges.empty() && ranges.back().end_bytes == at) {
      ranges.back().end_bytes = at + (stop - begin);
    } else {
      ranges.push_back({memory, at, at + (stop - begin)});
    }
    begin = stop;
  }
  return ranges;
}

}  // namespace

std::vector<MemoryRange> ranges_of(const Schedule& schedule, const Buffer& buffer,
                                   std::uint64_t begin, std::uint64_t end) {
  if (begin >= end || end > buffer.bytes) return {};
  if (!buffer.window) {
    return {{static_cast<std::size_t>(buffer.tier), buffer.offset_bytes + begin,
             buffer.offset_bytes + end}};
  }
  const bool slots = schedule.slot_bytes > 0 && end <= buffer.slots.size() * schedule.slot_bytes;
  if (!slots) return {};
  return ranges_in_slots(schedule, buffer.slots, begin, end);
}

std::vector<MemoryRange> place_of(const Schedule& schedule, const Buffer& buffer) {
  if (buffer.window) {
    return ranges_in_slots(schedule, buffer.slots, 0, buffer.slots.size() * schedule.slot_bytes);
  }
  return {{static_cast<std::size_t>(buffer.tier), buffer.offset_bytes,
           buffer.offset_bytes + place_bytes(buffer)}};
}

PartMask saved_parts_written(const Schedule& schedule, const Instruction& instruction,
                             const std::vector<SavedPart>& parts) {
  PartMask mask = 0;
  for (const Use& use : instruction.writes) {
    const Buffer& buffer = schedule.buffers[use.buffer];
    if (buffer.role != BufferRole::kSaved) continue;
    const std::uint64_t begin = buffer.first_elem + use.offset_bytes;
    const std::uint64_t bytes = use.bytes == 0 ? buffer.bytes : use.bytes;
    mask |= parts_within(parts, begin, begin + bytes);
  }
  return mask;
}

std::string_view op_name(Op op) {
  return kOpNames[static_cast<std::size_t>(op)];
}
std::string_view lane_name(Lane lane) {
  return kLaneNames[static_cast<std::size_t>(lane)];
}
std::string_view role_name(BufferRole role) {
  return kRoleNames[static_cast<std::size_t>(role)];
}

LinkBytes& LinkBytes::operator+=(const LinkBytes& more) {
  upload += more.upload;
  download += more.download;
  storage_read += more.storage_read;
  storage_write += more.storage_write;
  return *this;
}

LinkBytes LinkBytes::operator-(const LinkBytes& less) const {
  return {upload - less.upload, download - less.download, storage_read - less.storage_read,
          storage_write - less.storage_write};
}

namespace {

// The sum over the instructions for which wanted(instruction) holds.
template <typename Wanted>
// Other lanes move nothing over a link.
LinkBytes sum_by_link(const Schedule& schedule, Wanted wanted) {
  LinkBytes total;
  for (const Instruction& instruction : schedule.instructions) {
    if (!wanted(instruction)) continue;
    switch (instruction.lane) {
      case Lane::kH2D:
        total.upload += instruction.bytes;
        break;
      case Lane::kD2H:
        total.download += instruction.bytes;
        break;
      case Lane::kStorageRead:
        total.storage_read += instruction.bytes;
        break;
      case Lane::kStorageWrite:
        total.storage_write += instruction.bytes;
        break;
      case Lane::kCompute:
      case Lane::kComm:
      case Lane::kInner:
      case Lane::kSend:
      case Lane::kReceive:
      case Lane::kOptimizer:
        break;
    }
  }
  return total;
}

}  // namespace

LinkBytes link_bytes(const Schedule& schedule) {
  return sum_by_link(schedule, [](const Instruction&) { return true; });
}

std::array<MessageBytes, kLaneCount> message_bytes(const Schedule& schedule, std::int32_t rank) {
  std::array<MessageBytes, kLaneCount> total;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.rank != rank || !lane_has_messages(instruction.lane)) continue;
    MessageBytes& lane = total[static_cast<std::size_t>(instruction.lane)];
    switch (instruction.op) {
      case Op::kRecvForward:
      case Op::kRecvBackward:
        lane.received += instruction.bytes;
        break;
      case Op::kGather:
      case Op::kAllToAll:
        lane.sent += instruction.bytes;
        for (const Use& use : instruction.writes) {
          if (use.peer == world_rank_of(schedule, rank)) continue;  // its own part, copied
          lane.received += use.bytes == 0 ? schedule.buffers[use.buffer].bytes : use.bytes;
        }
        break;
      case Op::kReduceScatter:
      case Op::kAllReduce:  // as much in as out
        lane.received += instruction.bytes;
        lane.sent += instruction.bytes;
        break;
      default:
        lane.sent += instruction.bytes;
    }
  }
  return total;
}

LinkBytes activation_link_bytes(const Schedule& schedule) {
  return sum_by_link(schedule, [&](const Instruction& instruction) {
    switch (instruction.op) {
      case Op::kSpillActivation:
      case Op::kFetchActivation:
        return true;
      case Op::kStorageRead:
      case Op::kStorageWrite:
        return schedule.buffers[instruction.reads.front().buffer].role != BufferRole::kState;
      default:
        return false;
    }
  });
}

}  // namespace sluice::schedule
