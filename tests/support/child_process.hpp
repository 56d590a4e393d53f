// A program run as a child: its output captured through pipes, signals sent, every wait bounded.
// One that still runs when the object goes is killed.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace sluice::testing {

struct ChildOutcome {
  int exit_status = -1;  // -1: ended by a signal
  int signal = 0;        // that ended it; 0: it exited
  std::string out;       // stdout
  std::string err;       // stderr
};

class ChildProcess {
 public:
  // command: the program's path and its arguments. environment: added to this process's own.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& directory,
               const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> variables;
    for (char** entry = ::environ; *entry != nullptr; ++entry) {
      const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
      if (!environment.contains(name)) variables.emplace_back(*entry);
    }
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    start(pointers(command), pointers(variables), directory.c_str());
  }

  ~ChildProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (Stream& stream : streams_) close_stream(stream);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) { check(::kill(pid_, signal), "kill"); }

  // Until stdout holds `text`; throws where the child ends or the deadline passes before.
  void wait_for_output(const std::string& text, std::chrono::milliseconds deadline) {
    wait_for(streams_[0], text, deadline);
  }
  // Waits for a text on stderr.
  void wait_for_error(const std::string& text, std::chrono::milliseconds deadline) {
    wait_for(streams_[1], text, deadline);
  }

  // Waits until the child has ended; throws if the deadline passes before. Call it once.
  ChildOutcome wait(std::chrono::milliseconds deadline) {
    const auto until = Clock::now() + deadline;
    while (read_some(until)) {
    }
    if (streams_[0].read_end >= 0 || streams_[1].read_end >= 0) {
      throw std::runtime_error("the child did not end in time; stderr: " + streams_[1].text);
    }
    int status = 0;
    check(::waitpid(pid_, &status, 0), "waitpid");  // both pipes are closed: it is ending
    pid_ = -1;
    ChildOutcome outcome;
    if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    outcome.out = std::move(streams_[0].text);
    outcome.err = std::move(streams_[1].text);
    return outcome;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    int read_end = -1;
    std::string text;
  };

  static void check(int result, const char* call) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  }

  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
    list.push_back(nullptr);
    return list;
  }

  void start(std::vector<char*> argv, std::vector<char*> envp, const char* directory) {
    std::array<std::array<int, 2>, 2> pipes{};
    for (std::size_t i = 0; i < pipes.size(); ++i) {
      check(::pipe2(pipes[i].data(), O_CLOEXEC), "pipe2");
      streams_[i].read_end = pipes[i][0];
    }
    pid_ = ::fork();
    check(pid_, "fork");
    if (pid_ == 0) {  // only async-signal-safe calls from here
      const int nothing = ::open("/dev/null", O_RDONLY);
      if (nothing >= 0 && ::dup2(nothing, STDIN_FILENO) >= 0 &&
          ::dup2(pipes[0][1], STDOUT_FILENO) >= 0 && ::dup2(pipes[1][1], STDERR_FILENO) >= 0 &&
          ::chdir(directory) == 0) {
        ::execve(argv[0], argv.data(), envp.data());
      }
      ::_exit(127);
    }
    for (const auto& ends : pipes) ::close(ends[1]);
  }

  void wait_for(const Stream& stream, const std::string& text, std::chrono::milliseconds deadline) {
    const auto until = Clock::now() + deadline;
    while (stream.text.find(text) == std::string::npos) {
      if (!read_some(until)) {
        throw std::runtime_error("the child did not write '" + text +
                                 "'; stdout: " + streams_[0].text + " stderr: " + streams_[1].text);
      }
    }
  }

  // Waits for output until the deadline. False: both streams have ended, or the deadline passed.
  bool read_some(Clock::time_point until) {
    std::array<pollfd, 2> polled{};
    for (std::size_t i = 0; i < polled.size(); ++i) polled[i] = {streams_[i].read_end, POLLIN, 0};
    if (streams_[0].read_end < 0 && streams_[1].read_end < 0) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) return true;
    check(ready, "poll");
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::array<char, 4096> buffer{};
      const ssize_t got = ::read(streams_[i].read_end, buffer.data(), buffer.size());
      if (got > 0) streams_[i].text.append(buffer.data(), static_cast<std::size_t>(got));
      if (got == 0) close_stream(streams_[i]);
    }
    return true;
  }

  static void close_stream(Stream& stream) {
    if (stream.read_end >= 0) ::close(stream.read_end);
    stream.read_end = -1;
  }

  pid_t pid_ = -1;
  std::array<Stream, 2> streams_;  // stdout, stderr
};

}  // namespace sluice::testing
