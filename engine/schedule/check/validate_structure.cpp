// Part of validate: everything that an instruction names exists and fits. Ids are indices, ranges
// lie inside buffers, deps point backwards, and each transient buffer has one Release. The other
// checks rely on these facts and run only if this one finds nothing.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

// A shadow and its home change roles between steps, so they may differ in nothing but their places.
void check_shadow(const Schedule& schedule, const Buffer& shadow, Problems& problems) {
  if (shadow.shadow_of == kNoId) return;
  const auto shape = [](const Buffer& buffer) {
    return std::tuple(buffer.role, buffer.kind, buffer.unit, buffer.rank, buffer.tier, buffer.dtype,
                      buffer.bytes, buffer.elems, buffer.window, buffer.per_tensor,
                      buffer.persistent);
  };
  const bool fits = shadow.shadow_of < shadow.id && shadow.role == BufferRole::kState &&
                    shadow.persistent && schedule.buffers[shadow.shadow_of].shadow_of == kNoId &&
                    shape(schedule.buffers[shadow.shadow_of]) == shape(shadow);
  if (!fits) problems.add(describe(shadow) + " is not a shadow of the home that it names");
}

// Every buffer has its index as id, an existing rank, a size, and a sensible number of versions.
// State also has a kind, a unit, and room for its elements.
void check_buffers(const Schedule& schedule, Problems& problems) {
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i) {
    const Buffer& buffer = schedule.buffers[i];
    if (buffer.id != i) {
      problems.add("buffer at position " + std::to_string(i) + " has another id");
      continue;
    }
    if (buffer.rank < 0 || buffer.rank >= schedule.ranks) {
      problems.add(describe(buffer) + " is of a rank that does not exist");
    }
    if (buffer.bytes == 0) problems.add(describe(buffer) + " is empty");
    if (buffer.versions < 1 || buffer.versions > 2 ||
        (buffer.versions == 2 && (!buffer.persistent || buffer.tier != Tier::kStorage))) {
      problems.add(describe(buffer) + " has " + std::to_string(buffer.versions) +
                   " versions; persistent buffers on storage have one or two, others one");
    }
    check_shadow(schedule, buffer, problems);
    if (buffer.ring >= 0 && (buffer.persistent || buffer.window)) {
      problems.add(describe(buffer) + " is of a ring, but only transient pieces are");
    }
    if (buffer.role == BufferRole::kSaved && buffer.elems > 0 &&
        bytes_of(buffer.dtype, buffer.elems) != buffer.bytes) {
      problems.add(describe(buffer) + " is not as large as its elements");
    }
    if (buffer.role != BufferRole::kState) continue;
    if (buffer.kind == StateKind::kNone || buffer.unit < 0) {
      problems.add(describe(buffer) + " is model state of no kind or unit");
    } else if (buffer.elems == 0 || buffer.elems > elems_in(buffer.dtype, buffer.bytes)) {
      problems.add(describe(buffer) + " is smaller than its elements");
    } else if (buffer.first_elem > UINT64_MAX / 16 - buffer.elems) {
      problems.add(describe(buffer) + " begins past any unit's end");
    }
  }
}

// A use names an existing buffer of the same rank, stays inside it, and splits no element of state.
void check_uses(const Schedule& schedule, const Instruction& instruction, Problems& problems) {
  for (const auto* uses : {&instruction.reads, &instruction.writes}) {
    for (const Use& use : *uses) {
      if (use.buffer >= schedule.buffers.size()) {
        problems.add(describe(instruction) + " names a buffer that does not exist");
        continue;
      }
      const Buffer& buffer = schedule.buffers[use.buffer];
      if (buffer.rank != instruction.rank) {
        problems.add(describe(instruction) + " uses another rank's " + describe(buffer));
      }
      if (use.offset_bytes > buffer.bytes || use.bytes > buffer.bytes - use.offset_bytes) {
        problems.add(describe(instruction) + " uses bytes outside " + describe(buffer));
      }
      const std::uint64_t group_bytes = dtype_group(buffer.dtype).bytes;
      if (buffer.role == BufferRole::kState &&
          (use.offset_bytes % group_bytes != 0 || use.bytes % group_bytes != 0)) {
        problems.add(describe(instruction) + " splits an element of " + describe(buffer));
      }
    }
  }
}

// Deps point to earlier instructions of the same rank. So the list itself is a sequential order of
// all deps, and cycles are impossible within a rank.
void check_instructions(const Schedule& schedule, Problems& problems) {
  for (std::size_t i = 0; i < schedule.instructions.size() && !problems.full(); ++i) {
    const Instruction& instruction = schedule.instructions[i];
    if (instruction.id != i) {
      problems.add("instruction at position " + std::to_string(i) + " has another id");
      continue;
    }
    if (instruction.rank < 0 || instruction.rank >= schedule.ranks) {
      problems.add(describe(instruction) + " is of a rank that does not exist");
    }
    if (!std::isfinite(instruction.cost_s) || instruction.cost_s < 0) {
      problems.add(describe(instruction) + " has no meaningful cost");
    }
    for (const InstructionId dep : instruction.deps) {
      if (dep >= i) {
        problems.add(describe(instruction) + " waits for instruction " + std::to_string(dep) +
                     ", which is not before it");
      } else if (schedule.instructions[dep].rank != instruction.rank) {
        problems.add(describe(instruction) + " waits for another rank's instruction " +
                     std::to_string(dep));
      }
    }
    check_uses(schedule, instruction, problems);
  }
}

// Every transient buffer has exactly one Release, and persistent buffers have none.
void check_releases(const Schedule& schedule, Problems& problems) {
  std::vector<int> releases(schedule.buffers.size());
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kRelease) continue;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const Use& use : *uses) ++releases[use.buffer];
    }
  }
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.persistent && releases[buffer.id] != 0) {
      problems.add(describe(buffer) + " is persistent and released");
    } else if (!buffer.persistent && releases[buffer.id] != 1) {
      problems.add(describe(buffer) + " is released " + std::to_string(releases[buffer.id]) +
                   " times");
    }
  }
}

// Entry, exit and commit name homes that can hold that state.
void check_residencies(const Schedule& schedule, Problems& problems) {
  for (const auto* list : {&schedule.entry, &schedule.exit, &schedule.commit}) {
    for (const Residency& residency : *list) {
      if (residency.home >= schedule.buffers.size()) {
        problems.add("a residency names a home that does not exist");
        continue;
      }
      const Buffer& home = schedule.buffers[residency.home];
      if (!home.persistent || home.role != BufferRole::kState || home.kind != residency.kind ||
          home.unit != residency.unit) {
        problems.add(describe(home) + " is not a home of " +
                     std::string(state_kind_name(residency.kind)) + " of unit " +
                     std::to_string(residency.unit));
      } else if ((list == &schedule.commit) ? home.versions != 2 : home.log_copy) {
        problems.add(describe(home) + " cannot hold state " +
                     (list == &schedule.commit ? "that is committed" : "between steps"));
      } else if (list == &schedule.entry && home.shadow_of != kNoId) {
        problems.add(describe(home) + " is a shadow: what a schedule finds is in the other home");
      }
    }
  }
}

}  // namespace

void check_structure(const Schedule& schedule, Problems& problems) {
  if (schedule.ranks < 1) {
    problems.add("a schedule needs at least one rank");
    return;
  }
  check_buffers(schedule, problems);
  check_instructions(schedule, problems);
  if (!problems.none()) return;
  check_releases(schedule, problems);
  check_residencies(schedule, problems);
}

}  // namespace sluice::schedule::validation
