// One file of a storage engine. It is created with all of its space, opened for direct I/O where
// the file system supports it, and closed with exactly the requested size.
//
// Not thread-safe, except direct(), stop_direct() and sync().
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/mutex.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::offload {

// Alignment that direct I/O requires of addresses and of file offsets and lengths; {1, 1}: none.
struct DirectAlignment {
  std::uint32_t memory_bytes = 1;
  std::uint32_t offset_bytes = 1;
};

// Alignment to assume where the kernel does not report it (before Linux 6.1, and on some file
// systems): the page size, a multiple of every logical block size in use.
inline constexpr std::uint32_t kFallbackAlignmentBytes = 4096;
// A file that requires more than this uses the page cache, because bounce buffers are small.
inline constexpr std::uint32_t kMaxAlignmentBytes = 64 * 1024;

// Identifies a file among its copies: device and inode as kFileIdDigits hex digits. Empty if the
// file does not exist.
inline constexpr std::size_t kFileIdDigits = 32;
std::string file_id(const std::string& path);

// Makes the name of a created file durable with an fsync of its directory. Throws IoError.
void sync_directory_of(const std::string& path);

class StorageFile {
 public:
  // Opens or creates the file; `bytes` and errors as in StorageEngine::open. kReadOnly takes the
  // size of the file and refuses a symbolic link as the last part of the path. If the constructor
  // throws, it leaves no new file.
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
  // Fixed at open; a file that loses O_DIRECT later keeps aligned transfers.
  DirectAlignment alignment() const { return alignment_; }
  // Switches to the page cache after the file system refused a direct transfer. Throws IoError.
  void stop_direct();

  // Cuts bytes that a write of the last block added beyond bytes(), then calls fdatasync. Throws
  // IoError. After a failure every later call fails, because the state of the pages is unknown.
  void sync();
  // Cuts the file to bytes() and closes it. Throws IoError.
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
