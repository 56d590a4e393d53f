// Reads the variables that torchrun sets (torch/distributed/elastic, "Environment Variables").
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/error.hpp"
#include "collectives/rendezvous.hpp"

namespace sluice::collectives {
namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int number_of(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw InputError(std::string(name) + "='" + std::string(text) + "': must be a number from " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

void require(const char* name, const char* because) {
  if (variable(name) != nullptr) return;
  throw InputError(
      std::string(name) + " is not set, but " + because +
      " is; start with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

}  // namespace

RendezvousPlace place_from_environment() {
  RendezvousPlace place;
  const bool has_rank = variable("RANK") != nullptr, has_size = variable("WORLD_SIZE") != nullptr;
  if (!has_rank && !has_size) return place;
  require("RANK", "WORLD_SIZE");
  require("WORLD_SIZE", "RANK");
  place.size = number_of("WORLD_SIZE", 1, 1 << 16);
  place.rank = number_of("RANK", 0, place.size - 1);
  if (place.size == 1) return place;
  require("MASTER_ADDR", "WORLD_SIZE");
  place.address = variable("MASTER_ADDR");
  constexpr int kMostPort = std::numeric_limits<std::uint16_t>::max();
  int port = 0;
  if (variable("SLUICE_MASTER_PORT") != nullptr) {
    port = number_of("SLUICE_MASTER_PORT", 1, kMostPort);
  } else {
    require("MASTER_PORT", "WORLD_SIZE");
    const char* const agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    const bool taken = agent != nullptr && std::string_view(agent) == "True";
    port = number_of("MASTER_PORT", 1, taken ? kMostPort - 1 : kMostPort) + (taken ? 1 : 0);
  }
  place.port = static_cast<std::uint16_t>(port);
  if (const char* const job = variable("TORCHELASTIC_RUN_ID")) place.job = job;
  if (place.job.size() > 256) place.job.resize(256);
  return place;
}

int local_rank_from_environment() {
  if (variable("LOCAL_RANK") == nullptr) return 0;
  return number_of("LOCAL_RANK", 0, std::numeric_limits<int>::max());
}

}  // namespace sluice::collectives
