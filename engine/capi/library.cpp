// The library itself: its version, the errors, the log.
#include "base/log.hpp"
#include "engine/capi/call.hpp"

using sluice::capi::run_call;

uint32_t sluice_version(void) {
  return SLUICE_VERSION_MAJOR << 16 | SLUICE_VERSION_MINOR << 8 | SLUICE_VERSION_PATCH;
}

const char* sluice_status_name(sluice_status status) {
  switch (status) {
    case SLUICE_OK:
      return "SLUICE_OK";
    case SLUICE_E_INPUT:
      return "SLUICE_E_INPUT";
    case SLUICE_E_REFUSED:
      return "SLUICE_E_REFUSED";
    case SLUICE_E_MEMORY:
      return "SLUICE_E_MEMORY";
    case SLUICE_E_IO:
      return "SLUICE_E_IO";
    case SLUICE_E_INTEGRITY:
      return "SLUICE_E_INTEGRITY";
    case SLUICE_E_TIMEOUT:
      return "SLUICE_E_TIMEOUT";
    case SLUICE_E_DEVICE:
      return "SLUICE_E_DEVICE";
    case SLUICE_E_STATE:
      return "SLUICE_E_STATE";
    case SLUICE_E_BUSY:
      return "SLUICE_E_BUSY";
    case SLUICE_E_UNSUPPORTED:
      return "SLUICE_E_UNSUPPORTED";
    case SLUICE_E_VERSION:
      return "SLUICE_E_VERSION";
    case SLUICE_E_FORKED:
      return "SLUICE_E_FORKED";
    case SLUICE_E_NOT_FINITE:
      return "SLUICE_E_NOT_FINITE";
    case SLUICE_E_POISONED:
      return "SLUICE_E_POISONED";
    case SLUICE_E_INTERNAL:
      return "SLUICE_E_INTERNAL";
    case SLUICE_E_LIMIT:
      return "SLUICE_E_LIMIT";
    default:
      return "SLUICE_E_UNKNOWN";
  }
}

// Works in a forked child, too, and so is not a run_call(): it reads this thread's own memory.
sluice_status sluice_error(sluice_error_info* info) {
  try {
    sluice_error_info found = SLUICE_ERROR_INFO_INIT;
    sluice::capi::last_failure(found);
    sluice::capi::write_struct(info, found, "info");
    return SLUICE_OK;
  } catch (...) {
    return SLUICE_E_INPUT;
  }
}

sluice_status sluice_set_log(sluice_log_callback callback, void* user) {
  return run_call("sluice_set_log", [&] {
    if (callback == nullptr) return sluice::set_log_sink({});
    sluice::set_log_sink([callback, user](sluice::LogLevel level, const std::string& line) {
      callback(user, static_cast<int32_t>(level), line.c_str());
    });
  });
}
