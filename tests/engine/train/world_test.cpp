// Ranks agree before and between steps, and the others report a fault of one.
#include "engine/train/world.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "engine/run/resume_point.hpp"
#include "engine/train/world_checks.hpp"
#include "engine/train/world_plan.hpp"
#include "kernels/host/parallel.hpp"
#include "tests/support/training_world.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// The texts of the errors that the ranks threw, and which of them print it.
struct Told {
  std::array<std::string, 3> texts;
  std::array<bool, 3> silent{};
};

Told run_three(const std::function<void(World&)>& body) {
  RankWorlds worlds(3);
  Told told;
  run_in_threads(3, [&](int rank) {
    const std::unique_ptr<World> world = worlds.join(rank);
    world->connect(false, false);
    const auto at = static_cast<std::size_t>(rank);
    try {
      body(*world);
    } catch (const JobError& error) {
      told.texts[at] = error.what();
      told.silent[at] = error.is_already_reported();
    }
    if (!world->alone()) world->finish();
  });
  return told;
}

TEST(World, APartThatFailsOnOneRankFailsOnAllAndIsToldOnce) {
  const Told told = run_three([](World& world) {
    world.agree("a part", [&] {
      if (world.rank() > 0) throw InputError("the disk of " + std::to_string(world.rank()));
    });
  });
  for (const std::string& text : told.texts) EXPECT_EQ(text, "rank 1 of 3: the disk of 1");
  EXPECT_EQ(told.silent, (std::array{false, true, true}));
}

TEST(World, TheFirstRankSpeaksForAll) {
  const Told told = run_three(
      [](World& world) { world.agree("a part", [] { throw InputError("a wrong key"); }); });
  for (const std::string& text : told.texts) EXPECT_EQ(text, "a wrong key");
}

// resume_newest() goes on to an older run.
TEST(World, NoStateStaysNoState) {
  RankWorlds worlds(2);
  run_in_threads(2, [&](int rank) {
    const std::unique_ptr<World> world = worlds.join(rank);
    EXPECT_THROW(world->agree("a state",
                              [&] {
                                if (rank == 0) throw run::NoState("nothing there");
                              }),
                 run::NoState);
    world->finish();
  });
}

TEST(World, TheFirstFactThatDiffersIsNamed) {
  const Told told = run_three([](World& world) {
    const std::string lr = world.rank() == 2 ? "0.2" : "0.1";
    world.check_equal("the start", {{"train.seq =", "8"}, {"optimizer.lr =", lr}}, "start anew");
  });
  for (const std::string& text : told.texts) {
    EXPECT_EQ(text, "rank 2 of 3 has optimizer.lr = 0.2, and rank 0 has 0.1; start anew");
  }
  EXPECT_EQ(told.silent, (std::array{false, true, true}));
}

TEST(World, AnyRanksSignalOrFaultStopsAll) {
  run_three([](World& world) {
    EXPECT_EQ(world.vote_on_stop({}).signal, 0);
    EXPECT_EQ(world.vote_on_stop({world.rank() == 1 ? 15 : 0, ""}).signal, 15);
    EXPECT_EQ(world.stop_signal(), 15);
    const World::StopVote vote =
        world.vote_on_stop({0, world.rank() == 2 ? "the disk is full" : ""});
    EXPECT_EQ(vote.fault, "rank 2 of 3: the disk is full");
  });
}

// The others wait in an exchange when rank 1 fails.
TEST(World, AFaultNamesTheRankAndTheOperation) {
  RankWorlds worlds(3);
  std::array<std::string, 3> texts;
  run_in_threads(3, [&](int rank) {
    const std::unique_ptr<World> world = worlds.join(rank);
    world->connect(false, false);
    try {
      if (rank == 1) throw Error("the data cannot be read");
      world->vote_on_stop({});
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(rank)] = world->explain(error, " after step 3").what();
    }
  });
  EXPECT_EQ(texts[1], "the data cannot be read");
  EXPECT_EQ(texts[0],
            "rank 1 of 3: the data cannot be read; rank 0 of 3 waited for it in the vote on a stop "
            "after step 3");
}

// A fault on which the ranks have agreed has its rank in front, and gets no other; each rank may
// add where its own state is saved.
TEST(World, AnAgreedFaultNamesItsRankOnce) {
  RankWorlds worlds(3);
  std::array<std::string, 3> texts;
  run_in_threads(3, [&](int rank) {
    const std::unique_ptr<World> world = worlds.join(rank);
    world->connect(false, false);
    const std::string fault = world->vote_on_stop({0, rank == 2 ? "the disk is full" : ""}).fault;
    const Error own(fault + "; step 1 is saved in " + std::to_string(rank));
    texts[static_cast<std::size_t>(rank)] = world->explain(own).what();
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text.rfind("rank 2 of 3: the disk is full; step 1 is saved in ", 0), 0u) << text;
  }
}

// Leaves the calling thread the first of its processors.
void bind_to_one_processor() {
  cpu_set_t usable, first;
  ASSERT_EQ(::sched_getaffinity(0, sizeof usable, &usable), 0);
  CPU_ZERO(&first);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) CPU_SET(cpu, &first);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
}

// A launcher that binds each rank to processors of its own has divided them already.
TEST(World, RanksDivideTheThreadsUnlessTheirProcessorsDiffer) {
  const std::int64_t usable = kernels::host::Parallel::default_threads();
  if (usable == 1) GTEST_SKIP() << "one processor is there";
  for (const bool bound : {false, true}) {
    run_three([&](World& world) {
      if (bound && world.rank() == 2) bind_to_one_processor();
      const bool divides = share_processors(world);
      EXPECT_EQ(divides, !bound);
      if (!world.is_first()) return;
      config::Config config;
      settle_for_ranks(world, divides, {}, config);
      EXPECT_EQ(config.train.threads, bound ? usable : std::max<std::int64_t>(1, usable / 3));
      config.train.threads = 7;
      settle_for_ranks(world, divides, {}, config);
      EXPECT_EQ(config.train.threads, 7);
    });
  }
}

TEST(World, ItsSizeIsThatOfTheConfiguration) {
  config::Config config;
  config.parallel.data = 2;
  EXPECT_NO_THROW(check_ranks(config, 2));
  EXPECT_THROW(check_ranks(config, 3), InputError);
  EXPECT_THROW(check_ranks(config, 1), InputError);
  config.memory.backend = config::Config::Backend::kCuda;
  EXPECT_NO_THROW(check_ranks(config, 2));
}

}  // namespace
}  // namespace sluice::train
