// A regular file: exact reads, whole writes, durable rename. Every system call's status is checked.
//
// For bulk reads and writes outside of steps: data, checkpoints, exports. (State that streams
// through a step uses offload/storage_engine.hpp.)
// Thread rule: read_exact and write_all may be called by several threads at once on one file.
// Errors: IoError with the path, the offset and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace sluice {

class PosixFile {
 public:
  // Throws IoError("open"), also if the path is not a regular file.
  static PosixFile open_read(const std::string& path);
  // Opens an untrusted name beneath `directory` (base/open_beneath.hpp).
  static PosixFile open_read_beneath(const std::string& directory, const std::string& name);
  // Creates the file (mode 0600, so that only its owner can read a model) or truncates it.
  static PosixFile create(const std::string& path);

  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();  // closes; data written before sync() is durable

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const;

  // Fills all of `into`. Throws IoError with errno 0 if the file ends before.
  void read_exact(std::uint64_t offset, std::span<std::byte> into) const;
  // Reads up to the end of the file, at most into.size() bytes. Returns their number.
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const;
  void write_all(std::uint64_t offset, std::span<const std::byte> from);
  // Calls fsync. A failure is never retried, because the state of the pages is then unknown.
  void sync();

 private:
  static PosixFile regular(int descriptor, const std::string& path);
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::string path_;
};

// Refuses (InputError) a path whose entry is a device node, a FIFO or a socket: renaming a file
// over it would destroy it. Call before a file is written next to `path`, so that nothing is
// written in vain.
void check_replaceable(const std::string& path);
// Renames a file and makes the rename durable (fsync of the directory of `to`). Both paths must be
// in one file system. Refuses `to` as check_replaceable() does.
void rename_durably(const std::string& from, const std::string& to);

// The path as absolute, without ".", ".." and a final slash. Two spellings of one path become
// equal; symbolic links are not resolved.
std::filesystem::path normal_path(const std::string& path);

// Makes the directory and its missing parents, each with mode 0700; existing directories keep their
// mode. Throws IoError.
void make_directories(const std::string& path);

// XXH3-128 of a file's bytes, 32 hex digits; reads 1 MiB at a time.
std::string hash_file(const std::string& path);
std::string hash_file(const PosixFile& file);

}  // namespace sluice
