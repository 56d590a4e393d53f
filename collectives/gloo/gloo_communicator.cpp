// Transfers over Gloo's unbound buffers. All receives of a call are posted, then all sends, then
// each is waited for with what is left of the deadline. The buffer that fails names the peer.
//
// Gloo takes the first program that connects to a port of a pair as the peer. So the ranks exchange
// secrets with their addresses, and each sends its peer that peer's secret over the new connection.
// If one does not arrive, or a rank could not connect because its place was taken, all ranks close
// their connections and make new ones at other ports.
//
// Gloo 0.5 has three habits that this file lives with. A wait that times out fails all pairs of its
// context, so no wait here is shorter than the call's deadline. Closing a context's connections
// does not wake its own waiters, so abort() wakes each buffer. And it writes to sockets without
// MSG_NOSIGNAL, so SIGPIPE is blocked on each thread that calls it, and on its own thread, which
// inherits the mask.
#include "collectives/gloo/gloo_communicator.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"
#include "collectives/abort_reason.hpp"

namespace sluice::collectives {

namespace {

using Buffers = std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>>;
// A connection to a rank that was stopped meanwhile ends no sooner.
constexpr std::chrono::milliseconds kConnectTimeout{8000};
// To connect to all ranks.
constexpr int kMostAttempts = 5;
constexpr std::string_view kConnected = "connected";

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

// Keeps SIGPIPE from the process while a call of Gloo may write to a closed socket.
class BlockedSigpipe {
 public:
  BlockedSigpipe() {
    sigset_t blocked = only_sigpipe();
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    // A signal that came meanwhile is this thread's own: take it.
    const sigset_t pipe = only_sigpipe();
    const timespec at_once{};
    while (::sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;

 private:
  static sigset_t only_sigpipe() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
  }
  sigset_t before_{};
};

// Gloo's view of the exchange of addresses. Gloo sets a key of this rank's and then gets those of
// the others, in the same order on all ranks, so each set is an exchange of pairs: the key, a 0,
// the value. (Gloo 0.5 has two rounds: host names, then addresses.)
class AddressStore final : public ::gloo::rendezvous::Store {
 public:
  AddressStore(MessageExchange exchange, Deadline deadline)
      : exchange_(std::move(exchange)), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& value) override {
    const std::string own = key + '\0' + std::string(value.begin(), value.end());
    for (const std::string& pair : exchange_(own, deadline_)) {
      const std::size_t end = pair.find('\0');
      if (end == std::string::npos) throw DeviceError("a rank sent malformed addresses to Gloo");
      values_[pair.substr(0, end)] = pair.substr(end + 1);
    }
    ++rounds_;
  }
  // How often the ranks have exchanged keys.
  int rounds() const { return rounds_; }
  std::vector<char> get(const std::string& key) override {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      throw DeviceError("the ranks have different versions of Gloo; install one on all machines");
    }
    return {found->second.begin(), found->second.end()};
  }
  void wait(const std::vector<std::string>& /*keys*/) override {}

 private:
  const MessageExchange exchange_;
  const Deadline deadline_;
  std::map<std::string, std::string> values_;
  int rounds_ = 0;
};
constexpr int kAddressRounds = 2;

// 128 bits that nobody guesses. IoError.
std::string make_secret() {
  std::string secret(16, '\0');
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw IoError("getrandom", "connections of a group", 0, secret.size(), errno);
  }
  return secret;
}

std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.time() - Deadline::Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

// Messages of one pair and slot match in order. A slot holds the call's name (a checksum of 8
// bits), the tag (16) and the bytes (40).
std::uint64_t slot_of(std::string_view call, int tag, std::uint64_t bytes) {
  SLUICE_CHECK(bytes < std::uint64_t{1} << 40);
  // A send and a receive are two names of one call.
  if (call == "receive") call = "send";
  std::uint64_t checksum = 0;
  for (const char letter : call) checksum = (checksum * 31 + static_cast<unsigned char>(letter));
  return (checksum & 0xff) << 56 | static_cast<std::uint64_t>(tag) << 40 | bytes;
}

// Gloo's text without the place in its source.
std::string text_of(const std::exception& error) {
  std::string_view text = error.what();
  if (text.starts_with("[/") || text.starts_with("[.")) {
    const std::size_t end = text.find("] ");
    if (end != std::string_view::npos) text.remove_prefix(end + 2);
  }
  return std::string(text);
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(const GlooOptions& options, GlooDevice device)
      : Communicator(options.rank, options.size), options_(options), device_(std::move(device)) {
    const BlockedSigpipe blocked;
    const Deadline deadline = Deadline::after_seconds(options.start_seconds);
    for (int attempt = 1;; ++attempt) {
      const std::vector<std::string> problems = options.exchange(connect(deadline), deadline);
      const auto problem = std::find_if(problems.begin(), problems.end(),
                                        [](const std::string& text) { return text != kConnected; });
      if (problem == problems.end()) return;
      if (attempt == kMostAttempts || deadline.passed()) {
        throw CommunicationError(-1, "connect",
                                 *problem +
                                     "; another program may have connected to a port of "
                                     "this job");
      }
    }
  }
  ~GlooCommunicator() override {
    const BlockedSigpipe blocked;
    context_.reset();
  }

  void barrier() override {
    check_usable("barrier");
    meet_all();
  }

  std::unique_ptr<Communicator> split(std::span<const int> members) override {
    check_usable("split");
    check_members(members);
    GlooOptions options = options_;
    options.size = static_cast<int>(members.size());
    options.rank =
        static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    if (options.size == 1) return make_single_communicator();
    options.exchange = [this, members](const std::string& message, Deadline /*deadline*/) {
      return exchange_among(members, message);
    };
    auto group = std::make_unique<GlooCommunicator>(options, device_);
    // It holds pointers of this call.
    group->options_.exchange = nullptr;
    return group;
  }

  void abort(const std::string& why) noexcept override { end(why, -1); }

 protected:
  void check_usable(const char* call) override { reason_.check(call); }

  void transfer(const char* call, int tag, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming) override {
    const BlockedSigpipe blocked;
    const Deadline deadline = Deadline::after_seconds(options_.call_seconds);
    Buffers buffers;
    int peer = -1;
    try {
      for (const Incoming& received : incoming) {
        peer = received.peer;
        buffers.push_back(context_->createUnboundBuffer(received.data, received.bytes));
        buffers.back()->recv(peer, slot_of(call, tag, received.bytes));
      }
      for (const Outgoing& sent : outgoing) {
        peer = sent.peer;
        // Gloo reads only.
        buffers.push_back(context_->createUnboundBuffer(const_cast<void*>(sent.data), sent.bytes));
        buffers.back()->send(peer, slot_of(call, tag, sent.bytes));
      }
      const Waiting waiting(*this, buffers);
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const bool receives = i < incoming.size();
        peer = receives ? incoming[i].peer : outgoing[i - incoming.size()].peer;
        // False: abort() woke it.
        const bool done = receives ? buffers[i]->waitRecv(time_left(deadline))
                                   : buffers[i]->waitSend(time_left(deadline));
        if (!done) break;
      }
    } catch (const std::exception& error) {
      fail(call, peer, deadline, text_of(error));
    }
    check_usable(call);
  }

 private:
  // Makes connections to all ranks. Returns kConnected, or a sentence that names the rank with
  // which there is none. Errors of the exchange pass.
  std::string connect(Deadline deadline) {
    const std::string secret = make_secret();
    std::vector<std::string> secrets = options_.exchange(secret, deadline);
    context_ = std::make_shared<::gloo::rendezvous::Context>(rank(), size());
    AddressStore store(options_.exchange, deadline);
    // All ranks are there, for they exchange their addresses first. Gloo waits five times as long.
    context_->setTimeout(std::clamp<std::chrono::milliseconds>(
        time_left(deadline) / 5, std::chrono::milliseconds(100), kConnectTimeout / 5));
    try {
      context_->connectFullMesh(store, device_);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      std::string text = describe_place() + ": " + text_of(error);
      // Others wait in an exchange that this rank has not come to.
      if (store.rounds() < kAddressRounds) throw CommunicationError(-1, "connect", text);
      return text;
    }
    const int stranger = find_stranger(secret, secrets);
    if (stranger < 0) return std::string(kConnected);
    // Ranks that wait for this one notice now.
    context_->closeConnections();
    return describe_place() + " has no connection to rank " + std::to_string(stranger);
  }

  // The first rank from which this rank's secret does not arrive in time; -1: there is none.
  int find_stranger(const std::string& secret, std::vector<std::string>& secrets) {
    std::vector<std::string> received(secrets.size(), std::string(secret.size(), '\0'));
    Buffers buffers;
    int peer = -1;
    try {
      for (peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const auto at = static_cast<std::size_t>(peer);
        buffers.push_back(context_->createUnboundBuffer(received[at].data(), received[at].size()));
        buffers.back()->recv(peer, slot_of("connect", 0, secret.size()));
        buffers.push_back(context_->createUnboundBuffer(secrets[at].data(), secrets[at].size()));
        buffers.back()->send(peer, slot_of("connect", 0, secrets[at].size()));
      }
      const auto end = std::chrono::steady_clock::now() + kConnectTimeout;
      const auto wait = [end] {
        return std::max(std::chrono::milliseconds(100),
                        std::chrono::duration_cast<std::chrono::milliseconds>(
                            end - std::chrono::steady_clock::now()));
      };
      std::size_t next = 0;
      for (peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const bool came = buffers[next++]->waitRecv(wait());
        const bool left = buffers[next++]->waitSend(wait());
        if (!came || !left || received[static_cast<std::size_t>(peer)] != secret) return peer;
      }
      return -1;
    } catch (const std::exception&) {
      return peer;
    }
  }

  // The buffers of a call under way, for abort(). One thread may send while another receives.
  class Waiting {
   public:
    Waiting(GlooCommunicator& group, const Buffers& buffers) : group_(group), buffers_(buffers) {
      const MutexLock lock(group_.mutex_);
      group_.waiting_.push_back(&buffers_);
      if (group_.reason_.is_set()) group_.wake_waiters();
    }
    ~Waiting() {
      const MutexLock lock(group_.mutex_);
      std::erase(group_.waiting_, &buffers_);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    GlooCommunicator& group_;
    const Buffers& buffers_;
  };

  void wake_waiters() SLUICE_REQUIRES(mutex_) {
    for (const Buffers* const buffers : waiting_) {
      for (const auto& buffer : *buffers) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
  }

  void end(const std::string& why, int failed_rank) noexcept {
    if (!reason_.set(why, failed_rank)) return;
    const BlockedSigpipe blocked;
    {
      const MutexLock lock(mutex_);
      wake_waiters();
    }
    // The peers notice now, not at their deadlines.
    context_->closeConnections();
  }

  // After an abort that reason is thrown: this rank's own connections are closed by then.
  [[noreturn]] void fail(const char* call, int peer, Deadline deadline, const std::string& text) {
    check_usable(call);
    const std::string peer_name = "rank " + std::to_string(peer) + " of " + std::to_string(size());
    if (deadline.passed()) {
      const std::string awaited = peer_name + " to join " + call + " on " + describe_place();
      end("the deadline passed while waiting for " + awaited, peer);
      throw TimeoutError(awaited);
    }
    const std::string why =
        describe_place() + " lost its connection to " + peer_name + " (" + text + ")";
    end(std::string(call) + ": " + why, peer);
    throw CommunicationError(peer, call, why);
  }

  // Every member's message, by this group's own transfers.
  std::vector<std::string> exchange_among(std::span<const int> members,
                                          const std::string& message) {
    std::vector<std::uint64_t> sizes(members.size());
    std::vector<std::string> messages(members.size());
    const std::uint64_t own_size = message.size();
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank()) continue;
      outgoing.push_back({members[i], &own_size, sizeof own_size});
      incoming.push_back({members[i], &sizes[i], sizeof sizes[i]});
    }
    transfer("split", 0, outgoing, incoming);
    outgoing.clear();
    incoming.clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank()) {
        messages[i] = message;
        continue;
      }
      SLUICE_CHECK(sizes[i] > 0 && sizes[i] <= kMostRendezvousBytes);
      messages[i].resize(sizes[i]);
      outgoing.push_back({members[i], message.data(), message.size()});
      incoming.push_back({members[i], messages[i].data(), messages[i].size()});
    }
    transfer("split", 1, outgoing, incoming);
    return messages;
  }

  GlooOptions options_;
  GlooDevice device_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;
  AbortReason reason_;
  Mutex mutex_;
  std::vector<const Buffers*> waiting_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const GlooOptions& options) {
  SLUICE_CHECK(options.rank >= 0 && options.rank < options.size);
  if (options.size == 1) return make_single_communicator();
  SLUICE_CHECK(options.exchange != nullptr);
  const BlockedSigpipe blocked;
  GlooDevice device;
  try {
    ::gloo::transport::tcp::attr address;
    address.hostname = options.address;
    device = ::gloo::transport::tcp::CreateDevice(address);
  } catch (const std::exception& error) {
    throw CommunicationError(options.rank, "connect",
                             "Gloo cannot listen at '" + options.address + "': " + error.what());
  }
  return std::make_unique<GlooCommunicator>(options, std::move(device));
}

}  // namespace sluice::collectives
