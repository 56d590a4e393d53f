// The processes of a job's ranks on this machine: started, relayed, and ended together.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous.hpp"
#include "collectives/socket.hpp"

namespace sluice::cli {

// 128 bits that nobody guesses. Throws IoError.
std::string make_token();

// Lines of a rank's stream, with the rank in front. A line that is longer than 64 KiB is cut.
class LineRelay {
 public:
  // to_stdout: else stderr. prefix: of each line.
  LineRelay(bool to_stdout, std::string prefix)
      : to_stdout_(to_stdout), prefix_(std::move(prefix)) {}
  void take(const char* text, std::size_t bytes);
  // The last line may have no end.
  void finish();

 private:
  void write_line();

  bool to_stdout_;
  std::string prefix_, line_;
};

struct RankJobOptions {
  int ranks = 1;
  std::vector<std::string> command;  // the program's path and its arguments
  std::vector<cpu_set_t> cores;      // of each rank; empty: not bound
  double grace_seconds = 15;
  // Added to the environment of every rank.
  std::vector<std::pair<std::string, std::string>> variables = {};
  // Rank 0's stdout passes without a prefix, and the others' go to stderr.
  bool bare_stdout = false;
};

// How a job ended.
struct RankJobEnd {
  // 0, or the status of the first rank that failed; 3 if a signal ended it.
  int status = 0;
  int stop_signal = 0;  // that this process got and forwarded; 0: none
};

// Starts a process for each rank with the environment that place_from_environment() reads, and runs
// until all have ended. The job's port is bound here and handed to rank 0, so no other program can
// take it meanwhile. SIGINT, SIGTERM and SIGHUP are forwarded to the ranks, which are process
// groups of their own. After the first rank has failed the others get grace_seconds before they are
// killed. Ranks that still wait for the others at the rendezvous are told which rank has failed.
// Ranks die with this process. Throws Error if a process cannot be started.
class RankJob {
 public:
  explicit RankJob(const RankJobOptions& options);
  ~RankJob();
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  std::uint16_t port() const;
  RankJobEnd run();

 private:
  struct Rank;

  void start(int rank);
  std::vector<std::string> environment_of(int rank) const;
  void relay_and_reap();
  void read_output(Rank& rank, int stream);
  void read_rest(Rank& rank);
  void handle_signals();
  void reap();
  void note_failure(int rank, int wait_status);
  void tell_waiting_ranks();
  void send_all(int signal) const;
  void close_orphaned_streams();
  bool is_over() const;

  const RankJobOptions options_;
  collectives::Socket listener_;
  std::string token_;
  std::vector<Rank> ranks_;
  collectives::Socket signals_;  // a signalfd
  RankJobEnd end_;
  collectives::RendezvousPlace failed_;  // of the first rank that failed
  std::string lost_;                     // the sentence for the others; empty: none has failed
  std::optional<collectives::Door> door_;
  std::optional<Deadline> kill_at_;
  std::optional<Deadline> drained_at_;  // set when the last rank has ended
  bool output_lost_ = false;
};

}  // namespace sluice::cli
