// The commits of a durable run: a file of two records, written in turn.
//
// A record names a state whose bytes are on the disk already; it counts when it is whole. The file
// has a header of 8 KiB and two areas of equal size. Record n goes to area n mod 2, so a torn write
// of one leaves the one before. Frame: magic, sequence number, length (u64, little-endian),
// XXH3-128 of these and of the text, the text. The header is framed alike, with the file's size for
// a number; it says where the log was made, so that a copy is told from it, and is on the disk
// before the first record. Read as untrusted: what does not verify is no record, but no blank area
// either. Threads: one at a time.
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

// XXH3-128 (github.com/Cyan4973/xxHash): detects accidents, not attacks.
struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const Digest128&) const = default;
};
Digest128 digest_of(const void* data, std::size_t bytes);
// Of a list of blocks' tags, in order.
Digest128 digest_of(std::span<const BlockTag> tags);

class StateLog {
 public:
  // Records are read as manifests are, of at most so many bytes.
  static constexpr std::uint64_t kMostRecordBytes = 16u << 20;

  // Creates `path` (mode 0600; it must not exist) with `bytes`, and makes its name durable. Errors:
  // as StorageEngine::open; IoError.
  StateLog(StorageEngine& engine, std::string path, std::uint64_t bytes);
  ~StateLog();
  StateLog(const StateLog&) = delete;
  StateLog& operator=(const StateLog&) = delete;

  // What the file of a log takes that has room for records of `record_bytes`.
  static std::uint64_t file_bytes(std::uint64_t record_bytes);
  const std::string& path() const { return path_; }
  // On the disk when it returns. Once it has thrown it throws for ever: what a failed flush leaves
  // is unknown, and the record before must stay. Errors: IoError, TimeoutError; InternalError where
  // the record is longer than there is room for.
  void append(std::string_view record);

  struct Record {
    std::uint64_t sequence = 0;
    std::string text;
  };
  // Which file a log was made as.
  struct Origin {
    std::string path;  // absolute
    std::string id;    // file_id (offload/storage_file.hpp)
  };
  struct Contents {
    std::vector<Record> records;  // newest first, those that verify
    // None: of a log that was killed before its header was written, or of an old version.
    std::optional<Origin> origin;
    // Areas that hold something which is no record: cut short when it was written, damaged since,
    // or of another version of this format.
    std::uint32_t unreadable_areas = 0;
    // Of the size that it was made with, and not empty.
    bool whole = false;
    // That nothing was ever committed here is known only of a whole log without a byte in its
    // areas.
    bool blank() const { return whole && records.empty() && unreadable_areas == 0; }
    // Not a byte is left, or none was ever there: of a run that was killed as it made it, whose
    // data were not made yet.
    bool empty() const { return !whole && records.empty() && unreadable_areas == 0; }
  };
  // Of the log at `path`; of an old one without a header, too. InputError or IoError where the file
  // cannot be read.
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
