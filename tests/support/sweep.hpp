// How much of a sweep over seeds a build runs.
#pragma once

#include <cstddef>

// g++ defines a macro for each sanitizer, clang answers __has_feature.
#if !defined(__has_feature)
#define __has_feature(feature) 0
#endif

namespace sluice::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// All `count` of them; under a sanitizer a fifth, at least one. There they cost up to twenty times
// as much, and what sanitizers find shows in any of them: whether the results are right, the
// release tests say.
constexpr std::size_t sweep(std::size_t count) {
  if (!kSanitized) return count;
  return count < 5 ? 1 : count / 5;
}

}  // namespace sluice::testing
