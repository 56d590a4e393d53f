// The report answers five questions in order: the refused request, the limit that refused it, the
// cause, the largest holders of memory, and the changes that would have let the request pass. The
// text keeps to about 40 lines, so each list shows its largest entries. The JSON has the same facts
// without that bound.
#include "allocator/oom/oom_text.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/units.hpp"

namespace sluice::allocator {
namespace {

constexpr std::size_t kShownSites = 6;
constexpr std::size_t kShownStreams = 5;
constexpr std::size_t kShownFixes = 7;
constexpr std::size_t kShownName = 48;  // characters
constexpr std::size_t kLabelWidth = 24;
constexpr std::size_t kNumberWidth = 11;  // "1023.00 MiB"

std::string left(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}
std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
std::string number(std::uint64_t bytes) {
  return right(format_bytes(bytes), kNumberWidth);
}

// The end of a long name says more than its beginning ("model.layers.7.attention").
std::string shown_name(const std::string& name) {
  std::string text = name.empty() ? std::string("(not named)") : name;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  if (text.size() > kShownName) text = "..." + text.substr(text.size() - (kShownName - 3));
  return text;
}

class Text {
 public:
  explicit Text(const OomReport& report) : report_(report) {}

  std::string write(const OomFixes* fixes) {
    request();
    limits();
    held();
    categories();
    sites();
    streams();
    if (fixes != nullptr) write_fixes(*fixes);
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }

  void request() {
    std::string text = "out of device memory: " + format_bytes(report_.requested_bytes) +
                       " asked on stream " + std::to_string(report_.stream) + " for category " +
                       std::string(category_name(report_.category));
    if (!report_.site.empty()) text += " at '" + shown_name(report_.site) + "'";
    line(text);
    line("cause: " + std::string(oom_cause_name(report_.cause)));
    line("  " + report_.proof);
  }

  void limit(const std::string& label, std::uint64_t cap_bytes, std::uint64_t held_bytes,
             bool refused) {
    const bool has_cap = cap_bytes != UINT64_MAX;
    line("  " + left(label, kLabelWidth) + (has_cap ? number(cap_bytes) : right("none", 11)) + " " +
         number(held_bytes) + (refused ? "  <- refused" : ""));
  }

  void limits() {
    const OomLimits& limits = report_.limits;
    line(left("limits", kLabelWidth + 2) + right("cap", kNumberWidth) + " " +
         right("held", kNumberWidth));
    limit("device", limits.device_capacity_bytes, limits.device_counted_bytes,
          report_.limit == OomLimit::kDevice);
    if (report_.external_bytes > 0) {
      line("  " + left("  outside this process", kLabelWidth + kNumberWidth + 1) +
           number(report_.external_bytes));
    }
    limit("tier device", limits.tier_cap_bytes, limits.tier_charged_bytes,
          report_.limit == OomLimit::kTierCap);
    limit("category " + std::string(category_name(limits.category)), limits.category_cap_bytes,
          limits.category_charged_bytes, report_.limit == OomLimit::kCategoryCap);
  }

  void held() {
    line("held by this allocator  " + right(format_bytes(report_.reserved_bytes), 13));
    line("  live " + format_bytes(report_.live_bytes) + " in " +
         std::to_string(report_.live_count) + " blocks, pending " +
         format_bytes(report_.pending_bytes) + ", kept for the next call " +
         format_bytes(report_.cached_bytes));
    line("  free " + format_bytes(report_.free_bytes) + ": whole pages that may move " +
         format_bytes(report_.free_page_bytes) + ", that may not " +
         format_bytes(report_.fixed_page_bytes) + ", parts of pages " +
         format_bytes(report_.free_part_bytes()));
    line("  largest free block " + format_bytes(report_.largest_free_bytes));
    if (report_.arena_bytes > 0) {
      line("  planned arena " + format_bytes(report_.arena_bytes) + ", of it in use " +
           format_bytes(report_.arena_live_bytes));
    }
  }

  void categories() {
    if (report_.live_bytes == 0) return;
    line("live by category");
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      const std::uint64_t bytes = report_.live_by_category[c];
      if (bytes == 0) continue;
      line("  " + left(std::string(category_name(static_cast<Category>(c))), kLabelWidth) +
           number(bytes));
    }
  }

  void sites() {
    if (report_.live_bytes == 0) return;
    line("live by site" + right("blocks", kLabelWidth + 2 * kNumberWidth - 9));
    std::uint64_t other_bytes = 0;
    std::uint64_t other_count = 0;
    for (std::size_t s = 0; s < report_.sites.size(); ++s) {
      const OomSite& site = report_.sites[s];
      if (s >= kShownSites) {
        other_bytes += site.bytes;
        other_count += site.count;
        continue;
      }
      line("  " + left(std::string(category_name(site.category)), kLabelWidth) +
           number(site.bytes) + " " + right(std::to_string(site.count), kNumberWidth) + "  " +
           shown_name(site.name));
    }
    if (other_count == 0) return;
    line("  " + left(std::to_string(report_.sites.size() - kShownSites) + " others", kLabelWidth) +
         number(other_bytes) + " " + right(std::to_string(other_count), kNumberWidth));
  }

  void streams() {
    line(left("streams", kLabelWidth + 2) + right("live", kNumberWidth) + " " +
         right("pending", kNumberWidth) + " " + right("free", kNumberWidth) + " " +
         right("whole pages", kNumberWidth));
    std::vector<OomStream> most = report_.streams;
    std::stable_sort(most.begin(), most.end(), [](const OomStream& a, const OomStream& b) {
      return a.live_bytes + a.pending_bytes + a.free_bytes >
             b.live_bytes + b.pending_bytes + b.free_bytes;
    });
    for (std::size_t s = 0; s < std::min(most.size(), kShownStreams); ++s) {
      const OomStream& one = most[s];
      line("  " +
           left(std::to_string(one.stream) +
                    (one.pool == 0 ? "" : " pool " + std::to_string(one.pool)) +
                    (one.movable ? "" : " (does not move)"),
                kLabelWidth) +
           number(one.live_bytes) + " " + number(one.pending_bytes) + " " + number(one.free_bytes) +
           " " + number(one.free_page_bytes));
    }
    if (most.size() <= kShownStreams) return;
    line("  and " + std::to_string(most.size() - kShownStreams) + " others");
  }

  void write_fixes(const OomFixes& fixes) {
    std::vector<OomFix> verified = fixes.verified();
    // The amount of memory that is missing is always listed, though it comes last.
    if (verified.size() > kShownFixes && verified.back().change == OomChange::kLargerDevice) {
      verified[kShownFixes - 1] = verified.back();
    }
    const std::string end = fixes.later_operation_count == 0
                                ? "this request, where the record ends"
                                : "the end of the trace, " +
                                      std::to_string(fixes.later_operation_count) +
                                      " operations after this request";
    if (!verified.empty()) line("each of these changes suffices, simulated to " + end);
    for (std::size_t f = 0; f < std::min(verified.size(), kShownFixes); ++f) {
      const OomFix& fix = verified[f];
      line("  " + std::to_string(f + 1) + ". " + fix.text +
           (fix.setting.empty() || fix.change == OomChange::kLargerCap ||
                    fix.change == OomChange::kLargerDevice
                ? std::string()
                : ": " + fix.setting + " = " + fix.value) +
           "; peak " + format_bytes(fix.peak_reserved_bytes));
    }
    if (verified.empty() && fixes.reproduced) {
      line("no change that was tried suffices, simulated to " + end);
    }
    if (!fixes.note.empty()) line("note: " + fixes.note);
  }

  const OomReport& report_;
  std::string out_;
};

using Json = nlohmann::json;

Json cap(std::uint64_t bytes) {
  return bytes == UINT64_MAX ? Json() : Json(bytes);
}

std::string_view limit_name(OomLimit limit) {
  constexpr std::array<std::string_view, 3> names{"tier_cap", "category_cap", "device"};
  return names[static_cast<std::size_t>(limit)];
}

std::string_view cause_code(OomCause cause) {
  constexpr std::array<std::string_view, 5> codes{"true_need", "fragmentation", "pending_streams",
                                                  "cap", "external"};
  return codes[static_cast<std::size_t>(cause)];
}

std::string_view change_code(OomChange change) {
  constexpr std::array<std::string_view, 11> codes{
      "growth_slack", "remap_budget", "thread_cache",  "release_cached", "movable",      "planning",
      "larger_cap",   "free_site",    "free_category", "free_any",       "larger_device"};
  return codes[static_cast<std::size_t>(change)];
}

Json limits_json(const OomReport& report) {
  const OomLimits& limits = report.limits;
  return {{"refused", limit_name(report.limit)},
          {"page_bytes", limits.page_bytes},
          {"tier_cap_bytes", cap(limits.tier_cap_bytes)},
          {"tier_charged_bytes", limits.tier_charged_bytes},
          {"category", category_name(limits.category)},
          {"category_cap_bytes", cap(limits.category_cap_bytes)},
          {"category_charged_bytes", limits.category_charged_bytes},
          {"device_capacity_bytes", cap(limits.device_capacity_bytes)},
          {"device_counted_bytes", limits.device_counted_bytes},
          {"external_bytes", report.external_bytes},
          {"may_hold_bytes", report.may_hold_bytes}};
}

Json totals_json(const OomReport& report) {
  return {{"live_bytes", report.live_bytes},
          {"live_count", report.live_count},
          {"used_bytes", report.used_bytes},
          {"pending_bytes", report.pending_bytes},
          {"cached_bytes", report.cached_bytes},
          {"free_bytes", report.free_bytes},
          {"free_page_bytes", report.free_page_bytes},
          {"fixed_page_bytes", report.fixed_page_bytes},
          {"free_part_bytes", report.free_part_bytes()},
          {"largest_free_bytes", report.largest_free_bytes},
          {"reserved_bytes", report.reserved_bytes},
          {"arena_bytes", report.arena_bytes},
          {"arena_live_bytes", report.arena_live_bytes}};
}

Json fixes_json(const OomFixes& fixes) {
  Json tried = Json::array();
  for (const OomFix& fix : fixes.tried) {
    tried.push_back(
        {{"change", change_code(fix.change)},
         {"text", fix.text},
         {"setting", fix.setting.empty() ? Json() : Json(fix.setting)},
         {"value", fix.value.empty() ? Json() : Json(fix.value)},
         {"bytes", fix.bytes},
         {"verified", fix.verified},
         {"is_least", fix.is_least},
         {"peak_reserved_bytes", fix.verified ? Json(fix.peak_reserved_bytes) : Json()}});
  }
  return {{"reproduced", fixes.reproduced},
          {"note", fixes.note.empty() ? Json() : Json(fixes.note)},
          {"operation_count", fixes.operation_count},
          {"later_operation_count", fixes.later_operation_count},
          {"tried", std::move(tried)}};
}

}  // namespace

std::string oom_text(const OomReport& report, const OomFixes* fixes) {
  return Text(report).write(fixes);
}

nlohmann::json oom_json(const OomReport& report, const OomFixes* fixes) {
  Json event{{"event", "out_of_memory"},
             {"message", report.sentence()},
             {"request",
              {{"bytes", report.requested_bytes},
               {"block_bytes", report.block_bytes},
               {"stream", report.stream},
               {"category", category_name(report.category)},
               {"site", report.site}}},
             {"cause", cause_code(report.cause)},
             {"proof", report.proof},
             {"limits", limits_json(report)},
             {"totals", totals_json(report)}};
  Json& categories = event["live_by_category"] = Json::object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    categories[std::string(category_name(static_cast<Category>(c)))] = report.live_by_category[c];
  }
  Json& sites = event["live_by_site"] = Json::array();
  for (const OomSite& site : report.sites) {
    sites.push_back({{"site", site.name},
                     {"category", category_name(site.category)},
                     {"bytes", site.bytes},
                     {"count", site.count}});
  }
  Json& streams = event["streams"] = Json::array();
  for (const OomStream& one : report.streams) {
    streams.push_back({{"stream", one.stream},
                       {"pool", one.pool},
                       {"movable", one.movable},
                       {"live_bytes", one.live_bytes},
                       {"pending_bytes", one.pending_bytes},
                       {"free_bytes", one.free_bytes},
                       {"free_page_bytes", one.free_page_bytes}});
  }
  event["fixes"] = fixes == nullptr ? Json() : fixes_json(*fixes);
  return event;
}

}  // namespace sluice::allocator
