// Whole training runs of several ranks, each on a thread of its own. They meet over loopback as
// processes would; their groups are local.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/local/local_group.hpp"
#include "collectives/socket.hpp"
#include "engine/train/world.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

class RankWorlds {
 public:
  explicit RankWorlds(int ranks)
      : listener_(collectives::listen_at("127.0.0.1", 0)),
        data_(collectives::make_local_group(ranks, 60)),
        host_(collectives::make_local_group(ranks, 60)),
        messages_(collectives::make_local_group(ranks, 60)),
        inner_(collectives::make_local_group(ranks, 60)) {}

  int size() const { return static_cast<int>(host_.size()); }
  // On the rank's own thread: waits for the others.
  std::unique_ptr<train::World> join(int rank) {
    train::WorldOptions options;
    options.place.rank = options.place.local_rank = rank;
    options.place.size = options.place.local_size = size();
    options.place.port = collectives::port_of(listener_);
    options.place.listener = rank == 0 ? listener_.descriptor() : -1;
    options.place.job = "threads";
    const auto at = static_cast<std::size_t>(rank);
    options.make_group = [this, at](const auto&, const auto&) {
      if (data_[at] != nullptr) return std::move(data_[at]);
      if (host_[at] != nullptr) return std::move(host_[at]);
      return messages_[at] != nullptr ? std::move(messages_[at]) : std::move(inner_[at]);
    };
    options.control.start_seconds = 60;
    return std::make_unique<train::World>(options);
  }

 private:
  collectives::Socket listener_;
  std::vector<std::unique_ptr<collectives::Communicator>> data_, host_, messages_, inner_;
};

// Runs the configuration on all ranks of its job. Returns the first rank's record. options.world is
// not read.
inline TrainingRecord train_in_world(const config::Config& config,
                                     const train::TrainingOptions& options = {}) {
  RankWorlds worlds(static_cast<int>(config.parallel.ranks()));
  if (worlds.size() == 1) return TrainingBench::run(config, options);
  TrainingRecord record;
  run_in_threads(worlds.size(), [&](int rank) {
    const std::unique_ptr<train::World> world = worlds.join(rank);
    train::TrainingOptions own = options;
    own.world = world.get();
    TrainingRecord of_rank = TrainingBench::run(config, own);
    if (rank == 0) record = std::move(of_rank);
  });
  return record;
}

// Two of the run's steps by the ranks of one configuration and the others by those of another give
// the bits of the whole run. `run` is the name of the run directory of both.
inline void expect_resumed_bits(const TrainingBench& bench, const std::string& run,
                                const config::Config& from, const config::Config& to,
                                const TrainingRecord& whole) {
  train::TrainingOptions options;
  options.stop_at_step = 2;
  TrainingRecord record = train_in_world(from, options);
  ASSERT_EQ(record.end, train::TrainingEnd::kDone);
  train::TrainingOptions resume;
  resume.resume = bench.run_directory(run);
  record.append(train_in_world(to, resume));
  EXPECT_EQ(record.losses, whole.losses);
  EXPECT_EQ(record.norms, whole.norms);
  EXPECT_EQ(record.eval_losses, whole.eval_losses);
  EXPECT_EQ(record.weights_hash, whole.weights_hash);
}

}  // namespace sluice::testing
