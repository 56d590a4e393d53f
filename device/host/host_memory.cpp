#include "device/host/host_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"

namespace sluice::device {

namespace {

// Physical positions of memfd bytes have this bit set; no user-space address has it.
constexpr std::uint64_t kFileBit = std::uint64_t{1} << 63;

constexpr std::align_val_t kBufferAlignment{kTensorAlignmentBytes};

[[noreturn]] void throw_system_error(const char* call, std::uint64_t bytes, int error_number) {
  throw DeviceError("host device: " + std::string(call) + " of " + std::to_string(bytes) +
                    " bytes failed: " + std::system_category().message(error_number));
}

int retry_fallocate(int file, int mode, std::uint64_t offset, std::uint64_t bytes) noexcept {
  while (::fallocate(file, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Replaces the mappings of [data, data + bytes) by addresses without memory.
bool make_inaccessible(void* data, std::uint64_t bytes) noexcept {
  return ::mmap(data, bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0) != MAP_FAILED;
}

// For noexcept paths, which can only log a failure.
void warn(const char* message) noexcept {
  try {
    log(LogLevel::kWarning, message);
  } catch (...) {  // the sink threw, or there is no memory for the message: nothing is left to do
  }
}

std::uint64_t as_number(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

HostMemory::HostMemory(std::uint64_t capacity_bytes, std::uint64_t granularity_bytes)
    : capacity_bytes_(capacity_bytes), granularity_bytes_(granularity_bytes) {
  file_ = ::memfd_create("sluice-device", MFD_CLOEXEC);
  if (file_ < 0) throw_system_error("memfd_create", capacity_bytes, errno);
}

HostMemory::~HostMemory() {
  // Only leaked resources are left here. Addresses must not outlive the file behind them.
  for (auto& [handle, range] : ranges_) ::munmap(range.base, range.bytes);
  for (auto& [handle, buffer] : buffers_) ::operator delete(buffer.data, kBufferAlignment);
  ::close(file_);
}

void HostMemory::charge(std::uint64_t bytes) {
  const std::uint64_t available = capacity_bytes_ - counters_.live_bytes;
  if (bytes > available) throw OutOfMemory(Tier::kDevice, Category::kExternal, bytes, available);
  counters_.live_bytes += bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.live_bytes);
}

HostMemory::Placement HostMemory::reserve(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0 && bytes % granularity_bytes_ == 0,
                   "an address range is a positive multiple of the granularity");
  // One granule more, so that a base at a multiple of the granularity can be cut out.
  const std::uint64_t padded_bytes = bytes + granularity_bytes_;
  SLUICE_CHECK(padded_bytes > bytes);
  void* const raw =
      ::mmap(nullptr, padded_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw_system_error("mmap to reserve addresses", bytes, errno);
  auto* const begin = static_cast<std::byte*>(raw);
  auto* const base = begin + (round_up(as_number(raw), granularity_bytes_) - as_number(raw));
  const auto head_bytes = static_cast<std::uint64_t>(base - begin);
  if (head_bytes > 0) ::munmap(begin, head_bytes);
  ::munmap(base + bytes, granularity_bytes_ - head_bytes);

  const MutexLock lock(mutex_);
  const std::uint64_t handle = next_handle_++;
  ranges_.emplace(handle, Range{base, bytes, {}, false});
  range_by_base_.emplace(as_number(base), handle);
  return {base, bytes, handle};
}

std::uint64_t HostMemory::take_extent(std::uint64_t bytes) {
  for (auto extent = extents_.begin(); extent != extents_.end(); ++extent) {
    if (!extent->second.free || extent->second.bytes < bytes) continue;
    if (extent->second.bytes > bytes) {
      extents_.emplace(extent->first + bytes, Extent{extent->second.bytes - bytes, true});
    }
    extent->second = Extent{bytes, false};
    return extent->first;
  }
  const std::uint64_t offset = file_bytes_;
  if (::ftruncate(file_, static_cast<off_t>(offset + bytes)) != 0) {
    throw_system_error("ftruncate to grow", bytes, errno);
  }
  file_bytes_ += bytes;
  extents_.emplace(offset, Extent{bytes, false});
  return offset;
}

// Only flips flags and erases nodes, so it needs no memory itself.
void HostMemory::give_extent(std::uint64_t file_offset) noexcept {
  auto extent = extents_.find(file_offset);
  extent->second.free = true;
  const auto next = std::next(extent);
  if (next != extents_.end() && next->second.free) {
    extent->second.bytes += next->second.bytes;
    extents_.erase(next);
  }
  if (extent != extents_.begin()) {
    const auto previous = std::prev(extent);
    if (previous->second.free) {
      previous->second.bytes += extent->second.bytes;
      extents_.erase(extent);
    }
  }
}

HostMemory::Placement HostMemory::create_block(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0 && bytes % granularity_bytes_ == 0,
                   "a physical block is a positive multiple of the granularity");
  std::uint64_t handle = 0;
  std::uint64_t offset = 0;
  {
    const MutexLock lock(mutex_);
    charge(bytes);
    try {
      offset = take_extent(bytes);
      handle = next_handle_++;
      blocks_.emplace(handle, Block{offset, bytes, 0, false});
    } catch (...) {
      counters_.live_bytes -= bytes;
      throw;
    }
    ++counters_.allocation_calls;
  }
  // Allocates the pages now, so that a lack of memory is an error here, not a SIGBUS in a kernel.
  if (const int error_number = retry_fallocate(file_, 0, offset, bytes); error_number != 0) {
    release_block(handle);
    throw_system_error("fallocate", bytes, error_number);
  }
  return {nullptr, bytes, handle};
}

// Returns a block's pages to the system. No thread can reach it: it is released,
// and mapped nowhere.
void HostMemory::free_block(std::uint64_t handle) noexcept {
  Block block{};
  {
    const MutexLock lock(mutex_);
    const auto entry = blocks_.find(handle);
    block = entry->second;
    blocks_.erase(entry);
  }
  // Outside the lock: punching takes time by the page.
  if (retry_fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block.file_offset,
                      block.bytes) != 0) {
    warn("host device: a freed block's pages could not be returned to the system");
  }
  const MutexLock lock(mutex_);
  give_extent(block.file_offset);
  counters_.live_bytes -= block.bytes;
}

void HostMemory::release_block(std::uint64_t handle) noexcept {
  {
    const MutexLock lock(mutex_);
    Block& block = blocks_.find(handle)->second;
    block.released = true;
    if (block.mapping_count > 0) return;
  }
  free_block(handle);
}

HostMemory::Placement HostMemory::map(std::uint64_t range_handle, std::uint64_t offset_bytes,
                                      std::uint64_t block_handle) {
  const MutexLock lock(mutex_);
  const auto range_entry = ranges_.find(range_handle);
  const auto block_entry = blocks_.find(block_handle);
  SLUICE_CHECK_MSG(range_entry != ranges_.end() && block_entry != blocks_.end(),
                   "the range and the block must be of this device");
  Range& range = range_entry->second;
  Block& block = block_entry->second;
  SLUICE_CHECK_MSG(offset_bytes % granularity_bytes_ == 0,
                   "a mapping starts at a multiple of the granularity");
  SLUICE_CHECK_MSG(offset_bytes <= range.bytes && block.bytes <= range.bytes - offset_bytes,
                   "a mapping ends within its range");
  const auto next = range.parts.lower_bound(offset_bytes);
  SLUICE_CHECK_MSG(next == range.parts.end() || next->first >= offset_bytes + block.bytes,
                   "a mapping overlaps a live one of its range");
  if (next != range.parts.begin()) {
    const auto& [offset, part] = *std::prev(next);
    SLUICE_CHECK_MSG(offset + part.bytes <= offset_bytes,
                     "a mapping overlaps a live one of its range");
  }

  const std::uint64_t handle = next_handle_++;
  const auto part = range.parts.emplace(offset_bytes, MappedPart{block.bytes, block_handle}).first;
  try {
    mappings_.emplace(handle, MappingPlace{range_handle, offset_bytes});
  } catch (...) {
    range.parts.erase(part);
    throw;
  }
  void* const place = range.base + offset_bytes;
  if (::mmap(place, block.bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, file_,
             static_cast<off_t>(block.file_offset)) == MAP_FAILED) {
    const int error_number = errno;
    mappings_.erase(handle);
    range.parts.erase(part);
    throw_system_error("mmap of a block", block.bytes, error_number);
  }
  ++block.mapping_count;
  ++counters_.map_calls;
  return {place, block.bytes, handle};
}

void HostMemory::unmap(std::uint64_t handle) noexcept {
  std::uint64_t unused_block = 0;
  std::uint64_t unused_range = 0;
  {
    const MutexLock lock(mutex_);
    const auto mapping = mappings_.find(handle);
    const MappingPlace place = mapping->second;
    Range& range = ranges_.find(place.range_handle)->second;
    const auto part = range.parts.find(place.offset_bytes);
    if (!make_inaccessible(range.base + place.offset_bytes, part->second.bytes)) {
      // The pages can still be reached, so the block stays alive and the place taken.
      warn("host device: a mapping could not be undone; its memory stays in use");
      return;
    }
    const std::uint64_t block_handle = part->second.block_handle;
    range.parts.erase(part);
    mappings_.erase(mapping);
    Block& block = blocks_.find(block_handle)->second;
    --block.mapping_count;
    if (block.released && block.mapping_count == 0) unused_block = block_handle;
    if (range.released && range.parts.empty()) unused_range = place.range_handle;
  }
  if (unused_block != 0) free_block(unused_block);
  if (unused_range != 0) release_range(unused_range);
}

void HostMemory::release_range(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  const auto entry = ranges_.find(handle);
  entry->second.released = true;
  if (!entry->second.parts.empty()) return;  // the last unmap comes back here
  if (::munmap(entry->second.base, entry->second.bytes) != 0) {
    warn("host device: a range of addresses could not be unmapped");
  }
  range_by_base_.erase(as_number(entry->second.base));
  ranges_.erase(entry);
}

HostMemory::Placement HostMemory::allocate(std::uint64_t bytes) {
  SLUICE_CHECK_MSG(bytes > 0, "a buffer has at least one byte");
  const MutexLock lock(mutex_);
  charge(bytes);
  // From the heap, not from the memfd, so that the address sanitizer guards both ends.
  void* const data = ::operator new(bytes, kBufferAlignment, std::nothrow);
  const std::uint64_t handle = next_handle_++;
  try {
    if (data == nullptr) throw_system_error("an allocation", bytes, ENOMEM);
    buffers_.emplace(handle, Buffer{data, bytes});
  } catch (...) {
    ::operator delete(data, kBufferAlignment);
    counters_.live_bytes -= bytes;
    throw;
  }
  ++counters_.allocation_calls;
  return {data, bytes, handle};
}

void HostMemory::deallocate(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  const auto entry = buffers_.find(handle);
  ::operator delete(entry->second.data, kBufferAlignment);
  counters_.live_bytes -= entry->second.bytes;
  buffers_.erase(entry);
}

HostMemory::Placement HostMemory::register_host(void* data, std::uint64_t bytes) {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  SLUICE_CHECK_MSG(data != nullptr && bytes > 0, "registered host memory is not empty");
  SLUICE_CHECK_MSG(as_number(data) % page_bytes == 0,
                   "registered host memory starts at a page boundary");
  const std::uint64_t begin = as_number(data);
  const MutexLock lock(mutex_);
  // cudaHostRegister refuses memory that is registered already; so does this device.
  const auto next = registered_.lower_bound(begin);
  SLUICE_CHECK_MSG(next == registered_.end() || next->first >= begin + bytes,
                   "host memory is registered once");
  SLUICE_CHECK_MSG(
      next == registered_.begin() || std::prev(next)->first + std::prev(next)->second <= begin,
      "host memory is registered once");
  registered_.emplace(begin, bytes);
  ++counters_.registration_calls;
  registered_bytes_ += bytes;
  counters_.peak_registered_bytes = std::max(counters_.peak_registered_bytes, registered_bytes_);
  return {data, bytes, begin};
}

void HostMemory::unregister_host(std::uint64_t handle) noexcept {
  const MutexLock lock(mutex_);
  const auto entry = registered_.find(handle);
  if (entry == registered_.end()) return;
  registered_bytes_ -= entry->second;
  registered_.erase(entry);
}

DeviceCounters HostMemory::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

void HostMemory::locate(const void* data, std::uint64_t bytes,
                        std::vector<PhysicalSpan>& spans) const {
  if (bytes == 0) return;
  const std::uint64_t begin = as_number(data);
  const MutexLock lock(mutex_);
  const auto after = range_by_base_.upper_bound(begin);
  if (after != range_by_base_.begin()) {
    const Range& range = ranges_.find(std::prev(after)->second)->second;
    const std::uint64_t base = as_number(range.base);
    if (begin < base + range.bytes) {
      locate_in_range(range, begin - base, begin - base + bytes, spans);
      return;
    }
  }
  spans.push_back({begin, begin + bytes});
}

void HostMemory::locate_in_range(const Range& range, std::uint64_t begin, std::uint64_t end,
                                 std::vector<PhysicalSpan>& spans) const {
  std::uint64_t at = begin;
  while (at < end) {
    auto part = range.parts.upper_bound(at);
    const bool mapped =
        part != range.parts.begin() && at < std::prev(part)->first + std::prev(part)->second.bytes;
    if (!mapped) {
      throw DeviceError("queued work touches byte " + std::to_string(at) +
                        " of an address range, where nothing is mapped");
    }
    --part;
    const std::uint64_t inside = at - part->first;
    const std::uint64_t part_end = std::min(end, part->first + part->second.bytes);
    const std::uint64_t file_offset = blocks_.find(part->second.block_handle)->second.file_offset;
    spans.push_back(
        {kFileBit | (file_offset + inside), kFileBit | (file_offset + part_end - part->first)});
    at = part_end;
  }
}

}  // namespace sluice::device
