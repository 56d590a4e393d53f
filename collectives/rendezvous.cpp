// One round of messages over TCP, with rank 0 as the server.
//
//     hello   rank -> 0   magic, rank, size, bytes of job, bytes of message, job, message
//     heard   0 -> rank   magic
//     answer  0 -> rank   magic, verdict, bytes of body, body
//
// "heard" comes at once. Without it the rank refuses to wait, since another program may listen at
// the port; where a launcher has bound the port, rank 0 may only be slow to start.
//
// Rank 0 polls its listener and all connections. A connection that sends a complete hello has
// greeted; one that sends anything else, or nothing for kGreetingSeconds, is closed. Once all ranks
// have greeted, rank 0 answers each with all messages in rank order. On a disagreement, a timeout
// or a rank that a launcher reports as lost (a hello with a magic number of its own) every rank
// that has greeted receives the text of the error. The other ranks repeat connect, hello and answer
// until they have an answer or the deadline passes. Lengths from the network are checked before
// memory is allocated. A rank greets as soon as it has connected, so the oldest connection that has
// not greeted gives way to a new one: silent connections neither keep ranks out nor take many
// descriptors.
#include "collectives/rendezvous.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "collectives/socket.hpp"

namespace sluice::collectives {
namespace {

using Bytes = std::vector<std::byte>;

// Both directions send a magic number, fields of 4 bytes (little-endian), and texts. The magic
// numbers differ: a socket that connects to an unused port of its own machine may connect to itself
// and would read back its own greeting.
constexpr std::string_view kHello = "SLUICEr2", kHeard = "SLUICEh2", kAnswer = "SLUICEa2";
constexpr std::string_view kLostRank = "SLUICEg2";  // a launcher's, in the name of a rank
constexpr std::size_t kMagicBytes = 8;
constexpr std::size_t kHelloBytes = kMagicBytes + 4 * 4;   // rank, size, bytes of job, of message
constexpr std::size_t kAnswerBytes = kMagicBytes + 2 * 4;  // verdict, bytes
constexpr std::uint32_t kMostJobBytes = 256;
constexpr int kMostRanks = 1 << 16;
// A connection without a greeting after this time is no rank.
constexpr double kGreetingSeconds = 5;
// A rank 0 that listens says so within this time.
constexpr double kHeardSeconds = 3;
// For the answer of whoever listens at the port that rank 0 should have.
constexpr double kOccupantSeconds = 2;
// Pause before the next attempt to connect.
constexpr std::chrono::milliseconds kRetryPause{50};
// Connections that have not greeted, and those that are accepted between two looks at all: each is
// looked at once at least before others can push it out.
constexpr std::size_t kMostUngreeted = 32;
constexpr std::size_t kMostAccepted = kMostUngreeted / 2;

void put(Bytes& to, std::uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(std::byte(number >> shift & 0xffu));
}
void put(Bytes& to, std::string_view text) {
  const auto* const from = reinterpret_cast<const std::byte*>(text.data());
  to.insert(to.end(), from, from + text.size());
}
std::uint32_t number_at(const std::byte* from) {
  std::uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number |= std::to_integer<std::uint32_t>(from[i]) << (8 * i);
  return number;
}
std::string text_at(const std::byte* from, std::size_t bytes) {
  return std::string(reinterpret_cast<const char*>(from), bytes);
}
bool begins_with(const Bytes& bytes, std::string_view magic) {
  const std::size_t count = std::min(bytes.size(), magic.size());
  return std::memcmp(bytes.data(), magic.data(), count) == 0;
}

std::string place_name(const RendezvousPlace& place) {
  return place.address + ":" + std::to_string(place.port);
}

struct Hello {
  std::uint32_t rank = 0, size = 0;
  std::string job, message;
  bool is_lost = false;  // the message says that this rank has ended
};

// One connection at rank 0.
struct Guest {
  Socket socket;
  Deadline greeting = Deadline::after_seconds(kGreetingSeconds);
  Bytes received;
  std::optional<Hello> hello;
  bool gone = false;

  bool greeted() const { return hello.has_value(); }
  void read();

 private:
  std::size_t wanted() const;
  void take(std::span<const std::byte> bytes);
};

// Bytes of the greeting, as far as they are known yet. Precondition: the magic number is right.
std::size_t Guest::wanted() const {
  if (received.size() < kHelloBytes) return kHelloBytes;
  const std::byte* const fields = received.data() + kMagicBytes;
  return kHelloBytes + number_at(fields + 8) + number_at(fields + 12);
}

// Reads until nothing is left, so that the end of a greeted connection is noticed.
void Guest::read() {
  std::array<std::byte, 4096> buffer;
  while (!gone) {
    const Received got = receive_some(socket, buffer);
    gone = got.ended;
    if (got.bytes == 0) return;
    take(std::span(buffer).first(got.bytes));
  }
}

void Guest::take(std::span<const std::byte> bytes) {
  received.insert(received.end(), bytes.begin(), bytes.end());
  // A rank sends nothing after its greeting.
  const bool is_lost = begins_with(received, kLostRank);
  gone = greeted() || (!begins_with(received, kHello) && !is_lost);
  if (gone || received.size() < kHelloBytes) return;
  const std::byte* const fields = received.data() + kMagicBytes;
  const std::uint32_t job_bytes = number_at(fields + 8), message_bytes = number_at(fields + 12);
  gone = job_bytes > kMostJobBytes || message_bytes > kMostRendezvousBytes ||
         received.size() > wanted();
  if (gone || received.size() < wanted()) return;
  const std::byte* const texts = received.data() + kHelloBytes;
  hello = Hello{number_at(fields), number_at(fields + 4), text_at(texts, job_bytes),
                text_at(texts + job_bytes, message_bytes), is_lost};
  Bytes heard;
  put(heard, kHeard);
  // A rank that has died meanwhile is noticed by its connection.
  static_cast<void>(send_all(socket, heard, Deadline::after_seconds(1)));
}

// Takes waiting connections.
void admit(const Socket& listener, std::vector<Guest>& guests) {
  for (std::size_t i = 0; i < kMostAccepted; ++i) {
    Socket socket = accept_from(listener);
    if (!socket) return;
    const auto silent = [](const Guest& guest) { return !guest.greeted(); };
    if (std::count_if(guests.begin(), guests.end(), silent) >=
        static_cast<std::ptrdiff_t>(kMostUngreeted)) {
      guests.erase(std::find_if(guests.begin(), guests.end(), silent));
    }
    guests.emplace_back().socket = std::move(socket);
  }
}

enum class Verdict : std::uint32_t { kWelcome, kDisagrees, kTooLate, kOtherJob, kTaken, kLost };

std::string describe_other_job(const RendezvousPlace& place) {
  return "rank 0 of another job listens at " + place_name(place) +
         "; give each job a MASTER_PORT of its own";
}
std::string describe_other_size(const Hello& hello, const RendezvousPlace& place) {
  return "rank " + std::to_string(hello.rank) + " counts " + std::to_string(hello.size) +
         " ranks, and rank 0 counts " + std::to_string(place.size) +
         "; start all with one WORLD_SIZE";
}
std::string describe_twice(std::uint32_t rank, const RendezvousPlace& place) {
  return "two processes are rank " + std::to_string(rank) + " of " + std::to_string(place.size) +
         "; give each a RANK of its own";
}

void answer(const Guest& guest, Verdict verdict, const Bytes& body, Deadline deadline) {
  Bytes bytes;
  put(bytes, kAnswer);
  put(bytes, static_cast<std::uint32_t>(verdict));
  put(bytes, static_cast<std::uint32_t>(body.size()));
  bytes.insert(bytes.end(), body.begin(), body.end());
  // A rank that has died meanwhile is noticed by the communicator.
  static_cast<void>(send_all(guest.socket, bytes, deadline));
}

void refuse(const Guest& guest, Verdict verdict, const std::string& why) {
  Bytes body;
  put(body, std::string_view(why));
  answer(guest, verdict, body, Deadline::after_seconds(1));
}

std::optional<Meeting> ask(const RendezvousPlace& place, const std::string& message,
                           Deadline deadline);

// The server on rank 0.
class Host {
 public:
  Host(const RendezvousPlace& place, const std::string& message, Deadline deadline)
      : place_(place), message_(message), deadline_(deadline) {}

  Meeting gather() {
    listener_ = place_.listener >= 0 ? share_socket(place_.listener) : listen_or_refuse();
    while (missing() > 0) {
      if (deadline_.passed()) {
        const std::string why = describe_missing();
        refuse_all(Verdict::kTooLate, why);
        throw TimeoutError(why);
      }
      wait();
      meet();
    }
    Meeting meeting;
    meeting.messages = messages();
    meeting.sockets.resize(static_cast<std::size_t>(place_.size));
    for (Guest& guest : guests_) {
      if (guest.greeted()) meeting.sockets[guest.hello->rank] = std::move(guest.socket);
    }
    meeting.listener = std::move(listener_);
    return meeting;
  }

 private:
  // Another rank 0 of this job would answer, and end the job on both sides.
  Socket listen_or_refuse() const {
    try {
      return listen_at(place_.address, place_.port);
    } catch (const IoError& error) {
      if (error.error_number != EADDRINUSE) throw;
    }
    static_cast<void>(ask(place_, message_, Deadline::after_seconds(kOccupantSeconds)));
    throw InputError(place_name(place_) +
                     " is in use by another program; give the job a free MASTER_PORT");
  }

  std::size_t missing() const {
    const auto here = std::count_if(guests_.begin(), guests_.end(),
                                    [](const Guest& guest) { return guest.greeted(); });
    return static_cast<std::size_t>(place_.size - 1 - here);
  }

  std::string describe_missing() const {
    std::string ranks;
    int left_out = 0;
    for (int rank = 1; rank < place_.size; ++rank) {
      if (find(static_cast<std::uint32_t>(rank)) != nullptr) continue;
      if (ranks.size() > 60) {
        ++left_out;
      } else {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    if (left_out > 0) ranks += " and " + std::to_string(left_out) + " more";
    return "rank " + ranks + " of " + std::to_string(place_.size) + " to join rank 0 at " +
           place_name(place_);
  }

  const Guest* find(std::uint32_t rank) const {
    for (const Guest& guest : guests_) {
      if (guest.greeted() && guest.hello->rank == rank) return &guest;
    }
    return nullptr;
  }

  void wait() {
    std::vector<pollfd> polled{{listener_.descriptor(), POLLIN, 0}};
    for (const Guest& guest : guests_) polled.push_back({guest.socket.descriptor(), POLLIN, 0});
    // A bounded wait, so that overdue greetings are noticed.
    static_cast<void>(::poll(polled.data(), polled.size(), poll_timeout_ms(deadline_, 500)));
  }

  void meet() {
    for (Guest& guest : guests_) {
      const bool greeted_before = guest.greeted();
      guest.read();
      // A launcher that reports a lost rank has gone by now.
      const bool counts = guest.greeted() && (!guest.gone || guest.hello->is_lost);
      if (counts && !greeted_before) newcomers_.push_back(&guest);
      if (!guest.greeted() && guest.greeting.passed()) guest.gone = true;
    }
    for (Guest* const guest : newcomers_) check(*guest);
    newcomers_.clear();
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone; });
    admit(listener_, guests_);
  }

  void check(Guest& guest) {
    const Hello& hello = *guest.hello;
    if (hello.job != place_.job) {
      refuse(guest, Verdict::kOtherJob, describe_other_job(place_));
      guest.gone = true;
      guest.hello.reset();
      return;
    }
    if (hello.is_lost) {
      const std::string why = shown(hello.message);
      guest.hello.reset();
      refuse_all(Verdict::kLost, why);
      throw RankLost(why);
    }
    const auto size = static_cast<std::uint32_t>(place_.size);
    if (hello.size == size && hello.rank == 0) disagree(describe_twice(0, place_));
    if (hello.size != size || hello.rank == 0 || hello.rank >= size) {
      disagree(describe_other_size(hello, place_));
    }
    for (const Guest& other : guests_) {
      if (&other == &guest || other.gone || !other.greeted() || other.hello->rank != hello.rank)
        continue;
      disagree(describe_twice(hello.rank, place_));
    }
  }

  void refuse_all(Verdict verdict, const std::string& why) const {
    for (const Guest& guest : guests_) {
      if (guest.greeted() && !guest.gone) refuse(guest, verdict, why);
    }
  }

  [[noreturn]] void disagree(const std::string& why) const {
    refuse_all(Verdict::kDisagrees, why);
    throw RanksDisagree(why, false);
  }

  std::vector<std::string> messages() const {
    std::vector<std::string> all(static_cast<std::size_t>(place_.size));
    all[0] = message_;
    for (const Guest& guest : guests_) {
      if (guest.greeted()) all[guest.hello->rank] = guest.hello->message;
    }
    Bytes body;
    for (const std::string& message : all) {
      put(body, static_cast<std::uint32_t>(message.size()));
      put(body, message);
    }
    for (const Guest& guest : guests_) {
      if (guest.greeted()) answer(guest, Verdict::kWelcome, body, deadline_);
    }
    return all;
  }

  const RendezvousPlace& place_;
  const std::string& message_;
  Deadline deadline_;
  Socket listener_;
  std::vector<Guest> guests_;
  std::vector<Guest*> newcomers_;
};

std::vector<std::string> messages_in(const Bytes& body, int size) {
  std::vector<std::string> all;
  std::size_t at = 0;
  while (at + 4 <= body.size()) {
    const std::uint32_t bytes = number_at(body.data() + at);
    at += 4;
    if (bytes > body.size() - at) break;
    all.push_back(text_at(body.data() + at, bytes));
    at += bytes;
  }
  if (at != body.size() || all.size() != static_cast<std::size_t>(size)) {
    throw DeviceError("rank 0 sent a malformed answer at the rendezvous");
  }
  return all;
}

bool is_heard(const RendezvousPlace& place, const Socket& socket, Deadline deadline) {
  const bool waits = place.port_is_bound;
  const Deadline limit = Deadline::after_seconds(kHeardSeconds);
  Bytes heard(kMagicBytes);
  const bool answered =
      receive_all(socket, heard, waits || deadline.time() < limit.time() ? deadline : limit);
  if (answered && begins_with(heard, kHeard)) return true;
  // Its own hello: the socket has connected to itself, and nobody listens.
  const std::string reached =
      "rank " + std::to_string(place.rank) + " reached " + place_name(place) + ", where ";
  if (answered && !begins_with(heard, kHello)) {
    throw InputError(reached +
                     "another program listens and not rank 0; give the job a free MASTER_PORT");
  }
  if (!answered && !waits && limit.passed()) {
    throw InputError(reached + "nothing has answered as rank 0 does within " +
                     std::to_string(static_cast<int>(kHeardSeconds)) +
                     " s; if another program listens there, give the job a free MASTER_PORT");
  }
  return false;
}

Bytes hello_of(const RendezvousPlace& place, std::string_view magic, const std::string& message) {
  Bytes hello;
  put(hello, magic);
  put(hello, static_cast<std::uint32_t>(place.rank));
  put(hello, static_cast<std::uint32_t>(place.size));
  put(hello, static_cast<std::uint32_t>(place.job.size()));
  put(hello, static_cast<std::uint32_t>(message.size()));
  put(hello, place.job);
  put(hello, message);
  return hello;
}

// One attempt. Returns nothing if rank 0 was not there, or if another program answered.
std::optional<Meeting> ask(const RendezvousPlace& place, const std::string& message,
                           Deadline deadline) {
  Socket socket = connect_to(place.address, place.port, deadline);
  if (!socket) return std::nullopt;
  if (!send_all(socket, hello_of(place, kHello, message), deadline)) return std::nullopt;
  if (!is_heard(place, socket, deadline)) return std::nullopt;
  Bytes head(kAnswerBytes);
  if (!receive_all(socket, head, deadline) || !begins_with(head, kAnswer)) return std::nullopt;
  const auto verdict = static_cast<Verdict>(number_at(head.data() + kMagicBytes));
  const std::uint64_t bytes = number_at(head.data() + kMagicBytes + 4);
  const std::uint64_t most = static_cast<std::uint64_t>(place.size) * (4 + kMostRendezvousBytes);
  if (bytes > std::max<std::uint64_t>(most, 1 << 16)) return std::nullopt;
  Bytes body(bytes);
  if (!receive_all(socket, body, deadline)) return std::nullopt;
  const std::string text =
      verdict == Verdict::kWelcome ? std::string() : text_at(body.data(), body.size());
  if (verdict == Verdict::kDisagrees) throw RanksDisagree(text, true);
  if (verdict == Verdict::kOtherJob || verdict == Verdict::kTaken) throw InputError(text);
  if (verdict == Verdict::kTooLate) throw TimeoutError(text);
  if (verdict == Verdict::kLost) throw RankLost(text);
  Meeting meeting;
  meeting.messages = messages_in(body, place.size);
  meeting.sockets.push_back(std::move(socket));
  return meeting;
}

}  // namespace

Meeting meet_ranks(const RendezvousPlace& place, const std::string& message, Deadline deadline) {
  SLUICE_CHECK(place.size >= 1 && place.size <= kMostRanks);
  SLUICE_CHECK(place.rank >= 0 && place.rank < place.size);
  SLUICE_CHECK(message.size() <= kMostRendezvousBytes && place.job.size() <= kMostJobBytes);
  if (place.size == 1) return {{message}, {}, {}};
  if (place.rank == 0) return Host(place, message, deadline).gather();
  while (true) {
    if (auto meeting = ask(place, message, deadline)) return std::move(*meeting);
    if (deadline.passed()) {
      throw TimeoutError("rank 0's answer to rank " + std::to_string(place.rank) + " at " +
                         place_name(place) + " (MASTER_ADDR must be a name of its machine)");
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

void report_lost_rank(const RendezvousPlace& place, const std::string& why) {
  const Deadline deadline = Deadline::after_seconds(1);
  const Socket socket = connect_to(place.address, place.port, deadline);
  // A rank 0 that does not listen has met the others, or ends by itself.
  if (socket) static_cast<void>(send_all(socket, hello_of(place, kLostRank, why), deadline));
}

Door::Door(RendezvousPlace place, Socket listener, std::function<bool()> is_open, std::string lost)
    : place_(std::move(place)),
      listener_(std::move(listener)),
      is_open_(std::move(is_open)),
      lost_(std::move(lost)),
      thread_(start_thread("door", [this](const std::stop_token& stop) { serve(stop); })) {}

void Door::serve(const std::stop_token& stop) noexcept {
  constexpr int kPauseMs = 200;  // the longest that the destructor waits
  std::vector<Guest> guests;
  while (!stop.stop_requested()) {
    std::vector<pollfd> polled{{listener_.descriptor(), POLLIN, 0}};
    for (const Guest& guest : guests) polled.push_back({guest.socket.descriptor(), POLLIN, 0});
    static_cast<void>(::poll(polled.data(), polled.size(), kPauseMs));
    for (Guest& guest : guests) {
      guest.read();
      if (!guest.greeted()) {
        guest.gone = guest.gone || guest.greeting.passed();
        continue;
      }
      guest.gone = true;
      const Hello& hello = *guest.hello;
      // The control plane has noticed a rank that a launcher reports as lost.
      if (hello.is_lost || !is_open_()) continue;
      if (hello.job != place_.job) {
        refuse(guest, Verdict::kOtherJob, describe_other_job(place_));
      } else if (!lost_.empty()) {
        refuse(guest, Verdict::kLost, lost_);
      } else if (hello.size != static_cast<std::uint32_t>(place_.size)) {
        refuse(guest, Verdict::kTaken, describe_other_size(hello, place_));
      } else {
        refuse(guest, Verdict::kTaken, describe_twice(hello.rank, place_));
      }
    }
    std::erase_if(guests, [](const Guest& guest) { return guest.gone; });
    admit(listener_, guests);
  }
}

std::vector<std::string> exchange_messages(const RendezvousPlace& place, const std::string& message,
                                           Deadline deadline) {
  return meet_ranks(place, message, deadline).messages;
}

}  // namespace sluice::collectives
