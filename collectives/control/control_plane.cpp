// The star's thread. It alone touches the connections; other threads leave frames in the outbox and
// wake it. Rank 0 relays: a gather is complete there, and the first abort that it hears of (its
// own, a rank's report, a closed connection, a silence) is the root cause for all.
//
//     gather    number (8), bytes of name (4), name, message     a rank -> 0
//     gathered  number (8), for each rank: bytes (4), message     0 -> all
//     abort     rank (4), text                                    a rank -> 0 -> all
//     beat, leave: empty                                          both ways
#include "collectives/control/control_plane.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "collectives/control/frame_connection.hpp"
#include "collectives/control/pending_gathers.hpp"

namespace sluice::collectives {
namespace {

using Clock = Deadline::Clock;

constexpr std::uint64_t kMostNameBytes = 256;
constexpr int kNumberBytes = 8, kLengthBytes = 4;
// A rank waits this much longer than rank 0, whose error names the missing ranks.
constexpr double kAnswerSeconds = 2;
// Time for the last frames of a plane that is destroyed.
constexpr double kLingerSeconds = 1;

std::uint64_t most_body_bytes(int rank, int size) {
  const std::uint64_t message = kNumberBytes + kLengthBytes + kMostNameBytes + kMostGatherBytes;
  return rank == 0 ? message : message * static_cast<std::uint64_t>(size);
}

std::string gather_body(std::uint64_t number, const std::string& name, const std::string& message) {
  std::string body;
  append_number(body, number, kNumberBytes);
  append_number(body, name.size(), kLengthBytes);
  return body + name + message;
}
std::string gathered_body(std::uint64_t number, const std::vector<std::string>& messages) {
  std::string body;
  append_number(body, number, kNumberBytes);
  for (const std::string& message : messages) {
    append_number(body, message.size(), kLengthBytes);
    body += message;
  }
  return body;
}
std::string abort_body(const FirstCause& cause) {
  std::string body;
  append_number(body, static_cast<std::uint64_t>(cause.rank), kLengthBytes);
  return body + cause.text;
}

std::string join_ranks(const std::vector<int>& ranks) {
  std::string text = "rank ";
  for (std::size_t i = 0; i < ranks.size() && i < 16; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > 16) text += " and " + std::to_string(ranks.size() - 16) + " more";
  return text;
}

}  // namespace

class ControlPlane::Star {
 public:
  Star(const RendezvousPlace& place, const std::string& greeting, const ControlOptions& options)
      : rank_(place.rank),
        size_(place.size),
        silence_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.silence_seconds))),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        state_(place.size) {
    if (wake_.get() < 0) throw IoError("eventfd", "control plane", 0, 0, errno);
    Meeting meeting = meet_ranks(place, greeting, Deadline::after_seconds(options.start_seconds));
    greetings_ = std::move(meeting.messages);
    for (Socket& socket : meeting.sockets) {
      connections_.emplace_back(std::move(socket), most_body_bytes(rank_, size_));
    }
    if (size_ > 1) thread_ = start_thread("control", [this] { run(); });
    if (meeting.listener) {
      door_.emplace(place, std::move(meeting.listener), [this] { return !cause(); });
    }
  }

  ~Star() {
    door_.reset();
    {
      const MutexLock lock(mutex_);
      if (!state_.cause) send_to_all(FrameKind::kLeave, {});
      state_.leaving = true;
    }
    wake();
    // The thread ends once its frames are out.
    if (thread_.joinable()) thread_.join();
  }
  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<std::string>& greetings() const { return greetings_; }

  std::vector<std::string> gather(const std::string& name, const std::string& message,
                                  Deadline deadline) {
    SLUICE_CHECK(name.size() <= kMostNameBytes && message.size() <= kMostGatherBytes);
    if (size_ == 1) return {message};
    const Deadline answer =
        rank_ == 0 ? deadline
                   : Deadline::after(deadline.time() - Clock::now() +
                                     std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(kAnswerSeconds)));
    MutexLock lock(mutex_);
    const std::uint64_t number = state_.next_gather++;
    if (!state_.cause) contribute(rank_, number, name, message);
    wake();
    changed_.wait_until(lock, answer, [&]() SLUICE_REQUIRES(mutex_) {
      return state_.gathered.contains(number) || state_.cause || state_.left[0];
    });
    const auto found = state_.gathered.find(number);
    if (found != state_.gathered.end()) {
      std::vector<std::string> messages = std::move(found->second);
      state_.gathered.erase(found);
      return messages;
    }
    const std::string call = "gather of '" + shown(name) + "' on " + describe(rank_);
    if (state_.cause) throw CommunicationError(state_.cause->rank, call, state_.cause->text);
    if (state_.left[0]) throw CommunicationError(0, call, describe(0) + " has left the job");
    give_up(number, name);
  }

  FirstCause abort(const std::string& why) {
    MutexLock lock(mutex_);
    report({rank_, why});
    wake();
    changed_.wait_until(lock, Deadline::after_seconds(kAnswerSeconds),
                        [&]() SLUICE_REQUIRES(mutex_) { return state_.cause.has_value(); });
    // Rank 0 does not answer.
    set_cause({rank_, why});
    return *state_.cause;
  }

  FirstCause find_cause(const std::string& why, double seconds) {
    {
      MutexLock lock(mutex_);
      changed_.wait_until(lock, Deadline::after_seconds(seconds),
                          [&]() SLUICE_REQUIRES(mutex_) { return state_.cause.has_value(); });
      if (state_.cause) return *state_.cause;
    }
    return abort(why);
  }

  std::optional<FirstCause> cause() const {
    const MutexLock lock(mutex_);
    return state_.cause;
  }

  void watch(const std::shared_ptr<Communicator>& group) {
    std::optional<FirstCause> cause;
    {
      const MutexLock lock(mutex_);
      cause = state_.cause;
      if (!cause) state_.groups.push_back(group);
    }
    if (cause) group->abort(cause->text);
  }

 private:
  // All that the plane's thread and the others share.
  struct State {
    explicit State(int ranks) : pending(ranks), left(static_cast<std::size_t>(ranks)) {}
    std::uint64_t next_gather = 0;
    PendingGathers pending;  // on rank 0
    std::map<std::uint64_t, std::vector<std::string>> gathered;
    std::vector<bool> left;  // ranks that have left in good order; on others only rank 0's place
    std::optional<FirstCause> cause;
    std::vector<std::weak_ptr<Communicator>> groups;  // to abort
    std::vector<std::pair<int, Frame>> outbox;        // by peer
    bool leaving = false;
  };

  std::string describe(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size_);
  }
  int peer_at(std::size_t connection) const {
    return rank_ == 0 ? static_cast<int>(connection) : 0;
  }

  void wake() const {
    const std::uint64_t one = 1;
    // It fails only if the counter is full; then the thread is about to wake anyway.
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void send_to_all(FrameKind kind, const std::string& body) SLUICE_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      state_.outbox.push_back({static_cast<int>(i), {kind, body}});
    }
  }

  void set_cause(const FirstCause& cause) SLUICE_REQUIRES(mutex_) {
    if (state_.cause) return;
    state_.cause = cause;
    if (rank_ == 0) send_to_all(FrameKind::kAbort, abort_body(cause));
    changed_.notify_all();
  }
  // On rank 0 a fault is the cause at once. The others hear from rank 0 whether it is.
  void report(const FirstCause& fault) SLUICE_REQUIRES(mutex_) {
    if (rank_ == 0 || size_ == 1 || state_.left[0]) return set_cause(fault);
    state_.outbox.push_back({0, {FrameKind::kAbort, abort_body(fault)}});
  }

  void contribute(int rank, std::uint64_t number, const std::string& name,
                  const std::string& message) SLUICE_REQUIRES(mutex_) {
    if (rank_ != 0) {
      state_.outbox.push_back({0, {FrameKind::kGather, gather_body(number, name, message)}});
      return;
    }
    if (const auto wrong = state_.pending.add(rank, number, name, message)) {
      return set_cause({rank, *wrong});
    }
    for (const int missing : state_.pending.find_missing(number)) {
      if (state_.left[static_cast<std::size_t>(missing)]) return miss_departed(missing, name);
    }
    if (auto messages = state_.pending.take_complete(number)) {
      send_to_all(FrameKind::kGathered, gathered_body(number, *messages));
      state_.gathered[number] = std::move(*messages);
      changed_.notify_all();
    }
  }
  void miss_departed(int rank, const std::string& name) SLUICE_REQUIRES(mutex_) {
    set_cause(
        {rank, describe(rank) + " has left the job, but the others gather '" + shown(name) + "'"});
  }

  [[noreturn]] void give_up(std::uint64_t number, const std::string& name) SLUICE_REQUIRES(mutex_) {
    std::string awaited = "rank 0's answer to '" + shown(name) + "' on " + describe(rank_);
    int culprit = 0;
    if (rank_ == 0) {
      const std::vector<int> missing = state_.pending.find_missing(number);
      culprit = missing.front();
      awaited =
          join_ranks(missing) + " of " + std::to_string(size_) + " to reach '" + shown(name) + "'";
    }
    report({culprit, "the deadline passed while waiting for " + awaited});
    wake();
    throw TimeoutError(awaited);
  }

  // ---- the plane's thread

  void run() noexcept {
    try {
      serve();
    } catch (const std::exception& error) {
      {
        const MutexLock lock(mutex_);
        set_cause({rank_, describe(rank_) + " lost its control plane: " + error.what()});
      }
      abort_groups();
    }
  }

  void serve() {
    auto last_beat = Clock::now();
    auto last_round = last_beat;
    std::optional<Deadline> linger;
    while (true) {
      wait();
      const auto now = Clock::now();
      // This process was stopped itself, or starved: the others' silence means nothing.
      if (now - last_round > silence_ / 2) {
        for (FrameConnection& connection : connections_) connection.forgive_silence();
      }
      last_round = now;
      receive();
      if (now - last_beat >= silence_ / 10) {
        for (FrameConnection& connection : connections_) connection.queue(FrameKind::kBeat, {});
        last_beat = now;
      }
      const bool leaving = send();
      abort_groups();
      if (!leaving) continue;
      if (!linger) linger = Deadline::after_seconds(kLingerSeconds);
      const bool idle = std::none_of(connections_.begin(), connections_.end(),
                                     [](const FrameConnection& c) { return c.has_output(); });
      if (idle || linger->passed()) return;
    }
  }

  void wait() {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    for (const FrameConnection& connection : connections_) {
      if (connection.has_ended()) continue;
      const short events = connection.has_output() ? POLLIN | POLLOUT : POLLIN;
      polled.push_back({connection.socket().descriptor(), events, 0});
    }
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(silence_ / 10);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(pause.count()));
    if (ready < 0 && errno != EINTR) throw IoError("poll", "control plane", 0, 0, errno);
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_.get(), &count, sizeof count));
  }

  void receive() {
    const auto now = Clock::now();
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      FrameConnection& connection = connections_[i];
      if (connection.has_ended()) continue;
      const int peer = peer_at(i);
      for (const Frame& frame : connection.read()) handle(peer, frame);
      if (state_.left[static_cast<std::size_t>(peer)]) continue;
      if (connection.has_ended()) {
        set_cause({peer, describe(peer) + " is gone: its connection closed (killed, or crashed)"});
      } else if (now - connection.last_heard() > silence_) {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence_);
        set_cause({peer, describe(peer) + " has been silent for " +
                             std::to_string(seconds.count()) +
                             " s (stopped, or its machine is cut off)"});
      }
    }
  }

  void handle(int peer, const Frame& frame) SLUICE_REQUIRES(mutex_) {
    const char* const body = frame.body.data();
    const std::size_t bytes = frame.body.size();
    switch (frame.kind) {
      case FrameKind::kBeat:
        return;
      case FrameKind::kLeave:
        state_.left[static_cast<std::size_t>(peer)] = true;
        if (rank_ == 0) {
          if (const auto name = state_.pending.find_waiting_for(peer)) miss_departed(peer, *name);
        }
        changed_.notify_all();
        return;
      case FrameKind::kAbort:
        if (bytes < kLengthBytes) break;
        return set_cause(
            {static_cast<int>(read_number(body, kLengthBytes)), frame.body.substr(kLengthBytes)});
      case FrameKind::kGather: {
        if (rank_ != 0 || bytes < kNumberBytes + kLengthBytes) break;
        const std::uint64_t name_bytes = read_number(body + kNumberBytes, kLengthBytes);
        const std::size_t name_begin = kNumberBytes + kLengthBytes;
        if (name_bytes > bytes - name_begin) break;
        return contribute(peer, read_number(body, kNumberBytes),
                          frame.body.substr(name_begin, name_bytes),
                          frame.body.substr(name_begin + name_bytes));
      }
      case FrameKind::kGathered:
        if (rank_ != 0 && take_gathered(frame.body)) return;
        break;
    }
    set_cause({peer, describe(peer) + " sent a malformed control message"});
  }

  bool take_gathered(const std::string& body) SLUICE_REQUIRES(mutex_) {
    if (body.size() < kNumberBytes) return false;
    std::vector<std::string> messages;
    std::size_t at = kNumberBytes;
    while (at + kLengthBytes <= body.size()) {
      const std::uint64_t bytes = read_number(body.data() + at, kLengthBytes);
      at += kLengthBytes;
      if (bytes > body.size() - at) return false;
      messages.push_back(body.substr(at, bytes));
      at += bytes;
    }
    if (at != body.size() || messages.size() != static_cast<std::size_t>(size_)) return false;
    state_.gathered[read_number(body.data(), kNumberBytes)] = std::move(messages);
    changed_.notify_all();
    return true;
  }

  // Returns whether the plane is being destroyed.
  bool send() {
    bool leaving = false;
    {
      const MutexLock lock(mutex_);
      for (const auto& [peer, frame] : state_.outbox) {
        connections_[static_cast<std::size_t>(peer)].queue(frame.kind, frame.body);
      }
      state_.outbox.clear();
      leaving = state_.leaving;
    }
    for (FrameConnection& connection : connections_) connection.flush();
    return leaving;
  }

  void abort_groups() {
    std::vector<std::weak_ptr<Communicator>> groups;
    std::string why;
    {
      const MutexLock lock(mutex_);
      if (!state_.cause) return;
      groups.swap(state_.groups);
      why = state_.cause->text;
    }
    for (const auto& weak : groups) {
      if (const auto group = weak.lock()) group->abort(why);
    }
  }

  const int rank_, size_;
  const Clock::duration silence_;
  const FileDescriptor wake_;
  std::vector<std::string> greetings_;
  std::vector<FrameConnection> connections_;  // of the plane's thread, once it runs
  mutable Mutex mutex_;
  CondVar changed_;
  State state_ SLUICE_GUARDED_BY(mutex_);
  std::jthread thread_;
  std::optional<Door> door_;  // on rank 0
};

ControlPlane::ControlPlane(const RendezvousPlace& place, const std::string& greeting,
                           const ControlOptions& options)
    : star_(std::make_unique<Star>(place, greeting, options)) {}
ControlPlane::~ControlPlane() = default;

int ControlPlane::rank() const {
  return star_->rank();
}
int ControlPlane::size() const {
  return star_->size();
}
const std::vector<std::string>& ControlPlane::greetings() const {
  return star_->greetings();
}
std::vector<std::string> ControlPlane::gather(const std::string& name, const std::string& message,
                                              Deadline deadline) {
  return star_->gather(name, message, deadline);
}
FirstCause ControlPlane::abort(const std::string& why) {
  return star_->abort(why);
}
FirstCause ControlPlane::find_cause(const std::string& why, double seconds) {
  return star_->find_cause(why, seconds);
}
std::optional<FirstCause> ControlPlane::cause() const {
  return star_->cause();
}
void ControlPlane::watch(const std::shared_ptr<Communicator>& group) {
  star_->watch(group);
}

}  // namespace sluice::collectives
