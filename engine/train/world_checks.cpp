#include "engine/train/world_checks.hpp"

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "engine/config/schema.hpp"

namespace sluice::train {
namespace {

std::string count_of(std::int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

void check_ranks(const config::Config& config, int ranks) {
  const std::int64_t asked = config.parallel.ranks();
  if (config.parallel.inner_ranks() > 1 && asked != ranks) {
    std::string product = "parallel.data";
    if (config.parallel.pipeline > 1) product += " * parallel.pipeline";
    if (config.parallel.context > 1) product += " * parallel.context";
    if (config.parallel.tensor > 1) product += " * parallel.tensor";
    throw InputError(product + " is " + std::to_string(asked) + ", and " +
                     (ranks == 1 ? std::string("this process is alone")
                                 : "the job has " + count_of(ranks, "rank")) +
                     "; start as many (sluice launch -n " + std::to_string(asked) +
                     " -- train ...)");
  }
  if (config.parallel.pipeline > 1 && asked != ranks) {
    throw InputError(
        "parallel.data * parallel.pipeline is " + std::to_string(config.parallel.data) + " * " +
        std::to_string(config.parallel.pipeline) + ", and the job has " + count_of(ranks, "rank") +
        "; start as many (sluice launch -n " + std::to_string(asked) + " -- train ...)");
  }
  if (asked != ranks) {
    const std::string here = ranks == 1 ? std::string("this process is alone")
                                        : "the job has " + count_of(ranks, "rank");
    throw InputError("parallel.data is " + std::to_string(asked) + ", and " + here +
                     "; start as many ranks (sluice launch -n " + std::to_string(asked) +
                     " -- train ...), or set parallel.data = " + std::to_string(ranks));
  }
}

World::Facts facts_of_start(const config::Config& config) {
  World::Facts facts{{"a program with the digest", hash_file("/proc/self/exe")}};
  for (const config::ConfigKey& key : config::config_schema()) {
    facts.emplace_back(key.path + " =", config::format_value(key, key.read(config)));
  }
  return facts;
}

}  // namespace sluice::train
