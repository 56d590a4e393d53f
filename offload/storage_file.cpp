// Files with preallocated space and direct I/O.
//
// Creation checks the free space first and then calls fallocate, so a full disk is an error at the
// start of a run and not in its middle. Direct I/O is a property of each file: statx reports the
// alignment, and fcntl sets O_DIRECT after the file exists. Writes of whole blocks may extend a
// file beyond its size; sync() and close() cut it back. A failed fdatasync is final, because the
// kernel may have dropped the dirty pages (see "Can applications recover from fsync failures?",
// USENIX ATC 2020).
#include "offload/storage_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.hpp"
#include "base/open_beneath.hpp"

namespace sluice::offload {
namespace {

// off_t is signed, so no file is longer.
constexpr std::uint64_t kMaxFileBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void throw_no_room(const std::string& path, std::uint64_t needed,
                                std::uint64_t available) {
  throw InputError("storage file '" + path + "' needs " + std::to_string(needed) + " bytes, and " +
                   std::to_string(available) + " bytes are available there");
}

// Returns the free bytes of the descriptor's file system, limited by this process's RLIMIT_FSIZE.
std::uint64_t available_bytes(int descriptor, const std::string& path) {
  struct statvfs facts {};
  if (::fstatvfs(descriptor, &facts) != 0) throw IoError("statvfs", path, 0, 0, errno);
  std::uint64_t available = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) throw IoError("getrlimit", path, 0, 0, errno);
  if (limit.rlim_cur != RLIM_INFINITY) {
    available = std::min<std::uint64_t>(available, limit.rlim_cur);
  }
  return available;
}

// Errors that the user can mend by another path or permission are InputError, others IoError.
[[noreturn]] void throw_open_failed(const std::string& path, bool reading, int error) {
  const std::string reason = std::strerror(error);
  switch (error) {
    case EEXIST:
      throw InputError("storage file '" + path + "' exists already; remove it or name another");
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:  // a symbolic link at the end of a path that is read
    case EXDEV:
      if (reading) throw InputError("file '" + path + "' cannot be read: " + reason);
      throw InputError("directory '" + directory_of(path) + "' cannot hold the storage file '" +
                       path + "': " + reason);
    case ENOSPC:
    case EDQUOT:
      throw InputError("directory '" + directory_of(path) + "' has no room for the storage file '" +
                       path + "': " + reason);
    default:
      throw IoError("open", path, 0, 0, error);
  }
}

}  // namespace

std::string file_id(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  std::array<char, kFileIdDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64 "%016" PRIx64,
                std::uint64_t{status.st_dev}, std::uint64_t{status.st_ino});
  return digits.data();
}

void sync_directory_of(const std::string& path) {
  const std::string directory = directory_of(path);
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw IoError("open", directory, 0, 0, errno);
  const int status = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (status != 0) throw IoError("fsync", directory, 0, 0, error);
}

StorageFile::StorageFile(std::string path, StorageFileMode mode, std::uint64_t bytes)
    : path_(std::move(path)), mode_(mode), bytes_(bytes) {
  open_descriptor();
  try {
    if (writable()) preallocate();
    find_alignment();
  } catch (...) {
    abandon();
    throw;
  }
}

StorageFile::~StorageFile() {
  if (descriptor_ < 0) return;
  try {
    close();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
  }
}

void StorageFile::open_descriptor() {
  // openat2 returns EAGAIN if a rename happened meanwhile.
  constexpr int kMostAttempts = 100;
  // O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
  const int flags = O_CLOEXEC | (writable() ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY | O_NONBLOCK);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (writable()) {
      descriptor_ = ::open(path_.c_str(), flags, 0600);
      if (descriptor_ < 0) descriptor_ = -errno;
    } else {
      // The name may come from a record that another user wrote, so links are not followed.
      descriptor_ = open_beneath(directory_of(path_), name_of(path_), flags);
    }
    if (descriptor_ != -EINTR && descriptor_ != -EAGAIN) break;
  }
  if (descriptor_ < 0) throw_open_failed(path_, !writable(), -std::exchange(descriptor_, -1));
  if (mode_ == StorageFileMode::kScratch && ::unlink(path_.c_str()) != 0) {
    const int error = errno;
    abandon();
    throw IoError("unlink", path_, 0, 0, error);
  }
  if (!writable()) {
    struct stat facts {};
    const bool known = ::fstat(descriptor_, &facts) == 0;
    if (known && S_ISREG(facts.st_mode)) {
      bytes_ = static_cast<std::uint64_t>(facts.st_size);
      return;
    }
    const int error = errno;
    abandon();
    if (known) throw InputError("file '" + path_ + "' is not a regular file");
    throw IoError("stat", path_, 0, 0, error);
  }
}

void StorageFile::preallocate() {
  if (bytes_ == 0) return;
  // Check before fallocate: it raises SIGXFSZ above RLIMIT_FSIZE and fills the disk before it
  // fails.
  const std::uint64_t available = available_bytes(descriptor_, path_);
  if (bytes_ > available || bytes_ > kMaxFileBytes) throw_no_room(path_, bytes_, available);
  const auto length = static_cast<off_t>(bytes_);
  int status = 0;
  // A signal may interrupt fallocate on a large file.
  do {
    status = ::fallocate(descriptor_, 0, 0, length);
  } while (status != 0 && errno == EINTR);
  if (status == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    throw_no_room(path_, bytes_, available_bytes(descriptor_, path_));
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw IoError("fallocate", path_, 0, bytes_, errno);
  // This file system cannot reserve space. Set the size at least.
  log(LogLevel::kWarning,
      "the file system of '" + path_ +
          "' cannot preallocate; a full disk will be noticed only when a write fails");
  if (::ftruncate(descriptor_, length) != 0) throw IoError("ftruncate", path_, 0, bytes_, errno);
}

void StorageFile::find_alignment() {
  DirectAlignment wanted{kFallbackAlignmentBytes, kFallbackAlignmentBytes};
#ifdef STATX_DIOALIGN
  struct statx facts {};
  if (::statx(descriptor_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0) {
    wanted = {facts.stx_dio_mem_align, facts.stx_dio_offset_align};
  }
#endif
  const auto usable = [](std::uint32_t value) { return value > 0 && value <= kMaxAlignmentBytes; };
  if (!usable(wanted.memory_bytes) || !usable(wanted.offset_bytes)) return;
  // Set after creation: open(O_CREAT | O_DIRECT) may create the file and then fail.
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0) throw IoError("fcntl", path_, 0, 0, errno);
  if (::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) {
    if (errno == EINVAL || errno == EOPNOTSUPP) return;
    throw IoError("fcntl", path_, 0, 0, errno);
  }
  alignment_ = wanted;
  direct_ = true;
}

void StorageFile::stop_direct() {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) != 0) {
    throw IoError("fcntl", path_, 0, 0, errno);
  }
  direct_ = false;
}

// Direct writes of the last block may have made the file longer than bytes_.
void StorageFile::trim() {
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) throw IoError("stat", path_, 0, 0, errno);
  if (static_cast<std::uint64_t>(facts.st_size) <= bytes_) return;
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) {
    throw IoError("ftruncate", path_, 0, bytes_, errno);
  }
}

void StorageFile::sync() {
  const MutexLock lock(sync_mutex_);
  if (sync_error_ != 0) throw IoError("fdatasync", path_, 0, bytes_, sync_error_);
  if (writable()) trim();
  if (::fdatasync(descriptor_) != 0) {
    sync_error_ = errno;
    throw IoError("fdatasync", path_, 0, bytes_, sync_error_);
  }
}

void StorageFile::close() {
  const int descriptor = descriptor_;
  try {
    if (mode_ == StorageFileMode::kCreate) trim();
  } catch (...) {
    descriptor_ = -1;
    ::close(descriptor);
    throw;
  }
  descriptor_ = -1;
  // Linux closes the descriptor even when it returns EINTR.
  if (::close(descriptor) != 0 && errno != EINTR) throw IoError("close", path_, 0, 0, errno);
}

void StorageFile::abandon() noexcept {
  ::close(descriptor_);
  descriptor_ = -1;
  if (mode_ == StorageFileMode::kCreate) ::unlink(path_.c_str());
}

}  // namespace sluice::offload
