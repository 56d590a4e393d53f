#pragma once

#include <memory>
#include <stdexcept>

#include "allocator/oom/oom_fixes.hpp"
#include "allocator/record/memory_recorder.hpp"
#include "tests/allocator/caching/oom_fixture.hpp"

namespace sluice::allocator {

// A run of three steps; its last request fails. A test can repeat it under other conditions.
struct ThreeSteps {
  std::uint64_t cap_pages = 8;
  bool frees_before = false;  // frees the oldest block of site "saved" before the last request

  // Returns the report of the last request, or null if it was served.
  std::shared_ptr<const OomReport> go(record::MemoryRecorder* recorder) const {
    const OomFixture setup(counting(64), cap_pages * kPage, {.recorder = recorder});
    const auto intern = [&](const char* name) {
      return recorder == nullptr ? 0 : recorder->intern(name);
    };
    std::byte* oldest = nullptr;
    for (int step = 0; step < 3; ++step) {
      setup.allocator->begin_step();
      std::byte* const saved =
          setup.get(2 * kPage, setup.a, Category::kActivation, intern("saved"));
      if (oldest == nullptr) oldest = saved;
      setup.allocator->free(setup.get(kPage, setup.a, Category::kWorkspace, intern("scratch")));
    }
    if (frees_before) setup.allocator->free(oldest);
    try {
      setup.get(3 * kPage, setup.b, Category::kGradient, intern("last"));
    } catch (const OutOfMemoryReported& error) {
      return error.report;
    }
    return nullptr;
  }
};

// The first fix of a kind of change. Throws where none was tried.
inline const OomFix& find_change(const OomFixes& fixes, OomChange change) {
  for (const OomFix& fix : fixes.tried) {
    if (fix.change == change) return fix;
  }
  throw std::out_of_range("no fix of this kind was tried");
}

}  // namespace sluice::allocator
