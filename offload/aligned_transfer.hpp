// Cutting requests into pieces that direct I/O accepts, and carrying one piece to its end.
//
// Pure bookkeeping, no system call: both engines share it, and tests drive it with made-up results.
//
//     caller:  |   edge |  direct or bounced  | direct or bounced | edge  |
//     file:  [ block    ][ blocks .................................. ][ block ]
//
// An edge is a part of one block; writing it means reading the block, changing the caller's bytes
// and writing it back, so two edge writes to one block must not run at once (the engines run one at
// a time). A middle piece covers whole blocks: direct when its address is aligned, else through a
// bounce buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "offload/storage_engine.hpp"
#include "offload/storage_file.hpp"

namespace sluice::offload {

// Of one bounce buffer; aligned to kMaxAlignmentBytes' divisors by being allocated page-aligned.
inline constexpr std::uint64_t kBounceBytes = 256 * 1024;

struct Piece {
  enum class Kind : std::uint8_t { kDirect, kBounced, kEdge };
  Kind kind = Kind::kDirect;
  std::byte* data = nullptr;  // the caller's bytes
  std::uint64_t offset = 0;   // of the caller's bytes in the file
  std::uint64_t bytes = 0;    // > 0
  std::uint64_t io_offset =
      0;  // the aligned range that goes to the file; holds [offset, offset + bytes)
  std::uint64_t io_bytes = 0;
};

class PieceCursor {
 public:
  // piece_bytes: the largest direct piece, a multiple of the alignment's offset_bytes.
  PieceCursor(const StorageRequest& request, DirectAlignment alignment, std::uint64_t piece_bytes);
  bool done() const { return bytes_ == 0; }
  Piece peek() const;  // not when done()
  void pop();
  void abandon() { bytes_ = 0; }
  // All pieces are direct.
  bool aligned() const;

 private:
  std::byte* data_;
  std::uint64_t offset_;
  std::uint64_t bytes_;  // that are not yet cut
  DirectAlignment alignment_;
  std::uint64_t piece_bytes_;
};

class PieceTransfer {
 public:
  enum class State : std::uint8_t { kContinue, kDone, kFailed };
  struct Call {
    StorageOp op;
    std::uint64_t offset;
    std::byte* data;
    std::uint64_t bytes;
  };

  PieceTransfer() = default;
  // bounce: at least piece.io_bytes, aligned; null for a direct piece. Takes the caller's bytes of
  // a bounced write at once.
  PieceTransfer(const Piece& piece, StorageOp op, DirectAlignment alignment, std::byte* bounce);

  // The system call to make next.
  Call call() const;
  // Its result: bytes moved, or -errno. kContinue: make call() again.
  State advance(std::int64_t result);
  // Whether call() may be made once more through the page cache: true the first time.
  bool take_buffered_retry() { return !std::exchange(buffered_retry_taken_, true); }

  // Why it failed: an errno, or 0 for a transfer that ends short (end of file).
  int error() const { return error_; }
  const Piece& piece() const { return piece_; }
  std::uint64_t resubmitted() const { return resubmitted_; }

 private:
  State finish_stage();

  Piece piece_;
  StorageOp op_ = StorageOp::kRead;
  StorageOp stage_ = StorageOp::kRead;
  std::byte* buffer_ = nullptr;
  bool bounced_ = false;
  bool buffered_retry_taken_ = false;
  std::uint32_t block_bytes_ = 1;
  std::uint32_t retries_ = 0;           // of calls in a row that moved nothing
  std::uint64_t moved_ = 0;             // of piece_.io_bytes, in this stage
  std::uint64_t short_read_bytes_ = 0;  // of the read before a modification; 0: none
  std::uint64_t resubmitted_ = 0;
  int error_ = 0;
};

}  // namespace sluice::offload
