#include "base/posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/open_beneath.hpp"
#include "base/units.hpp"

namespace sluice {

namespace {

// One pread or pwrite moves at most 0x7ffff000 bytes (read(2)). This limit is below, page-aligned.
constexpr std::size_t kMaxTransferBytes = 1u << 30;

struct stat status_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw IoError("fstat", path, 0, 0, errno);
  return status;
}

}  // namespace

PosixFile PosixFile::open_read(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw IoError("open", path, 0, 0, errno);
  return regular(descriptor, path);
}

PosixFile PosixFile::open_read_beneath(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  const int descriptor = open_beneath(directory, name, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) throw IoError("open", path, 0, 0, -descriptor);
  return regular(descriptor, path);
}

PosixFile PosixFile::regular(int descriptor, const std::string& path) {
  PosixFile file(descriptor, path);
  const struct stat status = status_of(descriptor, path);
  if (S_ISDIR(status.st_mode)) throw IoError("open", path, 0, 0, EISDIR);
  if (!S_ISREG(status.st_mode)) throw IoError("open", path, 0, 0, EINVAL);
  return file;
}

PosixFile PosixFile::create(const std::string& path) {
  // O_NOFOLLOW: through a link the call would truncate another file.
  const int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  const int descriptor = ::open(path.c_str(), flags, 0600);
  if (descriptor < 0) throw IoError("create", path, 0, 0, errno);
  PosixFile file(descriptor, path);
  // open() applies its mode to new files only; an existing file may have been readable by all.
  const bool regular = S_ISREG(status_of(descriptor, path).st_mode);
  if (regular && ::fchmod(descriptor, 0600) != 0) throw IoError("chmod", path, 0, 0, errno);
  return file;
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t PosixFile::size_bytes() const {
  return static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size);
}

std::size_t PosixFile::read_some(std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const std::size_t ask = std::min(into.size() - done, kMaxTransferBytes);
    const ssize_t got =
        ::pread(descriptor_, into.data() + done, ask, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("read", path_, offset + done, ask, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void PosixFile::read_exact(std::uint64_t offset, std::span<std::byte> into) const {
  const std::size_t done = read_some(offset, into);
  if (done != into.size()) throw IoError("read", path_, offset + done, into.size() - done, 0);
}

void PosixFile::write_all(std::uint64_t offset, std::span<const std::byte> from) {
  std::size_t done = 0;
  while (done < from.size()) {
    const std::size_t ask = std::min(from.size() - done, kMaxTransferBytes);
    const ssize_t put =
        ::pwrite(descriptor_, from.data() + done, ask, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw IoError("write", path_, offset + done, ask, errno);
    if (put == 0) throw IoError("write", path_, offset + done, ask, 0);
    done += static_cast<std::size_t>(put);
  }
}

void PosixFile::sync() {
  if (::fsync(descriptor_) != 0) throw IoError("fsync", path_, 0, 0, errno);
}

void check_replaceable(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  const mode_t mode = status.st_mode;
  if (S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode)) return;
  throw InputError("'" + shown(path) +
                   "' is a device, a FIFO or a socket, which a file would replace; name a file");
}

void rename_durably(const std::string& from, const std::string& to) {
  check_replaceable(to);
  if (std::rename(from.c_str(), to.c_str()) != 0) throw IoError("rename", from, 0, 0, errno);
  const auto slash = to.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : to.substr(0, slash + 1);
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw IoError("open", directory, 0, 0, errno);
  const int status = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  if (status != 0) throw IoError("fsync", directory, 0, 0, error_number);
}

std::filesystem::path normal_path(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

void make_directories(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path made;
  for (const fs::path& part : fs::absolute(path).lexically_normal()) {
    made /= part;
    if (::mkdir(made.c_str(), 0700) == 0) continue;
    // EROFS or EACCES: the parent of an existing directory need not be writable.
    const int error = errno;
    std::error_code status;
    if (!fs::is_directory(made, status)) throw IoError("mkdir", made.string(), 0, 0, error);
  }
}

std::string hash_file(const std::string& path) {
  return hash_file(PosixFile::open_read(path));
}

std::string hash_file(const PosixFile& file) {
  std::vector<std::byte> buffer(kMiB);
  Digest digest;
  std::uint64_t offset = 0;
  while (const std::size_t got = file.read_some(offset, buffer)) {
    digest.update(buffer.data(), got);
    offset += got;
  }
  return digest.finish().hex();
}

}  // namespace sluice
