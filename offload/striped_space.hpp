// The storage tier as one linear space of bytes, striped over several paths.
//
// Byte b of the space lies in stripe b / kStripeBytes; stripe s lies on path s mod paths. Files are
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

namespace sluice {

class StripedSpace {
 public:
  static constexpr std::uint64_t kStripeBytes = 4 * kMiB;

  // Makes one file per path. bytes may be 0: no files, and engine may be null. Throws OutOfMemory
  // (ledger), InputError (a path cannot be written or is too small, needed and available bytes
  // named), IoError.
  StripedSpace(StorageEngine* engine, Ledger& ledger, const std::vector<std::string>& paths,
               std::uint64_t bytes, const RunId& run, bool kept = false);
  // A space that an earlier run kept, for reading: its files in the order of their paths. Charges
  // nothing. Throws InputError where a file is missing or of another size than the space has there.
  StripedSpace(StorageEngine& engine, const std::vector<std::string>& files, std::uint64_t bytes);
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
  // How names of files end that stay: those of scratch files that a crash left are anybody's to
  // remove.
  static constexpr const char* kKeptSuffix = ".durable";
  static constexpr const char* kScratchSuffix = ".state";

 private:
  struct File {
    StorageFileId id;
    std::string path;
  };
  std::size_t file_at(std::uint64_t offset) const { return offset / kStripeBytes % files_.size(); }
  std::uint64_t offset_in_file(std::uint64_t offset) const {
    return offset / kStripeBytes / files_.size() * kStripeBytes + offset % kStripeBytes;
  }

  StorageEngine* engine_;
  Reservation charge_;
  std::uint64_t bytes_;
  std::vector<File> files_;
};

}  // namespace sluice
