// The commit log of a durable run: a file with two record areas, written in turn.
//
// A record names a state that is already on the disk; it counts only if it is complete. The
// file has a header of 8 KiB and two areas of equal size:
//
//     [ header, 8 KiB | area 0: records 2, 4, ... | area 1: records 1, 3, ... ]
//
// Record n goes to area n mod 2, so a torn write of one record leaves the previous one. A frame is
// magic, sequence number, length (u64, little-endian), the XXH3-128 of these and of the text, and
// the text. The header has the same frame, with the file's size as its number. Its text says where
// the log was made, which tells the log from a copy; it is on the disk before the first record.
// Reading treats the file as untrusted: an area that does not verify holds no record, but it does
// not count as blank either. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/storage_engine.hpp"
#include "offload/tagged_space.hpp"

namespace sluice::offload {

// XXH3-128 (github.com/Cyan4973/xxHash). It detects accidents, not attacks.
struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};
Digest128 digest_of(const void* data, std::size_t bytes);
// Digest of a list of block tags, in order.
Digest128 digest_of(std::span<const BlockTag> tags);

class StateLog {
 public:
  // Largest record that is read, in bytes; manifests have the same bound.
  static constexpr std::uint64_t kMostRecordBytes = 16u << 20;

  // Creates `path` (mode 0600; it must not exist) with a size of `bytes`, and makes its name
  // durable. Errors: those of StorageEngine::open, and IoError.
  StateLog(StorageEngine& engine, std::string path, std::uint64_t bytes);
  ~StateLog();
  StateLog(const StateLog&) = delete;
  StateLog& operator=(const StateLog&) = delete;

  // Returns the size of a log file with room for records of `record_bytes`.
  static std::uint64_t file_bytes(std::uint64_t record_bytes);
  const std::string& path() const { return path_; }
  // Writes and flushes one record; it is on the disk on return. After a failure every later call
  // throws: a failed flush leaves the file in an unknown state, and the previous record must stay.
  // Errors: IoError, TimeoutError; InternalError if the record is longer than an area.
  void append(std::string_view record);

  struct Record {
    std::uint64_t sequence = 0;
    std::string text;
  };
  // The file that the log was created as.
  struct Origin {
    std::string path;  // absolute
    std::string id;    // file_id (offload/storage_file.hpp)
  };
  struct Contents {
    std::vector<Record> records;  // the valid ones, newest first
    // Empty if the run was killed before it wrote the header, or if an old version made the log.
    std::optional<Origin> origin;
    // Areas with bytes that are no record: torn by a crash, damaged later, or written by another
    // version of this format.
    std::uint32_t unreadable_areas = 0;
    // The file has the size that it was created with, and is not empty.
    bool whole = false;
    // Only a full-size log with zeroed record areas proves that nothing was committed.
    bool blank() const { return whole && records.empty() && unreadable_areas == 0; }
    // The file has no bytes: the run was killed while it created the log, before it created any
    // data file, or the contents were lost.
    bool empty() const { return !whole && records.empty() && unreadable_areas == 0; }
  };
  // Reads the log at `path`, also an old one without a header. Throws InputError or IoError if the
  // file cannot be read.
  static Contents read(StorageEngine& engine, const std::string& path);

 private:
  static std::uint64_t area_bytes_of(std::uint64_t file_bytes);
  void write_header(std::uint64_t file_bytes);

  StorageEngine& engine_;
  std::string path_;
  std::uint64_t area_bytes_;
  StorageFileId file_;
  std::uint64_t next_ = 1;
  bool failed_ = false;
};

}  // namespace sluice::offload
