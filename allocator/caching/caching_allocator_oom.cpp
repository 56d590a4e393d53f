// Makes CachingAllocator's report of a failed request.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "allocator/caching/caching_allocator.hpp"
#include "allocator/caching/oom_report.hpp"

namespace sluice::allocator {
namespace {

// Adds up the blocks of each stream.
class Tally {
 public:
  explicit Tally(OomReport& report) : report_(report) {}

  void add(const StreamPool& pool) {
    OomStream stream{.stream = pool.id, .movable = pool.movable};
    for (const BlockSpace* space : {&pool.small, &pool.large}) {
      space->visit_all([&](const Block& block) { add(block, *space, stream); });
    }
    std::uint64_t& page_bytes = pool.movable ? report_.free_page_bytes : report_.fixed_page_bytes;
    page_bytes += stream.free_page_bytes;
    report_.free_bytes += stream.free_bytes;
    report_.pending_bytes += stream.pending_bytes;
    report_.streams.push_back(stream);
  }

  void finish(const std::vector<std::string>& names) {
    for (const auto& [key, total] : sites_) {
      const auto& [number, category] = key;
      const std::string name = number < names.size() ? names[number] : std::string();
      report_.sites.push_back({number, category, name, total.first, total.second});
    }
    std::stable_sort(report_.sites.begin(), report_.sites.end(),
                     [](const OomSite& a, const OomSite& b) { return a.bytes > b.bytes; });
  }

 private:
  void add(const Block& block, const BlockSpace& space, OomStream& stream) {
    if (block.kind == BlockKind::kUnbacked) return;
    if (block.kind == BlockKind::kFree) {
      stream.free_bytes += block.bytes;
      stream.free_page_bytes += space.page_count(block) * report_.limits.page_bytes;
      report_.largest_free_bytes = std::max(report_.largest_free_bytes, block.bytes);
      return;
    }
    if (block.cached) {
      report_.cached_bytes += block.bytes;
    } else if (block.pending) {
      stream.pending_bytes += block.bytes;
    } else {
      stream.live_bytes += block.requested_bytes;
      report_.live_bytes += block.requested_bytes;
      report_.used_bytes += block.bytes;
      ++report_.live_count;
      report_.live_by_category[static_cast<std::size_t>(block.category)] += block.requested_bytes;
      auto& [bytes, count] = sites_[{block.name, block.category}];
      bytes += block.requested_bytes;
      ++count;
    }
  }

  OomReport& report_;
  std::map<std::pair<std::uint32_t, Category>, std::pair<std::uint64_t, std::uint64_t>> sites_;
};

}  // namespace

OomReport CachingAllocator::report_out_of_memory(const AllocationRequest& request) {
  OomReport report;
  report.requested_bytes = request.bytes;
  report.block_bytes = round_up(request.bytes, BlockSpace::kAlignment);
  report.stream = request.stream;
  report.category = request.category;
  report.site_number = request.name;

  const Ledger& ledger = pages_.ledger();
  const LedgerTotals charged = ledger.totals(Tier::kDevice);
  OomLimits& limits = report.limits;
  limits.page_bytes = page_bytes_;
  limits.tier_cap_bytes = ledger.cap_bytes(Tier::kDevice);
  limits.tier_charged_bytes = charged.live_bytes;
  limits.category = options_.category;
  limits.category_cap_bytes = ledger.category_cap_bytes(Tier::kDevice, options_.category);
  limits.category_charged_bytes =
      charged.live_by_category[static_cast<std::size_t>(options_.category)];
  limits.device_capacity_bytes = device_.facts().capacity_bytes;
  limits.device_counted_bytes = device_.counters().live_bytes;

  const ThreadCaches::AllLocked caches(caches_);  // so that descriptions of blocks do not change
  std::vector<std::string> names;
  report.options = options_;
  report.options.recorder = nullptr;
  if (options_.recorder != nullptr) {
    auto record = std::make_shared<record::MemorySnapshot>(snapshot_locked());
    names = record->names;
    report.record = std::move(record);
  }
  if (request.name < names.size()) report.site = names[request.name];
  report.reserved_bytes = held_pages_ * page_bytes_;
  Tally tally(report);
  for (const StreamPool& pool : pools_) tally.add(pool);
  tally.finish(names);
  prove_cause(report);
  return report;
}

void CachingAllocator::throw_out_of_memory(const AllocationRequest& request) {
  auto report = std::make_shared<const OomReport>(report_out_of_memory(request));
  if (options_.recorder != nullptr) {
    options_.recorder->record(record::MemoryAction::kOutOfMemory, request.stream, 0, request.bytes,
                              request.category, request.name);
  }
  throw OutOfMemoryReported(std::move(report));
}

}  // namespace sluice::allocator
