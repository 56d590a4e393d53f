#include "collectives/control/pending_gathers.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace sluice::collectives {

std::optional<std::string> PendingGathers::add(int rank, std::uint64_t number,
                                               const std::string& name,
                                               const std::string& message) {
  Gather& gather = gathers_[number];
  if (gather.messages.empty()) {
    gather.name = name;
    gather.first_rank = rank;
    gather.messages.resize(ranks_);
  }
  if (gather.name != name) {
    return "rank " + std::to_string(rank) + " gathers '" + shown(name) + "' where rank " +
           std::to_string(gather.first_rank) + " gathers '" + shown(gather.name) + "'";
  }
  std::optional<std::string>& place = gather.messages[static_cast<std::size_t>(rank)];
  if (place) return "rank " + std::to_string(rank) + " sent '" + shown(name) + "' twice";
  place = message;
  return std::nullopt;
}

std::optional<std::vector<std::string>> PendingGathers::take_complete(std::uint64_t number) {
  const auto found = gathers_.find(number);
  if (found == gathers_.end() || !find_missing(number).empty()) return std::nullopt;
  std::vector<std::string> messages;
  for (std::optional<std::string>& message : found->second.messages) {
    messages.push_back(std::move(*message));
  }
  gathers_.erase(found);
  return messages;
}

std::vector<int> PendingGathers::find_missing(std::uint64_t number) const {
  std::vector<int> missing;
  const auto found = gathers_.find(number);
  if (found == gathers_.end()) return missing;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (!found->second.messages[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::optional<std::string> PendingGathers::find_waiting_for(int rank) const {
  for (const auto& [number, gather] : gathers_) {
    if (!gather.messages[static_cast<std::size_t>(rank)]) return gather.name;
  }
  return std::nullopt;
}

}  // namespace sluice::collectives
