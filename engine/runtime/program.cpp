// A program resolves a schedule once, so that a pass only follows addresses. Its constructor maps
// the windows, turns every use into an address or a range of storage, and splits the list into
// lanes. Then it derives facts that the lanes need and the schedule implies: storage writes that
// must wait for an earlier write of the same bytes, homes that already hold the new state at some
// point of the list, storage transfers in parallel with a host update, and the order in which
// transfers are needed. Each derivation is one walk over the list, forwards or backwards.
#include "engine/runtime/program.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace sluice::runtime {

std::vector<schedule::BufferId> flipped_shadows(const schedule::Schedule& schedule) {
  std::vector<schedule::BufferId> flipped(schedule.buffers.size());
  for (const schedule::Buffer& buffer : schedule.buffers) {
    flipped[buffer.id] = buffer.id;
    if (buffer.shadow_of != schedule::kNoId)
      std::swap(flipped[buffer.id], flipped[buffer.shadow_of]);
  }
  return flipped;
}

Program::Program(const schedule::Schedule& schedule, RunMemory& memory, bool flipped)
    : schedule_(schedule) {
  SLUICE_CHECK(schedule.ranks == 1);
  lies_in_.resize(schedule.buffers.size());
  std::iota(lies_in_.begin(), lies_in_.end(), schedule::BufferId{0});
  if (flipped) lies_in_ = flipped_shadows(schedule);
  addresses_.assign(schedule.buffers.size(), nullptr);
  storage_ranges_.resize(schedule.buffers.size());
  const std::size_t count = schedule.instructions.size();
  reads_.resize(count);
  writes_.resize(count);
  awaited_.assign(count, false);
  storage_conflicts_.resize(count);
  belongs_.resize(count);
  for (const schedule::Instruction& instruction : schedule.instructions) {
    lanes_[static_cast<std::size_t>(instruction.lane)].push_back(instruction.id);
    if (instruction.op != schedule::Op::kRelease) {
      reads_[instruction.id] = resolve(instruction.reads, memory);
      writes_[instruction.id] = resolve(instruction.writes, memory);
    }
    for (const schedule::InstructionId dep : instruction.deps) {
      if (schedule::retires_behind(schedule.instructions[dep], instruction)) continue;
      // Streams are in order by themselves; other lanes wait for their own earlier instructions
      // too.
      const schedule::Lane lane = schedule.instructions[dep].lane;
      if (!is_device_lane(lane) || lane != instruction.lane) awaited_[dep] = true;
    }
  }
  find_storage_conflicts();
  find_made_state();
  find_pending_updates();
  find_update_transfers();
  find_needed_by();
}

std::vector<Place> Program::resolve(const schedule::Uses& uses, RunMemory& memory) {
  std::vector<Place> places;
  places.reserve(uses.size());
  for (const schedule::Use& use : uses) {
    const schedule::Buffer& buffer = schedule_.buffers[use.buffer];
    const schedule::Buffer& where = schedule_.buffers[lies_in_[use.buffer]];
    Place place;
    place.buffer = &buffer;
    place.bytes = use.bytes == 0 ? buffer.bytes : use.bytes;
    if (buffer.tier == Tier::kStorage) {
      std::optional<RunMemory::CopyRanges>& ranges = storage_ranges_[use.buffer];
      if (!ranges) ranges = memory.storage_ranges(where);
      place.storage_ranges = *ranges;
      place.range_offset = use.offset_bytes;
      place.storage_offset = where.offset_bytes + use.offset_bytes;
    } else {
      std::byte*& address = addresses_[use.buffer];
      if (address == nullptr) address = memory.address(where);
      place.data = address + use.offset_bytes;
    }
    places.push_back(place);
  }
  return places;
}

// Finds the earlier writes that each storage write overlaps. Reads of one lane never conflict.
void Program::find_storage_conflicts() {
  // The last writer of each extent: disjoint half-open ranges, begin -> (end, writer).
  std::map<std::uint64_t, std::pair<std::uint64_t, schedule::InstructionId>> written;
  for (const schedule::InstructionId id : lane(schedule::Lane::kStorageWrite)) {
    for (const Place& place : writes_[id]) {
      const std::uint64_t begin = place.storage_offset;
      const std::uint64_t end = begin + place.bytes;
      auto it = written.upper_bound(begin);
      if (it != written.begin()) --it;
      while (it != written.end() && it->first < end) {
        const std::uint64_t old_begin = it->first;
        const auto [old_end, writer] = it->second;
        if (old_end <= begin) {
          ++it;
          continue;
        }
        storage_conflicts_[id].push_back(writer);
        awaited_[writer] = true;
        it = written.erase(it);
        if (old_begin < begin) written[old_begin] = {begin, writer};
        if (old_end > end) it = written.emplace(end, std::pair(old_end, writer)).first;
      }
      written[begin] = {end, id};
    }
  }
}

// In list order a home holds the state before the pass up to the first write of a range, and the
// new state from then on. Log copies hold the state before the pass.
void Program::find_made_state() {
  std::map<std::uint64_t, std::uint64_t> written;  // begin -> end; disjoint: written once
  for (const schedule::Instruction& instruction : schedule_.instructions) {
    if (instruction.op != schedule::Op::kStorageRead &&
        instruction.op != schedule::Op::kStorageWrite)
      continue;
    const bool write = instruction.op == schedule::Op::kStorageWrite;
    const Place& place = (write ? writes_ : reads_)[instruction.id].front();
    if (place.buffer->versions == 1 || place.buffer->log_copy) continue;
    const std::uint64_t end = place.storage_offset + place.bytes;
    if (write) {
      belongs_[instruction.id].to_made_state = true;
      written[place.storage_offset] = end;
      continue;
    }
    const auto after = written.lower_bound(end);
    belongs_[instruction.id].to_made_state =
        after != written.begin() && std::prev(after)->second > place.storage_offset;
  }
}

// Updates that read the clip factor ahead of the ClipFactor that writes it anew. A pass that makes
// no factor has no update but the pending one, so there is nothing to tell apart.
void Program::find_pending_updates() {
  const auto factor = std::find_if(
      schedule_.instructions.begin(), schedule_.instructions.end(),
      [](const schedule::Instruction& at) { return at.op == schedule::Op::kClipFactor; });
  if (factor == schedule_.instructions.end()) return;
  for (auto at = schedule_.instructions.begin(); at != factor; ++at) {
    belongs_[at->id].to_pending_update =
        at->op == schedule::Op::kOptimizerStep &&
        find_place(reads_[at->id], schedule::BufferRole::kScalar) != nullptr;
  }
}

namespace {

const Place* place_in(const std::vector<Place>& places, schedule::BufferId buffer) {
  const auto found = std::find_if(places.begin(), places.end(), [buffer](const Place& place) {
    return place.buffer->id == buffer;
  });
  return found == places.end() ? nullptr : &*found;
}

bool same_bytes(const Place* a, const Place* b) {
  return a != nullptr && b != nullptr && a->data == b->data && a->bytes == b->bytes;
}

// State of whole tensors has other elements than the piece.
bool of_piece(const Place& place) {
  return place.buffer->role == schedule::BufferRole::kState && !place.buffer->per_tensor;
}

}  // namespace

// The uses of a staged piece stand in list order, and dependencies keep that order: a read from
// storage directly before an update, or an update directly before the write. Both use the whole
// piece at the same place. The tagged space verifies and tags all other transfers itself.
void Program::find_update_transfers() {
  update_transfers_.resize(schedule_.instructions.size());
  tagged_in_update_.assign(schedule_.instructions.size(), false);
  UsersByBuffer before(schedule_.buffers.size(), schedule::kNoId);  // the last user of a buffer
  UsersByBuffer last(schedule_.buffers.size(), schedule::kNoId);    // and its final user
  const auto note_uses = [this](UsersByBuffer& users, schedule::InstructionId id) {
    for (const auto* places : {&reads_[id], &writes_[id]}) {
      for (const Place& place : *places) users[place.buffer->id] = id;
    }
  };
  for (const schedule::Instruction& instruction : schedule_.instructions)
    note_uses(last, instruction.id);
  for (const schedule::Instruction& instruction : schedule_.instructions) {
    if (instruction.op == schedule::Op::kRelease) continue;
    if (is_host_update(instruction.id)) note_reads_for(instruction.id, before, last);
    if (instruction.op == schedule::Op::kStorageWrite)
      note_write_after_update(instruction.id, before);
    note_uses(before, instruction.id);
  }
}

bool Program::is_host_update(schedule::InstructionId id) const {
  return id != schedule::kNoId && schedule_.instructions[id].op == schedule::Op::kOptimizerStep &&
         schedule_.instructions[id].lane == schedule::Lane::kOptimizer;
}

void Program::note_reads_for(schedule::InstructionId update, const UsersByBuffer& before,
                             const UsersByBuffer& last) {
  for (const Place& place : reads_[update]) {
    const schedule::BufferId buffer = place.buffer->id;
    const schedule::InstructionId read = before[buffer];
    if (read == schedule::kNoId || schedule_.instructions[read].op != schedule::Op::kStorageRead ||
        !of_piece(place) || !same_bytes(&place, &writes_[read].front())) {
      continue;
    }
    // Other readers need not wait for an update that does not write the buffer. ModelRunner copies
    // state first that the update makes in another place.
    const bool in_place = place_in(writes_[update], buffer) != nullptr;
    const bool made_elsewhere =
        !in_place && find_state(writes_[update], place.buffer->kind, place.buffer->unit) != nullptr;
    if (made_elsewhere || (last[buffer] != update && !in_place)) continue;
    update_transfers_[update].reads.push_back(read);
    tagged_in_update_[read] = true;
  }
}

void Program::note_write_after_update(schedule::InstructionId write, const UsersByBuffer& before) {
  const Place& from = reads_[write].front();
  const schedule::InstructionId update = before[from.buffer->id];
  if (!is_host_update(update) || !of_piece(from)) return;
  if (!same_bytes(&from, place_in(writes_[update], from.buffer->id))) return;
  update_transfers_[update].writes.push_back(write);
  tagged_in_update_[write] = true;
}

// Walks the list backwards, since an instruction stands after all that it waits for. A Release or
// a transfer passes on the time at which it is needed itself. A storage lane retires in order, so
// earlier transfers in it are needed no later.
void Program::find_needed_by() {
  const auto& instructions = schedule_.instructions;
  needed_by_.assign(instructions.size(), instructions.size() + 1);
  const auto need = [&](schedule::InstructionId id, std::uint64_t by) {
    needed_by_[id] = std::min(needed_by_[id], by);
  };
  std::array<std::uint64_t, schedule::kLaneCount> after{};
  after.fill(instructions.size() + 1);
  for (auto at = instructions.rbegin(); at != instructions.rend(); ++at) {
    const bool stored =
        at->lane == schedule::Lane::kStorageRead || at->lane == schedule::Lane::kStorageWrite;
    if (stored) {
      std::uint64_t& next = after[static_cast<std::size_t>(at->lane)];
      need(at->id, next);
      next = needed_by_[at->id];
    }
    const bool passes_on = stored || at->op == schedule::Op::kRelease;
    const std::uint64_t by = passes_on ? needed_by_[at->id] : std::uint64_t{at->id} + 1;
    for (const schedule::InstructionId dep : at->deps) need(dep, by);
    for (const schedule::InstructionId earlier : storage_conflicts_[at->id]) need(earlier, by);
  }
}

const Place* find_place(const std::vector<Place>& places, schedule::BufferRole role) {
  for (const Place& place : places) {
    if (place.buffer->role == role) return &place;
  }
  return nullptr;
}

const Place* find_state(const std::vector<Place>& places, StateKind kind, std::int32_t unit) {
  for (const Place& place : places) {
    const schedule::Buffer& buffer = *place.buffer;
    if (buffer.role == schedule::BufferRole::kState && buffer.kind == kind && buffer.unit == unit) {
      return &place;
    }
  }
  return nullptr;
}

}  // namespace sluice::runtime
