// A connection of the control plane: frames over a non-blocking socket, in both directions. Not
// thread-safe; the plane's thread owns it.
//
//     frame   kind (1 byte), bytes of body (4, little-endian), body
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "collectives/socket.hpp"

namespace sluice::collectives {

enum class FrameKind : std::uint8_t { kBeat, kGather, kGathered, kAbort, kLeave };

struct Frame {
  FrameKind kind = FrameKind::kBeat;
  std::string body;
};

class FrameConnection {
 public:
  // most_body_bytes: a longer frame ends the connection.
  FrameConnection(Socket socket, std::uint64_t most_body_bytes);

  const Socket& socket() const { return socket_; }
  bool has_ended() const { return ended_; }
  bool has_output() const { return !ended_ && !output_.empty(); }
  // When the last byte arrived.
  Deadline::Clock::time_point last_heard() const { return last_heard_; }
  void forgive_silence() { last_heard_ = Deadline::Clock::now(); }

  void queue(FrameKind kind, const std::string& body);
  // Writes as much of the queued frames as the socket takes now.
  void flush();
  // Reads all bytes that have arrived, and returns the whole frames among them.
  std::vector<Frame> read();

 private:
  std::optional<Frame> next_frame();

  Socket socket_;
  const std::uint64_t most_body_bytes_;
  std::string input_, output_;
  bool ended_ = false;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
};

// Numbers in frames and their bodies, little-endian.
void append_number(std::string& to, std::uint64_t number, int bytes);
std::uint64_t read_number(const char* from, int bytes);

}  // namespace sluice::collectives
