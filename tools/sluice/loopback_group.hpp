// Ranks of this machine as threads of this process, over Gloo and loopback TCP like real ones.
#pragma once

#include <memory>
#include <vector>

#include "collectives/communicator.hpp"

namespace sluice::cli {

// Returns the communicators in rank order, none if this build has no Gloo. Throws
// CommunicationError, IoError, TimeoutError.
std::vector<std::unique_ptr<collectives::Communicator>> make_loopback_group(int ranks);

}  // namespace sluice::cli
