#include "base/open_failure.hpp"

#include <cerrno>
#include <system_error>

namespace sluice {

std::string open_failure(const IoError& error) {
  // open(2) gives EINVAL for flags alone, which are constants of ours; PosixFile gives it for
  // devices, FIFOs and sockets.
  if (error.op == "open" && error.error_number == EINVAL) return "it is not a regular file";
  return std::system_category().message(error.error_number);
}

}  // namespace sluice
