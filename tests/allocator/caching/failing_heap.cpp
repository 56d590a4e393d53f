#include "tests/allocator/caching/failing_heap.hpp"

#include <cstdlib>
#include <new>

namespace sluice::allocator {
namespace {

constinit thread_local std::int64_t remaining = -1;

}  // namespace

void fail_heap_allocation(std::int64_t call) {
  remaining = call;
}

}  // namespace sluice::allocator

// All forms but the aligned ones, so that a sanitizer's own never meet these.
void* operator new(std::size_t bytes) {
  if (sluice::allocator::remaining >= 0 && sluice::allocator::remaining-- == 0)
    throw std::bad_alloc();
  if (void* const data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t /*bytes*/) noexcept {
  std::free(data);
}
void operator delete[](void* data) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::size_t /*bytes*/) noexcept {
  std::free(data);
}
