// The storage tier as one linear byte space, striped over several paths.
//
// A StripeLayout fixes the path of each stripe for the life of the files. Files are preallocated,
// so a full disk is an error at the start. Their names contain the run id, so runs that share a
// path use different files. Scratch files are unlinked at once; a crash leaves none. Kept files
// stay. The ledger is charged before any file is created.
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

  // Creates one file per path. bytes may be 0: there are no files then, and engine may be null.
  // shares: stripes of each path in a round (StripeLayout); empty: equal shares. Throws OutOfMemory
  // (ledger), InputError (a path is not writable or too small, with needed and available bytes),
  // IoError.
  StripedSpace(StorageEngine* engine, allocator::Ledger& ledger,
               const std::vector<std::string>& paths, std::uint64_t bytes, const RunId& run,
               bool kept = false, const std::vector<std::uint32_t>& shares = {});
  // Opens the kept space of an earlier run for reading: its files in the order of their paths, and
  // its shares. Charges nothing. Throws InputError if a file is missing or has the wrong size.
  StripedSpace(StorageEngine& engine, const std::vector<std::string>& files, std::uint64_t bytes,
               const std::vector<std::uint32_t>& shares = {});
  ~StripedSpace();
  StripedSpace(const StripedSpace&) = delete;
  StripedSpace& operator=(const StripedSpace&) = delete;

  // Moves [offset, offset + bytes) of the space. `done` runs once, after the last part, with the
  // first error or null, on the engine's completion thread. needed_by: as in StorageRequest.
  void submit(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes,
              StorageEngine::Callback done, std::uint64_t needed_by = 0);
  // Submits, waits, and throws the error.
  void transfer(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes);

  // The file that holds a byte of the space, and the byte's offset in it.
  struct Location {
    std::string path;
    std::uint64_t offset_bytes = 0;
  };
  Location locate(std::uint64_t offset) const;

  // Calls fdatasync for every file in turn; covers the writes that have ended. Throws IoError. A
  // failed flush is never retried.
  void flush();

  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::string> file_paths() const;
  // Shares of the paths, in order; those of one path if there are no files.
  const std::vector<std::uint32_t>& shares() const { return layout_.shares(); }
  // Suffixes of file names. A scratch file that a crash left may be removed by anyone.
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
