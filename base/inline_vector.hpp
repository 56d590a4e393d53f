// A vector with room for a few elements in itself. Lists of two or three elements, by the million,
// then need no memory of their own.
//
// Elements are moved as bytes. Like std::vector it invalidates iterators when it grows; unlike
// it, a move does too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

// kInside: elements that need no heap.
template <typename T, std::uint32_t kInside>
class InlineVector {
  static_assert(kInside > 0 && std::is_trivially_copyable_v<T> &&
                std::is_trivially_destructible_v<T> && alignof(T) <= alignof(std::max_align_t));

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  InlineVector() = default;
  InlineVector(std::initializer_list<T> list) { append(list.begin(), list.size()); }
  // NOLINTNEXTLINE(google-explicit-constructor): as a vector is
  InlineVector(std::span<const T> list) { append(list.data(), list.size()); }
  // NOLINTNEXTLINE(google-explicit-constructor): the same elements
  InlineVector(const std::vector<T>& list) { append(list.data(), list.size()); }
  InlineVector(const InlineVector& other) { append(other.data(), other.size()); }
  InlineVector(InlineVector&& other) noexcept { take(other); }
  ~InlineVector() { free_heap(); }
  InlineVector& operator=(const InlineVector& other) {
    if (this == &other) return *this;
    clear();
    append(other.data(), other.size());
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this == &other) return *this;
    free_heap();
    take(other);
    return *this;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return is_inside() ? reinterpret_cast<T*>(bytes_) : heap(); }
  const T* data() const { return const_cast<InlineVector*>(this)->data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& front() { return *data(); }
  const T& front() const { return *data(); }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void reserve(std::size_t count) {
    if (count > capacity_) grow(static_cast<std::uint32_t>(count));
  }
  void clear() { size_ = 0; }
  void shrink_to_fit() {
    if (!is_inside()) *this = InlineVector(std::span<const T>(data(), size()));
  }
  void push_back(const T& element) {
    const T copy = element;  // may be one of its own
    if (size_ == capacity_) grow(std::max(kFirstHeap, 2 * capacity_));
    new (data() + size_) T(copy);
    ++size_;
  }
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    push_back(T(std::forward<Arguments>(arguments)...));
    return back();
  }
  void pop_back() { --size_; }
  // `first` must not be an element of its own.
  void append(const T* first, std::size_t count) {
    if (count == 0) return;
    reserve(size_ + count);
    std::memcpy(static_cast<void*>(data() + size_), first, count * sizeof(T));
    size_ += static_cast<std::uint32_t>(count);
  }
  iterator erase(const_iterator first, const_iterator last) {
    T* const to = begin() + (first - begin());
    size_ = static_cast<std::uint32_t>(std::move(begin() + (last - begin()), end(), to) - begin());
    return to;
  }
  iterator erase(const_iterator at) { return erase(at, at + 1); }

  // Erases all equal elements, and returns their number.
  friend std::size_t erase(InlineVector& list, const T& element) {
    const std::size_t before = list.size();
    list.erase(std::remove(list.begin(), list.end(), element), list.end());
    return before - list.size();
  }
  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator==(const InlineVector& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::size_t kAddressBytes = sizeof(void*);
  static constexpr std::uint32_t kFirstHeap = std::max<std::uint32_t>(6, 2 * kInside);

  bool is_inside() const { return capacity_ == kInside; }
  // bytes_ holds the elements, or the address of their place on the heap.
  T* heap() const {
    T* place;
    std::memcpy(&place, bytes_, kAddressBytes);
    return place;
  }
  void free_heap() {
    if (!is_inside()) std::allocator<T>().deallocate(heap(), capacity_);
  }
  void take(InlineVector& other) {
    std::memcpy(bytes_, other.bytes_, sizeof(bytes_));
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, kInside);
  }
  void grow(std::uint32_t capacity) {
    T* const place = std::allocator<T>().allocate(capacity);
    if (size_ > 0) std::memcpy(static_cast<void*>(place), data(), size_ * sizeof(T));
    free_heap();
    std::memcpy(bytes_, &place, kAddressBytes);
    capacity_ = capacity;
  }

  static constexpr std::size_t kAlignment = std::max(alignof(T), alignof(std::uint32_t));
  static constexpr std::size_t kBytes = std::max(kInside * sizeof(T), kAddressBytes);
  alignas(kAlignment) std::byte bytes_[kBytes] = {};
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kInside;
};

}  // namespace sluice
