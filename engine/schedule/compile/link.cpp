// Derives dependencies from data hazards in one walk over the list.
//
// For every buffer a history keeps, per byte range, the last writer and the readers since. An
// instruction collects the writers of the ranges that it reads (read after write), and the writers
// and readers of the ranges that it writes (write after write, write after read). From these
// candidates add_deps keeps only those that lane order and other deps do not imply. Then the
// instruction enters the histories itself. Commits add candidates of their own.
#include "engine/schedule/compile/link.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "engine/schedule/compile/lane_clocks.hpp"

namespace sluice::schedule {
namespace {

// The last write of a byte range and the reads since. Only the last reader of each lane is kept,
// since a lane retires in order.
struct Segment {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  InstructionId writer = kNoId;
  std::array<InstructionId, kLaneCount> readers;  // by lane

  Segment(std::uint64_t begin_bytes, std::uint64_t end_bytes, InstructionId by)
      : begin(begin_bytes), end(end_bytes), writer(by) {
    readers.fill(kNoId);
  }
  void collect_writer(std::vector<InstructionId>& out) const {
    if (writer != kNoId) out.push_back(writer);
  }
  void collect_all(std::vector<InstructionId>& out) const {
    collect_writer(out);
    for (const InstructionId reader : readers) {
      if (reader != kNoId) out.push_back(reader);
    }
  }
};

// All bytes of one buffer, without holes. Most buffers are only used whole and have one segment;
// the others have a sorted list. Units come in ascending or in descending order, so a cut is near
// one of its ends, and a deque moves little. It shares no code with the spans of validate_contents
// and the map of symbolic_memory on purpose: a mistake here must not hide there.
class BufferHistory {
 public:
  explicit BufferHistory(std::uint64_t bytes) : whole_(0, bytes, kNoId) {}

  // The last writers of the range: the hazards of a read.
  void collect_writers(std::uint64_t begin, std::uint64_t end,
                       std::vector<InstructionId>& out) const {
    if (!segments_) return whole_.collect_writer(out);
    for (auto it = holding(begin); it != segments_->end() && it->begin < end; ++it) {
      it->collect_writer(out);
    }
  }
  // The last writers and the readers since: the hazards of a write or a Release.
  void collect_all(std::uint64_t begin, std::uint64_t end, std::vector<InstructionId>& out) const {
    if (!segments_) return whole_.collect_all(out);
    for (auto it = holding(begin); it != segments_->end() && it->begin < end; ++it) {
      it->collect_all(out);
    }
  }
  // Adds a reader to the range. It replaces an earlier reader of the same lane.
  void read(std::uint64_t begin, std::uint64_t end, const Instruction& reader) {
    const auto lane = static_cast<std::size_t>(reader.lane);
    if (is_whole(begin, end)) {
      whole_.readers[lane] = reader.id;
      return;
    }
    cut();
    split(end);
    for (auto it = split(begin); it != segments_->end() && it->begin < end; ++it) {
      it->readers[lane] = reader.id;
    }
  }
  // The range begins anew with this writer and without readers.
  void write(std::uint64_t begin, std::uint64_t end, InstructionId writer) {
    if (begin == 0 && end == whole_.end) {
      whole_ = Segment(begin, end, writer);
      segments_.reset();
      return;
    }
    cut();
    split(end);
    const auto first = split(begin);
    *first = Segment(begin, end, writer);
    const auto next = std::next(first);
    segments_->erase(next, std::find_if(next, segments_->end(),
                                        [&](const Segment& of) { return of.begin >= end; }));
  }

 private:
  using Segments = std::deque<Segment>;

  bool is_whole(std::uint64_t begin, std::uint64_t end) const {
    return !segments_ && begin == 0 && end == whole_.end;
  }
  void cut() {
    if (!segments_) segments_.emplace(1, whole_);
  }
  // The segment that holds byte `at`.
  Segments::const_iterator holding(std::uint64_t at) const {
    return std::prev(std::upper_bound(
        segments_->begin(), segments_->end(), at,
        [](std::uint64_t byte, const Segment& segment) { return byte < segment.begin; }));
  }
  // The segment that begins at `at`; splits one if needed. Returns the end past the last byte.
  Segments::iterator split(std::uint64_t at) {
    const auto it = segments_->begin() + (holding(at) - segments_->cbegin());
    if (it->begin == at) return it;
    if (at >= it->end) return segments_->end();
    Segment tail = *it;
    it->end = tail.begin = at;
    return segments_->insert(std::next(it), tail);
  }

  Segment whole_;  // while there are no segments_
  std::optional<Segments> segments_;
};

class Linker {
 public:
  explicit Linker(Schedule& schedule)
      : schedule_(schedule),
        clocks_(schedule),
        last_storage_write_(static_cast<std::size_t>(schedule.ranks), kNoId) {
    histories_.reserve(schedule.buffers.size());
    for (const Buffer& buffer : schedule.buffers) histories_.emplace_back(buffer.bytes);
  }

  void run() {
    std::vector<InstructionId> candidates;
    for (Instruction& instruction : schedule_.instructions) {
      collect_control(instruction, candidates);
      collect_hazards(instruction, candidates);
      add_deps(clocks_, instruction, candidates);
      record(instruction);
    }
  }

 private:
  struct Range {
    std::uint64_t begin, end;
  };
  Range range_of(const Instruction& instruction, const Use& use) const {
    SLUICE_CHECK_MSG(use.buffer < schedule_.buffers.size(), where(instruction));
    const Buffer& buffer = schedule_.buffers[use.buffer];
    SLUICE_CHECK_MSG(buffer.rank == instruction.rank, where(instruction));
    if (use.bytes == 0 || instruction.op == Op::kRelease) return {0, buffer.bytes};
    SLUICE_CHECK_MSG(
        use.offset_bytes <= buffer.bytes && use.bytes <= buffer.bytes - use.offset_bytes,
        where(instruction) + " uses bytes outside buffer " + std::to_string(use.buffer));
    return {use.offset_bytes, use.offset_bytes + use.bytes};
  }
  static std::string where(const Instruction& instruction) {
    return "instruction " + std::to_string(instruction.id) + " (" +
           std::string(op_name(instruction.op)) + ")";
  }

  // A Commit waits for the last storage write; earlier ones retire before that.
  void collect_control(const Instruction& instruction, std::vector<InstructionId>& candidates) {
    const auto rank = static_cast<std::size_t>(instruction.rank);
    if (instruction.op == Op::kCommit && last_storage_write_[rank] != kNoId) {
      candidates.push_back(last_storage_write_[rank]);
    }
  }

  void collect_hazards(const Instruction& instruction, std::vector<InstructionId>& candidates) {
    const bool release = instruction.op == Op::kRelease;
    for (const Use& use : instruction.reads) {
      const Range range = range_of(instruction, use);
      if (release) {
        histories_[use.buffer].collect_all(range.begin, range.end, candidates);
      } else {
        histories_[use.buffer].collect_writers(range.begin, range.end, candidates);
      }
    }
    for (const Use& use : instruction.writes) {
      const Range range = range_of(instruction, use);
      histories_[use.buffer].collect_all(range.begin, range.end, candidates);
    }
  }

  // A Release counts as a write: later users of the memory must wait for it (pack).
  void record(const Instruction& instruction) {
    const auto rank = static_cast<std::size_t>(instruction.rank);
    const bool release = instruction.op == Op::kRelease;
    for (const Use& use : instruction.reads) {
      const Range range = range_of(instruction, use);
      if (release) {
        histories_[use.buffer].write(range.begin, range.end, instruction.id);
      } else {
        histories_[use.buffer].read(range.begin, range.end, instruction);
      }
    }
    for (const Use& use : instruction.writes) {
      const Range range = range_of(instruction, use);
      histories_[use.buffer].write(range.begin, range.end, instruction.id);
    }
    if (instruction.op == Op::kStorageWrite) last_storage_write_[rank] = instruction.id;
  }

  Schedule& schedule_;
  LaneClocks clocks_;
  std::vector<BufferHistory> histories_;
  std::vector<InstructionId> last_storage_write_;  // by rank
};

}  // namespace

void link(Schedule& schedule) {
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i) {
    schedule.buffers[i].id = static_cast<BufferId>(i);
    SLUICE_CHECK_MSG(schedule.buffers[i].bytes > 0, "buffer " + std::to_string(i) + " is empty");
  }
  for (std::size_t i = 0; i < schedule.instructions.size(); ++i) {
    schedule.instructions[i].id = static_cast<InstructionId>(i);
  }
  Linker(schedule).run();
}

}  // namespace sluice::schedule
