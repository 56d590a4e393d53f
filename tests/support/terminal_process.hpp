// A program run on a terminal of its own (a pty): both of its streams are that terminal.
#pragma once

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::testing {

struct TerminalOutcome {
  int exit_status = -1;  // -1: ended by a signal, or not in time
  std::string text;      // everything that was written, with "\r\n" as "\n"
};

// command: the program's path and its arguments. environment: added to this process's own.
inline TerminalOutcome run_on_terminal(const std::vector<std::string>& command,
                                       const std::filesystem::path& directory,
                                       const std::map<std::string, std::string>& environment,
                                       unsigned short columns, std::chrono::seconds deadline) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (pid < 0) throw std::runtime_error("forkpty");
  if (pid == 0) {
    ::unsetenv("COLUMNS");
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    if (::chdir(directory.c_str()) == 0) ::execv(words[0], words.data());
    ::_exit(127);
  }
  TerminalOutcome outcome;
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd polled{terminal, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) <= 0) break;
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(terminal, buffer.data(), buffer.size());
    if (got <= 0) break;  // EIO: the last one that had the terminal open has ended
    for (const char letter : std::string(buffer.data(), static_cast<std::size_t>(got))) {
      if (letter == '\n' && outcome.text.ends_with('\r')) outcome.text.pop_back();
      outcome.text += letter;
    }
  }
  if (std::chrono::steady_clock::now() >= until) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(terminal);
  if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
  return outcome;
}

}  // namespace sluice::testing
