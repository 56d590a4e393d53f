#include "allocator/ledger.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace sluice::allocator {
namespace {

constexpr std::size_t index_of(Tier tier) {
  return static_cast<std::size_t>(tier);
}
constexpr std::size_t index_of(Category category) {
  return static_cast<std::size_t>(category);
}

std::string account_name(Tier tier, Category category) {
  return std::string(tier_name(tier)) + "/" + std::string(category_name(category));
}

}  // namespace

Reservation::Reservation(Reservation&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tier_(other.tier_),
      category_(other.category_),
      bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    if (ledger_ != nullptr) ledger_->give_back(tier_, category_, bytes_);
    ledger_ = std::exchange(other.ledger_, nullptr);
    tier_ = other.tier_;
    category_ = other.category_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Reservation::~Reservation() {
  if (ledger_ != nullptr) ledger_->give_back(tier_, category_, bytes_);
}

void Reservation::shrink(std::uint64_t bytes) {
  SLUICE_CHECK(bytes <= bytes_);
  if (bytes == 0) return;
  ledger_->give_back(tier_, category_, bytes);
  bytes_ -= bytes;
}

Ledger::Ledger(std::array<std::uint64_t, kTierCount> caps_bytes) : caps_(caps_bytes) {
  for (auto& caps : category_caps_) caps.fill(std::numeric_limits<std::uint64_t>::max());
}

Ledger::~Ledger() = default;

void Ledger::set_category_cap(Tier tier, Category category, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  SLUICE_CHECK_MSG(totals_[index_of(tier)].live_by_category[index_of(category)] <= bytes,
                   "a cap below what " + account_name(tier, category) + " already holds");
  category_caps_[index_of(tier)][index_of(category)] = bytes;
}

// Both terms are non-negative, because live bytes never exceed a cap.
std::uint64_t Ledger::available_locked(Tier tier, Category category) const {
  const LedgerTotals& totals = totals_[index_of(tier)];
  const std::uint64_t in_tier = caps_[index_of(tier)] - totals.live_bytes;
  const std::uint64_t in_category = category_caps_[index_of(tier)][index_of(category)] -
                                    totals.live_by_category[index_of(category)];
  return std::min(in_tier, in_category);
}

void Ledger::charge_locked(Tier tier, Category category, std::uint64_t bytes) {
  LedgerTotals& totals = totals_[index_of(tier)];
  totals.live_bytes += bytes;
  totals.peak_bytes = std::max(totals.peak_bytes, totals.live_bytes);
  std::uint64_t& live = totals.live_by_category[index_of(category)];
  std::uint64_t& peak = totals.peak_by_category[index_of(category)];
  live += bytes;
  peak = std::max(peak, live);
}

std::optional<Reservation> Ledger::try_reserve(Tier tier, Category category, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (bytes > available_locked(tier, category)) return std::nullopt;
  charge_locked(tier, category, bytes);
  return Reservation(this, tier, category, bytes);
}

Reservation Ledger::reserve(Tier tier, Category category, std::uint64_t bytes) {
  std::uint64_t available_bytes = 0;
  {
    const MutexLock lock(mutex_);
    available_bytes = available_locked(tier, category);
    if (bytes <= available_bytes) {
      charge_locked(tier, category, bytes);
      return Reservation(this, tier, category, bytes);
    }
  }
  throw OutOfMemory(tier, category, bytes, available_bytes);
}

void Ledger::recategorise(Reservation& reservation, Category category) {
  SLUICE_CHECK(reservation.ledger_ == this);
  if (reservation.category_ == category) return;
  const Tier tier = reservation.tier_;
  std::uint64_t available_bytes = 0;
  {
    const MutexLock lock(mutex_);
    LedgerTotals& totals = totals_[index_of(tier)];
    std::uint64_t& live = totals.live_by_category[index_of(category)];
    std::uint64_t& peak = totals.peak_by_category[index_of(category)];
    available_bytes = category_caps_[index_of(tier)][index_of(category)] - live;
    if (reservation.bytes_ <= available_bytes) {
      totals.live_by_category[index_of(reservation.category_)] -= reservation.bytes_;
      live += reservation.bytes_;
      peak = std::max(peak, live);
      reservation.category_ = category;
      return;
    }
  }
  throw OutOfMemory(tier, category, reservation.bytes_, available_bytes);
}

void Ledger::give_back(Tier tier, Category category, std::uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  LedgerTotals& totals = totals_[index_of(tier)];
  totals.live_bytes -= bytes;
  totals.live_by_category[index_of(category)] -= bytes;
}

std::uint64_t Ledger::cap_bytes(Tier tier) const {
  return caps_[index_of(tier)];
}

std::uint64_t Ledger::category_cap_bytes(Tier tier, Category category) const {
  const MutexLock lock(mutex_);
  return category_caps_[index_of(tier)][index_of(category)];
}

LedgerTotals Ledger::totals(Tier tier) const {
  const MutexLock lock(mutex_);
  return totals_[index_of(tier)];
}

void Ledger::check_invariants() const {
  const MutexLock lock(mutex_);
  for (const Tier tier : kTiers) {
    const LedgerTotals& totals = totals_[index_of(tier)];
    std::uint64_t sum_bytes = 0;
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      const std::string name = account_name(tier, static_cast<Category>(c));
      sum_bytes += totals.live_by_category[c];
      SLUICE_CHECK_MSG(totals.live_by_category[c] <= category_caps_[index_of(tier)][c], name);
      SLUICE_CHECK_MSG(totals.live_by_category[c] <= totals.peak_by_category[c], name);
      SLUICE_CHECK_MSG(totals.peak_by_category[c] <= totals.peak_bytes, name);
    }
    SLUICE_CHECK_MSG(sum_bytes == totals.live_bytes, std::string(tier_name(tier)));
    SLUICE_CHECK_MSG(totals.live_bytes <= totals.peak_bytes, std::string(tier_name(tier)));
    SLUICE_CHECK_MSG(totals.peak_bytes <= caps_[index_of(tier)], std::string(tier_name(tier)));
  }
}

}  // namespace sluice::allocator
