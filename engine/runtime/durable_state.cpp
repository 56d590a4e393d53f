// A commit has three steps in a fixed order: flush the data of all homes, write one record with the
// place and digest of each home, flush the record. Only then does the record count. Until the next
// commit nothing writes to the copy that the record names, so a crash at any moment leaves one
// whole state. The copy of a piece follows from the pass: state that the pass makes goes to the
// other copy once the current one is committed.
#include "engine/runtime/durable_state.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::runtime {
namespace {

// Whether state is another one after the schedule.
bool makes_state(const schedule::Schedule& schedule) {
  const auto version = [](const std::vector<schedule::Residency>& list) {
    return list.empty() ? 0 : list.front().version;
  };
  return version(schedule.exit) != version(schedule.entry);
}

}  // namespace

std::uint64_t state_record_bytes(std::size_t homes,
                                 const std::map<std::string, std::string>& settings,
                                 const std::vector<std::string>& paths) {
  // A home is written in at most 240 bytes; quoting makes no byte longer than six.
  std::uint64_t bytes = 16384 + 256 * std::uint64_t{homes};
  for (const auto& [key, value] : settings) bytes += 16 + 6 * (key.size() + value.size());
  for (const std::string& path : paths) bytes += 512 + 6 * path.size();
  return bytes;
}

// Whole blocks, and of state of whole tensors a rest in elements. A dtype without bytes of an
// element has whole blocks only; a record that says otherwise is read as if its last were whole.
schedule::ElemRange SavedHome::range() const {
  const std::uint64_t blocks = bytes / block_bytes;
  const std::uint64_t rest = bytes % block_bytes;
  const std::uint64_t elem_bytes = dtype_bytes(dtype);
  const std::uint64_t rest_elems = elem_bytes == 0 ? kLawBlockElems : rest / elem_bytes;
  const std::uint64_t elems = blocks * kLawBlockElems + (rest == 0 ? 0 : rest_elems);
  return {first_elem, first_elem + elems};
}

void DurableState::begin(const schedule::Schedule& schedule, Record record) {
  // A rank without a shard names no state, and commits with the others.
  const bool commits = record != nullptr;
  const bool names_state = !schedule.commit.empty();
  SLUICE_CHECK(commits ? names_state || schedule.entry.empty() : !names_state);
  // Committing the same state twice would overwrite its log copies.
  SLUICE_CHECK(!names_state || committed_ != current_);
  schedule_ = &schedule;
  record_ = std::move(record);
  made_ = commits || committed_ == current_ ? 1 - current_ : current_;
}

void DurableState::end() {
  if (makes_state(*schedule_)) current_ = made_;
  schedule_ = nullptr;
}

std::uint32_t DurableState::copy_of(const Place& place, bool made) const {
  if (place.buffer->versions == 1) return 0;
  return made ? made_ : current_;
}

SavedHome DurableState::describe(const schedule::Buffer& home) {
  const offload::TaggedSpace::RangeId id = memory_.storage_ranges(home)[copy_of(home)];
  const offload::TaggedSpace::Range& range = memory_.storage().range(id);
  const std::span<const offload::BlockTag> tags = memory_.storage().tags(id);
  SavedHome saved{home.kind,
                  home.unit,
                  home.dtype,
                  range.offset_bytes,
                  range.bytes,
                  range.key,
                  range.block_bytes,
                  tags.front().version,
                  offload::digest_of(tags),
                  home.first_elem};
  for (const offload::BlockTag& tag : tags) {
    SLUICE_CHECK_MSG(tag.version == saved.version && tag.version > 0,
                     "a commit finds state that was not written as one");
  }
  return saved;
}

void DurableState::commit() {
  std::vector<SavedHome> homes;
  for (const schedule::Residency& residency : schedule_->commit) {
    homes.push_back(describe(schedule_->buffers[residency.home]));
  }
  memory_.storage().space().flush();
  log_.append(record_(homes));
  if (all_committed_) all_committed_();
  committed_ = current_;
}

}  // namespace sluice::runtime
