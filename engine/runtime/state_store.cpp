#include "engine/runtime/state_store.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::runtime {

StateStore::StateStore(device::Device& device, RunMemory& memory,
                       const schedule::Schedule& schedule, DurableState* durable)
    : memory_(memory),
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
    shadows_[unit][kind] = &buffer;  // which comes behind its home
  }
}

const schedule::Buffer* StateStore::home(StateKind kind, std::int32_t unit) const {
  const Homes& homes = flipped_ ? shadows_ : homes_;
  return homes[static_cast<std::size_t>(unit)][static_cast<std::size_t>(kind)];
}

void StateStore::move(const schedule::Buffer& home, std::uint64_t begin, std::uint64_t end,
                      std::byte* window, Access access) {
  const std::uint64_t offset = bytes_of(home.dtype, begin);
  const std::uint64_t bytes = bytes_of(home.dtype, end - begin);
  if (home.tier == Tier::kStorage) {
    const offload::StorageOp op =
        access == Access::kRead ? offload::StorageOp::kRead : offload::StorageOp::kWrite;
    const std::size_t slot = durable_ == nullptr ? 0 : durable_->slot_of(home);
    memory_.storage().transfer(op, memory_.storage_ranges(home)[slot], offset, window, bytes);
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
  SLUICE_CHECK(kinds.size() <= 4);
  for (std::uint64_t cursor = begin; cursor < end; cursor += kWindowElems) {
    const std::uint64_t piece_end = std::min(cursor + kWindowElems, end);
    std::array<std::byte*, 4> data{};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const schedule::Buffer* at = home(kinds[i], unit);
      SLUICE_CHECK(at != nullptr);
      if (at->tier == Tier::kPinned) {
        data[i] = memory_.address(*at) + bytes_of(at->dtype, cursor);
      } else {
        data[i] = memory_.io_window(window_offset_, kWindowBytes).data() + i * kWindowElems * 4;
        if (access == Access::kRead) move(*at, cursor, piece_end, data[i], access);
      }
    }
    visitor(cursor, piece_end, std::span<std::byte* const>(data.data(), kinds.size()));
    if (access == Access::kRead) continue;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const schedule::Buffer* at = home(kinds[i], unit);
      if (at->tier != Tier::kPinned) move(*at, cursor, piece_end, data[i], access);
    }
  }
}

}  // namespace sluice::runtime
