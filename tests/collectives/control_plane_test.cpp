// The control plane with ranks as threads. The tests of Gloo kill and stop processes.
#include "collectives/control/control_plane.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "collectives/local/local_group.hpp"
#include "collectives/socket.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::collectives {
namespace {

using testing::mentions;
using testing::message_of;

Deadline soon() {
  return Deadline::after_seconds(30);
}

class ControlPlaneTest : public ::testing::Test {
 protected:
  RendezvousPlace place_of(int rank, int size) const {
    RendezvousPlace place;
    place.rank = rank;
    place.size = size;
    place.port = port_of(listener_);
    place.listener = listener_.descriptor();
    place.job = "control";
    return place;
  }
  // body(plane) in a thread for each rank.
  void run(int size, const std::function<void(ControlPlane&)>& body,
           const ControlOptions& options = {}) const {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ControlPlane plane(place_of(rank, size), "greeting " + std::to_string(rank), options);
          body(plane);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
  }

  const Socket listener_ = listen_at("127.0.0.1", 0);
};

TEST_F(ControlPlaneTest, GathersInRankOrderOnAllRanks) {
  for (const int size : {1, 2, 3, 5, 8}) {
    run(size, [size](ControlPlane& plane) {
      ASSERT_EQ(plane.greetings().size(), static_cast<std::size_t>(size));
      EXPECT_EQ(plane.greetings().back(), "greeting " + std::to_string(size - 1));
      for (int step = 0; step < 50; ++step) {
        const std::string own = std::to_string(plane.rank() * 1000 + step);
        const auto all = plane.gather("step " + std::to_string(step), own, soon());
        ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(all[static_cast<std::size_t>(rank)], std::to_string(rank * 1000 + step));
        }
      }
      EXPECT_FALSE(plane.cause());
    });
  }
}

TEST_F(ControlPlaneTest, CarriesLongAndEmptyMessages) {
  run(3, [](ControlPlane& plane) {
    const std::string own(plane.rank() == 1 ? kMostGatherBytes : 0, 'x');
    const auto all = plane.gather("long", own, soon());
    EXPECT_EQ(all[0], "");
    EXPECT_EQ(all[1], std::string(kMostGatherBytes, 'x'));
    plane.gather("the others have read it", "", soon());
  });
}

TEST_F(ControlPlaneTest, TheFirstAbortIsTheCauseOnAllRanks) {
  for (const int first : {0, 2}) {
    std::atomic<int> waiting{0};
    run(3, [&](ControlPlane& plane) {
      if (plane.rank() == first) {
        while (waiting < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_EQ(plane.abort("the disk is full").text, "the disk is full");
        return;
      }
      ++waiting;
      const auto error =
          testing::thrown_by<CommunicationError>([&] { plane.gather("losses", "", soon()); });
      EXPECT_EQ(error.rank, first);
      EXPECT_TRUE(mentions(error.what(), "gather of 'losses'"));
      EXPECT_TRUE(mentions(error.what(), "the disk is full"));
      // A later fault, such as that of a connection that the first one closed, changes nothing.
      const FirstCause cause = plane.find_cause("my connection closed");
      EXPECT_EQ(cause.rank, first);
      EXPECT_EQ(cause.text, "the disk is full");
      EXPECT_EQ(plane.abort("my connection closed").text, "the disk is full");
    });
  }
}

TEST_F(ControlPlaneTest, AMissingRankIsNamedByRankZeroToAll) {
  std::atomic<int> waiting{2};
  run(4, [&](ControlPlane& plane) {
    if (plane.rank() == 1 || plane.rank() == 3) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    std::string text;
    try {
      plane.gather("commit 7", "", Deadline::after_seconds(0.3));
      ADD_FAILURE();
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_TRUE(mentions(text, "rank 1, 3 of 4 to reach 'commit 7'"));
    --waiting;
  });
}

TEST_F(ControlPlaneTest, RanksThatGatherDifferentThingsEndTheJob) {
  run(2, [](ControlPlane& plane) {
    const std::string text = message_of<CommunicationError>(
        [&] { plane.gather(plane.rank() == 0 ? "losses" : "commit", "", soon()); });
    EXPECT_TRUE(mentions(text, "'losses'"));
    EXPECT_TRUE(mentions(text, "'commit'"));
  });
}

TEST_F(ControlPlaneTest, ARankThatLeavesInOrderIsNoFaultUntilItIsMissed) {
  for (const int leaving : {0, 1}) {
    std::atomic<bool> left{false};
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        auto plane = std::make_unique<ControlPlane>(place_of(rank, 2), "");
        plane->gather("last", "", soon());
        if (rank == leaving) {
          plane.reset();
          left = true;
          return;
        }
        while (!left) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_FALSE(plane->cause());
        const auto error =
            testing::thrown_by<CommunicationError>([&] { plane->gather("more", "", soon()); });
        EXPECT_EQ(error.rank, leaving);
        EXPECT_TRUE(mentions(error.what(), "has left the job"));
      });
    }
  }
}

// A process that stops speaking, and one whose connection closes without a word.
TEST_F(ControlPlaneTest, SilenceAndClosedConnectionsAreFaults) {
  for (const bool closes : {false, true}) {
    std::jthread impostor([&] {
      Meeting meeting = meet_ranks(place_of(1, 2), "", soon());
      if (closes) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    });
    ControlOptions options;
    options.silence_seconds = 0.5;
    ControlPlane plane(place_of(0, 2), "", options);
    const auto error =
        testing::thrown_by<CommunicationError>([&] { plane.gather("x", "", soon()); });
    EXPECT_EQ(error.rank, 1);
    EXPECT_TRUE(mentions(error.what(), closes ? "is gone" : "has been silent"));
  }
}

// Bytes that are no frame end the job with a sentence, and allocate nothing.
TEST_F(ControlPlaneTest, MalformedFramesAreFaults) {
  const std::string texts[] = {std::string("\x01\xff\xff\xff\xff", 5),
                               std::string("\x77\0\0\0\0", 5), std::string("\x01\x02\0\0\0ab", 7),
                               std::string("\x02\0\0\0\0", 5)};
  for (const std::string& text : texts) {
    std::jthread impostor([&] {
      Meeting meeting = meet_ranks(place_of(1, 2), "", soon());
      EXPECT_TRUE(send_all(meeting.sockets[0], std::as_bytes(std::span(text)), soon()));
      std::byte end{};
      receive_all(meeting.sockets[0], {&end, 1}, soon());
    });
    ControlPlane plane(place_of(0, 2), "");
    const auto error =
        testing::thrown_by<CommunicationError>([&] { plane.gather("x", "", soon()); });
    EXPECT_EQ(error.rank, 1);
  }
}

TEST_F(ControlPlaneTest, AnAbortReachesTheWatchedGroups) {
  auto group = make_local_group(2);
  run(2, [&](ControlPlane& plane) {
    const std::shared_ptr<Communicator> own =
        std::move(group[static_cast<std::size_t>(plane.rank())]);
    plane.watch(own);
    plane.gather("watched", "", soon());
    if (plane.rank() == 0) {
      plane.abort("no more memory");
      // Registered too late: aborted at once.
      const std::shared_ptr<Communicator> late = make_single_communicator();
      plane.watch(late);
      EXPECT_THROW(late->barrier(), CommunicationError);
      plane.find_cause("");
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    int number = 0;
    const std::string text =
        message_of<CommunicationError>([&] { own->broadcast(&number, 1, DType::kI32, 0); });
    EXPECT_TRUE(mentions(text, "no more memory"));
  });
}

}  // namespace
}  // namespace sluice::collectives
