// Non-blocking sockets. Every wait is a poll(2) of at most a second, repeated until the deadline,
// so an interrupted wait never ends early or late.
#include "collectives/socket.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "base/error.hpp"

namespace sluice::collectives {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Empty if the name is unknown. An empty address means this machine, for listening.
Addresses addresses_of(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (address.empty() ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.empty() ? nullptr : address.c_str(),
                                   std::to_string(port).c_str(), &hints, &found);
  return Addresses(failed == 0 ? found : nullptr, &::freeaddrinfo);
}

Socket make_socket(const addrinfo& info) {
  return Socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, info.ai_protocol));
}

bool wait_for(const Socket& socket, short events, Deadline deadline) {
  while (true) {
    pollfd polled{socket.descriptor(), events, 0};
    const int timeout_ms = poll_timeout_ms(deadline, 1000);
    const int ready = ::poll(&polled, 1, timeout_ms);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (timeout_ms == 0) return false;
  }
}

// Returns the first error, or 0.
int try_listen(const addrinfo& info, Socket& listener) {
  listener = make_socket(info);
  if (!listener) return errno;
  const int on = 1;
  // Allows a port that an earlier run left in TIME_WAIT.
  ::setsockopt(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.descriptor(), info.ai_addr, info.ai_addrlen) != 0 ||
      ::listen(listener.descriptor(), SOMAXCONN) != 0) {
    const int error = errno;
    listener = Socket();
    return error;
  }
  return 0;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int poll_timeout_ms(Deadline deadline, int most_ms) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.time() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, most_ms));
}

Socket listen_at(const std::string& address, std::uint16_t port) {
  const std::string name = address + ":" + std::to_string(port);
  int error = EADDRNOTAVAIL;
  for (const std::string& at : {address, std::string()}) {
    const Addresses addresses = addresses_of(at, port);
    for (const addrinfo* info = addresses.get(); info != nullptr; info = info->ai_next) {
      Socket listener;
      error = try_listen(*info, listener);
      if (listener) return listener;
      // The port is in use. Listening at another address would hide the conflict from the ranks.
      if (error != EADDRNOTAVAIL) throw IoError("listen", name, 0, 0, error);
    }
  }
  throw IoError("listen", name, 0, 0, error);
}

Socket share_socket(int descriptor) {
  Socket shared(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  // An accept must not block: the other holders of the socket may have set it to.
  if (!shared || ::fcntl(shared.descriptor(), F_SETFL, O_NONBLOCK) != 0) {
    throw IoError("share", "descriptor " + std::to_string(descriptor), 0, 0, errno);
  }
  return shared;
}

std::uint16_t port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw IoError("getsockname", "socket", 0, 0, errno);
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket accept_from(const Socket& listener) {
  return Socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Socket connect_to(const std::string& address, std::uint16_t port, Deadline deadline) {
  const Addresses addresses = addresses_of(address, port);
  if (addresses == nullptr) return Socket();
  for (const addrinfo* info = addresses.get(); info != nullptr; info = info->ai_next) {
    Socket socket = make_socket(*info);
    if (!socket) continue;
    if (::connect(socket.descriptor(), info->ai_addr, info->ai_addrlen) != 0 &&
        errno != EINPROGRESS) {
      continue;
    }
    if (!wait_for(socket, POLLOUT, deadline)) continue;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0)
      continue;
    const int on = 1;
    ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket;
  }
  return Socket();
}

std::string local_address_towards(const std::string& address) {
  // Connecting a datagram socket only looks up the route. The port does not matter.
  const Addresses addresses = addresses_of(address, 9);
  for (const addrinfo* info = addresses.get(); info != nullptr; info = info->ai_next) {
    const Socket socket(::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.descriptor(), info->ai_addr, info->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    std::array<char, NI_MAXHOST> name{};
    if (::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &bytes) == 0 &&
        ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), bytes, name.data(), name.size(),
                      nullptr, 0, NI_NUMERICHOST) == 0) {
      return name.data();
    }
  }
  return {};
}

bool send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(socket, POLLOUT, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

Received receive_some(const Socket& socket, std::span<std::byte> bytes) {
  const ssize_t got = ::recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
  if (got > 0) return {static_cast<std::size_t>(got), false};
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {0, false};
  return {0, true};
}

bool receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const Received got = receive_some(socket, bytes);
    if (got.ended) return false;
    bytes = bytes.subspan(got.bytes);
    if (got.bytes == 0 && !wait_for(socket, POLLIN, deadline)) return false;
  }
  return true;
}

}  // namespace sluice::collectives
