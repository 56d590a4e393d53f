// Small configurations for tests of the reader, and the sentences that refuse them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/config/config.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::config {

using testing::holds;

inline const std::string kSmall = "[model]\nlayers = 2\nhidden = 64\nheads = 4\n";

inline Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "run.toml", overrides);
}
inline std::string refusal(const std::string& text,
                           const std::vector<std::string>& overrides = {}) {
  return testing::message_of<InputError>([&] { parse(text, overrides); });
}

// Overrides of kSmall, and a part of the sentence that refuses them.
using Refusals = std::vector<std::pair<std::vector<std::string>, std::string>>;
inline void expect_refusals(const Refusals& rows) {
  for (const auto& [overrides, words] : rows) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    EXPECT_TRUE(holds(refusal(kSmall, overrides), words));
  }
}
// Each text, appended to kSmall, is refused with its words.
inline void expect_texts_refused(const std::vector<std::pair<std::string, std::string>>& rows) {
  for (const auto& [text, words] : rows) EXPECT_TRUE(holds(refusal(kSmall + text), words));
}

}  // namespace sluice::config
