// The ranks share a hub with a mailbox for each ordered pair of ranks. A sender posts the address
// of its data and waits until the receiver has copied them. In a call every rank posts all that it
// sends before it takes anything, so a call in which all take part never deadlocks.
//
// A post lives on its sender's stack. A sender that gives up withdraws its posts, and waits for a
// copy that has begun, so no receiver reads memory that is gone.
#include "collectives/local/local_group.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.hpp"

namespace sluice::collectives {
namespace {

struct Post {
  enum class State { kOffered, kBeingCopied, kCopied };
  const char* call = nullptr;
  int tag = 0;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  State state = State::kOffered;
};

class Hub {
 public:
  explicit Hub(int ranks) : gone_(static_cast<std::size_t>(ranks)) {}

  void transfer(int rank, const char* call, int tag, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming, Deadline deadline) {
    std::vector<Post> posts;
    posts.reserve(outgoing.size());
    MutexLock lock(mutex_);
    check(call);
    for (const Outgoing& sent : outgoing) {
      posts.push_back({call, tag, sent.data, sent.bytes});
      mailboxes_[{rank, sent.peer}].push_back(&posts.back());
    }
    changed_.notify_all();
    try {
      for (const Incoming& received : incoming) {
        Post& post = claim(lock, rank, call, tag, received, deadline);
        lock.unlock();
        std::memcpy(received.data, post.data, post.bytes);
        lock.lock();
        post.state = Post::State::kCopied;
        changed_.notify_all();
      }
      for (std::size_t i = 0; i < posts.size(); ++i) {
        await(lock, rank, outgoing[i].peer, call, deadline,
              [&]() SLUICE_REQUIRES(mutex_) { return posts[i].state == Post::State::kCopied; });
      }
    } catch (const Error& error) {
      abort_locked(error.what());
      withdraw(lock, posts);
      throw;
    }
  }

  void abort(const std::string& why) {
    const MutexLock lock(mutex_);
    abort_locked(why);
  }
  void check_usable(const char* call) {
    const MutexLock lock(mutex_);
    check(call);
  }
  void leave(int rank) {
    const MutexLock lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

  // The hub of a group that is split off: the first of its members makes it, the last one takes it
  // out. number: of the split, which all ranks count alike.
  std::shared_ptr<Hub> share_hub(std::uint64_t number, std::span<const int> members) {
    const MutexLock lock(mutex_);
    const auto key = std::pair(number, std::vector<int>(members.begin(), members.end()));
    Split& split = splits_[key];
    if (split.hub == nullptr) split.hub = std::make_shared<Hub>(static_cast<int>(members.size()));
    std::shared_ptr<Hub> hub = split.hub;
    if (++split.joined == members.size()) splits_.erase(key);
    return hub;
  }

 private:
  struct Split {
    std::shared_ptr<Hub> hub;
    std::size_t joined = 0;
  };

  std::string describe(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(gone_.size());
  }

  void check(const char* call) const SLUICE_REQUIRES(mutex_) {
    if (is_aborted_) throw CommunicationError(-1, call, "the group was aborted: " + why_);
  }
  void abort_locked(const std::string& why) SLUICE_REQUIRES(mutex_) {
    if (!is_aborted_) {
      is_aborted_ = true;
      why_ = why;
    }
    changed_.notify_all();
  }

  // Waits for something that `peer` does.
  template <class Predicate>
  void await(MutexLock& lock, int rank, int peer, const char* call, Deadline deadline,
             Predicate done) SLUICE_REQUIRES(mutex_) {
    const bool woken = changed_.wait_until(lock, deadline, [&]() SLUICE_REQUIRES(mutex_) {
      return done() || is_aborted_ || gone_[static_cast<std::size_t>(peer)];
    });
    if (done()) return;
    check(call);
    if (!woken) throw TimeoutError(describe(peer) + " to join " + call + " on " + describe(rank));
    throw CommunicationError(peer, call, describe(peer) + " has left the group");
  }

  // Waits for the post that `received` matches, and takes it out for a copy.
  Post& claim(MutexLock& lock, int rank, const char* call, int tag, const Incoming& received,
              Deadline deadline) SLUICE_REQUIRES(mutex_) {
    std::deque<Post*>& mailbox = mailboxes_[{received.peer, rank}];
    const auto find = [&]() SLUICE_REQUIRES(mutex_) {
      return std::find_if(mailbox.begin(), mailbox.end(),
                          [&](const Post* post) { return post->tag == tag; });
    };
    await(lock, rank, received.peer, call, deadline,
          [&]() SLUICE_REQUIRES(mutex_) { return find() != mailbox.end(); });
    const auto found = find();
    Post& post = **found;
    if (post.bytes != received.bytes) {
      throw InternalError(describe(received.peer) + " sends " + std::to_string(post.bytes) +
                          " bytes in " + post.call + ", but " + describe(rank) + " awaits " +
                          std::to_string(received.bytes) + " in " + call);
    }
    mailbox.erase(found);
    post.state = Post::State::kBeingCopied;
    return post;
  }

  void withdraw(MutexLock& lock, const std::vector<Post>& posts) SLUICE_REQUIRES(mutex_) {
    for (auto& [pair, mailbox] : mailboxes_) {
      std::erase_if(mailbox, [&](const Post* post) {
        return std::any_of(posts.begin(), posts.end(),
                           [&](const Post& own) { return post == &own; });
      });
    }
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
      return std::none_of(posts.begin(), posts.end(),
                          [](const Post& post) { return post.state == Post::State::kBeingCopied; });
    });
  }

  Mutex mutex_;
  CondVar changed_;
  // By sender and receiver.
  std::map<std::pair<int, int>, std::deque<Post*>> mailboxes_ SLUICE_GUARDED_BY(mutex_);
  std::vector<bool> gone_;
  std::map<std::pair<std::uint64_t, std::vector<int>>, Split> splits_ SLUICE_GUARDED_BY(mutex_);
  bool is_aborted_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string why_ SLUICE_GUARDED_BY(mutex_);
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int rank, int size, double call_seconds)
      : Communicator(rank, size), hub_(std::move(hub)), call_seconds_(call_seconds) {}
  ~LocalCommunicator() override { hub_->leave(rank()); }

  void barrier() override {
    check_usable("barrier");
    meet_all();
  }
  std::unique_ptr<Communicator> split(std::span<const int> members) override {
    check_usable("split");
    check_members(members);
    const auto own = std::find(members.begin(), members.end(), rank()) - members.begin();
    return std::make_unique<LocalCommunicator>(hub_->share_hub(splits_++, members),
                                               static_cast<int>(own),
                                               static_cast<int>(members.size()), call_seconds_);
  }
  void abort(const std::string& why) noexcept override { hub_->abort(why); }

 protected:
  void check_usable(const char* call) override { hub_->check_usable(call); }
  void transfer(const char* call, int tag, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming) override {
    hub_->transfer(rank(), call, tag, outgoing, incoming, Deadline::after_seconds(call_seconds_));
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const double call_seconds_;
  std::uint64_t splits_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(int ranks, double call_seconds) {
  SLUICE_CHECK(ranks >= 1);
  const auto hub = std::make_shared<Hub>(ranks);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < ranks; ++rank) {
    group.push_back(std::make_unique<LocalCommunicator>(hub, rank, ranks, call_seconds));
  }
  return group;
}

}  // namespace sluice::collectives
