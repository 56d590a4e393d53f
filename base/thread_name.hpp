// What profilers and debuggers call a thread.
#pragma once

#include <pthread.h>

#include <string>

namespace sluice {

// 15 characters are all that the kernel keeps; a name that fails to stick harms nothing.
inline void name_thread(pthread_t thread, const std::string& name) noexcept {
  pthread_setname_np(thread, name.substr(0, 15).c_str());
}
inline void name_this_thread(const char* name) noexcept {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace sluice
