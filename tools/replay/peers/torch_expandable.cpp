// Expandable segments of the caching allocator. A page has the size of the small or the large
// buffer, 2 or 20 MiB. A request maps whole pages, after the mapped ones or in a gap between them.
#include <algorithm>

#include "base/error.hpp"
#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::replay {
namespace {

// Stands for the size of an unlimited device: more than a trace holds on one stream.
constexpr std::uint64_t kUnboundedDevice = std::uint64_t{4} << 40;

}  // namespace

// 1 1/8 of the device, so that pages that were unmapped early can be mapped again at the end.
std::uint64_t TorchAllocator::address_space_bytes(std::uint64_t page_bytes) const {
  const std::uint64_t device_bytes = std::min(device_.capacity_bytes(), kUnboundedDevice);
  return round_up(device_bytes + device_bytes / 8, page_bytes);
}

// find_expandable_block: the lowest address of the stream at which unmapped pages and free blocks
// before and between them have room for the request; else a new segment, or null if no addresses
// are left.
TorchBlock* TorchAllocator::find_expandable(const Request& request) {
  auto& unmapped = request.pool->unmapped;
  const auto has_room = [&](const TorchBlock* block) {
    std::uint64_t bytes = 0;
    for (; bytes < request.bytes && block != nullptr && block->is_free(); block = block->next) {
      bytes += block->bytes;
    }
    return bytes >= request.bytes;
  };
  TorchBlock key;
  key.stream = request.stream;
  for (auto at = unmapped.lower_bound(&key);
       at != unmapped.end() && (*at)->stream == request.stream; ++at) {
    TorchBlock* block = *at;
    if (block->prev != nullptr && block->prev->is_free()) block = block->prev;
    if (has_room(block)) return block;
  }
  const std::uint64_t page_bytes = request.pool->is_small ? kTorchSmallBuffer : kTorchLargeBuffer;
  const std::uint64_t bytes = address_space_bytes(page_bytes);
  const auto address = device_.reserve_addresses(bytes);
  if (!address) return nullptr;
  TorchBlock block;
  block.stream = request.stream;
  block.bytes = bytes;
  block.address = *address;
  block.pool = request.pool;
  block.segment = &expandable_.emplace_back(ExpandableSegment{*address, bytes, page_bytes});
  block.mapped = false;
  TorchBlock* const made = store_.make(block);
  unmapped.insert(made);
  return made;
}

// Maps the pages of the first `bytes` of an unmapped block, and joins them with free neighbours.
// Returns false, and maps nothing, if the device has no memory left.
bool TorchAllocator::map_block(TorchBlock* block, std::uint64_t bytes) {
  const std::uint64_t page_bytes = block->segment->page_bytes;
  const std::uint64_t mapped_bytes = round_up(bytes, page_bytes);
  if (!device_.try_obtain(mapped_bytes, mapped_bytes / page_bytes)) return false;
  TorchPool& pool = *block->pool;
  pool.unmapped.erase(block);
  if (mapped_bytes < block->bytes) {
    TorchBlock* const rest = store_.make(*block);
    rest->address += mapped_bytes;
    rest->bytes -= mapped_bytes;
    rest->splice(block, block->next);
    pool.unmapped.insert(rest);
    block->bytes = mapped_bytes;
  }
  block->mapped = true;
  try_merge(block, block->prev);
  try_merge(block, block->next);
  pool.blocks.insert(block);
  return true;
}

// try_allocate_expandable_block. Pages that were mapped before memory ran out stay.
TorchBlock* TorchAllocator::obtain_expandable(const Request& request) {
  TorchBlock* block = find_expandable(request);
  if (block == nullptr) return nullptr;
  // A segment is little larger than the device, so it may be too short for the request.
  if (!block->mapped && !map_block(block, std::min(block->bytes, request.bytes))) return nullptr;
  while (block->bytes < request.bytes) {
    TorchBlock* const unmapped = block->next;
    if (unmapped == nullptr || unmapped->mapped) return nullptr;
    if (!map_block(unmapped, std::min(request.bytes - block->bytes, unmapped->bytes))) {
      return nullptr;
    }
    block = unmapped;
  }
  request.pool->blocks.erase(block);
  return block;
}

// Unmaps the whole pages inside a free block. The parts before and after them stay free.
void TorchAllocator::unmap_block(TorchBlock* block) {
  const ExpandableSegment& segment = *block->segment;
  const std::uint64_t begin =
      segment.address + round_up(block->address - segment.address, segment.page_bytes);
  const std::uint64_t block_end = block->address + block->bytes;
  const std::uint64_t end = block_end - (block_end - segment.address) % segment.page_bytes;
  if (begin >= end) return;
  TorchPool& pool = *block->pool;
  pool.blocks.erase(block);
  if (begin > block->address) {
    TorchBlock* const before = store_.make(*block);
    before->bytes = begin - block->address;
    before->splice(block->prev, block);
    pool.blocks.insert(before);
  }
  if (end < block_end) {
    TorchBlock* const after = store_.make(*block);
    after->address = end;
    after->bytes = block_end - end;
    after->splice(block, block->next);
    pool.blocks.insert(after);
  }
  block->address = begin;
  block->bytes = end - begin;
  block->mapped = false;
  device_.give_back(block->bytes);
  ++device_.counters.synchronisations;
  try_merge(block, block->prev);
  try_merge(block, block->next);
  pool.unmapped.insert(block);
}

void TorchAllocator::release_segment(TorchBlock* block) {
  SLUICE_CHECK(!block->mapped && block->bytes == block->segment->bytes);
  block->pool->unmapped.erase(block);
  device_.release_addresses(block->address);
  store_.drop(block);
}

}  // namespace sluice::replay
