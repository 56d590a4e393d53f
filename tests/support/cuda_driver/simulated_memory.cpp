#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <new>

#include "tests/support/cuda_driver/simulated_gpu.hpp"

namespace sluice::simulated {
namespace {

constexpr std::uint64_t kBufferAlignment = 512;  // of cuMemAlloc's addresses, at least 256

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

std::uint64_t rounded(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Memory::Memory(std::uint64_t capacity_bytes, bool guarded)
    : capacity_bytes_(capacity_bytes), guarded_(guarded) {
  file_ = ::memfd_create("simulated-gpu", MFD_CLOEXEC);
}

std::uint64_t Memory::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return capacity_bytes_ - used_bytes_;
}

CUresult Memory::allocate(CUdeviceptr* data, std::uint64_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (bytes > capacity_bytes_ - used_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = nullptr;
  if (guarded_) {
    memory = ::mmap(nullptr, bytes, open_count_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    // From the heap, so that the address sanitizer guards both ends.
    memory = ::operator new (bytes, std::align_val_t{kBufferAlignment}, std::nothrow);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *data = reinterpret_cast<CUdeviceptr>(memory);
  buffers_[*data] = bytes;
  used_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult Memory::free(CUdeviceptr data) {
  const std::lock_guard lock(mutex_);
  const auto entry = buffers_.find(data);
  if (entry == buffers_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (guarded_) {
    ::munmap(pointer(data), entry->second);
  } else {
    ::operator delete (pointer(data), std::align_val_t{kBufferAlignment});
  }
  used_bytes_ -= entry->second;
  buffers_.erase(entry);
  return CUDA_SUCCESS;
}

CUresult Memory::reserve(CUdeviceptr* base, std::uint64_t bytes, std::uint64_t alignment) {
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t aligned = alignment == 0 ? kGranularity : alignment;
  if ((aligned & (aligned - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const raw = ::mmap(nullptr, bytes + aligned, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(raw);
  const CUdeviceptr first = rounded(begin, aligned);
  if (first > begin) ::munmap(raw, first - begin);
  ::munmap(pointer(first + bytes), begin + aligned - first);
  const std::lock_guard lock(mutex_);
  ranges_[first] = bytes;
  *base = first;
  return CUDA_SUCCESS;
}

CUresult Memory::free_range(CUdeviceptr base, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto entry = ranges_.find(base);
  if (entry == ranges_.end() || entry->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(base);
  if (mapped != mappings_.end() && mapped->first < base + bytes) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(pointer(base), bytes);
  ranges_.erase(entry);
  return CUDA_SUCCESS;
}

CUresult Memory::create(std::uint64_t* handle, std::uint64_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (bytes > capacity_bytes_ - used_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  // The file only grows; holes are punched where blocks are gone.
  if (::ftruncate(file_, static_cast<off_t>(file_bytes_ + bytes)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = next_handle_++;
  blocks_[*handle] = {file_bytes_, bytes, 0, false};
  file_bytes_ += bytes;
  used_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult Memory::release(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto entry = blocks_.find(handle);
  if (entry == blocks_.end() || entry->second.released) return CUDA_ERROR_INVALID_VALUE;
  entry->second.released = true;
  forget_if_unused(handle);
  return CUDA_SUCCESS;
}

void Memory::forget_if_unused(std::uint64_t handle) {
  const auto entry = blocks_.find(handle);
  const Block& block = entry->second;
  if (!block.released || block.mapping_count > 0) return;
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(block.file_offset), static_cast<off_t>(block.bytes));
  used_bytes_ -= block.bytes;
  blocks_.erase(entry);
}

std::map<CUdeviceptr, std::uint64_t>::iterator Memory::range_of(CUdeviceptr at,
                                                                std::uint64_t bytes) {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return ranges_.end();
  --range;
  const std::uint64_t inside = at - range->first;
  const bool fits = inside <= range->second && bytes <= range->second - inside;
  return fits ? range : ranges_.end();
}

CUresult Memory::map(CUdeviceptr at, std::uint64_t bytes, std::uint64_t offset,
                     std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(handle);
  if (block == blocks_.end() || block->second.released) return CUDA_ERROR_INVALID_VALUE;
  // A driver promises: offset 0 alone, whole granules, addresses that are reserved and free.
  if (offset != 0 || bytes == 0 || bytes > block->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  if (at % kGranularity != 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (range_of(at, bytes) == ranges_.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto next = mappings_.lower_bound(at);
  if (next != mappings_.end() && next->first < at + bytes) return CUDA_ERROR_ALREADY_MAPPED;
  if (next != mappings_.begin()) {
    const auto& [begin, mapping] = *std::prev(next);
    if (begin + mapping.bytes > at) return CUDA_ERROR_ALREADY_MAPPED;
  }
  mappings_[at] = {bytes, handle, false};  // no access until it is set
  ++block->second.mapping_count;
  return CUDA_SUCCESS;
}

bool Memory::covers_whole_mappings(CUdeviceptr at, std::uint64_t bytes) const {
  CUdeviceptr end = at;
  for (auto entry = mappings_.find(at); entry != mappings_.end() && end < at + bytes;) {
    end = entry->first + entry->second.bytes;
    entry = mappings_.find(end);
  }
  return end == at + bytes && bytes != 0;
}

CUresult Memory::unmap(CUdeviceptr at, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!covers_whole_mappings(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  ::mmap(pointer(at), bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
         0);
  for (auto entry = mappings_.find(at); entry != mappings_.end() && entry->first < at + bytes;) {
    const std::uint64_t handle = entry->second.handle;
    entry = mappings_.erase(entry);
    --blocks_[handle].mapping_count;
    forget_if_unused(handle);
  }
  return CUDA_SUCCESS;
}

bool Memory::place(CUdeviceptr at, const Mapping& mapping) const {
  const int protection = guarded_ && open_count_ == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
  return ::mmap(pointer(at), mapping.bytes, protection, MAP_FIXED | MAP_SHARED, file_,
                static_cast<off_t>(blocks_.at(mapping.handle).file_offset)) != MAP_FAILED;
}

CUresult Memory::set_access(CUdeviceptr at, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!covers_whole_mappings(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto entry = mappings_.find(at); entry != mappings_.end() && entry->first < at + bytes;
       ++entry) {
    if (!place(entry->first, entry->second)) return CUDA_ERROR_OUT_OF_MEMORY;
    entry->second.accessible = true;
  }
  return CUDA_SUCCESS;
}

bool Memory::accessible(CUdeviceptr at, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto buffer = buffers_.upper_bound(at);
  if (buffer != buffers_.begin()) {
    const auto& [begin, size] = *std::prev(buffer);
    if (at < begin + size) return at - begin + bytes <= size;
  }
  const CUdeviceptr end = at + bytes;
  while (at < end) {
    auto mapping = mappings_.upper_bound(at);
    if (mapping == mappings_.begin()) return false;
    --mapping;
    const CUdeviceptr mapping_end = mapping->first + mapping->second.bytes;
    if (at >= mapping_end || !mapping->second.accessible) return false;
    at = mapping_end;
  }
  return true;
}

void Memory::protect_all(int protection) const {
  for (const auto& [at, mapping] : mappings_) {
    if (mapping.accessible) ::mprotect(pointer(at), mapping.bytes, protection);
  }
  for (const auto& [at, bytes] : buffers_) ::mprotect(pointer(at), bytes, protection);
}

void Memory::open() {
  if (!guarded_) return;
  const std::lock_guard lock(mutex_);
  if (open_count_++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

void Memory::close() {
  if (!guarded_) return;
  const std::lock_guard lock(mutex_);
  if (--open_count_ == 0) protect_all(PROT_NONE);
}

void Memory::add_to(SluiceSimulatedObjects& objects) const {
  const std::lock_guard lock(mutex_);
  objects.blocks += blocks_.size();
  objects.mappings += mappings_.size();
  objects.ranges += ranges_.size();
  objects.buffers += buffers_.size();
}

}  // namespace sluice::simulated
