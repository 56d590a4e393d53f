#include "tools/sluice/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "base/error.hpp"

namespace sluice::cli {

void open_missing_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number; those below are open by now.
    const int opened = ::open("/dev/null", O_RDONLY);
    if (opened != descriptor) {
      throw Error(
          "descriptor " + std::to_string(descriptor) +
          " is closed and /dev/null cannot be opened in its place: " + std::strerror(errno));
    }
  }
}

PrivateStdout::PrivateStdout() {
  std::cout.flush();
  // Above the standard descriptors; programs that are started from here do not inherit it.
  descriptor_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (descriptor_ < 0) {
    throw Error(std::string("stdout cannot be duplicated: ") + std::strerror(errno));
  }
  if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    const int error = errno;
    ::close(descriptor_);
    throw Error(std::string("stderr cannot be duplicated: ") + std::strerror(error));
  }
  replaced_ = std::cout.rdbuf(this);
}

PrivateStdout::~PrivateStdout() {
  sync();
  std::cout.rdbuf(replaced_);
  ::close(descriptor_);
}

PrivateStdout::int_type PrivateStdout::overflow(int_type character) {
  if (!traits_type::eq_int_type(character, traits_type::eof())) {
    pending_ += traits_type::to_char_type(character);
  }
  return traits_type::not_eof(character);
}

std::streamsize PrivateStdout::xsputn(const char* text, std::streamsize count) {
  pending_.append(text, static_cast<std::size_t>(count));
  return count;
}

int PrivateStdout::sync() {
  const std::string text = std::move(pending_);
  pending_.clear();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    done += static_cast<std::size_t>(written);
  }
  return 0;
}

}  // namespace sluice::cli
