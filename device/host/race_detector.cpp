#include "device/host/race_detector.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace sluice::device {

namespace {

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string describe_race(const std::string& actor, bool writes, const std::string& other,
                          bool other_writes, std::uint64_t begin, std::uint64_t end) {
  return "race: " + actor + (writes ? " writes" : " reads") + " bytes [" + hexadecimal(begin) +
         ", " + hexadecimal(end) + ") that stream '" + other + "' " +
         (other_writes ? "writes" : "reads") + " with no event that orders the two";
}

}  // namespace

bool RaceDetector::covers(const VectorClock& clock, const Epoch& epoch) {
  return epoch.time == 0 || (epoch.stream < clock.size() && clock[epoch.stream] >= epoch.time);
}

void RaceDetector::join(VectorClock& clock, const VectorClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

RaceDetector::StreamId RaceDetector::add_stream(const std::string& name) {
  const MutexLock lock(mutex_);
  const StreamId id = names_.size();
  names_.push_back(name);
  clocks_.emplace_back(id + 1, 0);
  return id;
}

std::optional<std::string> RaceDetector::enter(StreamId stream, std::span<const Access> accesses) {
  const MutexLock lock(mutex_);
  VectorClock& clock = clocks_[stream];
  join(clock, host_clock_);
  const Epoch epoch{stream, ++clock[stream]};
  for (const Access& access : accesses) {
    if (access.span.begin == access.span.end) continue;
    auto race = find_conflict(clock, access, "stream '" + names_[stream] + "'");
    if (race) return race;
  }
  for (const Access& access : accesses) {
    if (access.span.begin != access.span.end) apply(clock, epoch, access);
  }
  return std::nullopt;
}

VectorClock RaceDetector::clock_of(StreamId stream) const {
  const MutexLock lock(mutex_);
  return clocks_[stream];
}

void RaceDetector::order_after(StreamId stream, const VectorClock& clock) {
  const MutexLock lock(mutex_);
  join(clocks_[stream], clock);
}

void RaceDetector::host_learned(const VectorClock& clock) {
  const MutexLock lock(mutex_);
  join(host_clock_, clock);
}

std::optional<std::string> RaceDetector::check_host(std::span<const Access> accesses) const {
  const MutexLock lock(mutex_);
  for (const Access& access : accesses) {
    auto race = find_conflict(host_clock_, access, "the host");
    if (race) return race;
  }
  return std::nullopt;
}

std::optional<std::string> RaceDetector::find_conflict(const VectorClock& clock,
                                                       const Access& access,
                                                       const std::string& actor) const {
  auto shadow = shadows_.upper_bound(access.span.begin);
  if (shadow != shadows_.begin() && std::prev(shadow)->second.end > access.span.begin) --shadow;
  for (; shadow != shadows_.end() && shadow->first < access.span.end; ++shadow) {
    const std::uint64_t begin = std::max(shadow->first, access.span.begin);
    const std::uint64_t end = std::min(shadow->second.end, access.span.end);
    const Epoch& write = shadow->second.last_write;
    if (!covers(clock, write)) {
      return describe_race(actor, access.writes, names_[write.stream], true, begin, end);
    }
    if (!access.writes) continue;
    for (const Epoch& read : shadow->second.reads) {
      if (!covers(clock, read)) {
        return describe_race(actor, true, names_[read.stream], false, begin, end);
      }
    }
  }
  return std::nullopt;
}

// Splits the shadow that holds `address`, so that one begins there.
void RaceDetector::split_at(std::uint64_t address) {
  const auto after = shadows_.upper_bound(address);
  if (after == shadows_.begin()) return;
  const auto shadow = std::prev(after);
  if (shadow->first == address || shadow->second.end <= address) return;
  Shadow upper = shadow->second;
  shadow->second.end = address;
  shadows_.emplace_hint(after, address, std::move(upper));
}

void RaceDetector::apply(const VectorClock& clock, Epoch epoch, const Access& access) {
  const auto [begin, end] = access.span;
  split_at(begin);
  split_at(end);
  if (access.writes) {
    // All earlier accesses come before this write, so one shadow replaces theirs.
    shadows_.erase(shadows_.lower_bound(begin), shadows_.lower_bound(end));
    shadows_.emplace(begin, Shadow{end, epoch, {}});
    return;
  }
  std::uint64_t at = begin;
  for (auto shadow = shadows_.lower_bound(begin); at < end; ++shadow) {
    const std::uint64_t next =
        shadow == shadows_.end() ? end : std::min<std::uint64_t>(shadow->first, end);
    if (at < next) {  // bytes that were never touched
      shadow = shadows_.emplace_hint(shadow, at, Shadow{next, {}, {epoch}});
    } else {
      // A write that comes after this read also comes after every read that this one covers, so
      // those can be dropped.
      auto& reads = shadow->second.reads;
      std::erase_if(reads, [&](const Epoch& read) { return covers(clock, read); });
      reads.push_back(epoch);
    }
    at = shadow->second.end;
  }
}

}  // namespace sluice::device
