#include "collectives/control/frame_connection.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>
#include <utility>

namespace sluice::collectives {
namespace {

constexpr int kLengthBytes = 4;
constexpr std::size_t kHeadBytes = 1 + kLengthBytes;

}  // namespace

void append_number(std::string& to, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(number >> (8 * i) & 0xff));
}
std::uint64_t read_number(const char* from, int bytes) {
  std::uint64_t number = 0;
  for (int i = 0; i < bytes; ++i) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return number;
}

FrameConnection::FrameConnection(Socket socket, std::uint64_t most_body_bytes)
    : socket_(std::move(socket)), most_body_bytes_(most_body_bytes), ended_(!socket_) {}

void FrameConnection::queue(FrameKind kind, const std::string& body) {
  if (ended_) return;
  // A beat says nothing that bytes on the way do not say. A stopped peer costs no memory.
  if (kind == FrameKind::kBeat && !output_.empty()) return;
  output_.push_back(static_cast<char>(kind));
  append_number(output_, body.size(), kLengthBytes);
  output_ += body;
}

void FrameConnection::flush() {
  std::size_t done = 0;
  while (!ended_ && done < output_.size()) {
    const ssize_t sent = ::send(socket_.descriptor(), output_.data() + done, output_.size() - done,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      // Bytes of the peer may still be waiting: read() ends the connection after them.
      done = output_.size();
    }
  }
  output_.erase(0, done);
}

std::vector<Frame> FrameConnection::read() {
  std::array<std::byte, 1 << 14> buffer;
  std::vector<Frame> frames;
  bool broken = false;
  while (!ended_ && !broken) {
    const Received got = receive_some(socket_, buffer);
    broken = got.ended;
    if (got.bytes == 0) break;
    last_heard_ = Deadline::Clock::now();
    input_.append(reinterpret_cast<const char*>(buffer.data()), got.bytes);
    while (auto frame = next_frame()) frames.push_back(std::move(*frame));
  }
  ended_ = ended_ || broken;
  return frames;
}

std::optional<Frame> FrameConnection::next_frame() {
  if (input_.size() < kHeadBytes) return std::nullopt;
  const std::uint64_t bytes = read_number(input_.data() + 1, kLengthBytes);
  const auto kind = static_cast<std::uint8_t>(input_[0]);
  if (kind > static_cast<std::uint8_t>(FrameKind::kLeave) || bytes > most_body_bytes_) {
    ended_ = true;
    return std::nullopt;
  }
  if (input_.size() < kHeadBytes + bytes) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), input_.substr(kHeadBytes, bytes)};
  input_.erase(0, kHeadBytes + bytes);
  return frame;
}

}  // namespace sluice::collectives
