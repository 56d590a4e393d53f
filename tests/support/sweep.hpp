// How much of a sweep over seeds a build runs.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

// g++ defines a macro for each sanitizer, clang answers __has_feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLUICE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLUICE_SANITIZED
#endif
#endif

namespace sluice::testing {

#ifdef SLUICE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// All `count` of them; under a sanitizer the first fifth, at least one, unless SLUICE_WHOLE_SWEEPS
// is set (tools/test --sanitizers-full and --tsan): there each costs up to twenty times as much,
// and a sanitizer's findings seldom hang on one seed.
inline bool samples_sweeps() {
  return kSanitized && std::getenv("SLUICE_WHOLE_SWEEPS") == nullptr;
}
inline std::size_t sweep(std::size_t count) {
  if (!samples_sweeps()) return count;
  return count < 5 ? 1 : count / 5;
}
// Returns all cases; under a sanitizer the first and each third one after it.
template <class T>
std::vector<T> sampled(std::vector<T> all) {
  if (!samples_sweeps()) return all;
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += 3) some.push_back(std::move(all[i]));
  return some;
}

}  // namespace sluice::testing
