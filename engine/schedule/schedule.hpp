// The schedule IR: a training step as plain data (docs/design/schedule.md).
//
// A Schedule is a list of instructions in an order in which they could run one after another. Each
// instruction belongs to a lane of a rank; a lane runs its instructions in list order; across lanes
// only `deps` order. Buffers have explicit lifetimes: a transient buffer is born by the first
// instruction that writes it and dies with the Release that names it; a persistent buffer (a
// *home*) lives through the whole run. Ids are indices.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/inline_vector.hpp"
#include "base/memory_kinds.hpp"
#include "base/units.hpp"
#include "engine/schedule/pass_segments.hpp"
#include "engine/schedule/saved_part.hpp"

namespace sluice::schedule {

enum class Op : std::uint8_t {
  // compute
  kForward,
  kRecompute,
  kBackwardInput,
  kBackwardWeight,
  kLoss,
  kExternal,  // a host framework computes and signals the end
  // communication
  kGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
  // movement
  kUpload,
  kDownload,
  kStorageRead,
  kStorageWrite,
  kCommit,
  kSpillActivation,
  kFetchActivation,
  // optimizer
  kAccumulateGrad,
  kFoldGrad,    // adds the accumulator of a tied use into its tensor's
  kRoundGrad,   // rounds a complete fp32 sum once, to the gradients' dtype
  kGradNorm,    // fp64 partial sums of squares of one chunk
  kClipFactor,  // adds all partials in tensor order to the step's scalar
  kOptimizerStep,
  // control
  kRelease,
};
inline constexpr std::size_t kOpCount = 28;
std::string_view op_name(Op op);

// Collectives and messages have four lanes, so that neither kind waits behind another: comm
// (between data-parallel ranks), inner (inside a tensor or context group), send and receive
// (between pipeline stages).
//
// Compute, copy, message and optimizer lanes run one instruction at a time. The two storage lanes
// are pipelined: their instructions start in list order and *retire* (count as done for `deps`) in
// list order, but several may be in flight. An instruction that must wait for an earlier one of its
// own storage lane has an explicit dep. A Release waits for such a dep only to retire
// (retires_behind), and the lane goes on meanwhile.
enum class Lane : std::uint8_t {
  kCompute,
  kH2D,
  kD2H,
  kComm,
  kInner,
  kSend,
  kReceive,
  kStorageRead,
  kStorageWrite,
  kOptimizer,
};
inline constexpr std::size_t kLaneCount = 10;
constexpr bool lane_is_pipelined(Lane lane) {
  return lane == Lane::kStorageRead || lane == Lane::kStorageWrite;
}
constexpr bool lane_has_messages(Lane lane) {
  return lane == Lane::kComm || lane == Lane::kInner || lane == Lane::kSend ||
         lane == Lane::kReceive;
}
std::string_view lane_name(Lane lane);

using BufferId = std::uint32_t;
using InstructionId = std::uint32_t;
inline constexpr std::uint32_t kNoId = 0xffffffffu;

// The content of a buffer. It is part of the meaning of a value.
enum class BufferRole : std::uint8_t {
  kState,          // model state: see kind, unit, chunk
  kTokens,         // input and target ids of a micro-batch
  kActivation,     // output of a unit
  kSaved,          // values that forward keeps for backward
  kGradOut,        // gradient of a unit's output
  kWeightContext,  // values that BackwardInput keeps for BackwardWeight
  kWorkspace,
  kLoss,
  kNormPartial,
  kScalar,  // the clip factor
};
inline constexpr std::size_t kBufferRoleCount = 10;
std::string_view role_name(BufferRole role);

struct Buffer {
  BufferId id = kNoId;
  BufferRole role = BufferRole::kState;
  Tier tier = Tier::kDevice;
  Category category = Category::kActivation;
  DType dtype = DType::kU8;
  std::uint64_t bytes = 0;
  std::int32_t rank = 0;
  std::int32_t unit = -1;
  std::int32_t microbatch = -1;
  SavedFor used_by = SavedFor::kBoth;  // kSaved only: the halves of backward that read it
  // Model state: elements [first_elem, first_elem + elems) of the unit's flat element space. In a
  // piece of another buffer, first_elem is the piece's begin in elements of its dtype.
  StateKind kind = StateKind::kNone;
  std::int32_t chunk = -1;  // -1: the whole unit (a window)
  std::uint64_t first_elem = 0;
  std::uint64_t elems = 0;
  // Model state: at entry of the step a home holds `version`; the step makes version + 1.
  std::int32_t version = 0;
  bool persistent = false;
  // A device window consists of chunk slots (chunk_pool.hpp); other buffers lie in an arena.
  bool window = false;
  // State of whole tensors, such as sums over rows. Its elements have a numbering of their own, and
  // it is read and written only together with the whole unit.
  bool per_tensor = false;
  // Number of versions that its place holds. A durable run's state on storage has two
  // (state_save.cpp): a step that commits finds it in one copy and leaves it in the other.
  std::int32_t versions = 1;
  // The copy on storage of a durable run's home that lies in another tier. It is no home itself,
  // and only a Commit reads it.
  bool log_copy = false;
  // A shadow copy: the step writes its update here and leaves the home that this names as found, so
  // that the update can be dropped (UpdatePlacement::kSpeculative). Both have the same shape. If
  // the update stands, the two change roles (Program). kNoId: the buffer is no shadow.
  BufferId shadow_of = kNoId;
  // Pieces in pinned memory that one stream stages have its ring's number, so that pack may place
  // them together. -1: the buffer belongs to no ring.
  std::int32_t ring = -1;

  // Filled by the placement pass. Arena buffers and homes: bytes from the tier's base.
  std::uint64_t offset_bytes = 0;
  std::vector<std::uint32_t> slots;  // windows: slot numbers in order

  bool operator==(const Buffer&) const = default;
};

// Pinned and storage places start at multiples of this, since O_DIRECT asks it of memory and files.
inline constexpr std::uint64_t kDirectAlignmentBytes = 4096;

// Bytes from one version of a buffer to the next, and of all versions.
constexpr std::uint64_t version_stride_bytes(const Buffer& buffer) {
  return round_up(buffer.bytes, kDirectAlignmentBytes);
}
constexpr std::uint64_t place_bytes(const Buffer& buffer) {
  const auto earlier = static_cast<std::uint64_t>(buffer.versions - 1);
  return earlier * version_stride_bytes(buffer) + buffer.bytes;
}

// A range of a unit's elements.
struct ElemRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t elems() const { return end - begin; }
  bool operator==(const ElemRange&) const = default;
};

// A place in a unit at which one tensor ends and the next begins, for rules that need whole
// tensors: the next one's first element, and that of its sums in the numbering of per_tensor state.
// Small tensors that share a norm block of 4,096 elements have no border between them.
struct TensorBorder {
  std::uint64_t elem = 0;
  std::uint64_t sum = 0;
  bool operator==(const TensorBorder&) const = default;
};

// A part of a buffer that an instruction touches. elems-based for state, so that a window and its
// chunks meet; bytes == 0 means all of it.
struct Use {
  Use() = default;
  Use(BufferId id, std::uint64_t offset, std::uint64_t size, std::int32_t other = -1)
      : buffer(id), peer(other), offset_bytes(offset), bytes(size) {}

  BufferId buffer = kNoId;
  // Collectives only: the world rank that a written part comes from, and in an AllToAll the one
  // that a read part goes to. A Gather's reads go to all members and have no peer.
  std::int32_t peer = -1;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;

  bool operator==(const Use&) const = default;
};

// Most instructions move one buffer to another, and wait for few others.
using Uses = InlineVector<Use, 1>;
using Deps = InlineVector<InstructionId, 4>;

// The elements of its unit (per_tensor: its own) that a use of model state covers.
ElemRange elems_of(const Buffer& buffer, const Use& use);
// The use of a range of elements. Precondition: whole groups of the dtype, inside the buffer.
Use use_of(const Buffer& buffer, ElemRange range);

struct Instruction {
  InstructionId id = kNoId;
  Op op = Op::kRelease;
  Lane lane = Lane::kCompute;
  std::int32_t rank = 0;
  std::int32_t unit = -1;
  std::int32_t layer = -1;
  std::int32_t microbatch = -1;
  std::int32_t chunk = -1;
  std::int32_t update = 0;  // of a schedule with several updates: the one that it serves
  SegmentRange segments;    // of a pass: those that it runs
  // An AllReduce on the lane inner: the operation, and the type of the elements.
  CutKind reduction = CutKind::kSum;
  DType reduced = DType::kU8;
  Uses reads;
  Uses writes;
  Deps deps;                // of other lanes (or earlier in this one: implied)
  std::int32_t peer = -1;   // sends and receives: the other rank of the world
  std::int32_t group = -1;  // collectives: index into Schedule::groups
  std::int32_t tag = -1;
  // Bytes that cross the lane's link; of a collective those that its rank sends.
  std::uint64_t bytes = 0;
  double cost_s = 0.0;  // alone on the machine; the simulator shares cores and links

  bool operator==(const Instruction&) const = default;
};

// Whether lane order alone makes `later` done after `earlier`, so that its lane need not stop for
// the dep. This holds for a Release in a pipelined lane: it does no work and retires in lane order.
inline bool retires_behind(const Instruction& earlier, const Instruction& later) {
  return later.op == Op::kRelease && lane_is_pipelined(later.lane) && earlier.lane == later.lane &&
         earlier.rank == later.rank;
}

// The home and version of a chunk's state between steps.
struct Residency {
  StateKind kind = StateKind::kNone;
  std::int32_t unit = -1;
  std::int32_t chunk = -1;
  BufferId home = kNoId;
  std::int32_t version = 0;
  bool operator==(const Residency&) const = default;
};

// The mesh dimension that a group's ranks differ in.
enum class Dimension : std::uint8_t { kData, kTensor, kContext, kPipeline, kExpert };

// The ranks of one collective, by number in the world, ascending.
struct Group {
  std::vector<std::int32_t> ranks;
  Dimension dimension = Dimension::kData;
  bool operator==(const Group&) const = default;
};

// Several updates in one schedule. Update u applies the gradients of micro-batches
// [u * microbatches, (u + 1) * microbatches), and makes version u + 1 of the state.
struct DelayedUpdates {
  std::int32_t updates = 1;
  std::int32_t microbatches = 0;  // of each update, over all ranks
  // By unit and micro-batch: the version of the unit's weights that all its passes read.
  std::vector<std::vector<std::int32_t>> versions;
  bool operator==(const DelayedUpdates&) const = default;
  bool any() const { return !versions.empty(); }
};

// A process compiles its own list: `ranks` is 1, its buffers and instructions are of rank 0, and
// `first_rank` is its number in the world. Peers and groups always name ranks of the world. merge()
// joins the lists of all ranks to the schedule of the world, where both numberings agree.
struct Schedule {
  std::int32_t ranks = 1;
  std::int32_t first_rank = 0;
  std::int32_t world_ranks = 0;  // 0: `ranks` is the world
  std::vector<Group> groups;
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
  std::vector<Residency> entry;
  std::vector<Residency> exit;
  // The state that its Commit makes durable, with its place on storage: all state as at entry.
  // Empty: the schedule commits nothing.
  std::vector<Residency> commit;
  // The parts of each unit's saved region, in a schedule that recomputes some of them. A unit
  // without an entry has one unnamed part.
  std::vector<std::vector<SavedPart>> saved_parts;
  // The segments of each unit's passes with their cuts, where ranks compute a micro-batch together.
  // Reductions stand after each pass as its cuts say. Empty: there are none.
  std::vector<UnitSegments> segments;
  // Accumulation groups are added in the order of a ring of ranks, which begins at another
  // rank for each shard, and not by the balanced tree.
  bool folds_in_ring = false;
  // Empty: the schedule makes one update, and all passes read the state that it finds.
  DelayedUpdates delayed;
  // The borders of each unit's tensors, its begin and end among them, if the rule needs whole
  // tensors. Updates break there and nowhere else.
  std::vector<std::vector<TensorBorder>> tensor_borders;
  // Bytes that the placement pass found necessary, per tier; device counts slots and arena pages.
  std::array<std::uint64_t, kTierCount> peak_bytes{};
  std::uint32_t slot_count = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t device_arena_bytes = 0;
  std::uint64_t pinned_arena_bytes = 0;
  // The device arena lies over the slots: byte `b` of it is byte b % slot_bytes of slot
  // b / slot_bytes, as far as there are slots. Else each has memory of its own.
  bool shares_device = false;

  bool operator==(const Schedule&) const = default;
};

// The ranks of the world that the schedule is a part of.
constexpr std::int32_t world_ranks_of(const Schedule& schedule) {
  return std::max(schedule.world_ranks, schedule.ranks);
}
// The world's number of the rank that an instruction or buffer belongs to.
inline std::int32_t world_rank_of(const Schedule& schedule, std::int32_t rank) {
  return schedule.first_rank + rank;
}

// Device bytes that slots and an arena of these sizes take: whole pages.
constexpr std::uint64_t device_peak_bytes(std::uint64_t slots_bytes, std::uint64_t arena_bytes,
                                          bool shared) {
  const std::uint64_t arena = round_up(arena_bytes, kPageBytes);
  return shared ? std::max(slots_bytes, arena) : slots_bytes + arena;
}

// The parts of the unit's saved region that the instruction writes.
PartMask saved_parts_written(const Schedule& schedule, const Instruction& instruction,
                             const std::vector<SavedPart>& parts);

// The memories of places: one for each tier, and one more for slots that share none.
inline constexpr std::size_t kMemoryCount = kTierCount + 1;
struct MemoryRange {
  std::size_t memory = 0;
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
};
// The memory ranges of bytes [begin, end) of a buffer, in order; one range for each slot of a
// window. Empty if the buffer or its place has no such bytes.
std::vector<MemoryRange> ranges_of(const Schedule& schedule, const Buffer& buffer,
                                   std::uint64_t begin, std::uint64_t end);
// The memory ranges of a whole buffer: all versions, and whole slots.
std::vector<MemoryRange> place_of(const Schedule& schedule, const Buffer& buffer);

// Movement in one run of the schedule, by link: sums of `bytes` over the h2d, d2h and storage
// lanes.
struct LinkBytes {
  std::uint64_t upload = 0, download = 0, storage_read = 0, storage_write = 0;
  bool operator==(const LinkBytes&) const = default;
  LinkBytes& operator+=(const LinkBytes& more);
  LinkBytes operator-(const LinkBytes& less) const;  // of counters: less came before
};
LinkBytes link_bytes(const Schedule& schedule);
// The part of it that spills and fetches of activations move.
LinkBytes activation_link_bytes(const Schedule& schedule);

// Bytes that one rank (of the schedule's own numbering) sends to other ranks and receives from them
// in one run of the schedule, by lane. Other lanes have none.
struct MessageBytes {
  std::uint64_t sent = 0, received = 0;
  bool operator==(const MessageBytes&) const = default;
};
std::array<MessageBytes, kLaneCount> message_bytes(const Schedule& schedule, std::int32_t rank);

}  // namespace sluice::schedule
