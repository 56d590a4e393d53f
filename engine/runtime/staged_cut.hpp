// Values that cross a cut between the ranks of a group (schedule::CutKind), where they lie in a
// GPU's memory: they pass through pinned memory in pieces, and the host adds them there. So the
// sums have the order, and the bits, of those in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "collectives/communicator.hpp"
#include "device/device.hpp"
#include "engine/runtime/program.hpp"

namespace sluice::runtime {

// A message through pinned memory takes pieces of this size.
inline constexpr std::uint64_t kPieceBytes = kMiB;

// out = the parts of all ranks, elementwise, in their order: the largest (fp32; NaN counts as the
// largest), or the sum along law 2's tree. `out` may be one of the parts.
void combine_parts(schedule::CutKind kind, std::span<const void* const> parts, DType dtype,
                   void* out, std::uint64_t elems);

class StagedCut {
 public:
  // The means of a cut. members: of the group, as ranks of `messages`. staging:
  // staging_bytes(members).
  struct Way {
    collectives::Communicator& messages;
    device::Stream& stream;
    std::span<std::byte> staging;
    double deadline_seconds;
    const std::vector<std::int32_t>& members;
    std::size_t own;  // this rank's place among the members
  };
  static std::uint64_t staging_bytes(std::int64_t members) {
    return members > 1 ? 2 * static_cast<std::uint64_t>(members) * kPieceBytes : 0;
  }

  explicit StagedCut(const Way& way) : way_(way) {}

  // On return all messages have arrived, and the last copies up are queued.
  void run(schedule::CutKind kind, DType dtype, const Place& value);

 private:
  // A stretch of a value that passes at once, and where it lies.
  struct Piece {
    std::byte* data;
    std::uint64_t bytes;
  };
  struct Message {
    std::size_t member;
    std::byte* staged;
    std::uint64_t bytes;
  };
  Piece piece_of(const Place& value, DType dtype, std::size_t member, std::uint64_t offset) const;
  std::uint64_t most_bytes(const Place& value, DType dtype) const;
  void combine(schedule::CutKind kind, DType dtype, const Place& value);
  void spread(DType dtype, const Place& value);
  void exchange(DType dtype, const Place& value);
  void pass_round(const Place& value);

  std::byte* leaving(std::size_t member) const { return &way_.staging[member * kPieceBytes]; }
  std::byte* arriving(std::size_t member) const { return leaving(way_.members.size() + member); }
  void bring_down(const Place& value, std::byte* staged, const Piece& piece) const;
  void bring_up(const Place& value, const std::byte* staged, const Piece& piece) const;
  void send(const std::vector<Message>& to, const std::vector<Message>& from) const;
  void wait() const;

  Way way_;
};

}  // namespace sluice::runtime
