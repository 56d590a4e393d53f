// The control plane: small messages among the ranks, apart from their data.
//
// It is a star over the rendezvous' connections with rank 0 in the middle, and one thread on each
// rank. It carries heartbeats, gathers (losses, commits, the stop flag, addresses) and the abort.
// Data calls have a deadline of minutes, because a slow disk is no fault. The plane finds a rank
// that has died at once, by its closed connection, and one that is stopped by its silence.
//
// The root cause is the fault that rank 0 hears of first. It goes to all ranks, which abort their
// data groups with it (watch()) and report it instead of the failures that follow from it.
//
// Any thread may call any function, but gathers are made by one thread in the same order on all
// ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "collectives/communicator.hpp"
#include "collectives/rendezvous.hpp"

namespace sluice::collectives {

struct ControlOptions {
  double start_seconds = 300;  // deadline of the rendezvous
  // A rank that has not been heard for this time counts as stopped. Beats are sent ten times as
  // often.
  double silence_seconds = 5;
};

// The fault that ended a job.
struct FirstCause {
  int rank = 0;  // the rank at fault
  std::string text;
};

// Longest message of a rank in a gather.
inline constexpr std::uint64_t kMostGatherBytes = 1 << 20;

class ControlPlane {
 public:
  // Meets the other ranks. greeting: at most kMostRendezvousBytes. Throws as meet_ranks() does.
  ControlPlane(const RendezvousPlace& place, const std::string& greeting,
               const ControlOptions& options = {});
  // Leaves the job in good order, unless it has failed: the other ranks then do not take the closed
  // connection for a death.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  int rank() const;
  int size() const;
  // The messages of all ranks, in rank order.
  const std::vector<std::string>& greetings() const;

  // Returns every rank's message in rank order. `name` says what is gathered; ranks that gather
  // different things at the same time end the job with an error. Throws TimeoutError, which on rank
  // 0 names the missing ranks, and CommunicationError with the root cause if the job has failed.
  std::vector<std::string> gather(const std::string& name, const std::string& message,
                                  Deadline deadline);

  // Reports this rank's fault. Returns the root cause, which may be another one.
  FirstCause abort(const std::string& why);
  // For a data call that failed: waits for the cause that other ranks report, and reports `why`
  // itself if none comes within `seconds`.
  FirstCause find_cause(const std::string& why, double seconds = 2);
  std::optional<FirstCause> cause() const;
  // Aborts `group` with the root cause, now if there is one already. The plane does not keep the
  // group alive.
  void watch(const std::shared_ptr<Communicator>& group);

 private:
  class Star;
  std::unique_ptr<Star> star_;
};

}  // namespace sluice::collectives
