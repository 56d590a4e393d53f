// Ranks as real processes, which can be killed and stopped. They are forked, so the test must have
// no other threads when it starts them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/rendezvous.hpp"
#include "collectives/socket.hpp"

namespace sluice::testing {

class RankProcesses {
 public:
  // In each child: what body() returns is the rank's text, and an exception's message is it too,
  // after "error: ".
  using Body = std::function<std::string(const collectives::RendezvousPlace&)>;

  RankProcesses(int size, const Body& body) : listener_(collectives::listen_at("127.0.0.1", 0)) {
    for (int rank = 0; rank < size; ++rank) start(rank, size, body);
  }
  ~RankProcesses() {
    for (Child& child : children_) {
      if (child.pid > 0) {
        ::kill(child.pid, SIGKILL);
        ::waitpid(child.pid, nullptr, 0);
      }
      ::close(child.pipe);
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send(int rank, int signal) { ::kill(children_[static_cast<std::size_t>(rank)].pid, signal); }

  // The rank's text once it has ended. Empty if it was killed, or still runs after `seconds`.
  std::string wait(int rank, double seconds) {
    Child& child = children_[static_cast<std::size_t>(rank)];
    const Deadline deadline = Deadline::after_seconds(seconds);
    std::string text;
    while (true) {
      pollfd polled{child.pipe, POLLIN, 0};
      if (::poll(&polled, 1, collectives::poll_timeout_ms(deadline, 1000)) > 0) {
        std::array<char, 4096> buffer{};
        const ssize_t got = ::read(child.pipe, buffer.data(), buffer.size());
        if (got <= 0) break;
        text.append(buffer.data(), static_cast<std::size_t>(got));
      } else if (deadline.passed()) {
        return {};
      }
    }
    ::waitpid(child.pid, nullptr, 0);
    child.pid = -1;
    return text;
  }

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
  };

  void start(int rank, int size, const Body& body) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const Child& other : children_) ::close(other.pipe);
      ::close(ends[0]);
      collectives::RendezvousPlace place;
      place.rank = rank;
      place.size = size;
      place.local_rank = rank;
      place.local_size = size;
      place.port = collectives::port_of(listener_);
      place.listener = listener_.descriptor();
      place.job = "processes";
      std::string text;
      try {
        text = body(place);
      } catch (const std::exception& error) {
        text = std::string("error: ") + error.what();
      }
      static_cast<void>(!::write(ends[1], text.data(), text.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    children_.push_back({pid, ends[0]});
  }

  collectives::Socket listener_;
  std::vector<Child> children_;
};

}  // namespace sluice::testing
