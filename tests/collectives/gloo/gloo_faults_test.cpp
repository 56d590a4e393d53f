// Ranks as processes that are killed, stopped or cut off in the middle of their collectives. Every
// survivor ends within 10 s and reports the same root cause.
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "collectives/control/control_plane.hpp"
#include "collectives/gloo/gloo_communicator.hpp"
#include "tests/support/rank_processes.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::testing {
namespace {

using collectives::Communicator;
using collectives::ControlPlane;
using collectives::RendezvousPlace;

std::string describe(const collectives::FirstCause& cause) {
  return "rank " + std::to_string(cause.rank) + " | " + cause.text + " | ";
}

// A rank's run: sums until something fails, and the cause that it reports. `act` may end it sooner.
std::string run_rank(const RendezvousPlace& place, const std::function<void(int step)>& act) {
  collectives::ControlOptions control_options;
  control_options.silence_seconds = 1.5;
  ControlPlane control(place, {}, control_options);
  collectives::GlooOptions options = collectives::gloo_options_at(place);
  options.exchange = [&](const std::string& message, Deadline deadline) {
    return control.gather("addresses", message, deadline);
  };
  options.start_seconds = 30;
  const std::shared_ptr<Communicator> group = collectives::make_gloo_communicator(options);
  control.watch(group);
  std::vector<float> data(5000), workspace(5000 + 4096);
  try {
    for (int step = 0;; ++step) {
      act(step);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
      group->all_reduce(data.data(), data.size(), DType::kF32, workspace.data());
      if (data[3] != 3.0F * static_cast<float>(place.size)) return "wrong sum";
    }
  } catch (const collectives::CommunicationError& error) {
    return describe(control.find_cause(error.what())) + error.what();
  } catch (const Error& error) {
    return describe(control.abort(error.what())) + error.what();
  }
}

void expect_survivors(RankProcesses& ranks, int size, int victim, const std::string& words) {
  const auto began = std::chrono::steady_clock::now();
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const std::string text = ranks.wait(rank, 20);
    EXPECT_TRUE(mentions(text, "rank " + std::to_string(victim) + " | rank " +
                                   std::to_string(victim) + " of " + std::to_string(size)));
    EXPECT_TRUE(mentions(text, words));
    EXPECT_TRUE(mentions(text, "all_reduce"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

TEST(GlooFaults, AKilledRankIsNamedByAllOthers) {
  for (const auto& [size, victim] : {std::pair(2, 1), std::pair(4, 2), std::pair(4, 0)}) {
    RankProcesses ranks(size, [victim = victim](const RendezvousPlace& place) {
      return run_rank(place, [&](int step) {
        if (place.rank == victim && step == 7) ::raise(SIGKILL);
      });
    });
    expect_survivors(ranks, size, victim, "is gone: its connection closed");
    EXPECT_EQ(ranks.wait(victim, 5), "");
  }
}

TEST(GlooFaults, AStoppedRankIsNamedByItsSilence) {
  for (const auto& [size, victim] : {std::pair(2, 0), std::pair(4, 3)}) {
    RankProcesses ranks(size, [victim = victim](const RendezvousPlace& place) {
      return run_rank(place, [&](int step) {
        if (place.rank == victim && step == 5) ::raise(SIGSTOP);
      });
    });
    expect_survivors(ranks, size, victim, "has been silent for 1 s");
    if (victim == 0) continue;
    // When it goes on it learns that it was given up.
    ranks.send(victim, SIGCONT);
    EXPECT_TRUE(mentions(ranks.wait(victim, 20), "rank 3 of 4 has been silent"));
  }
}

// The data connections of a rank break, but it lives: the ranks agree on one cause.
TEST(GlooFaults, ACutConnectionHasOneFirstCause) {
  RankProcesses ranks(3, [](const RendezvousPlace& place) {
    return run_rank(place, [&](int step) {
      if (place.rank != 1 || step != 5) return;
      // The control plane's connection is older, so it has the lowest number of them.
      bool is_first = true;
      for (int descriptor = 3; descriptor < 64; ++descriptor) {
        sockaddr_storage peer{};
        socklen_t bytes = sizeof peer;
        if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) continue;
        if (!is_first) ::shutdown(descriptor, SHUT_RDWR);
        is_first = false;
      }
    });
  });
  std::string cause;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = ranks.wait(rank, 10);
    EXPECT_TRUE(mentions(text, "lost its connection to rank"));
    const std::string own = text.substr(0, text.find(" (", text.find(" | ")));
    if (rank == 0) cause = own;
    EXPECT_EQ(own, cause);
  }
}

// A fault of one rank's own, such as a full disk, is the cause on all.
TEST(GlooFaults, ARanksOwnFaultEndsTheOthersCalls) {
  RankProcesses ranks(3, [](const RendezvousPlace& place) {
    return run_rank(place, [&](int step) {
      if (place.rank == 2 && step == 4) throw IoError("write", "state", 0, 8, ENOSPC);
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(mentions(ranks.wait(rank, 10), "No space left on device"));
  }
}

}  // namespace
}  // namespace sluice::testing
