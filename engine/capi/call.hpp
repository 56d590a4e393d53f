// The border between C and the engine. Every function of the C API runs its work inside run_call(),
// which turns exceptions into a status and keeps the facts for sluice_error().
//
// Nothing passes this border as an exception, and nothing here allocates on the way of an error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>

#include "base/error.hpp"
#include "engine/capi/struct_versions.hpp"
#include "sluice/sluice.h"

namespace sluice::capi {

// An error that only the C API knows, with its status.
class CallError : public Error {
 public:
  CallError(sluice_status status_in, const std::string& message)
      : Error(message), status(status_in) {}
  sluice_status status;
};

// Whether this process was forked off one that had made an engine. Threads, locks and pinned pages
// of the parent are of no use here.
bool is_forked_child() noexcept;
// Call before an engine is made. Throws ThreadError.
void watch_forks();
// An engine was made: from now on, children of fork() are known as such.
void note_engine() noexcept;

// Records the exception that is being handled as the failure of `function`. Returns its status.
sluice_status keep_failure(const char* function, const std::exception_ptr& error) noexcept;
sluice_status keep_forked(const char* function) noexcept;
// Copies this thread's last failure.
void last_failure(sluice_error_info& out) noexcept;

template <typename Work>
sluice_status run_call(const char* function, Work&& work) noexcept {
  if (is_forked_child()) return keep_forked(function);
  try {
    work();
    return SLUICE_OK;
  } catch (...) {
    return keep_failure(function, std::current_exception());
  }
}

// Arguments. All throw InputError that names the argument.
[[noreturn]] void refuse_null(const char* name);
template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) refuse_null(name);
  return *pointer;
}
inline void require_data(const void* data, const char* name) {
  if (data == nullptr) refuse_null(name);
}
// A text that must not be null.
std::string required_text(const char* text, const char* name);
// A name, which must be UTF-8, too, since files are.
std::string required_name(const char* text, const char* name);

// Checks the size that a caller states and returns the bytes that both sides know.
// first_bytes: the struct's size when it was first published.
std::size_t known_bytes(const void* data, std::uint32_t struct_size, std::size_t our_bytes,
                        std::size_t first_bytes, const char* name, bool is_input);
[[noreturn]] void refuse_reserved(const char* name);

// The caller's struct as this library knows it; members that an older caller lacks are zero.
template <typename Struct>
Struct read_struct(const Struct* in, const char* name) {
  const std::uint32_t size = required(in, name).struct_size;
  Struct copy;
  std::memset(&copy, 0, sizeof(copy));
  constexpr std::size_t kFirst = FirstVersion<Struct>::kBytes;
  std::memcpy(&copy, in, known_bytes(in, size, sizeof(Struct), kFirst, name, true));
  if constexpr (requires { copy.reserved; }) {
    if (copy.reserved != 0) refuse_reserved(name);
  }
  return copy;
}
// read_struct() for options that have defaults, which NULL stands for.
template <typename Struct>
Struct read_or_default(const Struct* in, const Struct& defaults, const char* name) {
  return in == nullptr ? defaults : read_struct(in, name);
}
// For calls that must not fail once they have done their work: whether write_struct() can fill it.
template <typename Struct>
void check_struct(const Struct* out, const char* name) {
  known_bytes(out, required(out, name).struct_size, sizeof(Struct), FirstVersion<Struct>::kBytes,
              name, false);
}
// Fills the caller's struct: `from` as far as it fits, zeros after. Its struct_size stays.
template <typename Struct>
void write_struct(Struct* out, Struct from, const char* name) {
  const std::uint32_t size = required(out, name).struct_size;
  const std::size_t bytes =
      known_bytes(out, size, sizeof(Struct), FirstVersion<Struct>::kBytes, name, false);
  from.struct_size = size;
  std::memcpy(out, &from, bytes);
  std::memset(reinterpret_cast<std::byte*>(out) + bytes, 0, size - bytes);
}

}  // namespace sluice::capi
