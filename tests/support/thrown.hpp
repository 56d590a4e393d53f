// The errors of calls, and their messages.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace sluice::testing {

// The Error that `call` throws. Where it throws none, this throws another exception, which fails
// the test.
template <class Error, class Call>
Error thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("the expected error was not thrown");
}

// Its message.
template <class Error, class Call>
std::string message_of(const Call& call) {
  return thrown_by<Error>(call).what();
}

// The message of a call that may succeed: then it is empty.
template <class Error = InputError, class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The text holds `part`; otherwise the test shows both.
inline ::testing::AssertionResult mentions(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
}

// refusal(given) of each case holds the words next to it, and the name of the file.
template <class Given, std::size_t kCases, class Refusal>
void expect_refusals(const std::pair<Given, const char*> (&cases)[kCases], const char* file,
                     const Refusal& refusal) {
  for (const auto& [given, words] : cases) {
    EXPECT_TRUE(mentions(refusal(given), words));
    EXPECT_TRUE(mentions(refusal(given), file)) << words;
  }
}

}  // namespace sluice::testing
