// The storage tier as one linear space of bytes, striped over several paths.
//
// Which path holds which stripe is a StripeLayout, fixed for the life of the files. Files are
// preallocated, so a full disk is an error at start, and named for the run, so that runs that share
// a path never meet. Scratch files are unlinked at once: nothing is left behind, whatever happens.
// Kept files stay. The ledger is charged before any file is made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "allocator/ledger.hpp"
#include "base/run_id.hpp"
#include "base/units.hpp"
#include "offload/storage_engine.hpp"
#include "offload/stripe_layout.hpp"

namespace sluice::offload {

class StripedSpace {
 public:
  static constexpr std::uint64_t kStripeBytes = StripeLayout::kStripeBytes;

  // Makes one file per path. bytes may be 0: no files, and engine may be null. shares: stripes of
  // each path in a round (StripeLayout); empty: as many on each. Throws OutOfMemory
  // (ledger), InputError (a path cannot be written or is too small, needed and available bytes
  // named), IoError.
  StripedSpace(StorageEngine* engine, allocator::Ledger& ledger, const std::vector<std::string>& paths,
               std::uint64_t bytes, const RunId& run, bool kept = false,
               const std::vector<std::uint32_t>& shares = {});
  // A space that an earlier run kept, for reading: its files in the order of their paths, with
  // the shares that it had. Charges nothing. Throws InputError where a file is missing or of
  // another size than the space has there.
  StripedSpace(StorageEngine& engine, const std::vector<std::string>& files, std::uint64_t bytes,
               const std::vector<std::uint32_t>& shares = {});
  ~StripedSpace();
  StripedSpace(const StripedSpace&) = delete;
  StripedSpace& operator=(const StripedSpace&) = delete;

  // Moves [offset, offset + bytes) of the space; `done` runs once, after the last part, with the
  // first error or null (on the engine's completion thread). needed_by: as in StorageRequest.
  void submit(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes,
              StorageEngine::Callback done, std::uint64_t needed_by = 0);
  // Submits and waits; throws the error.
  void transfer(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes);

  // The file that holds a byte of the space, and where in it.
  struct Location {
    std::string path;
    std::uint64_t offset_bytes = 0;
  };
  Location locate(std::uint64_t offset) const;

  // fdatasync of every file, one after another: covers the writes that have ended. IoError; never
  // retried.
  void flush();

  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::string> file_paths() const;
  // Of each path, in their order; where there are no files, of one.
  const std::vector<std::uint32_t>& shares() const { return layout_.shares(); }
  // How names of files end that stay: those of scratch files that a crash left are anybody's to
  // remove.
  static constexpr const char* kKeptSuffix = ".durable";
  static constexpr const char* kScratchSuffix = ".state";

 private:
  struct File {
    StorageFileId id;
    std::string path;
  };
  StorageEngine* engine_;
  allocator::Reservation charge_;
  std::uint64_t bytes_;
  StripeLayout layout_;
  std::vector<File> files_;
};

}  // namespace sluice::offload
