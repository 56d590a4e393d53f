// TCP with deadlines: sockets that never block, and the waits for them.
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

// Listens at `address`, or at every address of this machine where that is not one of its own (a
// name that is translated on the way). port 0: any. Throws IoError.
Socket listen_at(const std::string& address, std::uint16_t port);
std::uint16_t port_of(const Socket& listener);
// Empty where nobody waits.
Socket accept_from(const Socket& listener);
// Empty where it was refused, not answered until the deadline, or nobody knows the name (yet: a
// job's names may appear after its ranks): to be tried again.
Socket connect_to(const std::string& address, std::uint16_t port, Deadline deadline);

// False: the connection broke, or the deadline passed.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
bool receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);
// What has arrived, without waiting. ended: the connection broke, or the other side closed it.
struct Received {
  std::size_t bytes = 0;
  bool ended = false;
};
Received receive_some(const Socket& socket, std::span<std::byte> bytes);

// poll(2) for the milliseconds that are left, at least 1 while any is and 0 past the deadline.
int poll_timeout_ms(Deadline deadline, int most_ms);

}  // namespace sluice::collectives
