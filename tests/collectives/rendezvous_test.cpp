// Ranks that find each other over loopback: in threads, and in processes of their own, with
// strangers, latecomers and ranks that disagree.
#include "collectives/rendezvous.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "collectives/socket.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::collectives {
namespace {

// A port that was free a moment ago.
std::uint16_t free_port() {
  return port_of(listen_at("127.0.0.1", 0));
}

RendezvousPlace place_of(int rank, int size, std::uint16_t port) {
  RendezvousPlace place;
  place.rank = rank;
  place.size = size;
  place.port = port;
  place.job = "job";
  return place;
}

// The result of a rank: its messages, or the error that refused it.
struct Outcome {
  std::vector<std::string> messages;
  std::string input_error, timeout;
};

Outcome join(const RendezvousPlace& place, const std::string& message, double seconds) {
  Outcome outcome;
  try {
    outcome.messages = exchange_messages(place, message, Deadline::after_seconds(seconds));
  } catch (const InputError& error) {
    outcome.input_error = error.what();
  } catch (const TimeoutError& error) {
    outcome.timeout = error.what();
  }
  return outcome;
}

// All places at once, each in a thread.
std::vector<Outcome> join_all(const std::vector<RendezvousPlace>& places, double seconds) {
  std::vector<Outcome> outcomes(places.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back(
        [&, i] { outcomes[i] = join(places[i], "of " + std::to_string(places[i].rank), seconds); });
  }
  threads.clear();
  return outcomes;
}

TEST(Rendezvous, AGroupOfOneTouchesNoNetwork) {
  EXPECT_EQ(join(place_of(0, 1, 0), "alone", 0).messages, std::vector<std::string>{"alone"});
}

TEST(Rendezvous, EveryRankGetsEveryMessageInRankOrder) {
  for (const int size : {2, 3, 5}) {
    const std::uint16_t port = free_port();
    std::vector<RendezvousPlace> places;
    std::vector<std::string> want;
    for (int rank = size - 1; rank >= 0; --rank) places.push_back(place_of(rank, size, port));
    for (int rank = 0; rank < size; ++rank) want.push_back("of " + std::to_string(rank));
    for (const Outcome& outcome : join_all(places, 20)) EXPECT_EQ(outcome.messages, want);
  }
}

TEST(Rendezvous, MessagesMayHoldAnyBytesAndBeLong) {
  const std::uint16_t port = free_port();
  std::string bytes(kMostRendezvousBytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  Outcome first;
  std::jthread other([&] { first = join(place_of(0, 2, port), bytes, 20); });
  const Outcome second = join(place_of(1, 2, port), "", 20);
  other.join();
  EXPECT_EQ(second.messages, (std::vector<std::string>{bytes, ""}));
  EXPECT_EQ(first.messages, second.messages);
}

TEST(Rendezvous, RealProcessesMeet) {
  constexpr int kSize = 4;
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (int rank = 1; rank < kSize; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Outcome outcome = join(place_of(rank, kSize, port), std::to_string(rank * 11), 20);
      ::_exit(outcome.messages == std::vector<std::string>{"0", "11", "22", "33"} ? 0 : 1);
    }
    children.push_back(child);
  }
  // Rank 0 is the last to come.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(join(place_of(0, kSize, port), "0", 20).messages.size(), std::size_t{kSize});
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(Rendezvous, AMissingRankIsNamedToAllOthers) {
  const std::uint16_t port = free_port();
  Outcome second;
  std::jthread other([&] { second = join(place_of(2, 4, port), "", 20); });
  const Outcome first = join(place_of(0, 4, port), "", 0.6);
  other.join();
  EXPECT_TRUE(testing::mentions(first.timeout, "rank 1, 3 of 4"));
  EXPECT_TRUE(testing::mentions(second.timeout, "rank 1, 3 of 4"));
}

TEST(Rendezvous, WithoutRankZeroTheWaitEnds) {
  const Outcome outcome = join(place_of(1, 2, free_port()), "", 0.3);
  EXPECT_TRUE(testing::mentions(outcome.timeout, "rank 0's answer"));
}

// All of them, in one sentence.
TEST(Rendezvous, RanksThatContradictEachOtherAreRefused) {
  using Ranks = std::vector<std::pair<int, int>>;  // rank, size
  for (const auto& [ranks, words] :
       {std::pair(Ranks{{0, 2}, {1, 3}}, "counts 3 ranks, and rank 0 counts 2"),
        std::pair(Ranks{{0, 3}, {1, 3}, {1, 3}}, "two processes are rank 1")}) {
    const std::uint16_t port = free_port();
    std::vector<RendezvousPlace> places;
    for (const auto& [rank, size] : ranks) places.push_back(place_of(rank, size, port));
    for (const Outcome& outcome : join_all(places, 20)) {
      EXPECT_TRUE(testing::mentions(outcome.input_error, words));
    }
  }
}

TEST(Rendezvous, AnotherJobsRankIsRefusedWithoutDelayForOthers) {
  const std::uint16_t port = free_port();
  RendezvousPlace stranger = place_of(1, 2, port);
  stranger.job = "other";
  Outcome first, second;
  std::jthread host([&] { first = join(place_of(0, 2, port), "a", 20); });
  const Outcome refused = join(stranger, "x", 20);
  EXPECT_TRUE(testing::mentions(refused.input_error, "another job"));
  second = join(place_of(1, 2, port), "b", 20);
  host.join();
  EXPECT_EQ(first.messages, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(second.messages, first.messages);
}

Socket connect_patiently(std::uint16_t port) {
  const Deadline deadline = Deadline::after_seconds(10);
  while (!deadline.passed()) {
    Socket socket = connect_to("127.0.0.1", port, deadline);
    if (socket) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Socket();
}

// A port scanner that says nothing, one that asks for a page, one that claims lengths past all
// bounds, a rank that dies in the middle of its greeting.
TEST(Rendezvous, UnexpectedConnectionsAreDropped) {
  const std::uint16_t port = free_port();
  Outcome first;
  std::jthread host([&] { first = join(place_of(0, 2, port), "a", 20); });
  const Deadline deadline = Deadline::after_seconds(10);
  const auto say = [&](const Socket& socket, const std::string& text) {
    EXPECT_TRUE(send_all(socket, std::as_bytes(std::span(text)), deadline));
  };
  const Socket silent = connect_patiently(port);
  const Socket scanner = connect_patiently(port), liar = connect_patiently(port);
  ASSERT_TRUE(silent && scanner && liar);
  say(scanner, "GET / HTTP/1.1\r\n\r\n");
  say(liar, std::string("SLUICEr1\1\0\0\0\2\0\0\0\377\377\377\377\377\377\377\377", 24));
  {
    const Socket dying = connect_patiently(port);
    say(dying, std::string("SLUICEr1\1\0\0\0\2\0", 14));
  }
  std::array<std::byte, 16> answer;
  EXPECT_FALSE(receive_all(scanner, answer, deadline));
  EXPECT_FALSE(receive_all(liar, answer, deadline));
  const Outcome second = join(place_of(1, 2, port), "b", 20);
  host.join();
  EXPECT_EQ(second.messages, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(first.messages, second.messages);
}

// A thousand connections that say nothing hold neither the ranks up nor the descriptors of rank 0.
TEST(Rendezvous, SilentConnectionsGiveWayToRanks) {
  const std::uint16_t port = free_port();
  Outcome first;
  std::jthread host([&] { first = join(place_of(0, 2, port), "a", 20); });
  constexpr std::size_t kSilent = 300;
  std::vector<Socket> silent;
  for (std::size_t i = 0; i < kSilent; ++i) silent.push_back(connect_patiently(port));
  const auto began = std::chrono::steady_clock::now();
  const Outcome second = join(place_of(1, 2, port), "b", 20);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  host.join();
  EXPECT_EQ(second.messages, (std::vector<std::string>{"a", "b"})) << second.input_error;
  EXPECT_EQ(first.messages, second.messages);
  std::size_t closed = 0;
  for (const Socket& socket : silent) {
    std::byte none{};
    closed += receive_some(socket, {&none, 1}).ended ? 1 : 0;
  }
  EXPECT_GT(closed, kSilent / 2);
}

// A job that trains has a door, too: its port stays open.
TEST(Rendezvous, SilentConnectionsTakeFewDescriptorsOfADoor) {
  Socket listener = listen_at("127.0.0.1", 0);
  const std::uint16_t port = port_of(listener);
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const Door door(place_of(0, 2, port), std::move(listener), [] { return true; });
  std::vector<Socket> silent;
  const auto before = descriptors();
  for (int i = 0; i < 200; ++i) silent.push_back(connect_patiently(port));
  // A late rank is answered though they are silent.
  EXPECT_TRUE(testing::mentions(join(place_of(1, 2, port), "", 20).input_error,
                                "two processes are rank 1"));
  EXPECT_LT(descriptors() - before, 200 + 64);
}

// A listener that says nothing may be anything.
TEST(Rendezvous, SilenceAtThePortIsNotCalledAnotherProgram) {
  const Socket listener = listen_at("127.0.0.1", 0);
  const Outcome outcome = join(place_of(1, 2, port_of(listener)), "", 20);
  EXPECT_TRUE(testing::mentions(outcome.input_error, "nothing has answered as rank 0 does"));
}

// A launcher names a rank that has ended, to rank 0 and to those that have joined it.
TEST(Rendezvous, ALostRankIsNamedToAllThatWait) {
  const std::uint16_t port = free_port();
  const auto lost_at = [&](int rank) {
    return testing::message_of<RankLost>(
        [&] { meet_ranks(place_of(rank, 3, port), "", Deadline::after_seconds(20)); });
  };
  std::string first, second;
  std::jthread host([&] { first = lost_at(0); }), other([&] { second = lost_at(1); });
  connect_patiently(port);
  const std::string why = "rank 2 of 3 was killed by signal 9 before the ranks had met";
  RendezvousPlace stranger = place_of(2, 3, port);
  stranger.job = "other";
  report_lost_rank(stranger, "a lie");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  report_lost_rank(place_of(2, 3, port), why);
  host.join();
  // Rank 1 may come so late that rank 0 has ended.
  const Door door(
      place_of(2, 3, port), listen_at("127.0.0.1", port), [] { return true; }, why);
  other.join();
  EXPECT_EQ(first, why);
  EXPECT_EQ(second, why);
}

// A rank that has joined and dies is waited for again, and its successor is taken.
TEST(Rendezvous, ARankThatDiedMayComeAgain) {
  const std::uint16_t port = free_port();
  Outcome first;
  std::jthread host([&] { first = join(place_of(0, 3, port), "a", 20); });
  {
    const Socket dying = connect_patiently(port);
    const std::string hello("SLUICEr1\1\0\0\0\3\0\0\0\3\0\0\0\1\0\0\0jobx", 28);
    EXPECT_TRUE(send_all(dying, std::as_bytes(std::span(hello)), Deadline::after_seconds(10)));
  }
  const auto others = join_all({place_of(1, 3, port), place_of(2, 3, port)}, 20);
  host.join();
  EXPECT_EQ(first.messages, (std::vector<std::string>{"a", "of 1", "of 2"}));
  for (const Outcome& outcome : others) EXPECT_EQ(outcome.messages, first.messages);
}

// A job's names may appear after its ranks.
TEST(Rendezvous, AnUnknownHostIsRetriedUntilTheDeadlineAndNamed) {
  RendezvousPlace place = place_of(1, 2, 1);
  place.address = "no-such-machine.invalid";
  const Outcome outcome = join(place, "", 1);
  EXPECT_TRUE(testing::mentions(outcome.timeout, "no-such-machine.invalid"));
}

// A launcher binds the port before any rank starts, so no other program can take it.
TEST(Rendezvous, RankZeroServesAtASocketThatItInherited) {
  const Socket listener = listen_at("127.0.0.1", 0);
  RendezvousPlace first = place_of(0, 2, port_of(listener));
  first.listener = listener.descriptor();
  // Twice: the socket stays open between meetings.
  for (int round = 0; round < 2; ++round) {
    const auto outcomes = join_all({first, place_of(1, 2, first.port)}, 20);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.messages, (std::vector<std::string>{"of 0", "of 1"}));
    }
  }
}

// The connections stay for the control plane.
TEST(Rendezvous, AMeetingLeavesAConnectionToEachRank) {
  const std::uint16_t port = free_port();
  std::vector<std::jthread> others;
  for (int rank = 1; rank < 3; ++rank) {
    others.emplace_back([&, rank] {
      const Meeting meeting = meet_ranks(place_of(rank, 3, port), "", Deadline::after_seconds(20));
      ASSERT_EQ(meeting.sockets.size(), 1u);
      const auto own = static_cast<std::byte>(rank);
      EXPECT_TRUE(send_all(meeting.sockets[0], {&own, 1}, Deadline::after_seconds(20)));
    });
  }
  const Meeting meeting = meet_ranks(place_of(0, 3, port), "", Deadline::after_seconds(20));
  ASSERT_EQ(meeting.sockets.size(), 3u);
  for (std::size_t rank = 1; rank < 3; ++rank) {
    std::byte got{};
    EXPECT_TRUE(receive_all(meeting.sockets[rank], {&got, 1}, Deadline::after_seconds(20)));
    EXPECT_EQ(got, static_cast<std::byte>(rank));
  }
}

}  // namespace
}  // namespace sluice::collectives
