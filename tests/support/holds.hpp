// Whether a text holds a part of it, for EXPECT_TRUE: a failure shows both.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace sluice::testing {

inline ::testing::AssertionResult holds(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
}

}  // namespace sluice::testing
