// One thread waits for the ranks' output, for signals and for the grace period, in one poll(2).
// Signals arrive through a signalfd, so nothing runs in a handler.
#include "tools/sluice/rank_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <string_view>

#include "base/error.hpp"
#include "tools/sluice/terminal.hpp"

namespace sluice::cli {
namespace {

using collectives::Socket;

constexpr std::size_t kLongestLine = 1 << 16;
constexpr double kDrainSeconds = 2;  // for output after the last rank has ended
constexpr int kMostLastReads = 64;   // 1 MiB, the most that a pipe holds by default limits

// SIGHUP only where it was not ignored: under nohup the ranks outlive the terminal.
sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, signal);
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

struct Pipe {
  Socket read_end, write_end;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError("pipe", "rank", 0, 0, errno);
    read_end = Socket(ends[0]);
    write_end = Socket(ends[1]);
  }
};

// The values that a child uses between fork and exec, where only async-signal-safe calls are
// allowed.
struct ChildStart {
  pid_t parent;
  int out, err;
  int listener;  // to inherit, or -1
  const cpu_set_t* cores;
  std::vector<char*> argv, envp;
};

std::string prefix_of(int rank) {
  return "[" + std::to_string(rank) + "] ";
}

[[noreturn]] void become_rank(const ChildStart& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A shell ignores SIGINT for its background jobs; this launcher forwards it all the same.
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  const int nothing = ::open("/dev/null", O_RDONLY);
  const bool ready = ::getppid() == start.parent &&
                     ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0 && nothing >= 0 &&
                     ::dup2(nothing, STDIN_FILENO) >= 0 && ::dup2(start.out, STDOUT_FILENO) >= 0 &&
                     ::dup2(start.err, STDERR_FILENO) >= 0 &&
                     (start.listener < 0 || ::fcntl(start.listener, F_SETFD, 0) == 0);
  // A binding that the kernel refuses costs speed only.
  if (start.cores != nullptr) {
    static_cast<void>(::sched_setaffinity(0, sizeof *start.cores, start.cores));
  }
  if (ready) ::execve(start.argv[0], start.argv.data(), start.envp.data());
  const char* const why = std::strerror(errno);
  for (const char* part : {"sluice: this rank cannot start ",
                           static_cast<const char*>(start.argv[0]), ": ", why, "\n"}) {
    static_cast<void>(!::write(STDERR_FILENO, part, std::strlen(part)));
  }
  ::_exit(2);
}

}  // namespace

std::string make_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw IoError("getrandom", "job token", 0, bytes.size(), errno);
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    token += digits[byte >> 4];
    token += digits[byte & 15];
  }
  return token;
}

void LineRelay::take(const char* text, std::size_t bytes) {
  for (const char letter : std::string_view(text, bytes)) {
    if (letter == '\n' || line_.size() == kLongestLine) write_line();
    if (letter != '\n') line_ += letter;
  }
}
void LineRelay::finish() {
  if (!line_.empty()) write_line();
}
void LineRelay::write_line() {
  const std::string whole = prefix_ + line_ + '\n';
  line_.clear();
  if (to_stdout_) {
    std::cout << whole << std::flush;
  } else {
    print_to_stderr(whole);
  }
}

struct RankJob::Rank {
  pid_t pid = -1;  // -1: it has ended
  std::array<Socket, 2> streams;
  std::array<LineRelay, 2> relays;
};

RankJob::RankJob(const RankJobOptions& options)
    : options_(options), listener_(collectives::listen_at("127.0.0.1", 0)), token_(make_token()) {
  const sigset_t handled = handled_signals();
  if (::sigprocmask(SIG_BLOCK, &handled, nullptr) != 0) throw Error("signals cannot be blocked");
  signals_ = Socket(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw IoError("signalfd", "launch", 0, 0, errno);
  // A closed stdout is noticed where it is written.
  ::signal(SIGPIPE, SIG_IGN);
  for (int rank = 0; rank < options_.ranks; ++rank) start(rank);
}

RankJob::~RankJob() {
  send_all(SIGKILL);
  for (Rank& rank : ranks_) {
    if (rank.pid > 0) ::waitpid(rank.pid, nullptr, 0);
  }
  // The signals stay blocked: a launcher ends, or starts its next job.
}

std::uint16_t RankJob::port() const {
  return collectives::port_of(listener_);
}

std::vector<std::string> RankJob::environment_of(int rank) const {
  std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(options_.ranks)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port())},
      {"SLUICE_JOB", token_}};  // strangers on this machine cannot join the job
  own.insert(own.end(), options_.variables.begin(), options_.variables.end());
  if (rank == 0) own.emplace_back("SLUICE_LISTENER", std::to_string(listener_.descriptor()));
  // The columns of the terminal that shows the rank's lines after their prefix.
  const std::size_t columns = line_columns(STDERR_FILENO), prefix = prefix_of(rank).size();
  if (columns > prefix) own.emplace_back(kRelayedColumns, std::to_string(columns - prefix));
  // Variables of a launcher around this one.
  const std::array<std::string_view, 5> foreign{"SLUICE_LISTENER", "SLUICE_MASTER_PORT",
                                                "SLUICE_RESTART", "TORCHELASTIC_RUN_ID",
                                                "TORCHELASTIC_USE_AGENT_STORE"};
  std::vector<std::string> variables;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_own = std::any_of(own.begin(), own.end(),
                                    [&](const auto& variable) { return variable.first == name; });
    if (is_own || std::find(foreign.begin(), foreign.end(), name) != foreign.end()) continue;
    variables.emplace_back(text);
  }
  for (const auto& [name, value] : own) variables.push_back(name + "=" + value);
  return variables;
}

void RankJob::start(int rank) {
  const std::string prefix = prefix_of(rank);
  const bool bare = options_.bare_stdout;
  Rank started{
      -1,
      {},
      {LineRelay(!bare || rank == 0, bare && rank == 0 ? "" : prefix), LineRelay(false, prefix)}};
  Pipe out, err;
  const std::vector<std::string> variables = environment_of(rank);
  const ChildStart child{
      ::getpid(),
      out.write_end.descriptor(),
      err.write_end.descriptor(),
      rank == 0 ? listener_.descriptor() : -1,
      options_.cores.empty() ? nullptr : &options_.cores[static_cast<std::size_t>(rank)],
      pointers_to(options_.command),
      pointers_to(variables)};
  started.pid = ::fork();
  if (started.pid < 0) throw IoError("fork", "rank " + std::to_string(rank), 0, 0, errno);
  if (started.pid == 0) become_rank(child);
  // In both processes, so that it holds for the first signal.
  ::setpgid(started.pid, started.pid);
  started.streams = {std::move(out.read_end), std::move(err.read_end)};
  ranks_.push_back(std::move(started));
}

RankJobEnd RankJob::run() {
  while (!is_over()) {
    relay_and_reap();
    close_orphaned_streams();
  }
  for (Rank& rank : ranks_) {
    for (LineRelay& relay : rank.relays) relay.finish();
  }
  return end_;
}

// A process that left its rank's group may hold the pipes open for ever. What the ranks wrote is
// there when they have ended.
void RankJob::close_orphaned_streams() {
  const bool ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid < 0; });
  if (!ended) return;
  if (!drained_at_) drained_at_ = Deadline::after_seconds(kDrainSeconds);
  if (!drained_at_->passed() && end_.stop_signal == 0) return;
  for (Rank& rank : ranks_) {
    read_rest(rank);
    rank.streams = {};
  }
}

// Without waiting. The last poll may be older than a rank's last line.
void RankJob::read_rest(Rank& rank) {
  for (int stream = 0; stream < 2; ++stream) {
    const Socket& pipe = rank.streams[static_cast<std::size_t>(stream)];
    for (int reads = 0; reads < kMostLastReads && pipe; ++reads) {
      pollfd polled{pipe.descriptor(), POLLIN, 0};
      if (::poll(&polled, 1, 0) <= 0) break;
      read_output(rank, stream);
    }
  }
}

bool RankJob::is_over() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.pid < 0 && !rank.streams[0] && !rank.streams[1];
  });
}

void RankJob::relay_and_reap() {
  std::vector<pollfd> polled{{signals_.descriptor(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (const Socket& stream : rank.streams) polled.push_back({stream.descriptor(), POLLIN, 0});
  }
  const int timeout_ms = kill_at_ ? collectives::poll_timeout_ms(*kill_at_, 1000) : 1000;
  if (::poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) {
    throw IoError("poll", "ranks", 0, 0, errno);
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    for (std::size_t stream = 0; stream < 2; ++stream) {
      if (polled[1 + 2 * i + stream].revents != 0) {
        read_output(ranks_[i], static_cast<int>(stream));
      }
    }
  }
  if (polled[0].revents != 0) handle_signals();
  if (options_.bare_stdout && !std::cout && !output_lost_) {
    // Nobody reads the events any more: the ranks save and stop.
    output_lost_ = true;
    send_all(SIGTERM);
  }
  if (kill_at_ && kill_at_->passed()) {
    send_all(SIGKILL);
    kill_at_.reset();
  }
}

void RankJob::read_output(Rank& rank, int stream) {
  const auto index = static_cast<std::size_t>(stream);
  std::array<char, 1 << 14> buffer{};
  const ssize_t got = ::read(rank.streams[index].descriptor(), buffer.data(), buffer.size());
  if (got > 0) {
    rank.relays[index].take(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    rank.streams[index] = Socket();
  }
}

void RankJob::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.descriptor(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
      continue;
    }
    if (end_.stop_signal == 0) end_.stop_signal = signal;
    send_all(signal);
  }
}

void RankJob::reap() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    siginfo_t ended{};
    if (rank.pid < 0 ||
        ::waitid(P_PID, static_cast<id_t>(rank.pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        ended.si_pid != rank.pid) {
      continue;
    }
    // A descendant that the rank left behind may hold its pipes: it is of the rank's group, whose
    // number is taken until the rank is waited for.
    static_cast<void>(::kill(-rank.pid, SIGKILL));
    int status = 0;
    if (::waitpid(rank.pid, &status, 0) != rank.pid) throw IoError("wait", "rank", 0, 0, errno);
    rank.pid = -1;
    if (status != 0) note_failure(static_cast<int>(i), status);
  }
  tell_waiting_ranks();
}

// Rank 0 tells the ranks that have joined it, and ends. Once it has ended, and where it failed
// itself, the launcher answers the ranks that come to the port.
void RankJob::tell_waiting_ranks() {
  if (lost_.empty() || door_ || ranks_.front().pid > 0) return;
  try {
    door_.emplace(
        failed_, collectives::share_socket(listener_.descriptor()), [] { return true; }, lost_);
  } catch (const Error&) {  // no thread, no descriptor: the ranks wait until they are killed
  }
}

void RankJob::note_failure(int rank, int wait_status) {
  if (end_.status != 0) return;
  const bool killed = WIFSIGNALED(wait_status);
  // A rank that had not begun to catch the signal which the launcher forwarded.
  const bool stopped = killed && end_.stop_signal != 0 && WTERMSIG(wait_status) == end_.stop_signal;
  end_.status = stopped ? 128 + end_.stop_signal : killed ? 3 : WEXITSTATUS(wait_status);
  kill_at_ = Deadline::after_seconds(options_.grace_seconds);
  const std::string what =
      "rank " + std::to_string(rank) + " of " + std::to_string(options_.ranks) +
      (killed ? " was killed by signal " + std::to_string(WTERMSIG(wait_status))
              : " ended with status " + std::to_string(WEXITSTATUS(wait_status)));
  lost_ = what + " before the ranks had met";
  failed_.rank = rank;
  failed_.size = options_.ranks;
  failed_.port = port();
  failed_.job = token_;
  if (ranks_.front().pid > 0) collectives::report_lost_rank(failed_, lost_);
  if (stopped || (!killed && end_.stop_signal != 0)) return;
  print_to_stderr("launch   " + what + "\n");
}

void RankJob::send_all(int signal) const {
  for (const Rank& rank : ranks_) {
    // The whole group: a rank may be a script that started the program.
    if (rank.pid > 0) static_cast<void>(::kill(-rank.pid, signal));
  }
}

}  // namespace sluice::cli
