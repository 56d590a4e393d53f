// Carries out the collectives and messages of a schedule.
//
// Each use of a Gather or an AllToAll names the other rank, so the runner knows nothing of shards:
// it moves the parts that the lists name, each as one transfer. A part that stays on this rank is
// copied. The members of a group that is smaller than the world exchange within the world's group:
// two ranks meet in one order in all groups that they share, as validate() proves.
//
// An AllReduce names no ranks: the parts of the group's members are even. A part goes to its owner,
// who adds all of them by the tree of law 2 and sends the result back, so every member has the
// same bits. A scatter ends before that, and a gather is no more than that.
//
// The groups of the host cannot read a GPU's memory. A part that lies there passes through pinned
// memory, in pieces: a copy down, the exchange, and a copy up. With a group of the GPUs themselves
// the collectives of such parts go through that one, and need no pinned memory. Both ends of a part
// lie in the same kind of memory (validate), so both ranks take the same way. Values that cross
// cuts always pass through pinned memory (StagedCut).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "collectives/communicator.hpp"
#include "device/device.hpp"
#include "engine/runtime/program.hpp"

namespace sluice::runtime {

// The groups that the lanes use. Each has all ranks of the world, numbered as in the schedule. Both
// move host memory.
struct LaneGroups {
  collectives::Communicator& comm;
  collectives::Communicator& inner;
  // The group of lanes send and receive, which use it at the same time.
  collectives::Communicator& messages;
};

// The way of messages from and to a GPU's memory.
struct GpuMessages {
  // Pinned memory, CollectiveRunner::staging_bytes().
  std::span<std::byte> staging;
  int inner_ranks = 1;  // of the largest group that values cross cuts in
  double deadline_seconds = kDefaultDeadlineSeconds;  // of a wait for the stream
};

class CollectiveRunner {
 public:
  // The groups and the staging memory must outlive the runner. gpu: nothing where the device is the
  // host.
  explicit CollectiveRunner(const LaneGroups& groups,
                            const std::optional<GpuMessages>& gpu = std::nullopt)
      : groups_(groups), gpu_(gpu) {}
  // comm_ranks: of the collectives that pass through pinned memory; 1: none do. inner_ranks: of the
  // largest group with cuts, whose values always do. has_stages: there are lanes send and receive.
  // The lanes' places follow each other: inner, comm, send, receive.
  static std::uint64_t staging_bytes(int comm_ranks, int inner_ranks, bool has_stages);

  // A group of the GPUs, on the stream of the lane comm, with the ranks of the world. From now on
  // it carries the collectives of device memory. It must outlive the runner.
  void use_gpu_group(collectives::Communicator& group) { gpu_group_ = &group; }
  bool runs_on_gpu() const { return gpu_.has_value(); }

  // Makes all transfers of the instruction on the calling thread. Throws CommunicationError and
  // TimeoutError. One call at a time for each lane.
  void run(const Program& program, const schedule::Instruction& instruction);
  // Runs the instruction on a GPU, after the work that the stream holds. Called by the stream's
  // thread, outside Stream::launch. On return all transfers are done, and the last copies up are
  // queued. Also throws the stream's error.
  void run_on_gpu(const Program& program, const schedule::Instruction& instruction,
                  device::Stream& stream);
  void abort(const std::string& why) noexcept {
    if (gpu_group_ != nullptr) gpu_group_->abort(why);
    groups_.comm.abort(why);
    groups_.inner.abort(why);
    groups_.messages.abort(why);
  }

 private:
  struct Parts;
  Parts parts_of(const Program& program, const schedule::Instruction& instruction) const;
  // A value that crosses a cut, and room for the others' parts of it.
  struct InnerValue {
    schedule::CutKind kind;
    DType dtype;
    std::byte* data;
    std::uint64_t bytes;
    std::byte* others;
  };
  void reduce(const Program& program, const schedule::Instruction& instruction);
  void reduce_staged(const Program& program, const schedule::Instruction& instruction,
                     device::Stream& stream);
  static std::span<std::byte> part_of(const InnerValue& value, std::size_t ranks, std::size_t rank);
  void add_own_part(const std::vector<std::int32_t>& members, const InnerValue& value);
  void spread_own_part(const std::vector<std::int32_t>& members, const InnerValue& value);
  void exchange_parts(const std::vector<std::int32_t>& members, const InnerValue& value);
  void pass_round(const std::vector<std::int32_t>& members, const InnerValue& value);
  std::size_t place_in(const std::vector<std::int32_t>& members) const;
  void pass_on(const Program& program, const schedule::Instruction& instruction);
  void pass_on_staged(const Program& program, const schedule::Instruction& instruction,
                      device::Stream& stream);
  void exchange(const Parts& parts, const char* call, collectives::Communicator& group) const;
  void exchange_on_gpus(const Parts& parts, const char* call, device::Stream& stream);
  void exchange_staged(const Parts& parts, const char* call, device::Stream& stream);
  void exchange_piece(const Parts& parts, std::size_t round, std::uint64_t offset_bytes,
                      const char* call, device::Stream& stream);
  std::byte* staged_at(std::size_t place) const;
  void wait_for(device::Stream& stream) const;

  LaneGroups groups_;
  const std::optional<GpuMessages> gpu_;
  collectives::Communicator* gpu_group_ = nullptr;
};

}  // namespace sluice::runtime
