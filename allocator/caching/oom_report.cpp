#include "allocator/caching/oom_report.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace sluice::allocator {
namespace {

std::uint64_t room_of(std::uint64_t cap_bytes, std::uint64_t held_bytes) {
  return cap_bytes - std::min(cap_bytes, held_bytes);
}

// The limit that refused: its name, its bytes, and the bytes that other holders have under it.
struct BindingLimit {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t others_bytes = 0;
};

BindingLimit binding_limit(const OomReport& report) {
  const OomLimits& limits = report.limits;
  const auto others = [&](std::uint64_t bytes) { return room_of(bytes, report.reserved_bytes); };
  switch (report.limit) {
    case OomLimit::kTierCap:
      return {"cap of tier device", limits.tier_cap_bytes, others(limits.tier_charged_bytes)};
    case OomLimit::kCategoryCap:
      return {"cap of category " + std::string(category_name(limits.category)),
              limits.category_cap_bytes, others(limits.category_charged_bytes)};
    case OomLimit::kDevice:
      break;
  }
  return {"capacity of the device", limits.device_capacity_bytes,
          others(limits.device_counted_bytes)};
}

// "live 7.20 GiB + other holders 1.00 GiB + request 1.00 GiB > cap of tier device 8.00 GiB"
std::string need_above(const OomReport& report, const BindingLimit& limit) {
  std::string text = "live " + format_bytes(report.live_bytes);
  if (limit.others_bytes > 0) text += " + other holders " + format_bytes(limit.others_bytes);
  text += " + request " + format_bytes(report.requested_bytes);
  if (report.external_bytes > 0) {
    return text + " + outside this process " + format_bytes(report.external_bytes) + " > " +
           limit.name + " " + format_bytes(limit.bytes);
  }
  text += " > " + limit.name + " " + format_bytes(limit.bytes);
  const std::uint64_t whole_bytes = report.may_hold_bytes + limit.others_bytes;
  if (whole_bytes != limit.bytes) {
    text += " (" + format_bytes(whole_bytes) + " in whole pages)";
  }
  return text;
}

void prove_need(OomReport& report, std::uint64_t missing_bytes) {
  const OomLimits& limits = report.limits;
  const BindingLimit limit = binding_limit(report);
  const std::uint64_t missing_page_bytes = round_up(missing_bytes, limits.page_bytes);
  const std::uint64_t device_room =
      room_of(limits.device_capacity_bytes, limits.device_counted_bytes);
  report.proof = need_above(report, limit);
  if (report.external_bytes > 0) {
    // Without other processes this many more bytes would be available.
    const bool would_fit = missing_page_bytes <= report.external_bytes;
    report.cause = would_fit ? OomCause::kExternal : OomCause::kTrueNeed;
    report.proof += would_fit ? ", which would fit without what lies outside"
                              : ", which would not fit without what lies outside";
  } else if (report.limit != OomLimit::kDevice && device_room >= missing_page_bytes) {
    report.cause = OomCause::kCap;
    report.proof += ", while the device has room for " + format_bytes(device_room) + " more";
  } else {
    report.cause = OomCause::kTrueNeed;
    if (report.limit != OomLimit::kDevice) {
      report.proof += ", and the device has room for " + format_bytes(device_room) + " more only";
    }
  }
}

void prove_fragmentation(OomReport& report) {
  report.cause = OomCause::kFragmentation;
  const std::uint64_t page_bytes = report.limits.page_bytes;
  const std::uint64_t given_bytes = report.free_page_bytes;
  const std::uint64_t wanted_bytes = round_up(report.block_bytes, page_bytes);
  const std::string needed = "request " + format_bytes(report.requested_bytes);
  if (report.free_bytes < report.block_bytes) {
    report.proof = "live " + format_bytes(report.live_bytes) + " takes " +
                   format_bytes(report.used_bytes + report.cached_bytes) + " in blocks, and free " +
                   format_bytes(report.free_bytes) + " < " + needed + ": rounding of blocks";
    return;
  }
  report.proof = "free " + format_bytes(report.free_bytes) + " >= " + needed;
  if (given_bytes < wanted_bytes) {
    report.proof += ", but only " + format_bytes(given_bytes) + " in whole pages that may move";
    report.proof += given_bytes + report.fixed_page_bytes >= wanted_bytes
                        ? ", " + format_bytes(report.fixed_page_bytes) +
                              " in pages of streams that are not movable"
                        : ": fragmentation inside pages of " + format_bytes(page_bytes);
  } else {
    report.proof += ", " + format_bytes(given_bytes) +
                    " in whole pages that may move: no run of addresses was found for them";
  }
}

}  // namespace

std::string_view oom_cause_name(OomCause cause) {
  constexpr std::array<std::string_view, 5> names{"true need", "fragmentation", "pending streams",
                                                  "cap", "external"};
  return names[static_cast<std::size_t>(cause)];
}

void prove_cause(OomReport& report) {
  const OomLimits& limits = report.limits;
  const std::uint64_t page_bytes = limits.page_bytes;
  const std::uint64_t device_room =
      room_of(limits.device_capacity_bytes, limits.device_counted_bytes);
  const std::uint64_t tier_room = room_of(limits.tier_cap_bytes, limits.tier_charged_bytes);
  const std::uint64_t category_room =
      room_of(limits.category_cap_bytes, limits.category_charged_bytes);
  // False: the request exceeds the device or the tier's cap, so no page was requested for it.
  const bool is_tried =
      report.block_bytes <= std::min(limits.tier_cap_bytes, limits.device_capacity_bytes);
  report.may_hold_bytes = report.reserved_bytes;  // if no further page is available
  report.external_bytes = 0;
  if (const std::uint64_t room = std::min({device_room, tier_room, category_room});
      room < page_bytes || !is_tried) {
    // The device first: if it is full, no cap is the cause.
    const std::uint64_t least_room = std::max(room, page_bytes - 1);
    report.limit = device_room <= least_room ? OomLimit::kDevice
                   : tier_room <= least_room ? OomLimit::kTierCap
                                             : OomLimit::kCategoryCap;
    report.may_hold_bytes += room / page_bytes * page_bytes;
  } else {
    // The caps and the device's own count leave room, but the device refused.
    report.limit = OomLimit::kDevice;
    report.external_bytes = device_room;
  }
  const std::uint64_t needed_bytes = report.live_bytes + report.requested_bytes;
  if (needed_bytes > report.may_hold_bytes) {
    prove_need(report, needed_bytes - report.may_hold_bytes);
  } else if (report.pending_bytes > 0 && report.free_bytes < report.block_bytes) {
    report.cause = OomCause::kPendingStreams;
    report.proof = "free " + format_bytes(report.free_bytes) + " < request " +
                   format_bytes(report.requested_bytes) + ", while " +
                   format_bytes(report.pending_bytes) + " is freed and still used by other streams";
  } else {
    prove_fragmentation(report);
  }
}

std::string OomReport::sentence() const {
  std::string text = "out of device memory: " + format_bytes(requested_bytes) + " (" +
                     std::to_string(requested_bytes) + " bytes) asked on stream " +
                     std::to_string(stream) + " for category " +
                     std::string(category_name(category));
  if (!site.empty()) text += " at '" + site + "'";
  return text + ", " + format_bytes(live_bytes) + " live; the cause is " +
         std::string(oom_cause_name(cause)) + ": " + proof;
}

void add_arena(OomReport& report, std::uint64_t arena_bytes,
               const std::vector<record::SnapshotBlock>& allocations) {
  const auto unnamed =
      std::find_if(report.sites.begin(), report.sites.end(), [&](const OomSite& site) {
        return site.number == 0 && site.name.empty() && site.category == Category::kActivation &&
               site.bytes >= arena_bytes;
      });
  if (unnamed == report.sites.end()) return;
  report.arena_bytes += arena_bytes;
  for (const record::SnapshotBlock& block : allocations) report.arena_live_bytes += block.bytes;
  const auto live_of = [&](Category category) -> std::uint64_t& {
    return report.live_by_category[static_cast<std::size_t>(category)];
  };
  unnamed->bytes -= arena_bytes;
  live_of(Category::kActivation) -= arena_bytes;
  --report.live_count;
  if (--unnamed->count == 0) report.sites.erase(unnamed);
  const std::vector<std::string> none;
  const std::vector<std::string>& names = report.record != nullptr ? report.record->names : none;
  std::uint64_t unused_bytes = arena_bytes;
  const auto add = [&](OomSite site) {
    live_of(site.category) += site.bytes;
    report.live_count += site.count;
    const auto same = std::find_if(report.sites.begin(), report.sites.end(), [&](const auto& one) {
      return one.number == site.number && one.category == site.category && one.name == site.name;
    });
    if (same == report.sites.end()) {
      report.sites.push_back(std::move(site));
    } else {
      same->bytes += site.bytes;
      same->count += site.count;
    }
  };
  for (const record::SnapshotBlock& block : allocations) {
    unused_bytes -= block.requested_bytes;
    const std::string name = block.name < names.size() ? names[block.name] : std::string();
    add({block.name, block.category, name, block.requested_bytes, 1});
  }
  if (unused_bytes > 0) {
    add({0, Category::kActivation, "planned arena, not in use", unused_bytes, 1});
  }
  std::stable_sort(
      report.sites.begin(), report.sites.end(),
      [](const OomSite& one, const OomSite& other) { return one.bytes > other.bytes; });
}

OutOfMemoryReported::OutOfMemoryReported(std::shared_ptr<const OomReport> report_in)
    : OutOfMemory(Tier::kDevice, report_in->limits.category, report_in->requested_bytes,
                  report_in->free_bytes, report_in->sentence()),
      report(std::move(report_in)) {}

}  // namespace sluice::allocator
