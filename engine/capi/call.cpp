#include "engine/capi/call.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_text.hpp"
#include "base/thread.hpp"
#include "engine/host/host_session.hpp"
#include "offload/integrity_error.hpp"

namespace sluice::capi {
namespace {

// A struct larger than this is a wrong struct_size, not a newer program's.
constexpr std::uint32_t kMostStructBytes = 4096;

// Global state of the library: set in a child by fork() itself, when no other thread exists.
std::atomic<bool> engine_was_made{false};
std::atomic<bool> forked_child{false};

// The last failure of a thread. Texts are cut to fit: memory may be the thing that is missing.
struct LastFailure {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  std::array<char, 2048> message{};
  std::array<char, 512> subject{};
};
thread_local LastFailure last;

template <std::size_t size>
void append(std::array<char, size>& text, std::size_t& used, std::string_view more) {
  const std::size_t count = std::min(more.size(), size - 1 - used);
  std::memcpy(text.data() + used, more.data(), count);
  used += count;
  text[used] = '\0';
}

sluice_status record(const char* function, sluice_status status, std::string_view message) {
  last.info = SLUICE_ERROR_INFO_INIT;
  last.info.status = status;
  last.subject[0] = '\0';
  std::size_t used = 0;
  append(last.message, used, function);
  append(last.message, used, ": ");
  append(last.message, used, message);
  return status;
}

void record_io(const IoError& error) {
  last.info.system_errno = error.error_number;
  std::size_t used = 0;
  append(last.subject, used, error.op);
  append(last.subject, used, " ");
  append(last.subject, used, error.path);
}

// nlohmann's writer takes nothing else.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(json_text(nlohmann::json(text)));
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

void record_shortage(Tier tier, std::uint64_t requested_bytes, std::uint64_t available_bytes) {
  last.info.tier = static_cast<std::int32_t>(tier);
  last.info.requested_bytes = requested_bytes;
  last.info.available_bytes = available_bytes;
}

}  // namespace

bool is_forked_child() noexcept {
  return forked_child.load(std::memory_order_relaxed);  // set before any thread of the child runs
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    const int status =
        ::pthread_atfork(nullptr, nullptr, [] { forked_child.store(engine_was_made.load()); });
    if (status != 0) throw ThreadError("fork handler", status);
  });
}

void note_engine() noexcept {
  engine_was_made.store(true);
}

sluice_status keep_forked(const char* function) noexcept {
  return record(function, SLUICE_E_FORKED,
                "this process was forked off one that uses Sluice; start it with exec, or make the "
                "engine after the fork");
}

sluice_status keep_failure(const char* function, const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const CallError& e) {
    return record(function, e.status, e.what());
  } catch (const OutOfMemory& e) {
    record(function, SLUICE_E_MEMORY, e.what());
    record_shortage(e.tier, e.requested_bytes, e.available_bytes);
    return SLUICE_E_MEMORY;
  } catch (const offload::IntegrityError& e) {
    return record(function, SLUICE_E_INTEGRITY, e.what());
  } catch (const IoError& e) {
    record(function, SLUICE_E_IO, e.what());
    record_io(e);
    return SLUICE_E_IO;
  } catch (const TimeoutError& e) {
    return record(function, SLUICE_E_TIMEOUT, e.what());
  } catch (const DeviceError& e) {
    return record(function, SLUICE_E_DEVICE, e.what());
  } catch (const host::Refused& e) {
    record(function, SLUICE_E_REFUSED, e.what());
    record_shortage(e.tier, e.needed_bytes, e.available_bytes);
    return SLUICE_E_REFUSED;
  } catch (const host::SessionStateError& e) {
    return record(function, SLUICE_E_STATE, e.what());
  } catch (const host::SessionPoisoned& e) {
    return record(function, SLUICE_E_POISONED, e.what());
  } catch (const host::Unsupported& e) {
    return record(function, SLUICE_E_UNSUPPORTED, e.what());
  } catch (const host::LimitReached& e) {
    return record(function, SLUICE_E_LIMIT, e.what());
  } catch (const host::GradientNotFinite& e) {
    return record(function, SLUICE_E_NOT_FINITE, e.what());
  } catch (const ThreadError& e) {
    return record(function, SLUICE_E_DEVICE, e.what());
  } catch (const InputError& e) {
    return record(function, SLUICE_E_INPUT, e.what());
  } catch (const std::bad_alloc&) {
    return record(function, SLUICE_E_MEMORY, "the process has no memory left");
  } catch (const std::exception& e) {
    return record(function, SLUICE_E_INTERNAL, e.what());
  } catch (...) {
    return record(function, SLUICE_E_INTERNAL, "an exception of an unknown kind");
  }
}

void last_failure(sluice_error_info& out) noexcept {
  out = last.info;
  out.message = last.message.data();
  out.subject = last.subject.data();
}

void refuse_null(const char* name) {
  throw InputError(std::string(name) + " is NULL");
}

std::string required_text(const char* text, const char* name) {
  return {&required(text, name)};
}

std::string required_name(const char* text, const char* name) {
  std::string found = required_text(text, name);
  if (!is_utf8(found)) throw InputError(std::string(name) + " is not UTF-8");
  return found;
}

void refuse_reserved(const char* name) {
  throw CallError(SLUICE_E_VERSION,
                  std::string(name) +
                      ".reserved is not zero, and this version of the library knows "
                      "no use of it");
}

std::size_t known_bytes(const void* data, std::uint32_t struct_size, std::size_t our_bytes,
                        std::size_t first_bytes, const char* name, bool is_input) {
  // No struct has grown more than once, so there is no size between the first and the present one.
  const bool is_known = struct_size == first_bytes || struct_size >= our_bytes;
  if (!is_known || struct_size > kMostStructBytes) {
    throw InputError(std::string(name) + ".struct_size is " + std::to_string(struct_size) +
                     ", and no version of the struct has that; initialise it with its _INIT macro");
  }
  const std::size_t bytes = std::min<std::size_t>(struct_size, our_bytes);
  if (!is_input) return bytes;
  const auto* const tail = static_cast<const std::byte*>(data) + bytes;
  if (std::any_of(tail, tail + (struct_size - bytes),
                  [](std::byte b) { return b != std::byte{}; })) {
    throw CallError(SLUICE_E_VERSION, std::string(name) +
                                          " has members that this version of the library does not "
                                          "know, and they are not zero");
  }
  return bytes;
}

}  // namespace sluice::capi
