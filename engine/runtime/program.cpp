#include "engine/runtime/program.hpp"

#include <map>

#include "base/error.hpp"

namespace sluice {

Program::Program(const Schedule& schedule, RunMemory& memory) : schedule_(schedule) {
  SLUICE_CHECK(schedule.ranks == 1);
  addresses_.assign(schedule.buffers.size(), nullptr);
  const std::size_t count = schedule.instructions.size();
  reads_.resize(count);
  writes_.resize(count);
  awaited_.assign(count, false);
  storage_conflicts_.resize(count);
  for (const Instruction& instruction : schedule.instructions) {
    lanes_[static_cast<std::size_t>(instruction.lane)].push_back(instruction.id);
    if (instruction.op != Op::kRelease) {
      reads_[instruction.id] = resolve(instruction.reads, memory);
      writes_[instruction.id] = resolve(instruction.writes, memory);
    }
    for (const InstructionId dep : instruction.deps) awaited_[dep] = true;
  }
  find_storage_conflicts(Lane::kStorageRead);
  find_storage_conflicts(Lane::kStorageWrite);
}

std::vector<Place> Program::resolve(const std::vector<Use>& uses, RunMemory& memory) {
  std::vector<Place> places;
  places.reserve(uses.size());
  for (const Use& use : uses) {
    const Buffer& buffer = schedule_.buffers[use.buffer];
    Place place;
    place.buffer = &buffer;
    place.bytes = use.bytes == 0 ? buffer.bytes : use.bytes;
    if (buffer.tier == Tier::kStorage) {
      place.storage_offset = buffer.offset_bytes + use.offset_bytes;
    } else {
      std::byte*& address = addresses_[use.buffer];
      if (address == nullptr) address = memory.address(buffer);
      place.data = address + use.offset_bytes;
    }
    places.push_back(place);
  }
  return places;
}

void Program::find_storage_conflicts(Lane lane) {
  // Latest toucher of each start offset seen so far; ranges on storage are homes' pieces.
  struct Extent {
    std::uint64_t end;
    InstructionId last;
  };
  std::map<std::uint64_t, Extent> touched;
  for (const InstructionId id : this->lane(lane)) {
    const std::vector<Place>& places = lane == Lane::kStorageRead ? reads_[id] : writes_[id];
    for (const Place& place : places) {
      if (place.data != nullptr || lane == Lane::kStorageRead) continue;
      const std::uint64_t begin = place.storage_offset;
      const std::uint64_t end = begin + place.bytes;
      auto it = touched.upper_bound(begin);
      if (it != touched.begin()) --it;
      while (it != touched.end() && it->first < end) {
        if (it->second.end > begin) storage_conflicts_[id].push_back(it->second.last);
        ++it;
      }
      touched[begin] = {end, id};
    }
  }
}

const Place* find_place(const std::vector<Place>& places, BufferRole role) {
  for (const Place& place : places) {
    if (place.buffer->role == role) return &place;
  }
  return nullptr;
}

const Place* find_state(const std::vector<Place>& places, StateKind kind, std::int32_t unit) {
  for (const Place& place : places) {
    const Buffer& buffer = *place.buffer;
    if (buffer.role == BufferRole::kState && buffer.kind == kind && buffer.unit == unit) {
      return &place;
    }
  }
  return nullptr;
}

}  // namespace sluice
