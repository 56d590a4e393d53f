// Rank 0's book of the gathers under way: which messages have come. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::collectives {

class PendingGathers {
 public:
  explicit PendingGathers(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  // Adds a rank's message to the gather with this number. Returns a sentence if the rank names
  // another thing than the ranks before it, or comes twice.
  std::optional<std::string> add(int rank, std::uint64_t number, const std::string& name,
                                 const std::string& message);
  // All messages, once the last has come; the gather is then forgotten.
  std::optional<std::vector<std::string>> take_complete(std::uint64_t number);
  // The ranks that a gather still waits for.
  std::vector<int> find_missing(std::uint64_t number) const;
  // The name of a gather that waits for `rank`, if any does.
  std::optional<std::string> find_waiting_for(int rank) const;

 private:
  struct Gather {
    std::string name;
    int first_rank = 0;  // that named it
    std::vector<std::optional<std::string>> messages;
  };

  std::size_t ranks_;
  std::map<std::uint64_t, Gather> gathers_;
};

}  // namespace sluice::collectives
