#include "tests/support/heap_peak.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace sluice::testing {
namespace {

std::atomic<std::uint64_t> live{0};
std::atomic<std::uint64_t> peak{0};

void* count(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const std::uint64_t bytes = malloc_usable_size(block);
  const std::uint64_t now = live.fetch_add(bytes) + bytes;
  std::uint64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return block;
}

void release(void* block) {
  if (block == nullptr) return;
  live.fetch_sub(malloc_usable_size(block));
  std::free(block);
}

}  // namespace

std::uint64_t live_heap_bytes() {
  return live.load();
}
void restart_heap_peak() {
  peak.store(live.load());
}
std::uint64_t heap_peak_bytes() {
  return peak.load();
}

}  // namespace sluice::testing

// The other forms of the standard library come down to these.
void* operator new(std::size_t bytes) {
  return sluice::testing::count(std::malloc(bytes));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return sluice::testing::count(std::aligned_alloc(align, (bytes + align - 1) / align * align));
}
void operator delete(void* block) noexcept {
  sluice::testing::release(block);
}
void operator delete(void* block, std::size_t /*bytes*/) noexcept {
  sluice::testing::release(block);
}
void operator delete(void* block, std::align_val_t /*alignment*/) noexcept {
  sluice::testing::release(block);
}
void operator delete(void* block, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  sluice::testing::release(block);
}
