// The report's page, made by CMake from page.html, page.css and page.js: what comes before the data
// and what comes after it.
#pragma once

#include <string_view>

namespace sluice::report {

extern const std::string_view kPageHead;
extern const std::string_view kPageTail;

}  // namespace sluice::report
