// Model state between steps: filled at the start, read for checkpoints, in place where it can be.
//
// Homes in pinned memory are visited where they lie; those on the device and on storage go through
// the pinned I/O buffer, a piece at a time, so no more than the buffer is ever held. Not for use
// while a schedule runs. A rank among others has homes of its own ranges (schedule/rank_view.hpp)
// of its own stages' units, and only these are visited. Movement here is counted by the device and
// the storage engine like any other.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/orders/stage_view.hpp"
#include "engine/schedule/rank_view.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::runtime {

class StateStore {
 public:
  // The I/O buffer holds one piece of every kind of state at once.
  static constexpr std::uint64_t kWindowElems = 65536;
  static constexpr std::uint64_t kWindowBytes = kWindowElems * (4 + 4 + 4 + 4);

  enum class Access { kRead, kWrite, kUpdate };
  // data[i]: elements [begin, end) of the i-th kind asked for.
  using Visitor =
      std::function<void(std::uint64_t begin, std::uint64_t end, std::span<std::byte* const> data)>;

  // The ranks that share the state, and how. All must outlive the store.
  struct Sharing {
    const schedule::RankView& view;
    const schedule::StageView& pipeline;
    collectives::Communicator& group;  // of all ranks
  };

  // `schedule`: any of the run's packed schedules (they share the homes). durable: of a durable
  // run, else null.
  StateStore(device::Device& device, RunMemory& memory, const schedule::Schedule& schedule,
             const Sharing& sharing, DurableState* durable = nullptr);

  // Homes that have a shadow and their shadows change roles: the state between steps is in the
  // others.
  void flip() { flipped_ = !flipped_; }

  // Whether this rank writes files of the whole state: the first of all.
  bool writes_files() const { return own_rank() == 0; }

  // The elements of the unit that this rank's home holds; empty if it has no home of them. State of
  // whole tensors: its own elements.
  schedule::ElemRange range(StateKind kind, std::int32_t unit) const;

  // Calls visitor for consecutive ranges that cover elements [begin, end) of the unit, as far as
  // this rank has them, with all `kinds` side by side: their homes have equal ranges. begin and
  // end: multiples of 4,096 or the home's end. State of whole tensors is visited alone: its
  // elements are its own.
  // kWrite: the visitor's result goes to the home, all of it. kUpdate: the visitor changes some of
  // the elements that the home has. On storage each write of a block counts as one version, and a
  // commit wants one version of all blocks of a home. Throws IoError, IntegrityError, DeviceError,
  // TimeoutError.
  void visit(std::span<const StateKind> kinds, std::int32_t unit, std::uint64_t begin,
             std::uint64_t end, Access access, const Visitor& visitor);

  // Reads elements [begin, end) of one kind in pieces, of which every rank gets all of each. All
  // ranks call it with the same arguments. layout: of the kind. Where homes are whole it is
  // visit(). Throws CommunicationError too.
  void visit_whole(StateKind kind, const kernels::StateLayout& layout, std::int32_t unit,
                   std::uint64_t begin, std::uint64_t end, const Visitor& visitor);

  // Whether this rank is the one that brings its elements of this kind of the unit to files.
  bool brings(StateKind kind, std::int32_t unit) const;
  // Adds the pieces of all ranks, in place, as integers; all ranks call it with as many bytes, a
  // multiple of 4.
  void join(std::span<std::byte> piece);

 private:
  // The number of a data-parallel rank of a pipeline rank in the world.
  std::size_t world_rank(std::int32_t pipeline_rank, std::int32_t data_rank) const {
    return static_cast<std::size_t>(schedule::world_rank(sharing_.view, pipeline_rank, data_rank));
  }
  std::size_t own_rank() const { return world_rank(sharing_.pipeline.rank, sharing_.view.rank); }
  const schedule::Buffer* home(StateKind kind, std::int32_t unit) const;
  // access: kRead or kWrite.
  void move(const schedule::Buffer& home, std::uint64_t begin, std::uint64_t end, std::byte* window,
            Access access);

  bool is_sharded(StateKind kind) const;
  std::vector<std::uint64_t> part_bytes(StateKind kind, const kernels::StateLayout& layout,
                                        std::int32_t unit, std::uint64_t begin,
                                        std::uint64_t end) const;

  RunMemory& memory_;
  Sharing sharing_;
  DurableState* durable_;
  std::unique_ptr<device::Stream> stream_;
  std::uint64_t window_offset_;  // in pinned memory
  using Homes = std::vector<std::array<const schedule::Buffer*, kStateKindCount>>;  // by unit
  Homes homes_;
  Homes shadows_;  // the homes where they have none
  bool flipped_ = false;
};

}  // namespace sluice::runtime
