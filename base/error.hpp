// Errors: typed exceptions that carry the facts, and SLUICE_CHECK for bugs in our own code.
//
// Expected misses return empty values. Operational failures throw one of these exceptions.
// Programmer errors throw InternalError through SLUICE_CHECK. The library never aborts, because the
// process belongs to the host program.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/memory_kinds.hpp"

namespace sluice {

// The base of all exceptions. exit_status() is the exit status of the command line.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // 3: a run-time fault; the state on disk is that of the last commit.
  virtual int exit_status() const noexcept { return 3; }
  // A stable word for `{"event":"error","code":…}`.
  virtual std::string_view code() const noexcept { return "fault"; }
};

// Bad input. The message names the file, key or tensor and a correct value. Nothing was changed.
class InputError : public Error {
 public:
  using Error::Error;
  int exit_status() const noexcept override { return 2; }
  std::string_view code() const noexcept override { return "bad_input"; }
};

// An allocation would exceed a hard cap.
class OutOfMemory : public Error {
 public:
  OutOfMemory(Tier tier, Category category, std::uint64_t requested_bytes,
              std::uint64_t available_bytes);
  std::string_view code() const noexcept override { return "out_of_memory"; }

  Tier tier;
  Category category;
  std::uint64_t requested_bytes;
  std::uint64_t available_bytes;

 protected:
  // For derived errors with a more detailed message.
  OutOfMemory(Tier tier, Category category, std::uint64_t requested_bytes,
              std::uint64_t available_bytes, const std::string& message);
};

// A system call on a file failed, or moved fewer bytes than it must.
class IoError : public Error {
 public:
  // op: "read", "write", "open", "fdatasync", ...; error_number as errno (0: short transfer).
  IoError(std::string_view op, std::string_view path, std::uint64_t offset, std::uint64_t bytes,
          int error_number);
  std::string_view code() const noexcept override { return "io"; }

  std::string op;
  std::string path;
  std::uint64_t offset;
  std::uint64_t bytes;
  int error_number;
};

// A wait passed its deadline. The message names the event that did not happen.
class TimeoutError : public Error {
 public:
  explicit TimeoutError(std::string_view waited_for);
  std::string_view code() const noexcept override { return "timeout"; }
};

// The device runtime reported a failure (a CUDA status, an mmap that failed, a race
// found in debug).
class DeviceError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "device"; }
};

// A bug in our own code: a broken precondition or invariant.
class InternalError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "internal"; }
};

// Makes untrusted text fit for a message: one line of at most 80 bytes and "...", with
// control characters replaced.
std::string shown(std::string_view text);

[[noreturn]] void throw_check_failed(const char* expression, const char* file, int line,
                                     const std::string& detail);

}  // namespace sluice

// Checks that are always on. The second form adds a detail, which is built only on failure.
#define SLUICE_CHECK(condition)                                         \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::sluice::throw_check_failed(#condition, __FILE__, __LINE__, {}); \
  } while (false)
#define SLUICE_CHECK_MSG(condition, detail)                                   \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::sluice::throw_check_failed(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)
#ifdef NDEBUG
#define SLUICE_DCHECK(condition) static_cast<void>(0)
#else
#define SLUICE_DCHECK(condition) SLUICE_CHECK(condition)
#endif
