#include "engine/runtime/durable_state.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice {
namespace {

// Whether state is another one after the schedule.
bool makes_state(const Schedule& schedule) {
  const auto version = [](const std::vector<Residency>& list) {
    return list.empty() ? 0 : list.front().version;
  };
  return version(schedule.exit) != version(schedule.entry);
}

}  // namespace

std::uint64_t state_record_bytes(std::size_t homes,
                                 const std::map<std::string, std::string>& settings,
                                 const std::vector<std::string>& storage_paths) {
  // A home is written in about 170 bytes; quoting makes no byte longer than six.
  std::uint64_t bytes = 16384 + 256 * std::uint64_t{homes};
  for (const auto& [key, value] : settings) bytes += 16 + 6 * (key.size() + value.size());
  for (const std::string& path : storage_paths) bytes += 512 + 6 * path.size();
  return bytes;
}

void DurableState::begin(const Schedule& schedule, Record record) {
  const bool commits = !schedule.commit.empty();
  SLUICE_CHECK(commits == (record != nullptr));
  // A commit of what is committed would overwrite its log copies.
  SLUICE_CHECK(!commits || committed_ != current_);
  schedule_ = &schedule;
  record_ = std::move(record);
  made_ = commits || committed_ == current_ ? 1 - current_ : current_;
}

void DurableState::end() {
  if (makes_state(*schedule_)) current_ = made_;
  schedule_ = nullptr;
}

std::uint64_t DurableState::offset_of(const Place& place, bool made) const {
  if (place.buffer->versions == 1) return place.storage_offset;
  const std::uint32_t slot = made ? made_ : current_;
  return place.storage_offset + slot * version_stride_bytes(*place.buffer);
}

std::uint64_t DurableState::offset_of(const Buffer& home, std::uint64_t offset) const {
  const std::uint64_t slot = home.versions == 1 ? 0 : current_;
  return home.offset_bytes + slot * version_stride_bytes(home) + offset;
}

void DurableState::note_write(std::uint64_t offset, const void* data, std::uint64_t bytes) {
  // What was hashed and is overwritten, in part or whole, is no more.
  auto at = pieces_.upper_bound(offset);
  if (at != pieces_.begin() && std::prev(at)->second.end > offset) --at;
  while (at != pieces_.end() && at->first < offset + bytes) at = pieces_.erase(at);
  const auto* const piece = static_cast<const std::byte*>(data);
  const Digest128 digest =
      piece_digest(bytes, [piece](std::uint64_t block, std::uint64_t) { return piece + block; });
  pieces_[offset] = {offset + bytes, digest};
}

SavedHome DurableState::describe(const Buffer& home) const {
  SavedHome saved;
  saved.kind = home.kind;
  saved.unit = home.unit;
  saved.dtype = home.dtype;
  saved.offset = offset_of(home, 0);
  saved.bytes = home.bytes;
  std::vector<Digest128> digests;
  std::uint64_t cursor = saved.offset;
  const std::uint64_t end = saved.offset + saved.bytes;
  for (auto at = pieces_.find(cursor); cursor < end; ++at) {
    SLUICE_CHECK_MSG(at != pieces_.end() && at->first == cursor && at->second.end <= end,
                     "a commit finds state that nobody has written");
    const std::uint64_t bytes = at->second.end - cursor;
    if (digests.empty()) saved.piece_bytes = bytes;
    SLUICE_CHECK(bytes == saved.piece_bytes || at->second.end == end);
    digests.push_back(at->second.digest);
    cursor = at->second.end;
  }
  saved.digest = digest_of(digests);
  return saved;
}

void DurableState::commit() {
  std::vector<SavedHome> homes;
  for (const Residency& residency : schedule_->commit) {
    homes.push_back(describe(schedule_->buffers[residency.home]));
  }
  space_.flush();
  log_.append(record_(homes));
  committed_ = current_;
}

}  // namespace sluice
