// Weights and optimizer state of a host program's model, moved by units: weights to windows on the
// device for a pass, weights and state to pinned memory for the program's own update.
//
// Life: units and tensors are added; seal() plans, takes all memory and fills it. A pass begins
// with begin_pass(). The program then acquires each unit before it computes with the unit's
// weights, and releases it after that. A unit has one address for life, so whatever keeps views of
// a weight, as autograd does, sees the same bytes whenever the unit is acquired again. An update
// stages and unstages unit after unit.
//
// A unit that is not in its window is fetched on demand. Once two passes in a row were alike, units
// are fetched ahead, as far as memory reaches; a unit of the farthest next use makes room. Another
// order costs demand fetches and nothing else (UseRecord).
//
// Threads: one at a time. A thread of the pager fetches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/host/host_engine.hpp"
#include "engine/host/paged_units.hpp"
#include "engine/host/window_fetcher.hpp"

namespace sluice::host {

class UnitPager {
 public:
  UnitPager(std::shared_ptr<HostEngine> engine, const PagerOptions& options);
  ~UnitPager();
  UnitPager(const UnitPager&) = delete;
  UnitPager& operator=(const UnitPager&) = delete;

  // Before seal(). Throw InputError.
  std::uint32_t add_unit(const std::string& name);
  std::uint32_t add_tensor(std::uint32_t unit, PagedPart part, std::uint64_t bytes,
                           const void* data);
  // Throws Refused and InputError, and the pager may then be changed and sealed again.
  void seal();

  // Addresses for life. window(): of a weight, valid while its unit is acquired. home(): null if
  // the tensor rests on storage. staged(): valid while its unit is staged; the home, if it has one.
  std::byte* window(std::uint32_t tensor) const;
  std::byte* home(std::uint32_t tensor) const;
  std::byte* staged(std::uint32_t tensor) const;

  // Homes may have changed: windows are fetched anew from here on. Held units keep their bytes
  // until they are released.
  void begin_pass();
  // Acquired units are held until as many calls have released them. stream: of the program's
  // compute. Throws OutOfMemory if held units leave too little room, and errors of storage; the
  // unit is not held then.
  void acquire(std::uint32_t unit, void* native_stream);
  void release(std::uint32_t unit, void* native_stream);

  // Staged tensors may be changed; unstage() makes the changes last. next: the unit that the
  // program stages after this one.
  void stage(std::uint32_t unit, std::optional<std::uint32_t> next);
  void unstage(std::uint32_t unit);
  // Waits until all changes are at home.
  void settle();
  // Bytes of one tensor at home; not while a unit is staged.
  void read(std::uint32_t tensor, std::uint64_t first, std::uint64_t bytes, std::byte* into);
  void write(std::uint32_t tensor, std::uint64_t first, std::uint64_t bytes, const std::byte* from);

  struct Statistics {
    bool is_sealed = false;
    std::array<std::uint64_t, kTierCount> planned_bytes{};
    std::uint64_t stored_weight_bytes = 0, stored_state_bytes = 0;
    WindowFetcher::Counters fetches;
    std::uint64_t storage_read_bytes = 0, storage_write_bytes = 0;
  };
  Statistics statistics() const;

 private:
  struct Sealed;
  Sealed& sealed() const;
  void check_unit(std::uint32_t unit) const;
  const PagedTensor& tensor(std::uint32_t number) const;
  void check_range(const PagedTensor& tensor, std::uint64_t first, std::uint64_t bytes) const;

  const std::shared_ptr<HostEngine> engine_;
  const PagerOptions options_;
  std::vector<PagedUnit> units_;
  std::vector<PagedTensor> tensors_;
  std::optional<std::uint32_t> staged_;  // the unit that is staged
  std::unique_ptr<Sealed> sealed_;
};

}  // namespace sluice::host
