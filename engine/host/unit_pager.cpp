#include "engine/host/unit_pager.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.hpp"
#include "engine/host/host_session.hpp"
#include "engine/host/unit_homes.hpp"
#include "engine/host/window_fetcher.hpp"

namespace sluice::host {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;  // of one unit's part

}  // namespace

struct UnitPager::Sealed {
  Sealed(HostEngine& engine, const std::vector<PagedUnit>& units, const PagerOptions& options)
      : plan(plan_pager(units, options, engine.device().facts().granularity_bytes,
                        engine.bytes_left())),
        homes(engine, units, plan),
        fetcher(engine, units, plan, homes) {}

  const PagerPlan plan;
  UnitHomes homes;
  WindowFetcher fetcher;    // its thread ends before the homes go
  bool needs_pass = false;  // homes have changed since the last pass began
};

UnitPager::UnitPager(std::shared_ptr<HostEngine> engine, const PagerOptions& options)
    : engine_(std::move(engine)), options_(options) {}

UnitPager::~UnitPager() = default;

UnitPager::Sealed& UnitPager::sealed() const {
  if (sealed_ == nullptr) throw SessionStateError("the pager is not sealed yet");
  return *sealed_;
}

const PagedTensor& UnitPager::tensor(std::uint32_t number) const {
  if (number >= tensors_.size()) {
    throw InputError("there is no tensor " + std::to_string(number));
  }
  return tensors_[number];
}

std::uint32_t UnitPager::add_unit(const std::string& name) {
  if (sealed_ != nullptr) throw SessionStateError("the pager is sealed");
  units_.push_back({name});
  return static_cast<std::uint32_t>(units_.size() - 1);
}

std::uint32_t UnitPager::add_tensor(std::uint32_t unit, PagedPart part, std::uint64_t bytes,
                                    const void* data) {
  if (sealed_ != nullptr) throw SessionStateError("the pager is sealed");
  if (unit >= units_.size()) throw InputError("there is no unit " + std::to_string(unit));
  std::uint64_t& used = units_[unit].part_bytes[static_cast<std::size_t>(part)];
  if (bytes == 0 || bytes > kMostBytes - used) {
    throw InputError("a tensor of unit '" + shown(units_[unit].name) + "' has " +
                     std::to_string(bytes) + " bytes; a unit has 1 byte to 2^48");
  }
  const std::uint64_t offset = round_up(used, kTensorAlignmentBytes);
  tensors_.push_back({unit, part, bytes, offset, data});
  used = offset + bytes;
  return static_cast<std::uint32_t>(tensors_.size() - 1);
}

void UnitPager::seal() {
  if (sealed_ != nullptr) throw SessionStateError("the pager is sealed");
  auto made = std::make_unique<Sealed>(*engine_, units_, options_);
  made->homes.fill(tensors_);
  sealed_ = std::move(made);
}

std::byte* UnitPager::window(std::uint32_t number) const {
  const PagedTensor& found = tensor(number);
  if (found.part != PagedPart::kWeight) {
    throw InputError("tensor " + std::to_string(number) + " is state, which has no window");
  }
  return sealed().fetcher.address(found.unit) + found.offset_bytes;
}

std::byte* UnitPager::home(std::uint32_t number) const {
  const PagedTensor& found = tensor(number);
  std::byte* const part = sealed().homes.home(found.unit, found.part);
  return part == nullptr ? nullptr : part + found.offset_bytes;
}

std::byte* UnitPager::staged(std::uint32_t number) const {
  const PagedTensor& found = tensor(number);
  return sealed().homes.staged(found.unit, found.part) + found.offset_bytes;
}

void UnitPager::check_unit(std::uint32_t unit) const {
  if (unit >= units_.size()) throw InputError("there is no unit " + std::to_string(unit));
}

void UnitPager::begin_pass() {
  Sealed& inner = sealed();
  if (staged_) throw SessionStateError("a unit is staged; unstage it before a pass");
  inner.homes.settle();
  inner.fetcher.begin_pass();
  inner.needs_pass = false;
}

void UnitPager::acquire(std::uint32_t unit, void* native_stream) {
  Sealed& inner = sealed();
  check_unit(unit);
  if (inner.needs_pass) {
    throw SessionStateError("weights have changed since the pass began; begin another one");
  }
  inner.fetcher.acquire(unit, native_stream);
}

void UnitPager::release(std::uint32_t unit, void* native_stream) {
  Sealed& inner = sealed();
  check_unit(unit);
  inner.fetcher.release(unit, native_stream);
}

void UnitPager::stage(std::uint32_t unit, std::optional<std::uint32_t> next) {
  Sealed& inner = sealed();
  check_unit(unit);
  if (next) check_unit(*next);
  if (staged_) throw SessionStateError("another unit is staged; unstage it first");
  inner.needs_pass = true;
  inner.fetcher.quiesce();
  inner.homes.stage(unit, next);
  staged_ = unit;
}

void UnitPager::unstage(std::uint32_t unit) {
  Sealed& inner = sealed();
  if (staged_ != unit) throw SessionStateError("unit " + std::to_string(unit) + " is not staged");
  staged_.reset();
  inner.homes.unstage(unit);
}

void UnitPager::settle() {
  sealed().homes.settle();
}

void UnitPager::check_range(const PagedTensor& found, std::uint64_t first,
                            std::uint64_t bytes) const {
  if (staged_) throw SessionStateError("a unit is staged; unstage it first");
  if (first <= found.bytes && bytes <= found.bytes - first) return;
  throw InputError("the tensor has " + std::to_string(found.bytes) + " bytes, not " +
                   std::to_string(bytes) + " from " + std::to_string(first) + " on");
}

void UnitPager::read(std::uint32_t number, std::uint64_t first, std::uint64_t bytes,
                     std::byte* into) {
  Sealed& inner = sealed();
  const PagedTensor& found = tensor(number);
  check_range(found, first, bytes);
  if (inner.homes.rests_on_storage(found.unit, found.part)) {
    inner.homes.stage(found.unit, std::nullopt);
  }
  std::memcpy(into, staged(number) + first, bytes);
}

void UnitPager::write(std::uint32_t number, std::uint64_t first, std::uint64_t bytes,
                      const std::byte* from) {
  Sealed& inner = sealed();
  const PagedTensor& found = tensor(number);
  check_range(found, first, bytes);
  inner.needs_pass = true;
  inner.fetcher.quiesce();
  const bool stored = inner.homes.rests_on_storage(found.unit, found.part);
  if (stored) inner.homes.stage(found.unit, std::nullopt);
  std::memcpy(staged(number) + first, from, bytes);
  if (!stored) return;
  inner.homes.unstage(found.unit);
  inner.homes.settle();
}

UnitPager::Statistics UnitPager::statistics() const {
  Statistics statistics;
  if (sealed_ == nullptr) return statistics;
  statistics.is_sealed = true;
  statistics.planned_bytes = sealed_->plan.bytes();
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (sealed_->homes.rests_on_storage(unit, PagedPart::kWeight)) {
      statistics.stored_weight_bytes += units_[unit].bytes_of(PagedPart::kWeight);
    }
    if (sealed_->homes.rests_on_storage(unit, PagedPart::kState)) {
      statistics.stored_state_bytes += units_[unit].bytes_of(PagedPart::kState);
    }
  }
  statistics.fetches = sealed_->fetcher.counters();
  const offload::StorageCounters counters = sealed_->homes.storage_counters();
  statistics.storage_read_bytes = counters.read_bytes;
  statistics.storage_write_bytes = counters.write_bytes;
  return statistics;
}

}  // namespace sluice::host
