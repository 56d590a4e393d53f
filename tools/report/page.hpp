// The report's page, which CMake makes from page.html, page.css, page.js and timeline.js: the part
// before the data and the part after it.
#pragma once

#include <string_view>

namespace sluice::report {

extern const std::string_view kPageHead;
extern const std::string_view kPageTail;

}  // namespace sluice::report
