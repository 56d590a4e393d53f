// The storage tier as one linear space of bytes, striped over several paths.
//
// Byte b of the space lies in stripe b / kStripeBytes; stripe s lies on path s mod paths. Files are
// preallocated, so a full disk is an error at start. Scratch files are unlinked at once: nothing is
// left behind, whatever happens. Kept files have names and stay. The ledger is charged before any
// file is made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "allocator/ledger.hpp"
#include "base/units.hpp"
#include "offload/storage_engine.hpp"

namespace sluice {

class StripedSpace {
 public:
  static constexpr std::uint64_t kStripeBytes = 4 * kMiB;

  // Makes one file per path. bytes may be 0: no files, and engine may be null. Throws OutOfMemory
  // (ledger), InputError (a path cannot be written or is too small, needed and available bytes
  // named), IoError.
  // kept_as: names the run in the files' names, which then stay; empty: scratch.
  StripedSpace(StorageEngine* engine, Ledger& ledger, const std::vector<std::string>& paths,
               std::uint64_t bytes, const std::string& kept_as = {});
  // A space that an earlier run kept, for reading: its files in the order of their paths. Charges
  // nothing. Throws InputError where a file is missing or of another size than the space has there.
  StripedSpace(StorageEngine& engine, const std::vector<std::string>& files, std::uint64_t bytes);
  ~StripedSpace();
  StripedSpace(const StripedSpace&) = delete;
  StripedSpace& operator=(const StripedSpace&) = delete;

  // Moves [offset, offset + bytes) of the space; `done` runs once, after the last part, with the
  // first error or null (on the engine's completion thread).
  void submit(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes,
              StorageEngine::Callback done);
  // Submits and waits; throws the error.
  void transfer(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes);

  // fdatasync of every file, one after another: covers the writes that have ended. IoError; never
  // retried.
  void flush();

  std::uint64_t bytes() const { return bytes_; }
  // Where kept files lie; empty for scratch.
  const std::vector<std::string>& kept_files() const { return kept_files_; }
  // The name of a kept file of the run `kept_as` in the directory `path`, the index-th of all.
  static std::string kept_file(const std::string& path, const std::string& kept_as,
                               std::size_t index);

 private:
  StorageEngine* engine_;
  Reservation charge_;
  std::uint64_t bytes_;
  std::vector<StorageFileId> files_;
  std::vector<std::string> kept_files_;
};

}  // namespace sluice
