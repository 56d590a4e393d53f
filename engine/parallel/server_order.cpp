// A worker takes the weights that the server has just made of its own gradient, and computes its
// next micro-batch with them, while the server goes on with gradients of others. So a micro-batch
// reads the version after its rank's last arrival, and lacks all updates since.
#include "engine/parallel/server_order.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/rng.hpp"

namespace sluice::parallel {

std::vector<std::int32_t> draw_arrivals(std::int32_t ranks, std::int32_t updates,
                                        std::uint64_t seed) {
  SLUICE_CHECK(ranks > 0 && updates >= ranks);
  const CounterRng draws(seed, stream_of("arrivals"));
  std::vector<std::int32_t> arrivals;
  for (std::int32_t update = 0; update < updates; ++update) arrivals.push_back(update % ranks);
  for (std::size_t left = arrivals.size(); left > 1; --left) {
    std::swap(arrivals[left - 1], arrivals[draws.below(left, left)]);
  }
  return arrivals;
}

schedule::PipelineOrder make_server_order(const schedule::RankView& view, std::int32_t updates,
                                          std::int32_t rounds) {
  using schedule::ActionKind;
  SLUICE_CHECK(updates > 0 && rounds > 0);
  schedule::PipelineOrder order;
  order.updates = updates;
  order.microbatches = updates * rounds;
  order.rank_of_stage = {0};
  order.actions.resize(1);
  std::vector<std::int32_t> newest(static_cast<std::size_t>(view.ranks));  // by rank
  for (std::int32_t k = 0; k < order.microbatches; ++k) {
    order.actions.front().push_back({ActionKind::kForward, 0, k});
    order.actions.front().push_back({ActionKind::kBackward, 0, k});
    if (view.arrivals.empty()) {
      order.versions.push_back(k / rounds);
      continue;
    }
    std::int32_t& has =
        newest[static_cast<std::size_t>(view.arrivals[static_cast<std::size_t>(k)])];
    order.versions.push_back(std::exchange(has, k + 1));
  }
  return order;
}

}  // namespace sluice::parallel
