#include "tools/bench/peer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.hpp"

extern char** environ;

namespace sluice::bench {
namespace {

constexpr std::size_t kMostLineBytes = std::size_t{1} << 20;
constexpr auto kMomentToEnd = std::chrono::seconds(2);
constexpr int kScriptFile = 3;  // its number in the child
constexpr const char* kScriptPath = "/proc/self/fd/3";

class File {
 public:
  explicit File(int number) : number_(number) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// A file without a name. It is closed in children unless it is passed to them.
int memory_file(const char* name) {
  const int file = ::memfd_create(name, MFD_CLOEXEC);
  if (file < 0) throw IoError("memfd_create", name, 0, 0, errno);
  return file;
}

void write_whole(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw IoError("write", "a script for a peer", 0, text.size(), errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Reaps the child and returns its status as waitpid gives it. Returns nothing if the child still
// runs at the deadline.
std::optional<int> reap(pid_t child, Deadline deadline) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) throw IoError("waitpid", "a peer", 0, 0, errno);
    if (deadline.passed()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Returns 0 if there is no such program.
pid_t spawn(std::vector<std::string>& arguments, int socket, int errors, int script) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  int status = ::posix_spawn_file_actions_init(&actions);
  // The script goes last: its target number may be the number of another file, copied by then.
  const std::array<std::pair<int, int>, 4> files = {
      {{socket, 0}, {socket, 1}, {errors, 2}, {script, kScriptFile}}};
  for (const auto& [from, to] : files) {
    if (status == 0) status = ::posix_spawn_file_actions_adddup2(&actions, from, to);
  }
  pid_t child = 0;
  if (status == 0) {
    status = ::posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (status == ENOENT) return 0;
  if (status != 0) throw IoError("posix_spawn", arguments[0], 0, 0, status);
  return child;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

std::optional<PeerProcess> PeerProcess::start(std::vector<std::string> arguments,
                                              std::string_view script) {
  SLUICE_CHECK(!arguments.empty());
  const std::string name = arguments[0];
  const File script_file(memory_file("script"));
  write_whole(script_file.number(), script);
  std::replace(arguments.begin(), arguments.end(), std::string("SCRIPT"), std::string(kScriptPath));
  File errors(memory_file("errors"));
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw IoError("socketpair", name, 0, 0, errno);
  }
  File ours(ends[0]);
  const File theirs(ends[1]);
  const pid_t child = spawn(arguments, theirs.number(), errors.number(), script_file.number());
  if (child == 0) return std::nullopt;
  return PeerProcess(name, child, ours.release(), errors.release());
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : name_(std::move(other.name_)),
      child_(std::exchange(other.child_, 0)),
      socket_(std::exchange(other.socket_, -1)),
      errors_(std::exchange(other.errors_, -1)),
      received_(std::move(other.received_)) {}

PeerProcess::~PeerProcess() {
  if (socket_ >= 0) ::close(socket_);
  if (child_ != 0) {
    try {
      if (!reap(child_, Deadline::after(kMomentToEnd))) {
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
      }
    } catch (const Error&) {
      // The child was reaped elsewhere: nothing is left to end.
    }
  }
  if (errors_ >= 0) ::close(errors_);
}

std::string PeerProcess::ask(const std::string& line, Deadline deadline, std::string_view what) {
  const std::string request = line + "\n";
  std::string_view left = request;
  while (!left.empty()) {
    const ssize_t sent = ::send(socket_, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      left.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(POLLOUT, deadline, what);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      throw_ended(deadline);
    } else if (errno != EINTR) {
      throw IoError("send", name_, 0, left.size(), errno);
    }
  }
  return read_line(deadline, what);
}

std::string PeerProcess::read_line(Deadline deadline, std::string_view what) {
  std::array<char, 4096> part{};
  while (true) {
    if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kMostLineBytes) throw Error(name_ + " wrote a line of more than 1 MiB");
    wait_for(POLLIN, deadline, what);
    const ssize_t count = ::recv(socket_, part.data(), part.size(), MSG_DONTWAIT);
    if (count > 0) {
      received_.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno == ECONNRESET) {
      throw_ended(deadline);
    } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
      throw IoError("recv", name_, 0, part.size(), errno);
    }
  }
}

void PeerProcess::wait_for(short events, Deadline deadline, std::string_view what) const {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.time() -
                                                                            Deadline::Clock::now());
    if (left.count() <= 0) throw TimeoutError(what);
    pollfd entry{.fd = socket_, .events = events, .revents = 0};
    constexpr std::int64_t kAMinute = 60'000;
    const int ready =
        ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), kAMinute)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw IoError("poll", name_, 0, 0, errno);
  }
}

void PeerProcess::throw_ended(Deadline deadline) {
  const std::optional<int> status = reap(child_, deadline);
  if (!status) throw Error(name_ + " closed its output but still runs");
  child_ = 0;
  const std::string words = last_error_line();
  throw Error(name_ + " " + how_it_ended(*status) + (words.empty() ? "" : ": " + words));
}

std::string PeerProcess::last_error_line() const {
  constexpr off_t kTail = 4096;
  struct stat facts {};
  if (::fstat(errors_, &facts) != 0) return "";
  const off_t begin = std::max<off_t>(0, facts.st_size - kTail);
  std::string tail(static_cast<std::size_t>(facts.st_size - begin), '\0');
  const ssize_t count = ::pread(errors_, tail.data(), tail.size(), begin);
  tail.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == '\r')) tail.pop_back();
  const std::size_t before = tail.rfind('\n');
  return before == std::string::npos ? tail : tail.substr(before + 1);
}

}  // namespace sluice::bench
