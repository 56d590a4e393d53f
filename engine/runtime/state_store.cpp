#include "engine/runtime/state_store.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace sluice::runtime {

StateStore::StateStore(device::Device& device, RunMemory& memory,
                       const schedule::Schedule& schedule, const Sharing& sharing,
                       DurableState* durable)
    : memory_(memory),
      sharing_(sharing),
      durable_(durable),
      stream_(device.create_stream("state")),
      window_offset_(persistent_pinned_bytes(schedule)) {
  for (const schedule::Buffer& buffer : schedule.buffers) {
    if (!buffer.persistent || buffer.role != schedule::BufferRole::kState || buffer.log_copy)
      continue;
    const auto unit = static_cast<std::size_t>(buffer.unit);
    if (buffer.tier == Tier::kStorage) memory.storage_ranges(buffer);
    for (Homes* const homes : {&homes_, &shadows_}) {
      if (homes->size() <= unit) homes->resize(unit + 1, {});
    }
    const auto kind = static_cast<std::size_t>(buffer.kind);
    if (buffer.shadow_of == schedule::kNoId) homes_[unit][kind] = &buffer;
    shadows_[unit][kind] = &buffer;  // which comes after its home
  }
}

const schedule::Buffer* StateStore::home(StateKind kind, std::int32_t unit) const {
  const Homes& homes = flipped_ ? shadows_ : homes_;
  if (static_cast<std::size_t>(unit) >= homes.size()) return nullptr;
  return homes[static_cast<std::size_t>(unit)][static_cast<std::size_t>(kind)];
}

schedule::ElemRange StateStore::range(StateKind kind, std::int32_t unit) const {
  const schedule::Buffer* at = home(kind, unit);
  if (at == nullptr) return {};
  return {at->first_elem, at->first_elem + at->elems};
}

void StateStore::move(const schedule::Buffer& home, std::uint64_t begin, std::uint64_t end,
                      std::byte* window, Access access) {
  const std::uint64_t offset = bytes_of(home.dtype, begin - home.first_elem);
  const std::uint64_t bytes = bytes_of(home.dtype, end - begin);
  if (home.tier == Tier::kStorage) {
    const offload::StorageOp op =
        access == Access::kRead ? offload::StorageOp::kRead : offload::StorageOp::kWrite;
    const std::size_t copy = durable_ == nullptr ? 0 : durable_->copy_of(home);
    memory_.storage().transfer(op, memory_.storage_ranges(home)[copy], offset, window, bytes);
    return;
  }
  std::byte* device = memory_.address(home) + offset;
  if (access == Access::kRead) {
    stream_->copy(window, device, bytes, device::CopyKind::kDeviceToHost);
  } else {
    stream_->copy(device, window, bytes, device::CopyKind::kHostToDevice);
  }
  stream_->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
}

void StateStore::visit(std::span<const StateKind> kinds, std::int32_t unit, std::uint64_t begin,
                       std::uint64_t end, Access access, const Visitor& visitor) {
  SLUICE_CHECK(!kinds.empty() && kinds.size() <= 4);
  const schedule::ElemRange own = range(kinds.front(), unit);
  for (const StateKind kind : kinds) SLUICE_CHECK(range(kind, unit) == own);
  begin = std::max(begin, own.begin);
  end = std::min(end, own.end);
  for (std::uint64_t cursor = begin; cursor < end; cursor += kWindowElems) {
    const std::uint64_t piece_end = std::min(cursor + kWindowElems, end);
    std::array<std::byte*, 4> data{};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const schedule::Buffer* at = home(kinds[i], unit);
      if (at->tier == Tier::kPinned) {
        data[i] = memory_.address(*at) + bytes_of(at->dtype, cursor - at->first_elem);
      } else {
        data[i] = memory_.io_buffer(window_offset_, kWindowBytes).data() + i * kWindowElems * 4;
        if (access != Access::kWrite) move(*at, cursor, piece_end, data[i], Access::kRead);
      }
    }
    visitor(cursor, piece_end, std::span<std::byte* const>(data.data(), kinds.size()));
    if (access == Access::kRead) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const schedule::Buffer* at = home(kinds[i], unit);
      if (at->tier != Tier::kPinned) move(*at, cursor, piece_end, data[i], Access::kWrite);
    }
  }
}

// The bytes that each rank of the world brings of elements [begin, end): the ranks of the unit's
// stage bring their shards, or the first of them all; of a tensor group the first one. Sums of
// whole tensors have a numbering and shards of their own.
std::vector<std::uint64_t> StateStore::part_bytes(StateKind kind,
                                                  const kernels::StateLayout& layout,
                                                  std::int32_t unit, std::uint64_t begin,
                                                  std::uint64_t end) const {
  const schedule::RankView& view = sharing_.view;
  std::vector<std::uint64_t> parts(static_cast<std::size_t>(sharing_.group.size()));
  const std::int32_t stage_rank = sharing_.pipeline.rank_of(unit);
  const auto world_rank = [&](std::int32_t pipeline_rank, std::int32_t data_rank) {
    schedule::RankView first = view;
    first.tensor.rank = 0;
    return static_cast<std::size_t>(schedule::world_rank(first, pipeline_rank, data_rank));
  };
  if (!is_sharded(kind)) {
    parts[world_rank(stage_rank, 0)] = bytes_of(layout.dtype, end - begin);
    return parts;
  }
  const bool per_tensor = layout.extent == kernels::StateExtent::kPerTensor;
  const auto at = static_cast<std::size_t>(unit);
  const std::vector<schedule::ElemRange>& shards = per_tensor ? view.sums[at] : view.shards[at];
  for (std::int32_t rank = 0; rank < view.ranks; ++rank) {
    const schedule::ElemRange& shard = shards[static_cast<std::size_t>(rank)];
    const std::uint64_t elems =
        std::clamp(shard.end, begin, end) - std::clamp(shard.begin, begin, end);
    parts[world_rank(stage_rank, rank)] = bytes_of(layout.dtype, elems);
  }
  return parts;
}

bool StateStore::brings(StateKind kind, std::int32_t unit) const {
  // The last stage has a copy of a tied table, which the first stage brings. Ranks with other parts
  // of the sequences have copies of all parts.
  const bool has_unit = sharing_.pipeline.owns(unit) && sharing_.view.tensor.context() == 0;
  return has_unit && (is_sharded(kind) || sharing_.view.rank == 0);
}

void StateStore::join(std::span<std::byte> piece) {
  const std::uint64_t words = piece.size() / sizeof(std::int32_t);
  std::vector<std::byte> workspace(sharing_.group.all_reduce_workspace_bytes(words, DType::kI32));
  try {
    sharing_.group.all_reduce(piece.data(), words, DType::kI32, workspace.data());
  } catch (const collectives::CommunicationError& error) {
    throw error.in("the joining of parts of a tensor");
  }
}

bool StateStore::is_sharded(StateKind kind) const {
  return kind == StateKind::kWeight ? sharing_.view.shards_weights()
                                    : sharing_.view.shards_optimizer();
}

// The window has room for four pieces of fp32: the first holds this rank's part of a piece, the
// second all of it.
void StateStore::visit_whole(StateKind kind, const kernels::StateLayout& layout, std::int32_t unit,
                             std::uint64_t begin, std::uint64_t end, const Visitor& visitor) {
  const std::array<StateKind, 1> kinds{kind};
  if (!is_sharded(kind) && sharing_.pipeline.is_alone()) {
    return visit(kinds, unit, begin, end, Access::kRead, visitor);
  }
  std::byte* const own = memory_.io_buffer(window_offset_, kWindowBytes).data();
  std::byte* const whole = own + kWindowElems * sizeof(float);
  for (std::uint64_t cursor = begin; cursor < end; cursor += kWindowElems) {
    const std::uint64_t piece_end = std::min(cursor + kWindowElems, end);
    const std::vector<std::uint64_t> parts = part_bytes(kind, layout, unit, cursor, piece_end);
    const std::uint64_t own_bytes = parts[own_rank()];
    if (own_bytes > 0) {
      visit(kinds, unit, cursor, piece_end, Access::kRead,
            [&](std::uint64_t, std::uint64_t, std::span<std::byte* const> data) {
              // A home in pinned memory is visited in place.
              if (data[0] != own) std::memcpy(own, data[0], own_bytes);
            });
    }
    try {
      sharing_.group.all_gather(own, whole, parts, DType::kU8);
    } catch (const collectives::CommunicationError& error) {
      throw error.in("the gathering of " + std::string(state_kind_name(kind)) + " of unit " +
                     std::to_string(unit));
    }
    const std::array<std::byte*, 1> pieces{whole};
    visitor(cursor, piece_end, pieces);
  }
}

}  // namespace sluice::runtime
