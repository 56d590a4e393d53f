// Errors: typed exceptions that carry the facts, and CHECK for broken promises of our own code.
//
// Channels (STYLE): expected misses return empty values; operational failures throw one of these;
// programmer errors throw InternalError through CHECK (never abort: the host process is not ours).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/memory_kinds.hpp"

namespace sluice {

// Root of all. exit_status() is what the command line ends with (DESIGN section 9).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // 3: a fault at run time; state as of the last commit.
  virtual int exit_status() const noexcept { return 3; }
  // A stable word for `{"event":"error","code":…}`.
  virtual std::string_view code() const noexcept { return "fault"; }
};

// Bad input: names the file, the key or the tensor, and what would be right. Nothing was changed.
class InputError : public Error {
 public:
  using Error::Error;
  int exit_status() const noexcept override { return 2; }
  std::string_view code() const noexcept override { return "bad_input"; }
};

// A hard cap would be passed.
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
  // For those that can say more.
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

// A wait passed its deadline; says what it waited for.
class TimeoutError : public Error {
 public:
  explicit TimeoutError(std::string_view waited_for);
  std::string_view code() const noexcept override { return "timeout"; }
};

// The device runtime reported a failure (a CUDA status, an mmap that failed, a race found in
// debug).
class DeviceError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "device"; }
};

// A promise between our own parts was broken.
class InternalError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "internal"; }
};

// What somebody else wrote, fit to stand in a message: one line, 80 bytes and "..." at most,
// control characters replaced.
std::string shown(std::string_view text);

[[noreturn]] void throw_check_failed(const char* expression, const char* file, int line,
                                     const std::string& detail);

}  // namespace sluice

// Always on. The second form adds a detail, built only on failure.
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
