// A regular file with every system call's status checked: exact reads, whole writes, durable
// rename.
//
// For what is read and written in bulk outside of steps: data, checkpoints, exports. (State that
// streams through a step goes by offload/storage_engine.hpp.)
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
  // Throws IoError("open"); also where the path is no regular file.
  static PosixFile open_read(const std::string& path);
  // The same of a name that stands in another file, beneath `directory` (base/open_beneath.hpp).
  static PosixFile open_read_beneath(const std::string& directory, const std::string& name);
  // Creates (mode 0600: a model is its owner's) or truncates.
  static PosixFile create(const std::string& path);

  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();  // closes; nothing is lost that sync() has seen

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const;

  // Fills all of `into`; IoError with errno 0 where the file ends before.
  void read_exact(std::uint64_t offset, std::span<std::byte> into) const;
  // As many bytes as there are up to the end of the file, at most into.size().
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const;
  void write_all(std::uint64_t offset, std::span<const std::byte> from);
  // fsync. Never retried: after a failure the page state is unknown.
  void sync();

 private:
  static PosixFile regular(int descriptor, const std::string& path);
  PosixFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::string path_;
};

// Renames and makes the rename durable (fsync of the directory of `to`). Both in one file system.
void rename_durably(const std::string& from, const std::string& to);

// Absolute, without "." and "..", and without a slash at its end: one name for one place, as far as
// names tell.
std::filesystem::path normal_path(const std::string& path);

// Makes the directory and those above it that are missing, each with mode 0700; one that is there
// keeps its own. IoError.
void make_directories(const std::string& path);

// XXH3-128 of a file's bytes, 32 hex digits; reads 1 MiB at a time.
std::string hash_file(const std::string& path);
std::string hash_file(const PosixFile& file);

}  // namespace sluice
