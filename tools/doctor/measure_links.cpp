// An exchange among p ranks takes (p - 1) * latency + bytes / rate, where `bytes` leave each rank
// in equal parts (rank_links.cpp). One byte gives the latency of a pair, and large parts the rates.
#include "tools/doctor/measure_links.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>

#include "base/error.hpp"

namespace sluice::doctor {
namespace {

using Clock = std::chrono::steady_clock;

// A failed rank aborts the group, so no thread waits for it until its deadline.
void run_ranks(const RankGroup& group, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> errors(group.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          errors[rank] = std::current_exception();
          for (const auto& other : group) other->abort(error.what());
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

RankGroup make_group(const LinkOptions& options, int ranks) {
  return options.make_group ? options.make_group(ranks) : RankGroup();
}

// Seconds of one of several exchanges in a row. The first, which maps pages, is not timed.
double exchange_s(const RankGroup& group, std::uint64_t rank_bytes, int exchanges) {
  const std::uint64_t part = std::max<std::uint64_t>(rank_bytes / (group.size() - 1), 1);
  double seconds = 0;
  run_ranks(group, [&](std::size_t rank) {
    collectives::Communicator& own = *group[rank];
    std::vector<std::uint64_t> counts(group.size(), part);
    counts[rank] = 0;
    const std::vector<std::byte> sent(part * (group.size() - 1));
    std::vector<std::byte> received(sent.size());
    const auto exchange = [&] {
      own.all_to_all(sent.data(), counts, received.data(), counts, DType::kU8);
    };
    exchange();
    own.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < exchanges; ++i) exchange();
    if (rank == 0) {
      seconds = std::chrono::duration<double>(Clock::now() - begin).count() / exchanges;
    }
  });
  return seconds;
}

}  // namespace

LinkTrial::LinkTrial(const LinkOptions& options)
    : rank_bytes_(options.rank_bytes),
      pair_(make_group(options, 2)),
      node_(make_group(options, kNodeRanks)) {}

void LinkTrial::measure_round() {
  constexpr int kSmall = 50;
  constexpr int kLarge = 3;
  latency_s_.add(exchange_s(pair_, 1, kSmall));
  pair_s_.add(exchange_s(pair_, rank_bytes_, kLarge));
  node_s_.add(exchange_s(node_, rank_bytes_, kLarge));
}

void LinkTrial::save(planner::HardwareProfile& profile) const {
  planner::RankLinks links = profile.rank_links_or_default();
  links.latency_s = latency_s_.median();
  // A disturbed latency must not leave a rate without time.
  const auto rate_of = [&](double seconds, int messages) {
    return static_cast<double>(rank_bytes_) /
           std::max(seconds - messages * links.latency_s, seconds / 2);
  };
  links.bytes_per_s = rate_of(pair_s_.median(), 1);
  links.node_bytes_per_s = kNodeRanks * rate_of(node_s_.median(), kNodeRanks - 1);
  profile.rank_links = links;
}

}  // namespace sluice::doctor
