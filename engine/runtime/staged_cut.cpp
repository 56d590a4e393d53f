// A rank's part of a value is cut into pieces. Both ends of a message know the part that it belongs
// to, so they make equally many messages, of equal sizes.
//
// The wait for the copies down of a piece is also the wait for the copies up of the piece before,
// whose places the next messages take. A copy down to a place stands after the copy up from it on
// the same stream.
#include "engine/runtime/staged_cut.hpp"

#include <algorithm>
#include <cstring>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "collectives/fold.hpp"
#include "engine/schedule/even_parts.hpp"

namespace sluice::runtime {
namespace {

bool is_on_device(const Place& place) {
  return place.buffer->tier == Tier::kDevice;
}

// Into `out`, which is one of the parts.
void take_largest(std::span<const void* const> parts, float* out, std::uint64_t elems) {
  for (const void* part : parts) {
    const auto* const from = static_cast<const float*>(part);
    for (std::uint64_t i = 0; i < elems; ++i) {
      if (from[i] > out[i] || from[i] != from[i]) out[i] = from[i];
    }
  }
}

}  // namespace

void combine_parts(schedule::CutKind kind, std::span<const void* const> parts, DType dtype,
                   void* out, std::uint64_t elems) {
  if (kind != schedule::CutKind::kMax) {
    return collectives::fold_tree(parts, dtype, out, dtype, elems);
  }
  SLUICE_CHECK(dtype == DType::kF32);
  take_largest(parts, static_cast<float*>(out), elems);
}

void StagedCut::run(schedule::CutKind kind, DType dtype, const Place& value) {
  wait();  // for values in pinned memory
  if (schedule::adds(kind)) combine(kind, dtype, value);
  if (schedule::spreads(kind)) spread(dtype, value);
  if (kind == schedule::CutKind::kExchange) exchange(dtype, value);
  if (kind == schedule::CutKind::kRing) pass_round(value);
}

// The piece at `offset` of a member's even part. Empty where the part ends before.
StagedCut::Piece StagedCut::piece_of(const Place& value, DType dtype, std::size_t member,
                                     std::uint64_t offset) const {
  const schedule::ElemRange part = schedule::even_part(
      elems_in(dtype, value.bytes), static_cast<std::int32_t>(way_.members.size()),
      static_cast<std::int32_t>(member));
  const std::uint64_t bytes = bytes_of(dtype, part.elems());
  return {value.data + bytes_of(dtype, part.begin) + offset,
          bytes <= offset ? 0 : std::min(bytes - offset, kPieceBytes)};
}

std::uint64_t StagedCut::most_bytes(const Place& value, DType dtype) const {
  std::uint64_t most = 0;
  for (std::size_t member = 0; member < way_.members.size(); ++member) {
    const schedule::ElemRange part = schedule::even_part(
        elems_in(dtype, value.bytes), static_cast<std::int32_t>(way_.members.size()),
        static_cast<std::int32_t>(member));
    most = std::max(most, bytes_of(dtype, part.elems()));
  }
  return most;
}

// Every part goes to its owner, who combines it.
void StagedCut::combine(schedule::CutKind kind, DType dtype, const Place& value) {
  const std::uint64_t most = most_bytes(value, dtype);
  for (std::uint64_t offset = 0; offset < most; offset += kPieceBytes) {
    const Piece own = piece_of(value, dtype, way_.own, offset);
    std::vector<Message> to, from;
    std::vector<const void*> parts;
    for (std::size_t member = 0; member < way_.members.size(); ++member) {
      const Piece theirs = piece_of(value, dtype, member, offset);
      bring_down(value, leaving(member), theirs);
      parts.push_back(member == way_.own ? leaving(member) : arriving(member));
      if (member == way_.own) continue;
      to.push_back({member, leaving(member), theirs.bytes});
      from.push_back({member, arriving(member), own.bytes});
    }
    send(to, from);
    if (own.bytes == 0) continue;
    combine_parts(kind, parts, dtype, leaving(way_.own), elems_in(dtype, own.bytes));
    bring_up(value, leaving(way_.own), own);
  }
}

// Every owner's part goes to all.
void StagedCut::spread(DType dtype, const Place& value) {
  const std::uint64_t most = most_bytes(value, dtype);
  for (std::uint64_t offset = 0; offset < most; offset += kPieceBytes) {
    const Piece own = piece_of(value, dtype, way_.own, offset);
    bring_down(value, leaving(way_.own), own);
    std::vector<Message> to, from;
    for (std::size_t member = 0; member < way_.members.size(); ++member) {
      if (member == way_.own) continue;
      to.push_back({member, leaving(way_.own), own.bytes});
      from.push_back({member, arriving(member), piece_of(value, dtype, member, offset).bytes});
    }
    send(to, from);
    for (const Message& message : from) {
      bring_up(value, message.staged, piece_of(value, dtype, message.member, offset));
    }
  }
}

// The parts are equal. A piece takes the place of the one that left it.
void StagedCut::exchange(DType dtype, const Place& value) {
  const std::uint64_t most = most_bytes(value, dtype);
  for (std::uint64_t offset = 0; offset < most; offset += kPieceBytes) {
    std::vector<Message> to, from;
    for (std::size_t member = 0; member < way_.members.size(); ++member) {
      if (member == way_.own) continue;
      const Piece theirs = piece_of(value, dtype, member, offset);
      bring_down(value, leaving(member), theirs);
      to.push_back({member, leaving(member), theirs.bytes});
      from.push_back({member, arriving(member), theirs.bytes});
    }
    send(to, from);
    for (const Message& message : from) {
      bring_up(value, message.staged, piece_of(value, dtype, message.member, offset));
    }
  }
}

void StagedCut::pass_round(const Place& value) {
  const std::size_t members = way_.members.size();
  for (std::uint64_t offset = 0; offset < value.bytes; offset += kPieceBytes) {
    const Piece piece{value.data + offset, std::min(value.bytes - offset, kPieceBytes)};
    bring_down(value, leaving(0), piece);
    send({{(way_.own + 1) % members, leaving(0), piece.bytes}},
         {{(way_.own + members - 1) % members, arriving(0), piece.bytes}});
    bring_up(value, arriving(0), piece);
  }
}

void StagedCut::bring_down(const Place& value, std::byte* staged, const Piece& piece) const {
  if (piece.bytes == 0) return;
  if (!is_on_device(value)) {
    std::memcpy(staged, piece.data, piece.bytes);
    return;
  }
  way_.stream.copy(staged, piece.data, piece.bytes, device::CopyKind::kDeviceToHost);
}

void StagedCut::bring_up(const Place& value, const std::byte* staged, const Piece& piece) const {
  if (piece.bytes == 0) return;
  if (!is_on_device(value)) {
    std::memcpy(piece.data, staged, piece.bytes);
    return;
  }
  way_.stream.copy(piece.data, staged, piece.bytes, device::CopyKind::kHostToDevice);
}

void StagedCut::send(const std::vector<Message>& to, const std::vector<Message>& from) const {
  std::vector<collectives::Outgoing> outgoing;
  std::vector<collectives::Incoming> incoming;
  for (const Message& message : to) {
    if (message.bytes == 0) continue;
    outgoing.push_back({way_.members[message.member], message.staged, message.bytes});
  }
  for (const Message& message : from) {
    if (message.bytes == 0) continue;
    incoming.push_back({way_.members[message.member], message.staged, message.bytes});
  }
  wait();
  if (outgoing.empty() && incoming.empty()) return;
  way_.messages.exchange("AllReduce", outgoing, incoming);
}

void StagedCut::wait() const {
  way_.stream.synchronize(Deadline::after_seconds(way_.deadline_seconds));
}

}  // namespace sluice::runtime
