#include "tools/replay/peers/bfc_allocator.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kMinAllocation = 256;
constexpr std::uint64_t kFirstRegion = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxInternalFragmentation = std::uint64_t{128} << 20;

constexpr std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kMinAllocation - 1) / kMinAllocation * kMinAllocation;
}

}  // namespace

bool BfcAllocator::Order::operator()(Handle a, Handle b) const {
  const Chunk& left = allocator->chunks_[a];
  const Chunk& right = allocator->chunks_[b];
  return left.bytes != right.bytes ? left.bytes < right.bytes : left.address < right.address;
}

BfcAllocator::BfcAllocator(const record::MemoryTrace& trace, std::uint64_t capacity_bytes)
    : trace_(trace),
      device_(trace, capacity_bytes),
      next_region_bytes_(rounded(std::clamp(capacity_bytes, kMinAllocation, kFirstRegion))),
      bins_(kBins, std::set<Handle, Order>(Order{this})),
      chunks_by_id_(trace.allocations.size(), kNone) {
  adopt_initial();
}

std::optional<std::uint64_t> BfcAllocator::allocate(std::uint32_t id) {
  const std::uint64_t requested = trace_.allocations[id].bytes;
  if (requested >= kExbibyte) return std::nullopt;
  // The original refuses requests of no bytes; a trace's has an address.
  const std::uint64_t bytes = rounded(std::max<std::uint64_t>(requested, 1));
  Handle handle = allocate_chunk(bytes);
  if (handle == kNone && wait_for_pending()) handle = allocate_chunk(bytes);
  if (handle == kNone) return std::nullopt;
  chunks_by_id_[id] = handle;
  return chunks_[handle].address;
}

void BfcAllocator::free(std::uint32_t id, bool pending) {
  SLUICE_CHECK(chunks_by_id_[id] != kNone);
  if (pending) {
    pending_ids_.push_back(id);
  } else {
    complete(id);
  }
}

void BfcAllocator::complete(std::uint32_t id) {
  const Handle handle = chunks_by_id_[id];
  if (handle == kNone) return;  // it was waited for
  chunks_by_id_[id] = kNone;
  free_chunk(handle);
}

bool BfcAllocator::wait_for_pending() {
  bool any = false;
  for (const std::uint32_t id : pending_ids_) {
    any = any || chunks_by_id_[id] != kNone;
    complete(id);
  }
  pending_ids_.clear();
  if (any) ++device_.counters.synchronisations;
  return any;
}

// AllocateRawInternal.
BfcAllocator::Handle BfcAllocator::allocate_chunk(std::uint64_t bytes) {
  Handle handle = find_chunk(bytes);
  if (handle == kNone && extend(bytes)) handle = find_chunk(bytes);
  if (handle == kNone && deallocate_free_regions(bytes) && extend(bytes)) {
    handle = find_chunk(bytes);
  }
  if (handle != kNone) chunks_[handle].in_use = true;
  return handle;
}

std::size_t BfcAllocator::bin_of(std::uint64_t bytes) {
  const std::uint64_t units = std::max(bytes, kMinAllocation) / kMinAllocation;
  return std::min(kBins - 1, static_cast<std::size_t>(std::bit_width(units)) - 1);
}

BfcAllocator::Handle BfcAllocator::make_chunk(const Chunk& value) {
  if (!spare_.empty()) {
    const Handle handle = spare_.back();
    spare_.pop_back();
    chunks_[handle] = value;
    return handle;
  }
  chunks_.push_back(value);
  return static_cast<Handle>(chunks_.size() - 1);
}

void BfcAllocator::insert_free(Handle handle) {
  bins_[bin_of(chunks_[handle].bytes)].insert(handle);
}

void BfcAllocator::remove_free(Handle handle) {
  SLUICE_CHECK(bins_[bin_of(chunks_[handle].bytes)].erase(handle) == 1);
}

// FindChunkPtr: within a bin by size and then address, one after the other.
BfcAllocator::Handle BfcAllocator::find_chunk(std::uint64_t bytes) {
  for (std::size_t bin = bin_of(bytes); bin < kBins; ++bin) {
    for (auto at = bins_[bin].begin(); at != bins_[bin].end(); ++at) {
      const Handle handle = *at;
      const std::uint64_t found_bytes = chunks_[handle].bytes;
      if (found_bytes < bytes) continue;
      bins_[bin].erase(at);
      if (found_bytes >= bytes * 2 || found_bytes - bytes >= kMaxInternalFragmentation) {
        split(handle, bytes);
      }
      return handle;
    }
  }
  return kNone;
}

// Leaves the first `bytes` in `handle` and makes a free chunk of the rest.
void BfcAllocator::split(Handle handle, std::uint64_t bytes) {
  Chunk rest = chunks_[handle];
  rest.address += bytes;
  rest.bytes -= bytes;
  rest.prev = handle;
  const Handle made = make_chunk(rest);
  chunks_[handle].bytes = bytes;
  chunks_[handle].next = made;
  if (rest.next != kNone) chunks_[rest.next].prev = made;
  insert_free(made);
}

void BfcAllocator::merge(Handle first, Handle second) {
  const Chunk& from = chunks_[second];
  chunks_[first].bytes += from.bytes;
  chunks_[first].next = from.next;
  if (from.next != kNone) chunks_[from.next].prev = first;
  spare_.push_back(second);
}

void BfcAllocator::free_chunk(Handle handle) {
  chunks_[handle].in_use = false;
  const Handle next = chunks_[handle].next;
  if (next != kNone && !chunks_[next].in_use) {
    remove_free(next);
    merge(handle, next);
  }
  const Handle prev = chunks_[handle].prev;
  if (prev != kNone && !chunks_[prev].in_use) {
    remove_free(prev);
    merge(prev, handle);
    handle = prev;
  }
  insert_free(handle);
}

// Extend: a region that doubles from one to the next, or what the device has left.
bool BfcAllocator::extend(std::uint64_t bytes) {
  const std::uint64_t available = device_.room_bytes() / kMinAllocation * kMinAllocation;
  if (bytes > available) return false;
  const bool grown = bytes > next_region_bytes_;
  while (bytes > next_region_bytes_) next_region_bytes_ *= 2;
  const std::uint64_t region_bytes = std::min(next_region_bytes_, available);
  SLUICE_CHECK(device_.try_obtain(region_bytes));
  if (!grown) next_region_bytes_ = std::min(next_region_bytes_ * 2, kExbibyte);
  Chunk chunk;
  chunk.address = device_.reserve_addresses(region_bytes);
  chunk.bytes = region_bytes;
  const Handle handle = make_chunk(chunk);
  regions_.push_back({chunk.address, region_bytes, handle});
  insert_free(handle);
  return true;
}

// DeallocateFreeRegions: all that hold nothing, if that could be enough.
bool BfcAllocator::deallocate_free_regions(std::uint64_t bytes) {
  const auto is_free = [this](const Region& region) {
    for (Handle at = region.first; at != kNone; at = chunks_[at].next) {
      if (chunks_[at].in_use) return false;
    }
    return true;
  };
  std::uint64_t free_bytes = 0;
  std::vector<bool> free_regions;
  for (const Region& region : regions_) {
    free_regions.push_back(is_free(region));
    if (free_regions.back()) free_bytes += region.bytes;
  }
  if (free_bytes == 0 || bytes > device_.room_bytes() + free_bytes) return false;
  std::size_t kept = 0;
  for (std::size_t r = 0; r < regions_.size(); ++r) {
    const Region region = regions_[r];
    if (!free_regions[r]) {
      regions_[kept++] = region;
      continue;
    }
    for (Handle at = region.first; at != kNone;) {
      const Handle next = chunks_[at].next;
      remove_free(at);
      spare_.push_back(at);
      at = next;
    }
    device_.give_back(region.bytes);
    device_.release_addresses(region.address);
  }
  regions_.resize(kept);
  ++device_.counters.flushes;
  ++device_.counters.synchronisations;
  return true;
}

// Segments become regions, blocks chunks. The next region is as large as if the pool had doubled
// up to what it holds.
void BfcAllocator::adopt_initial() {
  for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
    const record::SnapshotSegment& segment = trace_.initial_segments[s];
    device_.adopt(segment.bytes);
    SLUICE_CHECK_MSG(device_.reserve_addresses(segment.bytes, segment.address) == segment.address,
                     "initial segments overlap");
    Handle last = kNone;
    for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
      const record::SnapshotBlock& block = segment.blocks[b];
      Chunk chunk;
      chunk.address = block.address;
      chunk.bytes = block.bytes;
      chunk.prev = last;
      chunk.in_use = block.state != record::BlockState::kFree;
      const Handle handle = make_chunk(chunk);
      if (last == kNone) regions_.push_back({segment.address, segment.bytes, handle});
      if (last != kNone) chunks_[last].next = handle;
      last = handle;
      if (!chunk.in_use) {
        insert_free(handle);
        continue;
      }
      const std::uint32_t id = trace_.initial_ids[s][b];
      chunks_by_id_[id] = handle;
      if (block.state == record::BlockState::kPendingFree) pending_ids_.push_back(id);
    }
  }
  while (next_region_bytes_ < device_.counters.reserved_bytes) next_region_bytes_ *= 2;
}

}  // namespace sluice::replay
