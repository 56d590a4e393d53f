// The reason that a file could not be opened, for messages.
#pragma once

#include <string>

#include "base/error.hpp"

namespace sluice {

// "it is not a regular file", "No such file or directory": of an IoError that PosixFile::open_read
// threw. Messages that name the file already put this after it.
std::string open_failure(const IoError& error);

}  // namespace sluice
