// The text of `sluice --version`.
#pragma once

#include <string>

namespace sluice::cli {

// The version with its commit, then a line each for the instruction set in use, the libraries and
// the CUDA build.
std::string version_text();

}  // namespace sluice::cli
