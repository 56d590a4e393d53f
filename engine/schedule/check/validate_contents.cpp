// Over 800 lines because one walk over the list feeds all of its checks.
//
// Part of validate: races, and the content of buffers.
//
// One walk in list order. Every conflicting pair of uses must be ordered by HappensBefore. Then all
// timings agree with list order, and the content of each byte range can be followed as in a
// sequential program. Content is abstract: a version and, for gradients, the micro-batches in the
// sum, by their numbers in the step of all ranks. So a part that another rank should have added is
// missed. Each byte range also remembers its uses since the last write, which are checked for
// races and for writes that nobody reads.
//
// The list of spans is this file's own. It shares no code with those of link and
// symbolic_memory on purpose: a mistake of link must not hide here.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/schedule/check/validation.hpp"

namespace sluice::schedule::validation {
namespace {

constexpr std::int32_t kAllMicrobatches = INT32_MAX;  // a gradient carried over from earlier steps

struct Content {
  bool written = false;
  std::int32_t version = 0;
  // Gradients: the micro-batches in the sum, [first_microbatch, microbatch] of the whole step.
  std::int32_t microbatch = -1;
  std::int32_t first_microbatch = -1;
  std::int32_t group_size = 0;  // micro-batches of each group that was added; 0: none was
  bool rounded = false;         // by a RoundGrad: nothing may be added any more
  InstructionId maker = kNoId;  // the instruction that computed it; copies keep it
  bool operator==(const Content&) const = default;
};

// A byte range of one buffer, its last write and the uses since.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Content content;
  InstructionId writer = kNoId;
  std::array<InstructionId, kLaneCount> readers{};  // the last of each lane
  bool read = true;                                 // since the last write
};

// The spans of one buffer, which cover it without holes. Most buffers are only used whole, and have
// one. Others have a sorted list. Units come in ascending or in descending order, so a cut is near
// one of its ends, and a deque moves little.
class Spans {
 public:
  explicit Spans(const Span& whole) : whole_(whole) {}

  // The span at the buffer's begin.
  Span& first() { return !cut_ ? whole_ : cut_->front(); }
  // Calls f(span) for all of them.
  template <typename F>
  void each(const F& f) {
    if (!cut_) return f(whole_);
    for (Span& span : *cut_) f(span);
  }
  // Calls f(begin, end, span) for the parts of the range, split at its borders where `cut`.
  template <typename F>
  void for_parts(const ByteRange& range, bool cut, const F& f) {
    if (cut) cut_at(range);
    if (!cut_) return f(range.begin, std::min(whole_.end, range.end), whole_);
    for (auto at = holding(range.begin); at != cut_->end() && at->begin < range.end; ++at) {
      f(std::max(at->begin, range.begin), std::min(at->end, range.end), *at);
    }
  }
  // One span takes the place of all in its range.
  void replace(const Span& span) {
    if (span.begin == 0 && span.end >= whole_.end) {
      whole_ = span;
      cut_.reset();
      return;
    }
    cut_at({span.begin, span.end});
    const auto first = holding(span.begin);
    *first = span;
    const auto next = std::next(first);
    cut_->erase(next, std::find_if(next, cut_->end(),
                                   [&](const Span& other) { return other.begin >= span.end; }));
  }

 private:
  using List = std::deque<Span>;

  // The span with this byte. Uses walk along a buffer, so it is often the one found last or the
  // next. Preconditions: there is a list, the byte is inside the buffer.
  List::iterator holding(std::uint64_t byte) {
    const auto has = [&](std::size_t i) {
      return i < cut_->size() && (*cut_)[i].begin <= byte && byte < (*cut_)[i].end;
    };
    if (!has(found_) && !has(++found_)) {
      const auto after =
          std::upper_bound(cut_->begin(), cut_->end(), byte,
                           [](std::uint64_t at, const Span& span) { return at < span.begin; });
      found_ = static_cast<std::size_t>(after - cut_->begin()) - 1;
    }
    return cut_->begin() + static_cast<std::ptrdiff_t>(found_);
  }
  void cut_at(const ByteRange& range) {
    if (!cut_) {
      if (range.begin == 0 && range.end >= whole_.end) return;
      cut_.emplace(1, whole_);
    }
    split(range.begin);
    if (holding(range.begin)->end != range.end) split(range.end);
  }
  void split(std::uint64_t where) {
    if (where >= cut_->back().end) return;
    const auto at = holding(where);
    if (at->begin == where) return;
    Span tail = *at;
    at->end = tail.begin = where;
    cut_->insert(std::next(at), tail);
  }

  Span whole_;               // while there is no cut_
  std::optional<List> cut_;  // by begin
  std::size_t found_ = 0;    // the index in cut_ that holding() returned last
};

class ContentCheck {
 public:
  ContentCheck(const Schedule& schedule, const HappensBefore& order, const Meetings& meetings,
               Problems& problems)
      : schedule_(schedule),
        order_(order),
        meetings_(meetings),
        problems_(problems),
        weight_version_(static_cast<std::size_t>(schedule.ranks)) {}

  // Ranks share nothing but what they exchange. So each rank's list is walked up to its next
  // collective, which has its effect when all members have come to it.
  void run() {
    enter();
    std::vector<std::vector<InstructionId>> lists(static_cast<std::size_t>(schedule_.ranks));
    for (const Instruction& instruction : schedule_.instructions) {
      lists[static_cast<std::size_t>(instruction.rank)].push_back(instruction.id);
      if (instruction.op != Op::kAccumulateGrad) continue;
      last_microbatch_ = std::max(last_microbatch_, instruction.microbatch);
    }
    std::vector<std::size_t> at(lists.size());
    std::vector<std::size_t> ready;
    for (std::size_t rank = lists.size(); rank-- > 0;) ready.push_back(rank);
    std::map<InstructionId, std::size_t> arrived;  // by meeting
    while (!ready.empty()) {
      const std::size_t rank = ready.back();
      ready.pop_back();
      while (at[rank] < lists[rank].size()) {
        if (problems_.full()) return;
        const InstructionId id = lists[rank][at[rank]];
        const std::vector<InstructionId>& members = meetings_.members(id);
        begin(schedule_.instructions[id]);
        if (members.empty()) {
          end(schedule_.instructions[id]);
          ++at[rank];
          continue;
        }
        if (++arrived[meetings_.node(id)] < members.size()) break;
        meet(members);
        for (const InstructionId member : members) {
          const auto other = static_cast<std::size_t>(schedule_.instructions[member].rank);
          ++at[other];
          if (other != rank) ready.push_back(other);
        }
      }
    }
    leave();
  }

 private:
  const Buffer& buffer_of(const Use& use) const { return schedule_.buffers[use.buffer]; }
  static bool is_gradient(const Buffer& buffer) {
    return buffer.role == BufferRole::kState && buffer.kind == StateKind::kGradient;
  }

  // The checks of an instruction before it has its effect.
  void begin(const Instruction& instruction) {
    if (instruction.op == Op::kRelease) return;
    for (const Use& use : instruction.reads) check_read(instruction, use);
    for (const Use& use : instruction.writes) check_write(instruction, use);
    for (const Use& use : instruction.reads) note_reader(instruction, use);
  }

  void end(const Instruction& instruction) {
    if (instruction.op == Op::kRelease) return release(instruction);
    const std::size_t problems_before = problems_.count();
    check_values(instruction);
    if (problems_.count() == problems_before) write(instruction);
  }

  // All members read before one of them writes.
  void meet(const std::vector<InstructionId>& members) {
    struct Stored {
      InstructionId by;
      Use use;
      Content content;
    };
    std::vector<Stored> stored;
    for (const InstructionId member : members) {
      const Instruction& instruction = schedule_.instructions[member];
      for (std::size_t i = 0; i < instruction.writes.size(); ++i) {
        const Use& write = instruction.writes[i];
        if (instruction.op == Op::kGather || instruction.op == Op::kAllToAll) {
          const Use* from = meetings_.source_of(instruction, i);
          if (from == nullptr) continue;  // check_messages has named it
          for (const auto& [use, content] : copied(*from, write)) {
            stored.push_back({member, use, content});
          }
        } else if (is_gradient(buffer_of(write)) && instruction.lane != Lane::kInner) {
          stored.push_back({member, write, reduced(members, instruction, write)});
        } else {
          // Values between segments, and partials of the norm.
          stored.push_back({member,
                            write,
                            {true, version_to_make(instruction), instruction.microbatch,
                             instruction.microbatch, 0, false, members.front()}});
        }
      }
    }
    for (const Stored& part : stored) {
      store(schedule_.instructions[part.by], part.use, part.content);
    }
  }

  // The part of the elements of `write` that a member of a reduction brings; nothing if it brings
  // other elements, or several contents.
  std::optional<Content> brought(const Instruction& member, const Use& write) {
    const Buffer& sum = buffer_of(write);
    const ElemRange wanted = elems_of(sum, write);
    for (const Use& use : member.reads) {
      const Buffer& from = buffer_of(use);
      const ElemRange range = elems_of(from, use);
      if (is_gradient(from) && from.unit == sum.unit && range.begin <= wanted.begin &&
          wanted.end <= range.end) {
        return content_of(use_of(from, wanted));
      }
    }
    return std::nullopt;
  }

  // The sum over the members, whose micro-batches must follow each other in the order of ranks.
  Content reduced(const std::vector<InstructionId>& members, const Instruction& instruction,
                  const Use& write) {
    Content sum{true, 0, -1, -1, 0, false, members.front()};
    for (const InstructionId member : members) {
      const auto part = brought(schedule_.instructions[member], write);
      const bool first = member == members.front();
      if (!part || part->rounded ||
          (!first &&
           (part->first_microbatch != sum.microbatch + 1 || part->version != sum.version))) {
        problems_.add(describe(instruction) + " adds micro-batches that do not follow each other");
        return sum;
      }
      if (first) sum.first_microbatch = part->first_microbatch;
      sum.version = part->version;
      sum.microbatch = part->microbatch;
    }
    return sum;
  }

  void enter() {
    // Homes outlive the step if `exit` names them, and losses always do. A gradient is used up
    // within the step unless its update is pending. Partials of the norm are always used up.
    held_.reserve(schedule_.buffers.size());
    for (const Buffer& buffer : schedule_.buffers) {
      const bool outlives = buffer.persistent && buffer.role != BufferRole::kState &&
                            buffer.role != BufferRole::kNormPartial;
      Span span;
      span.end = buffer.bytes;
      span.readers.fill(kNoId);
      // The loader fills the tokens before the step.
      span.content.written = buffer.persistent && buffer.role == BufferRole::kTokens;
      held_.push_back({Spans(span), false, outlives});
    }
    for (const Residency& residency : schedule_.exit) held_[residency.home].outlives = true;
    const std::vector<BufferId> scalars = persistent_scalars();
    for (const Residency& residency : schedule_.entry) {
      held_[residency.home].spans.first().content =
          Content{true, residency.version, kAllMicrobatches, 0, 0, false, kNoId};
      if (residency.kind == StateKind::kGradient) enter_pending(residency, scalars);
    }
  }

  // A pending gradient in the entry state implies that the clip factor of its step is pending, too.
  void enter_pending(const Residency& residency, const std::vector<BufferId>& scalars) {
    for (const BufferId scalar : scalars) {
      if (schedule_.buffers[scalar].rank != schedule_.buffers[residency.home].rank) continue;
      held_[scalar].spans.first().content =
          Content{true, residency.version, -1, -1, 0, false, kNoId};
    }
  }
  std::vector<BufferId> persistent_scalars() const {
    std::vector<BufferId> scalars;
    for (const Buffer& buffer : schedule_.buffers) {
      if (buffer.persistent && buffer.role == BufferRole::kScalar) scalars.push_back(buffer.id);
    }
    return scalars;
  }

  // Calls f(begin, end, span) for the parts of the use's range, split at its borders where `cut`.
  template <typename F>
  void for_parts(const Use& use, bool cut, const F& f) {
    held_[use.buffer].spans.for_parts(bytes_of(use, buffer_of(use)), cut, f);
  }

  void require_order(InstructionId before, const Instruction& after, const Use& use) {
    if (before != kNoId && !order_.done_before(before, after.id)) add_race(before, after, use);
  }
  [[gnu::cold]] void add_race(InstructionId before, const Instruction& after, const Use& use) {
    problems_.add(describe(after) + " may touch " + describe(buffer_of(use)) + " before " +
                  describe(schedule_.instructions[before]) + " is done");
  }

  bool refuse_released(const Instruction& instruction, const Use& use) {
    if (!held_[use.buffer].released) return false;
    problems_.add(describe(instruction) + " uses " + describe(buffer_of(use)) +
                  " after its release");
    return true;
  }

  void check_read(const Instruction& instruction, const Use& use) {
    if (refuse_released(instruction, use)) return;
    if (buffer_of(use).role == BufferRole::kWorkspace) return check_write(instruction, use);
    bool unwritten = false;
    for_parts(use, true, [&](std::uint64_t, std::uint64_t, Span& span) {
      unwritten = unwritten || !span.content.written;
      require_order(span.writer, instruction, use);
      span.read = true;
    });
    if (unwritten) {
      problems_.add(describe(instruction) + " reads " + describe(buffer_of(use)) +
                    " before it is written");
    }
  }
  void note_reader(const Instruction& instruction, const Use& use) {
    for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
      span.readers[static_cast<std::size_t>(instruction.lane)] = instruction.id;
    });
  }

  void check_write(const Instruction& instruction, const Use& use) {
    if (refuse_released(instruction, use)) return;
    for_parts(use, true, [&](std::uint64_t, std::uint64_t, Span& span) {
      require_order(span.writer, instruction, use);
      for (const InstructionId reader : span.readers) {
        require_order(reader, instruction, use);
      }
      refuse_waste(buffer_of(use), span);
    });
  }

  // While a pipeline drains, updates make versions of weights that no pass reads. Rules with a
  // master do not read them either.
  bool is_passed_over(std::int32_t unit, std::int32_t version) const {
    const auto& versions = schedule_.delayed.versions;
    const auto row = static_cast<std::size_t>(unit);
    if (unit < 0 || row >= versions.size() || version >= schedule_.delayed.updates) return false;
    return std::find(versions[row].begin(), versions[row].end(), version) == versions[row].end();
  }

  // A write of state, activation or gradient that nobody reads is a lost step of the computation.
  void refuse_waste(const Buffer& buffer, const Span& span) {
    if (span.read || span.writer == kNoId) return;
    const bool matters =
        buffer.role == BufferRole::kState || buffer.role == BufferRole::kActivation ||
        buffer.role == BufferRole::kGradOut || buffer.role == BufferRole::kNormPartial ||
        buffer.role == BufferRole::kLoss;
    if (!matters) return;
    if (buffer.kind == StateKind::kWeight && is_passed_over(buffer.unit, span.content.version)) {
      return;
    }
    problems_.add("what " + describe(schedule_.instructions[span.writer]) + " wrote to " +
                  describe(buffer) + " is lost unread");
  }

  void release(const Instruction& instruction) {
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const Use& use : *uses) {
        check_write(instruction, Use{use.buffer, 0, 0});
        held_[use.buffer].released = true;
      }
    }
  }

  void check_values(const Instruction& instruction) {
    if (is_compute(instruction.op)) check_weights(instruction);
    if (instruction.op == Op::kAccumulateGrad) check_accumulation(instruction);
    if (is_group_fold(instruction)) {
      check_group_fold(instruction);
    } else if (instruction.op == Op::kFoldGrad || instruction.op == Op::kRoundGrad ||
               instruction.op == Op::kGradNorm || instruction.op == Op::kOptimizerStep) {
      check_complete(instruction);
    }
    if (instruction.op == Op::kOptimizerStep) {
      check_one_version(instruction);
      check_normed(instruction);
    }
    if (instruction.op == Op::kAccumulateGrad || instruction.op == Op::kFoldGrad) {
      check_not_normed(instruction);
    }
    if (instruction.op == Op::kGradNorm) note_normed(instruction);
    if (instruction.op == Op::kCommit) check_commit(instruction);
  }

  // A commit must cover everything that the schedule declares, each home whole and at the declared
  // version.
  void check_commit(const Instruction& instruction) {
    committed_[instruction.rank] += 1;
    std::map<BufferId, std::int32_t> declared;
    for (const Residency& residency : schedule_.commit) {
      if (schedule_.buffers[residency.home].rank != instruction.rank) continue;
      declared[residency.home] = residency.version;
    }
    for (const Use& use : instruction.reads) {
      const auto saved = declared.find(use.buffer);
      const ByteRange range = bytes_of(use, buffer_of(use));
      bool right = saved != declared.end() && range.begin == 0 && range.end == buffer_of(use).bytes;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        right = right && span.content.version == saved->second;
      });
      if (!right) {
        problems_.add(describe(instruction) + " does not find " + describe(buffer_of(use)) +
                      " as it is declared to be committed");
        return;
      }
      declared.erase(saved);
    }
    if (declared.empty()) return;
    problems_.add(describe(instruction) + " leaves out " +
                  describe(schedule_.buffers[declared.begin()->first]));
  }

  // With delayed updates the schedule declares the version that the passes of a unit and
  // micro-batch read; else all passes of a rank read one version.
  std::optional<std::int32_t> declared_version(std::int32_t unit, std::int32_t microbatch) const {
    const auto& versions = schedule_.delayed.versions;
    const auto row = static_cast<std::size_t>(unit);
    const auto at = static_cast<std::size_t>(microbatch);
    if (unit < 0 || microbatch < 0 || row >= versions.size() || at >= versions[row].size()) {
      return std::nullopt;
    }
    return versions[row][at];
  }
  void check_delayed_weights(const Instruction& instruction) {
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.kind != StateKind::kWeight) continue;
      const auto declared = declared_version(buffer.unit, instruction.microbatch);
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        if (declared == span.content.version) return;
        problems_.add(describe(instruction) + " reads version " +
                      std::to_string(span.content.version) + " of " + describe(buffer) + ", not " +
                      (declared ? std::to_string(*declared) : "one that is declared"));
      });
    }
  }

  void check_weights(const Instruction& instruction) {
    if (schedule_.delayed.any()) return check_delayed_weights(instruction);
    std::optional<std::int32_t>& expected =
        weight_version_[static_cast<std::size_t>(instruction.rank)];
    for (const Use& use : instruction.reads) {
      if (buffer_of(use).kind != StateKind::kWeight) continue;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        if (!expected) expected = span.content.version;
        if (*expected == span.content.version) return;
        problems_.add(describe(instruction) + " reads version " +
                      std::to_string(span.content.version) + " of " + describe(buffer_of(use)) +
                      " where others read version " + std::to_string(*expected));
      });
    }
  }

  // Reads that the instruction also writes are the accumulator; the others the addend.
  static bool is_in_place(const Instruction& instruction, const Use& read) {
    return std::any_of(instruction.writes.begin(), instruction.writes.end(),
                       [&](const Use& write) { return write.buffer == read.buffer; });
  }

  void check_accumulation(const Instruction& instruction) {
    bool has_sum = false;
    for (const Use& use : instruction.reads) {
      if (!is_gradient(buffer_of(use))) continue;
      const bool sum = is_in_place(instruction, use);
      has_sum = has_sum || sum;
      const std::int32_t expected = instruction.microbatch - (sum ? 1 : 0);
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        const Content& found = span.content;
        const bool single = sum || found.first_microbatch == expected;
        if (found.microbatch == expected && single && !found.rounded && found.group_size == 0) {
          return;
        }
        problems_.add(describe(instruction) + (sum ? " adds to " : " adds ") +
                      describe(buffer_of(use)) + " of micro-batch " +
                      std::to_string(span.content.microbatch) + ", not " +
                      std::to_string(expected));
      });
    }
  }

  // A reduction of two sums of one unit, of neighbouring accumulation groups. That of a tied use
  // adds the gradient of another unit.
  bool is_group_fold(const Instruction& instruction) const {
    return instruction.op == Op::kFoldGrad && instruction.reads.size() == 2 &&
           buffer_of(instruction.reads[0]).unit == buffer_of(instruction.reads[1]).unit;
  }
  // The one content of a use, whatever instructions made its pieces; nothing if it has several.
  std::optional<Content> content_of(const Use& use) {
    std::optional<Content> content;
    bool mixed = false;
    for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
      Content found = span.content;
      found.maker = kNoId;
      mixed = mixed || (content && *content != found);
      content = found;
    });
    return mixed ? std::nullopt : content;
  }
  std::int32_t group_size_of(const Content& sum) const {
    if (schedule_.folds_in_ring) return 1;  // only reductions come after it
    return sum.group_size > 0 ? sum.group_size : sum.microbatch - sum.first_microbatch + 1;
  }
  // The balanced tree: the left side is a power of two of groups, and not fewer than the right one
  // has. That is the split at the largest power of two below their sum, at every level.
  void check_group_fold(const Instruction& instruction) {
    const bool first_in_place = is_in_place(instruction, instruction.reads[0]);
    const auto into = content_of(instruction.reads[first_in_place ? 0 : 1]);
    const auto from = content_of(instruction.reads[first_in_place ? 1 : 0]);
    if (schedule_.folds_in_ring) return check_ring_fold(instruction, into, from);
    bool balanced = into && from && !into->rounded && !from->rounded &&
                    into->microbatch + 1 == from->first_microbatch &&
                    group_size_of(*into) == group_size_of(*from);
    if (balanced) {
      const std::int32_t size = group_size_of(*into);
      const std::int32_t left = (into->microbatch - into->first_microbatch + 1) / size;
      const std::int32_t right = (from->microbatch - from->first_microbatch + 1) / size;
      balanced = (left & (left - 1)) == 0 && left >= right;
    }
    if (balanced) return;
    problems_.add(describe(instruction) +
                  " folds sums that are not neighbours in the tree of groups");
  }

  // After the last micro-batch of the step comes the first one. The sum is of whole ranks so far,
  // and the next rank's own sum is added to it.
  void check_ring_fold(const Instruction& instruction, const std::optional<Content>& into,
                       const std::optional<Content>& from) {
    const std::int32_t count = last_microbatch_ + 1;
    if (into && from && !into->rounded && !from->rounded && !is_complete(*into) &&
        (into->microbatch + 1) % count == from->first_microbatch) {
      return;
    }
    problems_.add(describe(instruction) +
                  " folds sums that are not neighbours in the ring of ranks");
  }

  bool is_complete(const Content& gradient) const {
    if (schedule_.delayed.any()) {
      const std::int32_t each = schedule_.delayed.microbatches;
      return gradient.first_microbatch == (gradient.version - 1) * each &&
             gradient.microbatch == gradient.version * each - 1;
    }
    if (last_microbatch_ < 0) return true;
    const bool in_order = gradient.first_microbatch == 0 && gradient.microbatch >= last_microbatch_;
    const bool around = schedule_.folds_in_ring && gradient.first_microbatch > 0 &&
                        gradient.microbatch == gradient.first_microbatch - 1;
    return in_order || around;
  }

  // A gradient is used when it holds every micro-batch of the step, of whatever rank.
  void check_complete(const Instruction& instruction) {
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (!is_gradient(buffer)) continue;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        const Content& found = span.content;
        if (is_complete(found) && (instruction.op != Op::kFoldGrad || !found.rounded)) return;
        problems_.add(describe(instruction) + " uses " + describe(buffer) +
                      (found.rounded ? " after it was rounded, with" : " with") +
                      " micro-batches " + std::to_string(found.first_microbatch) + " to " +
                      std::to_string(found.microbatch) + " of " +
                      (schedule_.delayed.any()
                           ? "the update to version " + std::to_string(found.version)
                           : std::to_string(last_microbatch_)));
      });
    }
  }

  void check_one_version(const Instruction& instruction) {
    const std::optional<std::int32_t> version = state_version(instruction, false);
    const std::optional<std::int32_t> gradient = state_version(instruction, true);
    if (!version || !gradient) {
      problems_.add(describe(instruction) + " mixes versions of its state");
    } else if (*gradient != *version + 1) {
      problems_.add(describe(instruction) + " applies a gradient for version " +
                    std::to_string(*gradient) + " to version " + std::to_string(*version));
    } else {
      check_clip_factor(instruction, *gradient);
    }
  }
  // The clip factor is of the gradient's own step.
  void check_clip_factor(const Instruction& instruction, std::int32_t gradient) {
    for (const Use& use : instruction.reads) {
      if (buffer_of(use).role != BufferRole::kScalar) continue;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        if (span.content.version == gradient) return;
        problems_.add(describe(instruction) + " multiplies a gradient for version " +
                      std::to_string(gradient) + " by the clip factor of version " +
                      std::to_string(span.content.version));
      });
    }
  }
  // Returns the version of the gradients, or of the other state, that an instruction reads. Returns
  // nothing if it reads several versions or none.
  std::optional<std::int32_t> state_version(const Instruction& instruction, bool of_gradients) {
    std::optional<std::int32_t> version;
    bool mixed = false;
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (buffer.role != BufferRole::kState || is_gradient(buffer) != of_gradients) continue;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        mixed = mixed || (version && *version != span.content.version);
        version = span.content.version;
      });
    }
    return mixed ? std::nullopt : version;
  }

  // Calls f(normed) for the norms that GradNorm has taken inside elements [begin, end) of a unit's
  // gradient, on whatever rank that has the same part of it: each block counts once among these,
  // and for each update.
  struct Normed {
    std::uint64_t end = 0;
    InstructionId maker = kNoId;
  };
  template <typename F>
  void for_normed(const Buffer& buffer, std::int32_t version, std::uint64_t begin,
                  std::uint64_t end, F f) const {
    const auto unit = normed_.find({part_of(buffer), buffer.unit, version});
    if (unit == normed_.end()) return;
    auto at = unit->second.lower_bound(end);
    while (at != unit->second.begin() && std::prev(at)->second.end > begin) f((--at)->second);
  }
  // The place of the buffer's rank among those that compute each micro-batch together: in its
  // tensor group, and of that among the context groups.
  std::ptrdiff_t part_of(const Buffer& buffer) const {
    const std::int32_t rank = world_rank_of(schedule_, buffer.rank);
    std::ptrdiff_t place = 0, ranks = 1;
    for (const Dimension dimension : {Dimension::kTensor, Dimension::kContext}) {
      for (const Group& group : schedule_.groups) {
        const auto at = std::find(group.ranks.begin(), group.ranks.end(), rank);
        if (group.dimension != dimension || at == group.ranks.end()) continue;
        place += ranks * (at - group.ranks.begin());
        ranks *= std::ssize(group.ranks);
        break;  // ranks that share heads have smaller groups after it
      }
    }
    return place;
  }

  // Calls f(first element, end element, content) for the gradients that the instruction reads.
  template <typename F>
  void for_gradients(const Instruction& instruction, F f) {
    for (const Use& use : instruction.reads) {
      const Buffer& buffer = buffer_of(use);
      if (!is_gradient(buffer)) continue;
      for_parts(use, false, [&](std::uint64_t begin, std::uint64_t end, Span& span) {
        f(buffer, buffer.first_elem + elems_in(buffer.dtype, begin),
          buffer.first_elem + elems_in(buffer.dtype, end), span.content);
      });
    }
  }

  // Once its norm is taken a gradient stays as it is.
  void check_not_normed(const Instruction& instruction) {
    const std::int32_t version = state_version(instruction, true).value_or(0);
    for (const Use& use : instruction.writes) {
      const Buffer& buffer = buffer_of(use);
      const ElemRange range = elems_of(buffer, use);
      bool normed = false;
      for_normed(buffer, version, range.begin, range.end, [&](const Normed&) { normed = true; });
      if (!normed) continue;
      problems_.add(describe(instruction) + " changes " + describe(buffer) +
                    " after its norm was taken");
    }
  }
  void note_normed(const Instruction& instruction) {
    for_gradients(instruction, [&](const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                                   const Content& content) {
      bool again = false;
      for_normed(buffer, content.version, begin, end, [&](const Normed&) { again = true; });
      if (again) problems_.add(describe(instruction) + " takes a norm a second time");
      normed_[{part_of(buffer), buffer.unit, content.version}][begin] = Normed{end, content.maker};
    });
  }
  // The gradient that is applied is the one that the norm was taken of.
  void check_normed(const Instruction& instruction) {
    for_gradients(instruction, [&](const Buffer& buffer, std::uint64_t begin, std::uint64_t end,
                                   const Content& content) {
      bool same = true;
      for_normed(buffer, content.version, begin, end,
                 [&](const Normed& normed) { same = same && normed.maker == content.maker; });
      if (same) return;
      problems_.add(describe(instruction) + " applies another value of " + describe(buffer) +
                    " than its norm was taken of");
    });
  }

  // A gradient has the version of the weights that it will make.
  std::int32_t version_to_make(const Instruction& instruction) const {
    const DelayedUpdates& delayed = schedule_.delayed;
    if (!delayed.any()) {
      return weight_version_[static_cast<std::size_t>(instruction.rank)].value_or(0) + 1;
    }
    return delayed.microbatches > 0 ? instruction.microbatch / delayed.microbatches + 1 : 0;
  }

  void write(const Instruction& instruction) {
    if (is_copy(instruction.op)) return copy(instruction);
    Content content{true,
                    version_to_make(instruction),
                    instruction.microbatch,
                    instruction.microbatch,
                    0,
                    false,
                    instruction.id};
    if (instruction.op == Op::kOptimizerStep) {
      content.version = state_version(instruction, false).value_or(0) + 1;
    } else if (is_sum(instruction.op)) {
      content = summed(instruction);
    }
    for (const Use& use : instruction.writes) store(instruction, use, content);
  }

  void store(const Instruction& instruction, const Use& use, const Content& content) {
    const ByteRange range = bytes_of(use, buffer_of(use));
    Span span;
    span.begin = range.begin;
    span.end = range.end;
    span.content = content;
    span.writer = instruction.id;
    span.readers.fill(kNoId);
    span.read = held_[use.buffer].outlives;
    held_[use.buffer].spans.replace(span);
  }

  static bool is_sum(Op op) {
    return op == Op::kAccumulateGrad || op == Op::kFoldGrad || op == Op::kRoundGrad;
  }

  // The gradient that an addition or a rounding makes.
  Content summed(const Instruction& instruction) {
    Content made{true, 0, instruction.microbatch, instruction.microbatch, 0, false, instruction.id};
    made.version = state_version(instruction, true).value_or(0);
    if (is_group_fold(instruction)) {
      for (const Use& use : instruction.reads) {
        const Content part = content_of(use).value_or(Content{});
        const bool left = is_in_place(instruction, use);
        if (left) made.first_microbatch = part.first_microbatch;
        if (!left) made.microbatch = part.microbatch;
        made.group_size = group_size_of(part);
      }
      return made;
    }
    // The sum that is added to, or the only gradient that is read: of its parts the latest begin.
    const bool adds = instruction.op == Op::kAccumulateGrad && instruction.reads.size() > 1;
    for (const Use& use : instruction.reads) {
      if (!is_gradient(buffer_of(use)) || (adds && !is_in_place(instruction, use))) continue;
      made.first_microbatch = -1;
      for_parts(use, false, [&](std::uint64_t, std::uint64_t, Span& span) {
        made.first_microbatch = std::max(made.first_microbatch, span.content.first_microbatch);
        if (instruction.op == Op::kRoundGrad) made.microbatch = span.content.microbatch;
      });
    }
    if (instruction.op == Op::kFoldGrad) {
      made.microbatch = kAllMicrobatches;
      made.first_microbatch = 0;
    }
    made.rounded = instruction.op == Op::kRoundGrad;
    return made;
  }

  // The parts of `to` and their contents after a copy of `from`; valid until the next call.
  const std::vector<std::pair<Use, Content>>& copied(const Use& from, const Use& to) {
    const std::uint64_t source = bytes_of(from, buffer_of(from)).begin;
    const std::uint64_t target = bytes_of(to, buffer_of(to)).begin;
    std::vector<std::pair<Use, Content>>& parts = copied_;
    parts.clear();
    for_parts(from, false, [&](std::uint64_t begin, std::uint64_t end, Span& span) {
      const Use part{to.buffer, target + (begin - source), end - begin};
      // Neighbours of equal content are one part, or spans would multiply.
      if (!parts.empty() && parts.back().second == span.content) {
        parts.back().first.bytes += part.bytes;
      } else {
        parts.emplace_back(part, span.content);
      }
    });
    return parts;
  }

  void copy(const Instruction& instruction) {
    for (std::size_t k = 0; k < instruction.reads.size(); ++k) {
      for (const auto& [part, content] : copied(instruction.reads[k], instruction.writes[k])) {
        store(instruction, part, content);
      }
    }
  }

  // All ranks commit once, or none does: a rank waits for the commits of all others. A rank without
  // a shard finds no state and declares none, but it commits too.
  void check_commits() {
    const bool finds_nothing = schedule_.entry.empty() && !committed_.empty();
    std::map<std::int32_t, int> once;  // by rank
    for (std::int32_t rank = 0; rank < schedule_.ranks; ++rank) {
      if (finds_nothing || !schedule_.commit.empty()) once[rank] = 1;
    }
    if (committed_ != once) problems_.add("what is declared to be committed is not, or not once");
  }

  void leave() {
    check_commits();
    for (const Buffer& buffer : schedule_.buffers) {
      if (!buffer.persistent) continue;
      held_[buffer.id].spans.each([&](const Span& span) { refuse_waste(buffer, span); });
    }
    for (const Residency& residency : schedule_.exit) {
      const Buffer& home = schedule_.buffers[residency.home];
      std::optional<std::int32_t> version;
      bool whole = true;
      held_[residency.home].spans.each([&](const Span& span) {
        whole = whole && span.content.written && (!version || *version == span.content.version);
        version = span.content.version;
      });
      if (whole && version == residency.version) continue;
      problems_.add(describe(home) +
                    (whole ? " ends at version " + std::to_string(*version)
                           : std::string(" ends in pieces of several versions")) +
                    ", not " + std::to_string(residency.version));
    }
    const std::vector<BufferId> scalars = persistent_scalars();
    for (const Residency& residency : schedule_.exit) {
      if (residency.kind == StateKind::kGradient) leave_pending(residency, scalars);
    }
  }

  // A gradient that waits for its update is complete and unchanged since its norm; its clip factor
  // waits too.
  void leave_pending(const Residency& residency, const std::vector<BufferId>& scalars) {
    const Buffer& home = schedule_.buffers[residency.home];
    for (const BufferId scalar : scalars) {
      if (schedule_.buffers[scalar].rank != home.rank) continue;
      const Content& clip = held_[scalar].spans.first().content;
      if (clip.written && clip.version == residency.version) continue;
      problems_.add(describe(home) + " is left for a later update without its clip factor");
    }
    held_[residency.home].spans.each([&](const Span& span) {
      const Content& content = span.content;
      const bool complete = is_complete(content);
      bool normed = content.maker == kNoId;  // it waited at entry already
      bool same = true;
      for_normed(home, content.version, home.first_elem + elems_in(home.dtype, span.begin),
                 home.first_elem + elems_in(home.dtype, span.end), [&](const Normed& seen) {
                   normed = true;
                   same = same && seen.maker == content.maker;
                 });
      if (complete && normed && same) return;
      problems_.add(describe(home) + " is left for a later update " +
                    (!complete ? "without all micro-batches"
                     : normed  ? "with another value than its norm was taken of"
                               : "without its norm"));
    });
  }

  const Schedule& schedule_;
  const HappensBefore& order_;
  const Meetings& meetings_;
  Problems& problems_;
  struct Held {
    Spans spans;
    bool released = false;
    bool outlives = false;  // its content is used after the schedule
  };
  std::vector<Held> held_;  // by buffer
  std::vector<std::optional<std::int32_t>>
      weight_version_;                 // by rank: the version that compute reads
  std::int32_t last_microbatch_ = -1;  // the last that any rank adds to a sum
  // By part, unit and version of the gradient, then by first element.
  std::map<std::tuple<std::ptrdiff_t, std::int32_t, std::int32_t>, std::map<std::uint64_t, Normed>>
      normed_;
  std::map<std::int32_t, int> committed_;        // Commits, by rank
  std::vector<std::pair<Use, Content>> copied_;  // kept for its memory
};

}  // namespace

void check_contents(const Schedule& schedule, const HappensBefore& order, const Meetings& meetings,
                    Problems& problems) {
  ContentCheck(schedule, order, meetings, problems).run();
}

}  // namespace sluice::schedule::validation
