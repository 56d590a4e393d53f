#include "engine/train/world_events.hpp"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/core_shares.hpp"
#include "base/json_text.hpp"

namespace sluice::train {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string usable_processors() {
  cpu_set_t cpus;
  return ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? describe_cpus(cpus) : "unknown";
}

namespace {

RunEvent gather_json(World& world, const std::string& name, const RunEvent& own) {
  RunEvent all = RunEvent::array();
  const std::string text = lenient_json_text(own);
  for (const std::string& message : world.gather(name, text)) {
    all.push_back(parse_ordered_json(message));
  }
  return all;
}

}  // namespace

void add_messages(RunEvent& bytes_moved, const MessageCounts& counts) {
  bytes_moved["sent"] = {{"data", counts.data.sent}};
  bytes_moved["received"] = {{"data", counts.data.received}};
  if (counts.inner) {
    bytes_moved["sent"][counts.inner_name] = counts.inner->sent;
    bytes_moved["received"][counts.inner_name] = counts.inner->received;
  }
  if (!counts.stages) return;
  bytes_moved["sent"]["pipeline"] = counts.stages->sent;
  bytes_moved["received"]["pipeline"] = counts.stages->received;
}

void add_places(RunEvent& event, World& world) {
  if (world.alone()) return;
  event["places"] = gather_json(world, "the places of the ranks",
                                {{"rank", world.rank()},
                                 {"host", host_name()},
                                 {"process", ::getpid()},
                                 {"processors", usable_processors()}});
}

void add_ranks_to_done(RunEvent& event, World& world, const RunEvent& own) {
  if (world.alone()) return;
  event["ranks"] = world.size();
  event["per_rank"] = gather_json(world, "the figures of the ranks", own);
}

}  // namespace sluice::train
