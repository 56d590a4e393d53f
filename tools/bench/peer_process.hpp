// Another program that a benchmark starts and asks line by line; it ends with its
// owner. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"

namespace sluice::bench {

class PeerProcess {
 public:
  // Starts arguments[0] (looked up in PATH if it has no slash) with one socket as its standard
  // input and output. `script`, if given, becomes a file; the argument "SCRIPT" is replaced by its
  // path. Returns nothing if no such program exists. Throws IoError if it cannot be started.
  static std::optional<PeerProcess> start(std::vector<std::string> arguments,
                                          std::string_view script = {});
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  PeerProcess(const PeerProcess&) = delete;
  // Closes the socket, gives the program a moment to end by itself, then kills it.
  ~PeerProcess();

  // Sends `line` and a newline; returns the next line that the program writes, at most 1 MiB.
  // Throws Error if the program has ended (with its status and the last line of its standard error)
  // or writes a longer line; TimeoutError, naming `what`.
  std::string ask(const std::string& line, Deadline deadline, std::string_view what);
  // Reads the next line without sending a request.
  std::string read_line(Deadline deadline, std::string_view what);

 private:
  PeerProcess(std::string name, pid_t child, int socket, int errors)
      : name_(std::move(name)), child_(child), socket_(socket), errors_(errors) {}
  [[noreturn]] void throw_ended(Deadline deadline);
  void wait_for(short events, Deadline deadline, std::string_view what) const;
  std::string last_error_line() const;

  std::string name_;
  pid_t child_ = 0;  // 0: reaped
  int socket_ = -1;
  int errors_ = -1;  // a file with its standard error
  std::string received_;
};

}  // namespace sluice::bench
