// TCP with deadlines: non-blocking sockets, and functions that wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/deadline.hpp"

namespace sluice::collectives {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// Listens at `address`. If that is not an address of this machine (a translated name), listens at
// all addresses. port 0: any free port. Throws IoError.
Socket listen_at(const std::string& address, std::uint16_t port);
// Another descriptor of a listening socket that this process inherited. Throws IoError.
Socket share_socket(int descriptor);
std::uint16_t port_of(const Socket& listener);
// Returns an empty socket if no connection is pending.
Socket accept_from(const Socket& listener);
// Returns an empty socket if the attempt should be repeated: it was refused, not answered before
// the deadline, or the name is unknown (a job's names may appear after its ranks start).
Socket connect_to(const std::string& address, std::uint16_t port, Deadline deadline);

// The address of this machine that packets to `address` leave from. Sends nothing. Empty if
// `address` is unknown or cannot be reached.
std::string local_address_towards(const std::string& address);

// Both return false if the connection broke or the deadline passed.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
bool receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);
// Reads the bytes that have arrived, without waiting. ended: the connection broke or was closed.
struct Received {
  std::size_t bytes = 0;
  bool ended = false;
};
Received receive_some(const Socket& socket, std::span<std::byte> bytes);

// Timeout for poll(2): the milliseconds left (rounded up), at most most_ms, and 0 after the
// deadline.
int poll_timeout_ms(Deadline deadline, int most_ms);

}  // namespace sluice::collectives
