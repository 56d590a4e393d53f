// Two small state machines between a request and its system calls.
//
// PieceCursor cuts from the front: an edge up to the next block border, then as many whole blocks
// as one piece may have, then an edge for the rest. Each cut is O(1) and allocates nothing.
//
// PieceTransfer repeats the call of one piece until all of its bytes have moved:
//  - A short result continues at the last whole block, because direct I/O cannot start inside one.
//  - EINTR and EAGAIN repeat the call, at most kMaxRetries times in a row without progress.
//  - An edge write has two stages: it reads the block, patches the caller's bytes, and writes the
//    block. Bytes beyond the end of the file read as zeros.
#include "offload/aligned_transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::offload {
namespace {

// Limit of consecutive EINTR and EAGAIN results. Signals or a busy queue cause far fewer; the limit
// only makes sure that no call loops forever.
constexpr std::uint32_t kMaxRetries = 1000;

bool address_aligned(const std::byte* data, std::uint32_t alignment_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment_bytes == 0;
}

}  // namespace

PieceCursor::PieceCursor(const StorageRequest& request, DirectAlignment alignment,
                         std::uint64_t piece_bytes)
    : data_(static_cast<std::byte*>(request.data)),
      offset_(request.offset),
      bytes_(request.bytes),
      alignment_(alignment),
      piece_bytes_(std::max<std::uint64_t>(piece_bytes / alignment.offset_bytes, 1) *
                   alignment.offset_bytes) {}

bool PieceCursor::aligned() const {
  return offset_ % alignment_.offset_bytes == 0 && bytes_ % alignment_.offset_bytes == 0 &&
         address_aligned(data_, alignment_.memory_bytes);
}

Piece PieceCursor::peek() const {
  Piece piece;
  piece.data = data_;
  piece.offset = offset_;
  const std::uint64_t block = alignment_.offset_bytes;
  const std::uint64_t head = offset_ % block;
  if (head != 0 || bytes_ < block) {
    piece.kind = Piece::Kind::kEdge;
    piece.bytes = std::min(bytes_, block - head);
    piece.io_offset = offset_ - head;
    piece.io_bytes = block;
    return piece;
  }
  const bool direct = address_aligned(data_, alignment_.memory_bytes);
  const std::uint64_t limit = direct ? piece_bytes_ : kBounceBytes / block * block;
  piece.kind = direct ? Piece::Kind::kDirect : Piece::Kind::kBounced;
  piece.bytes = std::min(bytes_ / block * block, limit);
  piece.io_offset = offset_;
  piece.io_bytes = piece.bytes;
  return piece;
}

void PieceCursor::pop() {
  const std::uint64_t bytes = peek().bytes;
  data_ += bytes;
  offset_ += bytes;
  bytes_ -= bytes;
}

PieceTransfer::PieceTransfer(const Piece& piece, StorageOp op, DirectAlignment alignment,
                             std::byte* bounce)
    : piece_(piece),
      op_(op),
      stage_(op),
      buffer_(piece.kind == Piece::Kind::kDirect ? piece.data : bounce),
      bounced_(piece.kind != Piece::Kind::kDirect),
      block_bytes_(alignment.offset_bytes) {
  if (op_ == StorageOp::kRead || !bounced_) return;
  if (piece_.kind == Piece::Kind::kEdge) {
    stage_ = StorageOp::kRead;  // first half of read-modify-write
  } else {
    std::memcpy(buffer_, piece_.data, piece_.bytes);
  }
}

PieceTransfer::Call PieceTransfer::call() const {
  return {stage_, piece_.io_offset + moved_, buffer_ + moved_, piece_.io_bytes - moved_};
}

PieceTransfer::State PieceTransfer::advance(std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) {
    if (++retries_ <= kMaxRetries) return State::kContinue;
  }
  if (result < 0) {
    error_ = static_cast<int>(-result);
    return State::kFailed;
  }
  const auto got = std::min(static_cast<std::uint64_t>(result), piece_.io_bytes - moved_);
  const std::uint64_t reached = moved_ + got;
  const bool modify = op_ == StorageOp::kWrite && stage_ == StorageOp::kRead;
  // The last block of a file may end early, so a read needs only the caller's bytes. The read of an
  // edge write needs none: a block beyond the end reads as zeros.
  const std::uint64_t wanted = stage_ == StorageOp::kWrite
                                   ? piece_.io_bytes
                                   : piece_.offset - piece_.io_offset + piece_.bytes;
  if (reached == piece_.io_bytes || (op_ == StorageOp::kRead && reached >= wanted)) {
    return finish_stage();
  }
  if (modify) {
    // Two equal short reads of one block (or an empty one) mean that the file ends here. After the
    // first one, read again.
    if (got == 0 || got == short_read_bytes_) {
      std::memset(buffer_ + got, 0, piece_.io_bytes - got);
      return finish_stage();
    }
    short_read_bytes_ = got;
    ++resubmitted_;
    return ++retries_ <= kMaxRetries ? State::kContinue : State::kFailed;
  }
  // Short transfer: continue from the last whole block (direct I/O cannot start inside one).
  const std::uint64_t whole = reached / block_bytes_ * block_bytes_;
  retries_ = whole > moved_ ? 0 : retries_ + 1;
  if (got == 0 || retries_ > kMaxRetries) {
    error_ = 0;
    return State::kFailed;
  }
  moved_ = whole;
  ++resubmitted_;
  return State::kContinue;
}

PieceTransfer::State PieceTransfer::finish_stage() {
  const std::uint64_t inside = piece_.offset - piece_.io_offset;
  if (op_ == StorageOp::kRead) {
    if (bounced_) std::memcpy(piece_.data, buffer_ + inside, piece_.bytes);
    return State::kDone;
  }
  if (stage_ == StorageOp::kWrite) return State::kDone;
  std::memcpy(buffer_ + inside, piece_.data, piece_.bytes);
  stage_ = StorageOp::kWrite;
  moved_ = 0;
  retries_ = 0;
  return State::kContinue;
}

}  // namespace sluice::offload
