// Cuts requests into pieces that direct I/O accepts, and carries one piece to its end.
//
// This is pure bookkeeping without system calls. Both engines share it, and tests drive it with
// made-up results.
//
//     caller:  |   edge |  direct or bounced  | direct or bounced | edge  |
//     file:  [ block    ][ blocks .................................. ][ block ]
//
// An edge covers part of one block. Writing it reads the block, changes the caller's bytes and
// writes the block back. Two edge writes to one block must therefore not run at once; the engines
// run one edge write at a time. A middle piece covers whole blocks. It is direct when its address
// is aligned, and otherwise goes through a bounce buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "offload/storage_engine.hpp"
#include "offload/storage_file.hpp"

namespace sluice::offload {

// Size of one bounce buffer. Buffers are page-aligned, which satisfies every supported alignment.
inline constexpr std::uint64_t kBounceBytes = 256 * 1024;

struct Piece {
  enum class Kind : std::uint8_t { kDirect, kBounced, kEdge };
  Kind kind = Kind::kDirect;
  std::byte* data = nullptr;  // the caller's bytes
  std::uint64_t offset = 0;   // file offset of the caller's bytes
  std::uint64_t bytes = 0;    // > 0
  // The aligned file range of the system call; contains [offset, offset + bytes).
  std::uint64_t io_offset = 0;
  std::uint64_t io_bytes = 0;
};

class PieceCursor {
 public:
  // piece_bytes: the largest direct piece, a multiple of the alignment's offset_bytes.
  PieceCursor(const StorageRequest& request, DirectAlignment alignment, std::uint64_t piece_bytes);
  bool done() const { return bytes_ == 0; }
  Piece peek() const;  // precondition: !done()
  void pop();
  void abandon() { bytes_ = 0; }
  // Whether every remaining piece is direct.
  bool aligned() const;

 private:
  std::byte* data_;
  std::uint64_t offset_;
  std::uint64_t bytes_;  // not cut yet
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
  // bounce: at least piece.io_bytes, aligned; null for a direct piece. The constructor copies the
  // caller's bytes of a bounced write.
  PieceTransfer(const Piece& piece, StorageOp op, DirectAlignment alignment, std::byte* bounce);

  // Returns the system call to make next.
  Call call() const;
  // Takes the result of that call: bytes moved, or -errno. kContinue: make call() again.
  State advance(std::int64_t result);
  // Whether call() may be repeated through the page cache. Returns true only the first time.
  bool take_buffered_retry() { return !std::exchange(buffered_retry_taken_, true); }

  // The reason of kFailed: an errno, or 0 for a transfer that ended short (end of file).
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
  std::uint32_t retries_ = 0;           // consecutive calls that moved nothing
  std::uint64_t moved_ = 0;             // bytes of piece_.io_bytes moved in this stage
  std::uint64_t short_read_bytes_ = 0;  // length of the last short read of an edge block; 0: none
  std::uint64_t resubmitted_ = 0;
  int error_ = 0;
};

}  // namespace sluice::offload
