// The budget ledger. Every byte of every tier is charged to a category before the driver or system
// call that obtains it. Caps are hard. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/error.hpp"
#include "base/memory_kinds.hpp"
#include "base/mutex.hpp"

namespace sluice::allocator {

class Ledger;

// A charge of bytes to a tier and category. Move-only; its destructor returns the bytes.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();
  std::uint64_t bytes() const { return bytes_; }
  // Returns `bytes` of this charge now. Precondition: bytes <= bytes().
  void shrink(std::uint64_t bytes);

 private:
  friend class Ledger;
  Reservation(Ledger* ledger, Tier tier, Category category, std::uint64_t bytes)
      : ledger_(ledger), tier_(tier), category_(category), bytes_(bytes) {}
  Ledger* ledger_ = nullptr;
  Tier tier_ = Tier::kDevice;
  Category category_ = Category::kExternal;
  std::uint64_t bytes_ = 0;
};

struct LedgerTotals {
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_bytes = 0;
  std::array<std::uint64_t, kCategoryCount> live_by_category{};
  std::array<std::uint64_t, kCategoryCount> peak_by_category{};
};

class Ledger {
 public:
  // caps in bytes per tier; UINT64_MAX: no cap.
  explicit Ledger(std::array<std::uint64_t, kTierCount> caps_bytes);
  ~Ledger();  // CHECKs nothing; outstanding reservations must be gone before

  // Sets a cap for one category inside a tier's cap. Throws InternalError if the category already
  // holds more.
  void set_category_cap(Tier tier, Category category, std::uint64_t bytes);

  // Returns nothing if the bytes do not fit.
  std::optional<Reservation> try_reserve(Tier tier, Category category, std::uint64_t bytes);
  // Throws OutOfMemory with requested and available bytes.
  Reservation reserve(Tier tier, Category category, std::uint64_t bytes);
  // Moves a charge to another category of its tier in one step, so that no other thread can take
  // the room. Throws OutOfMemory if the category's cap forbids it; the charge is then unchanged.
  void recategorise(Reservation& reservation, Category category);

  std::uint64_t cap_bytes(Tier tier) const;
  std::uint64_t category_cap_bytes(Tier tier, Category category) const;  // UINT64_MAX: none
  LedgerTotals totals(Tier tier) const;
  // Checks that sums agree and that live bytes are within the caps. Throws InternalError.
  void check_invariants() const;

 private:
  friend class Reservation;
  void give_back(Tier tier, Category category, std::uint64_t bytes) noexcept;
  std::uint64_t available_locked(Tier tier, Category category) const SLUICE_REQUIRES(mutex_);
  void charge_locked(Tier tier, Category category, std::uint64_t bytes) SLUICE_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::array<std::uint64_t, kTierCount> caps_;
  std::array<std::array<std::uint64_t, kCategoryCount>, kTierCount> category_caps_
      SLUICE_GUARDED_BY(mutex_);
  std::array<LedgerTotals, kTierCount> totals_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::allocator
