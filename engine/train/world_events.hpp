// The part of a run's events that is about its ranks. A run of one rank has none.
#pragma once

#include <optional>
#include <string>

#include "collectives/communicator.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/world.hpp"

namespace sluice::train {

// The name of this machine, and the processors on which this process may run: "0-3,8".
std::string host_name();
std::string usable_processors();

// Adds the bytes that the rank sent and received to "bytes_moved", by mesh dimension: "data" for
// all collectives, "pipeline" for the messages between stages, "tensor" or "context" for a group
// that computes micro-batches together, or "inner" for both.
struct MessageCounts {
  collectives::ByteCounts data;
  std::optional<collectives::ByteCounts> stages;  // of a pipeline
  std::optional<collectives::ByteCounts> inner;   // in a tensor or context group
  std::string inner_name = "tensor";
};
void add_messages(RunEvent& bytes_moved, const MessageCounts& counts);

// Adds "places" to a plan event: where each rank runs. All ranks call it.
void add_places(RunEvent& event, World& world);
// Adds to a done event the number of ranks, and every rank's members of `own`. All ranks call it.
void add_ranks_to_done(RunEvent& event, World& world, const RunEvent& own);

}  // namespace sluice::train
