// One file of a storage engine: created with all of its space, opened for direct I/O where the file
// system has it, closed with exactly the size that was asked for.
//
// Not thread-safe, but for direct(), stop_direct() and sync(), which any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/mutex.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::offload {

// What direct I/O wants of an address and of a file offset and length; {1, 1}: anything goes.
struct DirectAlignment {
  std::uint32_t memory_bytes = 1;
  std::uint32_t offset_bytes = 1;
};

// Alignment where the kernel does not tell it (before Linux 6.1, and on some file systems): the
// page size, a multiple of every logical block size in use.
inline constexpr std::uint32_t kFallbackAlignmentBytes = 4096;
// A file that wants more than this is used through the page cache (bounce buffers are small).
inline constexpr std::uint32_t kMaxAlignmentBytes = 64 * 1024;

// What tells a file from its copies: device and inode, in kFileIdDigits of hex; empty where there
// is no file.
inline constexpr std::size_t kFileIdDigits = 32;
std::string file_id(const std::string& path);

// Makes the name of a file that was created durable: fsync of its directory. IoError.
void sync_directory_of(const std::string& path);

class StorageFile {
 public:
  // `bytes` as in StorageEngine::open, with its errors; kReadOnly takes the file's own size, and
  // follows no symbolic link that the path ends in. When
  // it throws, no new file is left behind.
  StorageFile(std::string path, StorageFileMode mode, std::uint64_t bytes);
  ~StorageFile();
  StorageFile(const StorageFile&) = delete;
  StorageFile& operator=(const StorageFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  bool writable() const { return mode_ != StorageFileMode::kReadOnly; }
  std::uint64_t allocated_bytes() const { return writable() ? bytes_ : 0; }

  bool direct() const { return direct_.load(); }
  // Fixed at open: a file that loses O_DIRECT later goes on with aligned transfers.
  DirectAlignment alignment() const { return alignment_; }
  // Goes over to the page cache (the file system refused direct I/O at a transfer). IoError.
  void stop_direct();

  // Cuts what the last block's write may have added beyond bytes(), then fdatasync. IoError. Once
  // it has failed, it fails for ever: the state of the pages is unknown after a failed fdatasync.
  void sync();
  // Cuts to bytes() and closes. IoError.
  void close();

 private:
  void open_descriptor();
  void preallocate();
  void find_alignment();
  void trim();
  void abandon() noexcept;

  std::string path_;
  StorageFileMode mode_;
  std::uint64_t bytes_;
  int descriptor_ = -1;
  std::atomic<bool> direct_ = false;
  DirectAlignment alignment_;
  Mutex sync_mutex_;
  int sync_error_ SLUICE_GUARDED_BY(sync_mutex_) = 0;
};

}  // namespace sluice::offload
